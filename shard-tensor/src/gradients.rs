//! What a backward pass found.

use crate::local::into_autograd;
use crate::{Context, Error, Result, ShardTensor};
use shard_comm::{Calling, Communicator, DType, Monoid, Scalar, Strided};
use shard_kernels::unary::Unary;
use shard_ops::Value;
use shard_ops::elementwise::{mul_scalar, unary};
use shard_ops::optimize::power_sum;
use shard_spec::Placement;
use std::fmt;
use std::rc::Rc;

/// The gradients of one backward pass, by parameter.
///
/// Sums over ranks that are still outstanding are taken when the first gradient is read, all in one go.
///
/// ```
/// use shard_tensor::{launch, nn::{Linear, ModelExt, Module}, shard};
/// let lengths = launch(3, |ctx| {
///     let mesh = ctx.mesh_of(3)?;
///     let model = Linear::new(&mesh, 4, 2)?;
///     let parameters = model.parameters();
///     let loss = model.forward(&mesh.randn([7, 4], shard(0))?)?.square()?.sum_all()?;
///     let mut gradients = loss.backward()?;
///     gradients.scale(1.0 / 7.0)?;
///     let before = gradients.clip_norm(0.1)?;
///     for (name, gradient) in gradients.iter()? {
///         assert!(parameters.iter().any(|p| p.0 == name && p.1.shape() == gradient.shape()));
///     }
///     Ok((before > 0.1, gradients.norm(2.0)?))
/// })?;
/// assert!(lengths[0].0 && (lengths[0].1 - 0.1).abs() < 1e-5);
/// assert_eq!(lengths[0], lengths[2]); // to the bit
/// # Ok::<(), shard_tensor::Error>(())
/// ```
///
/// Several passes, as over parts of a batch that is too large for the memory, add up, and are summed over the ranks once:
///
/// ```
/// use shard_tensor::{launch, replicate, shard};
/// let slopes = launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let w = mesh.full([1], 3.0, replicate())?.requires_grad()?;
///     let loss = |part: f64| w.mul(&mesh.full([4], part, shard(0))?)?.mean_all();
///     let mut gradients = loss(1.0)?.backward()?;
///     for part in [2.0, 3.0, 6.0] {
///         gradients.accumulate(loss(part)?.backward()?)?;
///     }
///     gradients.scale(1.0 / 4.0)?; // the mean over all parts
///     gradients.get(&w)?.expect("it depends on w").item()
/// })?;
/// assert_eq!(slopes, [3.0, 3.0]);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
pub struct Gradients {
    ctx: Context,
    inner: shard_autograd::Gradients,
    /// Whether they, or some that were added, are no longer those of a [scaled](crate::optim::LossScale) loss.
    unscaled: bool,
}

impl Gradients {
    pub(crate) fn new(ctx: &Context, inner: shard_autograd::Gradients) -> Self {
        Self {
            ctx: ctx.clone(),
            inner,
            unscaled: false,
        }
    }

    /// The gradients of no pass: where a loop over parts of a batch begins.
    ///
    /// ```
    /// use shard_tensor::{Gradients, launch, replicate, shard};
    /// let slopes = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let w = mesh.full([1], 3.0, replicate())?.requires_grad()?;
    ///     let mut gradients = Gradients::none(ctx);
    ///     for part in [1.0, 2.0] {
    ///         let loss = w.mul(&mesh.full([4], part, shard(0))?)?.mean_all()?;
    ///         gradients.accumulate(loss.backward()?)?;
    ///     }
    ///     gradients.get(&w)?.expect("it depends on w").item()
    /// })?;
    /// assert_eq!(slopes, [3.0, 3.0]);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    pub fn none(ctx: &Context) -> Self {
        Self::new(ctx, shard_autograd::Gradients::none(ctx.tape()))
    }

    /// Notes that a scale was taken out of them. Returns whether that was noted before.
    pub(crate) fn set_unscaled(&mut self) -> bool {
        std::mem::replace(&mut self.unscaled, true)
    }

    /// The gradient of a parameter, in exactly the parameter's layout; `None` if the loss does not depend on it. It is
    /// there also after the parameter's value was replaced, as by an optimizer's step.
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// What the communicator reports.
    #[track_caller]
    pub fn get(&self, parameter: &ShardTensor) -> Result<Option<ShardTensor>> {
        let _call = Calling::of("get");
        Ok(self
            .inner
            .get(&parameter.value())?
            .map(|value| parameter.lift(value)))
    }

    /// All gradients with the names of their parameters, in the order in which these were made. A parameter has the name that its
    /// model, or [`named`](ShardTensor::named), gave it; one without is `unnamed.` and its place in this order.
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// What the communicator reports.
    #[track_caller]
    pub fn iter(&self) -> Result<impl Iterator<Item = (String, ShardTensor)> + use<>> {
        let _call = Calling::of("iter");
        let all = self.inner.all()?;
        let ctx = self.ctx.clone();
        let named = move |(i, (name, value)): (usize, (Option<_>, _))| {
            let name =
                name.map_or_else(|| format!("unnamed.{i}"), |name: Rc<str>| name.to_string());
            (name, ShardTensor::new(&ctx, value))
        };
        Ok(all.into_iter().enumerate().map(named))
    }

    /// Adds the gradients of another pass, as of another part of the batch.
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// What the device reports.
    #[track_caller]
    pub fn accumulate(&mut self, other: Self) -> Result<()> {
        let _call = Calling::of("accumulate");
        self.inner.accumulate(other.inner)?;
        self.unscaled |= other.unscaled;
        Ok(())
    }

    /// How many parameters have a gradient.
    pub fn len(&self) -> usize {
        self.inner.len()
    }

    /// Whether none has.
    pub fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }
}

