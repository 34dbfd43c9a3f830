//! Random choices and noise. All numbers are functions of (seed, call, global index): the same under any layout, and none is compared
//! in 16 bits, so that probabilities are what they say for such elements too.

use crate::{Dim, Error, Mesh, Placements, Result, Shape, ShardTensor};
use shard_comm::{Call, Calling, DType};
use shard_ops::random::{Distribution, random};
use shard_ops::rng::Stream;
use shard_ops::{Exec, elementwise, key_of};
use shard_redistribute::RedistributeError;
use shard_spec::Layout;
use std::ops::Range;

/// The value of `selu` at -∞.
const SELU_LEAST: f64 = -1.758_099_340_847_376_6;

impl Mesh {
    /// Uniform random integers in a range, without its end, as `i64`.
    ///
    /// # Collective
    /// As [`rand`](Self::rand).
    ///
    /// # Errors
    /// As [`uniform`](Self::uniform).
    #[track_caller]
    pub fn randint(
        &self,
        shape: impl Into<Shape>,
        range: Range<i64>,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        let _call = Calling::of("randint");
        let range = range.start as f64..range.end as f64;
        self.with_dtype(DType::I64)
            .uniform_as("randint", &shape.into(), range, &placements.into())
    }

    /// The numbers 0, 1, ... `n - 1` in random order, each order as likely, as `i64`.
    ///
    /// # Collective
    /// As [`rand`](Self::rand); random numbers are [sorted](ShardTensor::argsort).
    ///
    /// # Errors
    /// As [`Placements::layout`]; what the communicator reports.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let order = launch(3, |ctx| {
    ///     ctx.mesh_of(3)?.randperm(5, [shard(0)])?.argsort(0, false)?.to_array::<i64>()
    /// })?;
    /// assert_eq!(order[0].len(), 5);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn randperm(&self, n: usize, placements: impl Into<Placements>) -> Result<ShardTensor> {
        let _call = Calling::of("randperm");
        // Of two equal numbers, of 53 bits, the first stays first.
        let keys = self.with_dtype(DType::F64).rand(n, placements)?;
        keys.argsort(0, false)
    }

    /// Normal random numbers of a mean and a standard deviation, under the condition that they lie in a range.
    ///
    /// # Collective
    /// As [`rand`](Self::rand).
    ///
    /// # Errors
    /// As [`Placements::layout`]; [`Argument`](Error::Argument) for integers, a deviation that is not above 0 and a range that ends
    /// before it starts or has no such numbers.
    #[track_caller]
    pub fn trunc_normal(
        &self,
        shape: impl Into<Shape>,
        mean: f64,
        deviation: f64,
        range: Range<f64>,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        let _call = Calling::of("trunc_normal");
        // Through the inverse of the distribution, as PyTorch's; `2 Φ(x) - 1` is `erf(x / √2)`.
        let share = |x: f64| {
            let mut y = [0.0];
            let x = (x - mean) / deviation * std::f64::consts::FRAC_1_SQRT_2;
            shard_kernels::unary::Unary::Erf.eval(0, &[x], &mut y);
            y[0]
        };
        let (low, high) = (share(range.start), share(range.end));
        if !(deviation > 0.0 && low < high) {
            return Err(Error::argument(
                "trunc_normal",
                "a deviation above 0, and a range with room for such numbers",
                format!("deviation {deviation}, range {range:?}"),
                "draw with `randn` and `clamp`, or give another range",
            ));
        }
        let shares = self
            .with_dtype(DType::F64)
            .uniform(shape, low..high, placements)?;
        let normal = shares
            .erfinv()?
            .mul_scalar(deviation * std::f64::consts::SQRT_2)?;
        let within = normal.add_scalar(mean)?.clamp(range.start, range.end)?;
        within.to(self.dtype())
    }
}

/// Random choices by this tensor's elements, and noise on them. The numbers are drawn where the elements are.
impl ShardTensor {
    /// 1 with the probability that each element is, else 0, in the tensor's type. No gradient passes.
    ///
    /// # Collective
    /// All ranks of the program must draw the same tensors in the same order. One number moves, since all ranks must know whether there
    /// are probabilities; a partial tensor is reduced first.
    ///
    /// # Errors
    /// For types that are no floats; [`Argument`](Error::Argument) for elements that are no probabilities, as logits are none.
    #[track_caller]
    pub fn bernoulli(&self) -> Result<Self> {
        let _call = Calling::of("bernoulli");
        self.tossed("bernoulli")
    }

    /// As [`bernoulli`](Self::bernoulli), for another op.
    #[track_caller]
    pub(crate) fn tossed(&self, op: &'static str) -> Result<Self> {
        // Taken before a look at the elements, as for what is chosen.
        let stream = self.context().next_stream();
        let x = self.detach().summed(op)?;
        let fits = x.ge_scalar(0.0)?.logical_and(&x.le_scalar(1.0)?)?;
        if fits.all(.., false)?.item_if_member()? == Some(0.0) {
            return Err(Error::argument(
                op,
                "probabilities",
                "elements below 0, above 1 or NaN",
                "give numbers from 0 to 1; of logits `sigmoid` makes some",
            ));
        }
        let fine = fine(x.dtype());
        x.drawn_from(stream, fine, x.layout(), Distribution::Unit)?
            .lt(&x.to(fine)?)?
            .to(self.dtype())
    }

    /// Elements become 0 with probability `p`, and the others are divided by `1 - p`. For training: leave it out otherwise.
    ///
    /// # Collective
    /// As [`bernoulli`](Self::bernoulli); partial sums stay partial.
    ///
    /// # Errors
    /// For a `p` that is not in `0 ..= 1`, and types that are no floats.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let sums = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.ones(1000, [shard(0).sizes([300, 700])])?;
    ///     x.dropout(0.5)?.sum_all()?.item()
    /// })?;
    /// assert!(sums[0] == sums[1] && (sums[0] - 1000.0).abs() < 200.0 && sums[0] % 2.0 == 0.0);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn dropout(&self, p: f64) -> Result<Self> {
        let _call = Calling::of("dropout");
        self.dropped("dropout", p, self.ndim())
    }

    /// [`dropout`](Self::dropout) of whole channels of `[batch, channels, length]` or `[channels, length]`.
    ///
    /// # Collective
    /// As [`dropout`](Self::dropout).
    ///
    /// # Errors
    /// As [`dropout`](Self::dropout); for other numbers of dims.
    #[track_caller]
    pub fn dropout1d(&self, p: f64) -> Result<Self> {
        let _call = Calling::of("dropout1d");
        let dims = self.channels("dropout1d", &[2, 3])?;
        self.dropped("dropout1d", p, dims - 1)
    }

    /// [`dropout`](Self::dropout) of whole channels of `[batch, channels, rows, columns]`, or of `[batch, channels, length]`.
    ///
    /// # Collective
    /// As [`dropout`](Self::dropout).
    ///
    /// # Errors
    /// As [`dropout`](Self::dropout); for other numbers of dims.
    #[track_caller]
    pub fn dropout2d(&self, p: f64) -> Result<Self> {
        let _call = Calling::of("dropout2d");
        self.channels("dropout2d", &[3, 4])?;
        self.dropped("dropout2d", p, 2)
    }

    /// [`dropout`](Self::dropout) of whole channels of `[batch, channels, depth, rows, columns]`, or of one such without a batch.
    ///
    /// # Collective
    /// As [`dropout`](Self::dropout).
    ///
    /// # Errors
    /// As [`dropout`](Self::dropout); for other numbers of dims.
    #[track_caller]
    pub fn dropout3d(&self, p: f64) -> Result<Self> {
        let _call = Calling::of("dropout3d");
        let dims = self.channels("dropout3d", &[4, 5])?;
        self.dropped("dropout3d", p, dims - 3)
    }

    /// [`dropout`](Self::dropout) of whole samples, which are the indices of dim 0 (stochastic depth): for the branch of a residual
    /// layer, as [`nn::DropPath`](crate::nn::DropPath).
    ///
    /// # Collective
    /// As [`dropout`](Self::dropout).
    ///
    /// # Errors
    /// As [`dropout`](Self::dropout); for tensors without dims.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let rows = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.ones([6, 3], shard(1))?;
    ///     x.drop_path(0.5)?.sum(1, false)?.to_array::<f32>()
    /// })?;
    /// assert!(rows[0].iter().all(|row| [0.0, 6.0].contains(row)));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn drop_path(&self, p: f64) -> Result<Self> {
        let _call = Calling::of("drop_path");
        if self.ndim() == 0 {
            return Err(Error::argument(
                "drop_path",
                "samples along dim 0",
                "no dims",
                "use dropout",
            ));
        }
        self.dropped("drop_path", p, 1)
    }

    /// Elements become the least value of `selu` with probability `p`, and all are scaled and shifted so that mean 0 and variance
    /// 1 stay.
    ///
    /// # Collective
    /// As [`bernoulli`](Self::bernoulli).
    ///
    /// # Errors
    /// As [`dropout`](Self::dropout).
    #[track_caller]
    pub fn alpha_dropout(&self, p: f64) -> Result<Self> {
        let _call = Calling::of("alpha_dropout");
        self.alpha_dropped("alpha_dropout", p, self.ndim())
    }

    /// [`alpha_dropout`](Self::alpha_dropout) of whole channels of `[batch, channels, ...]`.
    ///
    /// # Collective
    /// As [`bernoulli`](Self::bernoulli).
    ///
    /// # Errors
    /// As [`dropout`](Self::dropout); for fewer than two dims.
    #[track_caller]
    pub fn feature_alpha_dropout(&self, p: f64) -> Result<Self> {
        let _call = Calling::of("feature_alpha_dropout");
        if self.ndim() < 2 {
            return Err(Error::argument(
                "feature_alpha_dropout",
                "two dims or more",
                format!("shape {:?}", self.shape()),
                "use alpha_dropout",
            ));
        }
        self.alpha_dropped("feature_alpha_dropout", p, 2)
    }

    /// Samples of classes along a dim that have gradients, as `torch.nn.functional.gumbel_softmax`: the softmax of `(x + noise) / tau` of logits.
    /// With `hard` they are 1 at the largest and 0 elsewhere, with the same gradients.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let chosen = launch(2, |ctx| {
    ///     let logits = ctx.mesh_of(2)?.zeros([6, 5], shard(1))?;
    ///     logits.gumbel_softmax(0.5, true, -1)?.sum(1, false)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(chosen[0].as_slice(), Some(&[1.0; 6][..]));
    /// assert_eq!(chosen[0], chosen[1]);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program must draw the same tensors in the same order. As [`softmax`](Self::softmax), and with `hard` as
    /// [`argmax`](Self::argmax).
    ///
    /// # Errors
    /// For a dim out of range, a `tau` that is not above 0, and types that are no floats.
    #[track_caller]
    pub fn gumbel_softmax(&self, tau: f64, hard: bool, dim: impl Into<Dim>) -> Result<Self> {
        let _call = Calling::of("gumbel_softmax");
        if !(tau > 0.0 && self.dtype().is_float()) {
            return Err(Error::argument(
                "gumbel_softmax",
                "floats, and a tau above 0",
                format!("{}, and {tau}", self.dtype()),
                "give another tau, or convert with `to`",
            ));
        }
        let (x, dim) = self.line("gumbel_softmax", dim)?;
        let x = x.summed("gumbel_softmax")?;
        let fine = fine(x.dtype());
        // How long one waits, at least half the distance of numbers that are drawn: the logarithm of 0 would win whatever the logits are.
        let least = if fine == DType::F64 {
            2_f64.powi(-54)
        } else {
            2_f64.powi(-25)
        };
        let drawn = x.drawn(fine, x.layout(), Distribution::Unit)?;
        let waits = drawn.neg()?.log1p()?.neg()?.clamp(least, f64::INFINITY)?;
        let noisy = x.to(fine)?.sub(&waits.log()?)?;
        let soft = noisy.mul_scalar(tau.recip())?.softmax(dim)?;
        let chosen = match hard {
            true => soft.largest(dim)?.sub(&soft.detach())?.add(&soft)?,
            false => soft,
        };
        self.of_line(chosen.to(self.dtype())?)
    }

    /// 1 at the largest element along a dim, the first of equal ones, and 0 elsewhere.
    #[track_caller]
    fn largest(&self, dim: usize) -> Result<Self> {
        let index = self.detach().argmax_keepdim(dim)?;
        let n = self.shape()[dim];
        let own = self.layout().sharding(dim).cloned();
        let along = Layout::from_dims(self.layout().mesh(), &[n], [own], None)?;
        let mut shape = vec![1; self.ndim()];
        shape[dim] = n;
        let places = self.mesh().with_dtype(DType::I64).arange(n, along)?;
        places.reshape(shape)?.eq(&index)?.to(self.dtype())
    }

    /// `x` at and above 0, and below it `x` times a number drawn for each element from a range. In `training`; otherwise the number
    /// is the range's middle.
    ///
    /// # Collective
    /// As [`bernoulli`](Self::bernoulli).
    ///
    /// # Errors
    /// For a range that is not finite or ends before it starts; for types that are no floats.
    #[track_caller]
    pub fn rrelu(&self, range: Range<f64>, training: bool) -> Result<Self> {
        let _call = Calling::of("rrelu");
        let (start, width) = (range.start, range.end - range.start);
        if !(width.is_finite() && width >= 0.0) {
            return Err(Error::argument(
                "rrelu",
                "a finite range that does not end before it starts",
                format!("{range:?}"),
                "swap its ends",
            ));
        }
        if !training {
            return self.leaky_relu(start + 0.5 * width);
        }
        let x = self.summed("rrelu")?;
        let slopes = x.drawn(
            self.dtype(),
            x.layout(),
            Distribution::Uniform { start, width },
        )?;
        x.run2(&slopes, elementwise::leaky)
    }

    /// Of rows of weights, the last dim: the numbers of `count` of them, drawn in proportion to the weights, as `i64`. Without
    /// `replacement` no number comes twice.
    ///
    /// # Collective
    /// As [`bernoulli`](Self::bernoulli). The weights' sums along rows, or with a sharded last dim the best candidates, move; and
    /// one number, since all ranks must know whether there is enough to draw from.
    ///
    /// # Errors
    /// For tensors that have not one or two dims; for negative weights, NaN or infinity, and rows without so many weights above 0;
    /// for types other than `f32` and `f64`.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let drawn = launch(2, |ctx| {
    ///     let weights = ctx.mesh_of(2)?.from_fn(6, [shard(0)], |i| (i[0] % 2) as f64)?;
    ///     weights.multinomial(3, false)?.to_array::<i64>()
    /// })?;
    /// let mut drawn = drawn[0].iter().copied().collect::<Vec<_>>();
    /// drawn.sort();
    /// assert_eq!(drawn, [1, 3, 5]);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn multinomial(&self, count: usize, replacement: bool) -> Result<Self> {
        let _call = Calling::of("multinomial");
        match self.ndim() {
            1 | 2 => self.chosen("multinomial", count, replacement),
            _ => Err(Error::argument(
                "multinomial",
                "one or two dims of weights",
                format!("shape {:?}", self.shape()),
                "bring other dims into the first, or draw from a `Categorical` of `distributions`",
            )),
        }
    }

    /// As [`multinomial`](Self::multinomial), of any dims before that of the weights.
    #[track_caller]
    pub(crate) fn chosen(&self, op: &'static str, count: usize, replacement: bool) -> Result<Self> {
        let fit = |problem: String| {
            let fix = "give rows of weights that are not below 0, with enough above 0 to draw from";
            Error::argument(op, "weights of what is drawn", problem, fix)
        };
        let width = self.shape().last().copied().unwrap_or(0);
        // Taken before a look at the weights: ranks off the mesh hear of nothing that is found there, and take as many.
        let stream = self.context().next_stream();
        let weights = self.detach().summed(op)?.to(DType::F64)?;
        let positive = weights.gt_scalar(0.0)?.logical_and(&weights.isfinite()?)?;
        let unfit = weights
            .eq_scalar(0.0)?
            .logical_or(&positive)?
            .logical_not()?;
        let unfit = unfit.any(.., false)?.item_if_member()?;
        if unfit.is_some_and(|any| any != 0.0) {
            return Err(fit("weights below 0, infinite or NaN".into()));
        }
        let enough = if replacement { 1 } else { count };
        // No row says so where there are none.
        if count > 0 && enough > width {
            return Err(fit(format!("{count} of rows of {width} weights")));
        }
        let found = positive.count_nonzero(-1, false)?;
        if count > 0 && found.numel() > 0 {
            let least = found.amin(.., false)?.item_if_member()?;
            if let Some(least) = least.filter(|&least| least < enough as f64) {
                return Err(fit(format!("{count} of rows with {least} weights above 0")));
            }
        }
        // The greatest of `weight / exponential number` falls on each in proportion to the weights, and the greatest few are
        // draws without replacement.
        let draws = if replacement { count } else { 1 };
        let mut wide: Vec<usize> = self.shape().to_vec();
        wide.insert(self.ndim() - 1, draws);
        let weights = weights.unsqueeze(self.ndim() - 1)?.expand(wide.clone())?;
        let noise = weights.drawn_from(stream, DType::F64, weights.layout(), Distribution::Unit)?;
        // 1 - u lies in (0, 1]; a weight without noise is the greatest of all.
        let noise = noise.neg()?.log1p()?.neg()?;
        let keys = weights.div(&noise)?.where_positive(&weights)?;
        let taken = if replacement { 1 } else { count };
        let (_, drawn) = keys.topk(taken, -1, true)?;
        if replacement {
            drawn.squeeze(self.ndim())
        } else {
            drawn.squeeze(self.ndim() - 1)
        }
    }

    /// The one element of a tensor, for a choice that members of its mesh make; `None` off the mesh, after the same calls.
    #[track_caller]
    fn item_if_member(&self) -> Result<Option<f64>> {
        match self.item() {
            Err(Error::Redistribute(e)) if matches!(*e, RedistributeError::NotMember { .. }) => {
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    /// The keys where weights are above 0, else -1, which is below all keys.
    fn where_positive(&self, weights: &Self) -> Result<Self> {
        weights.gt_scalar(0.0)?.where_(self, -1.0)
    }

    /// Dropout of what the first `dims` dims tell apart.
    #[track_caller]
    fn dropped(&self, op: &'static str, p: f64, dims: usize) -> Result<Self> {
        let kept = self.kept(op, p, dims)?;
        // Where nothing is kept the factor does not matter.
        let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 1.0 };
        match fine(self.dtype()) == self.dtype() {
            true => self.mul(&kept.mul_scalar(scale)?),
            // The factor itself would be rounded, and all elements be off to one side.
            false => self.mul(&kept)?.mul_scalar(scale),
        }
    }

    /// Alpha dropout of what the first `dims` dims tell apart.
    #[track_caller]
    fn alpha_dropped(&self, op: &'static str, p: f64, dims: usize) -> Result<Self> {
        let wide = fine(self.dtype());
        if wide != self.dtype() {
            // Factor and shift would be rounded, and all elements be off to one side.
            let dropped = self.to(wide)?.alpha_dropped(op, p, dims)?;
            return dropped.to(self.dtype());
        }
        let kept = self.kept(op, p, dims)?;
        if p == 1.0 {
            return self.mul_scalar(0.0);
        }
        let scale = ((1.0 - p) * (1.0 + p * SELU_LEAST * SELU_LEAST))
            .sqrt()
            .recip();
        let shift = kept.add_scalar(-1.0)?.mul_scalar(-SELU_LEAST * scale)?;
        let shift = shift.add_scalar(-SELU_LEAST * scale * p)?;
        self.mul(&kept.mul_scalar(scale)?)?.add(&shift)
    }

    /// 1 with probability `1 - p` and 0 otherwise, for each index of the first `dims` dims; broadcasts to this tensor.
    #[track_caller]
    fn kept(&self, op: &'static str, p: f64, dims: usize) -> Result<Self> {
        if !(0.0..=1.0).contains(&p) {
            return Err(Error::argument(
                op,
                "a probability",
                format!("{p}"),
                "give a number from 0 to 1",
            ));
        }
        let mut shape = self.shape().to_vec();
        shape[dims..].fill(1);
        let of = |d: usize| self.layout().sharding(d).filter(|_| d < dims).cloned();
        let layout =
            Layout::from_dims(self.layout().mesh(), &shape, (0..shape.len()).map(of), None)?;
        let drawn = self.drawn(fine(self.dtype()), &layout, Distribution::Unit)?;
        drawn.ge_scalar(p)?.to(self.dtype())
    }

    /// How many dims there are, if so many are possible.
    fn channels(&self, op: &'static str, possible: &[usize]) -> Result<usize> {
        match possible.contains(&self.ndim()) {
            true => Ok(self.ndim()),
            false => Err(Error::argument(
                op,
                format!("{} or {} dims", possible[0], possible[1]),
                format!("shape {:?}", self.shape()),
                "use dropout, or bring channels to their place",
            )),
        }
    }

    /// The tensor with its sum over ranks taken, as an op needs it that draws where elements are.
    #[track_caller]
    fn summed(&self, op: &'static str) -> Result<Self> {
        let (x, exec) = (self.value(), self.context().tape());
        let to = x.layout().with_partial_reduced();
        Ok(self.lift(exec.aligned((op, 0), &x, &to)?))
    }

    /// The numbers of the context's next stream, in a layout.
    #[track_caller]
    pub(super) fn drawn(&self, dtype: DType, layout: &Layout, how: Distribution) -> Result<Self> {
        self.drawn_from(self.context().next_stream(), dtype, layout, how)
    }

    /// The numbers of a stream, in a layout.
    #[track_caller]
    fn drawn_from(
        &self,
        stream: Stream,
        dtype: DType,
        layout: &Layout,
        how: Distribution,
    ) -> Result<Self> {
        let mesh = self.mesh();
        let call = Call::keyed("random", key_of("random", &(stream, format!("{how:?}"))));
        let number = mesh.comm().record(call.constant().of(dtype, layout));
        let array = random(mesh.comm(), layout, dtype, &stream, how)?;
        Ok(self.lift(shard_ops::Value::new(array.with_number(number))))
    }
}

/// The type in which numbers are drawn for elements of a type: 16 bits have too few for a small probability.
pub(crate) fn fine(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}