/// Changing all of them.
impl Gradients {
    /// Multiplies them by a number, as by one over the number of [accumulated](Self::accumulate) passes.
    ///
    /// # Collective
    /// All ranks of the program, with the same number. No communication: sums over ranks that are outstanding stay so, unless
    /// the factor is not finite.
    ///
    /// # Errors
    /// What the device reports.
    #[track_caller]
    pub fn scale(&mut self, factor: f64) -> Result<()> {
        let _call = Calling::of("scale");
        let engine = self.ctx.engine();
        Ok(self
            .inner
            .map(|value| Ok(mul_scalar(&**engine, value, factor)?))?)
    }

    /// Replaces each by what a function makes of its parameter's name and it.
    ///
    /// ```
    /// use shard_tensor::{launch, replicate};
    /// let slope = launch(2, |ctx| {
    ///     let w = ctx.mesh_of(2)?.ones([1], replicate())?.requires_grad()?.named("w");
    ///     let mut gradients = w.square()?.sum_all()?.backward()?;
    ///     gradients.map(|name, gradient| gradient.mul_scalar(if name == "w" { 0.5 } else { 1.0 }))?;
    ///     gradients.get(&w)?.expect("it depends on w").item()
    /// })?;
    /// assert_eq!(slope, [1.0, 1.0]);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program, with the same function. It is not recorded.
    ///
    /// # Errors
    /// What the function reports, when nothing is changed; [`Autograd`](Error::Autograd) for what has another type, shape or
    /// layout than the gradient.
    #[track_caller]
    pub fn map(
        &mut self,
        mut f: impl FnMut(&str, &ShardTensor) -> Result<ShardTensor>,
    ) -> Result<()> {
        let _call = Calling::of("map");
        let mut named = self.iter()?;
        let ctx = &self.ctx;
        Ok(self.inner.map(|_| {
            let Some((name, gradient)) = named.next() else {
                unreachable!("as many gradients are listed as are mapped")
            };
            let new = ctx.no_grad(|| f(&name, &gradient));
            Ok(new.map_err(into_autograd)?.into_value())
        })?)
    }

    /// Brings every element between `-limit` and `limit`, as `torch.nn.utils.clip_grad_value_`. NaN stays.
    ///
    /// # Collective
    /// All ranks of the program, with the same limit. Outstanding sums over ranks are taken; nothing else moves.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for a limit below 0 or NaN.
    #[track_caller]
    pub fn clip_value(&mut self, limit: f64) -> Result<()> {
        let _call = Calling::of("clip_value");
        check_limit("clip_value", limit)?;
        // Of terms of a sum no bound is known.
        self.inner.reduce()?;
        let engine = self.ctx.engine();
        let within = Unary::Hardtanh {
            min_val: -limit,
            max_val: limit,
        };
        Ok(self
            .inner
            .map(|value| Ok(unary(&**engine, value, within)?))?)
    }

    /// Scales all gradients together so that their norm is at most a limit, as `torch.nn.utils.clip_grad_norm_`, and returns
    /// the norm they had. PyTorch is given a model's parameters; these are all that the loss depends on, unless
    /// [`backward_to`](ShardTensor::backward_to) was told which. A number alone limits the [norm](Self::norm) of order 2; [`ClipNorm`] has the choices.
    ///
    /// A norm that is not finite shows in the gradients, unless it is [made an error](ClipNorm::error_if_nonfinite): if it is
    /// infinite they become zero, and NaN where they were infinite, if it is NaN they all become NaN.
    ///
    /// # Collective
    /// As [`norm`](Self::norm), with the same limit.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for a limit below 0 or NaN, and for a norm that is not finite, if asked for; then nothing
    /// is changed.
    #[track_caller]
    pub fn clip_norm(&mut self, limit: impl Into<ClipNorm>) -> Result<f64> {
        const OP: &str = "clip_norm";
        let _call = Calling::of(OP);
        let ClipNorm {
            limit,
            order,
            error_if_nonfinite,
        } = limit.into();
        check_limit(OP, limit)?;
        let powers = self.powers(OP, order)?;
        let norm = total(order, powers.iter().copied());
        if error_if_nonfinite && !norm.is_finite() {
            return Err(self.nonfinite(norm, &powers)?);
        }
        // PyTorch's number, so that results are PyTorch's too.
        let share = limit / (norm + 1e-6);
        // Every rank has the same norm to the bit, and goes the same way. NaN is not below 1, and is to be seen.
        if share < 1.0 || share.is_nan() {
            self.scale(share)?;
        }
        Ok(norm)
    }

    /// The norm of all gradients as one vector, `(Σ |x|^order)^(1 / order)`, or with `f64::INFINITY` the largest magnitude. It is
    /// computed in `f64`, and equal on all ranks to the bit.
    ///
    /// # Collective
    /// All ranks of the program. Outstanding sums over ranks are taken. Then every element is counted by one of the ranks that
    /// hold it, and one all-reduce of a number per gradient does the rest.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for an order that is not above 0; [`Op`](Error::Op) for gradients of 16 bits.
    #[track_caller]
    pub fn norm(&self, order: f64) -> Result<f64> {
        let _call = Calling::of("norm");
        let powers = self.powers("norm", order)?;
        Ok(total(order, powers.into_iter()))
    }

    /// The norm of each gradient, with the names of [`iter`](Self::iter).
    ///
    /// # Collective
    /// As [`norm`](Self::norm): one all-reduce for all of them.
    ///
    /// # Errors
    /// As [`norm`](Self::norm).
    #[track_caller]
    pub fn norms(&self, order: f64) -> Result<Vec<(String, f64)>> {
        let _call = Calling::of("norms");
        let powers = self.powers("norms", order)?;
        let norms = powers
            .into_iter()
            .map(|power| total(order, [power].into_iter()));
        Ok(self.iter()?.map(|(name, _)| name).zip(norms).collect())
    }

    /// Per gradient the sum of `|x|^order`, or for an infinite order the largest magnitude.
    fn powers(&self, op: &'static str, order: f64) -> Result<Vec<f64>> {
        if order.is_nan() || order <= 0.0 {
            return Err(Error::argument(
                op,
                "an order above 0",
                order.to_string(),
                "use 2, 1 or `f64::INFINITY`",
            ));
        }
        let engine = self.ctx.engine();
        let terms = self.inner.all()?.into_iter().map(|(_, gradient)| {
            let power = power_sum(&**engine, &gradient.detach(), order)?;
            Ok((gradient, power))
        });
        over_ranks(
            &self.ctx,
            &terms.collect::<Result<Vec<_>>>()?,
            joined(order),
        )
    }

    /// Which gradients make a norm not finite.
    #[track_caller]
    fn nonfinite(&self, norm: f64, powers: &[f64]) -> Result<Error> {
        let names: Vec<String> = (self.iter()?.zip(powers))
            .filter(|(_, power)| !power.is_finite())
            .map(|((name, _), power)| format!("{power} from {name:?}"))
            .collect();
        Ok(Error::argument(
            "clip_norm",
            "a finite norm",
            format!("{norm}: {}", names.join(", ")),
            "skip the step, or lower the learning rate or the loss scale",
        ))
    }
}

/// Whether this rank counts its piece of a value: of the ranks that hold copies, the first along each axis does.
fn counts_here(value: &Value) -> bool {
    let Some(coords) = value.array().cx().coords() else {
        return false;
    };
    let placements = value.layout().placements();
    (placements.iter().zip(coords)).all(|(p, &at)| !matches!(p, Placement::Replicate) || at == 0)
}

/// For each of some values a number of `f64` that every rank has of its piece, taken together over all ranks in one all-reduce; of copies
/// one counts.
#[track_caller]
pub(crate) fn over_ranks(ctx: &Context, terms: &[(Value, Value)], how: Monoid) -> Result<Vec<f64>> {
    let (device, count) = (ctx.device(), terms.len());
    let mut mine = device.alloc(DType::F64, count)?;
    device.fill(&mut mine, &Strided::contiguous(&[count]), Scalar::ZERO)?;
    for (i, (of, term)) in terms.iter().enumerate() {
        if let (Some(term), true) = (term.array().buffer(), counts_here(of)) {
            let place = Strided::contiguous_at(i, &[1]);
            device.copy(term, &Strided::contiguous(&[1]), &mut mine, &place)?;
        }
    }
    let all = group_of(ctx, terms).all_reduce(&mine.freeze(), how)?;
    Ok(device.download_vec::<f64>(&all)?)
}

/// All ranks, as the mesh of these values where they have one in common: it compares what the ranks did before.
fn group_of<'a>(ctx: &'a Context, terms: &'a [(Value, Value)]) -> &'a Rc<dyn Communicator> {
    let (mut all, world) = (terms.iter().map(|(of, _)| of.array().cx()), ctx.world());
    let Some(cx) = all.next() else {
        return world;
    };
    let axes: Vec<usize> = (0..cx.mesh().ndim()).collect();
    match cx.mesh().size() == world.size() && all.all(|other| Rc::ptr_eq(cx, other)) {
        true => cx.along(&axes).unwrap_or(world),
        false => world,
    }
}

/// How sums of powers of an order, or largest magnitudes, are taken together.
pub(crate) fn joined(order: f64) -> Monoid {
    match order {
        f64::INFINITY => Monoid::MAX,
        _ => Monoid::SUM,
    }
}

/// The norm that sums of powers make together.
pub(crate) fn total(order: f64, powers: impl Iterator<Item = f64>) -> f64 {
    match order {
        f64::INFINITY => powers.fold(0.0, |a, b| if b.is_nan() || b > a { b } else { a }),
        2.0 => powers.sum::<f64>().sqrt(),
        _ => powers.sum::<f64>().powf(1.0 / order),
    }
}

#[track_caller]
fn check_limit(op: &'static str, limit: f64) -> Result<()> {
    match limit >= 0.0 {
        true => Ok(()),
        false => Err(Error::argument(
            op,
            "a limit of 0 or more",
            limit.to_string(),
            "give the largest magnitude that is to be left",
        )),
    }
}

/// How [`clip_norm`](Gradients::clip_norm) limits a norm.
///
/// ```
/// use shard_tensor::{ClipNorm, launch, replicate};
/// let largest = launch(2, |ctx| {
///     let w = ctx.mesh_of(2)?.full([3], 2.0, replicate())?.requires_grad()?;
///     let mut gradients = w.square()?.sum_all()?.backward()?;
///     gradients.clip_norm(ClipNorm::new(1.0).order(f64::INFINITY).error_if_nonfinite(true))
/// })?;
/// assert_eq!(largest, [4.0, 4.0]);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClipNorm {
    limit: f64,
    order: f64,
    error_if_nonfinite: bool,
}

impl ClipNorm {
    /// At most this, of order 2.
    pub fn new(limit: f64) -> Self {
        Self {
            limit,
            order: 2.0,
            error_if_nonfinite: false,
        }
    }

    /// The order of the [norm](Gradients::norm); `f64::INFINITY` is the largest magnitude.
    #[must_use]
    pub fn order(mut self, order: f64) -> Self {
        self.order = order;
        self
    }

    /// Whether a norm that is infinite or NaN is an error, which names the gradients it comes from. Not at first.
    #[must_use]
    pub fn error_if_nonfinite(mut self, is_error: bool) -> Self {
        self.error_if_nonfinite = is_error;
        self
    }
}

impl From<f64> for ClipNorm {
    fn from(limit: f64) -> Self {
        Self::new(limit)
    }
}

impl fmt::Debug for Gradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
