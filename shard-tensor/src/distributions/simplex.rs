//! Shares of a whole that are functions of normal numbers, and counts of classes.

use super::{Categorical, Distribution, Normal, Reparametrized, fine, part, repeated};
use crate::{Branch, DType, EdgeMap, Error, Result, Shape, ShardTensor, replicate};
use shard_comm::Calling;

/// Shares of a whole: each is the part that the logistic function of a normal number gives of what those before have left, and the last one is
/// what they leave; as `torch.distributions.LogisticNormal`. No closed form gives its entropy and its moments.
#[derive(Clone, Debug)]
pub struct LogisticNormal {
    normal: Normal,
    shares: [usize; 1],
}

impl LogisticNormal {
    /// Of means `[batch.., shares - 1]` of normal numbers, and their deviations, a tensor or a number, which are above 0.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// Shapes that do not broadcast; [`Argument`](Error::Argument) if they have no dims.
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, LogisticNormal};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let shares = LogisticNormal::new(&ctx.mesh_of(2)?.zeros([5, 3], shard(0))?, 1.0)?;
    ///     assert_eq!((shares.batch_shape(), shares.event_shape()), (&[5][..], &[4][..]));
    ///     shares.sample([])?.sum(-1, false)?.to_array::<f32>()
    /// })?;
    /// assert!(found[0].iter().all(|whole| (whole - 1.0).abs() < 1e-6));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new<'a>(loc: &ShardTensor, scale: impl Into<Branch<'a>>) -> Result<Self> {
        const OP: &str = "LogisticNormal::new";
        let _call = Calling::of(OP);
        let normal = Normal::new(loc, scale)?;
        match normal.batch_shape().last() {
            Some(others) => Ok(Self {
                shares: [others + 1],
                normal,
            }),
            None => Err(Error::argument(
                OP,
                "shares in the last dim, but for one",
                "tensors without dims",
                "give a mean for each of them",
            )),
        }
    }

    /// The means of the normal numbers.
    pub fn loc(&self) -> &ShardTensor {
        self.normal.loc()
    }

    /// The deviations of the normal numbers.
    pub fn scale(&self) -> &ShardTensor {
        self.normal.scale()
    }

    /// The logarithms of how many shares what is left is for, at each share but the last.
    #[track_caller]
    fn left(&self, like: &ShardTensor) -> Result<ShardTensor> {
        let others = self.shares[0] - 1;
        let mesh = like.mesh().with_dtype(like.dtype());
        mesh.from_fn(others, replicate(), |i| ((others - i[0]) as f64).ln())
    }
}

/// A tensor with one more element along the last dim, at its end or before it.
#[track_caller]
fn longer(x: &ShardTensor, (before, behind): (isize, isize)) -> Result<ShardTensor> {
    let mut pads = vec![(0, 0); x.ndim()];
    pads[x.ndim() - 1] = (before, behind);
    x.pad(&pads, EdgeMap::Zeros, 0.0)
}

impl Distribution for LogisticNormal {
    fn batch_shape(&self) -> &[usize] {
        let batch = self.normal.batch_shape();
        &batch[..batch.len() - 1]
    }

    fn event_shape(&self) -> &[usize] {
        &self.shares
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("LogisticNormal::sample");
        Ok(self.rsample(shape)?.detach())
    }

    /// The logarithms of the densities at shares `[.., shares]` of 1 together.
    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        const OP: &str = "LogisticNormal::log_prob";
        let _call = Calling::of(OP);
        if value.shape().last() != Some(&self.shares[0]) {
            return Err(Error::argument(
                OP,
                format!("{} shares in the last dim", self.shares[0]),
                format!("shape {:?}", value.shape()),
                "give all shares",
            ));
        }
        let (dtype, others) = (value.dtype(), self.shares[0] - 1);
        // What is nothing has no logarithm.
        let shares = value.to(fine(dtype))?.clamp_min(1e-37)?;
        let rest = shares.flip(-1)?.cumsum(-1)?.flip(-1)?.narrow(-1, 1..)?;
        let log = shares.log()?;
        let x = log
            .narrow(-1, ..others)?
            .sub(&rest.log()?)?
            .add(&self.left(&rest)?)?;
        let normal = Normal::new(&self.loc().to(x.dtype())?, &self.scale().to(x.dtype())?)?;
        let of_normal = normal.log_prob(&x)?.sum(-1, false)?;
        of_normal.sub(&log.sum(-1, false)?)?.to(dtype)
    }
}

impl Reparametrized for LogisticNormal {
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("LogisticNormal::rsample");
        let x = self.normal.rsample(shape)?;
        let dtype = x.dtype();
        let x = x.to(fine(dtype))?;
        let x = x.sub(&self.left(&x)?)?;
        // Logarithms of the part that is taken, and of what is left after each.
        let taken = longer(&x.log_sigmoid()?, (0, 1))?;
        let left = longer(&x.neg()?.log_sigmoid()?.cumsum(-1)?, (1, 0))?;
        taken.add(&left)?.exp()?.to(dtype)
    }
}

/// How often each of several classes comes in so many draws, as `torch.distributions.Multinomial`. Samples are of the parameter's type. Its
/// entropy is a sum over all counts, which is not taken.
#[derive(Clone, Debug)]
pub struct Multinomial {
    total: usize,
    classes: Categorical,
}

impl Multinomial {
    /// Of how many are drawn, and logits `[batch.., classes]`, as [`Categorical::from_logits`].
    ///
    /// # Collective
    /// As [`Categorical::from_logits`].
    ///
    /// # Errors
    /// As [`Categorical::from_logits`].
    #[track_caller]
    pub fn from_logits(total_count: usize, logits: &ShardTensor) -> Result<Self> {
        let _call = Calling::of("Multinomial::from_logits");
        let (total, classes) = (total_count, Categorical::from_logits(logits)?);
        Ok(Self { total, classes })
    }

    /// Of how many are drawn, and weights `[batch.., classes]`, as [`Categorical::from_probs`].
    ///
    /// # Collective
    /// As [`Categorical::from_probs`].
    ///
    /// # Errors
    /// As [`Categorical::from_probs`].
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, Multinomial};
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let found = launch(2, |ctx| {
    ///     let weights = ctx.mesh_of(2)?.distribute(&array![[1.0_f32, 1.0], [1.0, 3.0]], shard(0))?;
    ///     let counts = Multinomial::from_probs(20, &weights)?;
    ///     let drawn = counts.sample([3])?;
    ///     assert_eq!(drawn.sum(-1, false)?.to_array::<f32>()?, array![[20.0, 20.0], [20.0, 20.0], [20.0, 20.0]].into_dyn());
    ///     counts.mean()?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0], array![[10.0, 10.0], [5.0, 15.0]].into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn from_probs(total_count: usize, probs: &ShardTensor) -> Result<Self> {
        let _call = Calling::of("Multinomial::from_probs");
        let (total, classes) = (total_count, Categorical::from_probs(probs)?);
        Ok(Self { total, classes })
    }

    /// How many are drawn.
    pub fn total_count(&self) -> usize {
        self.total
    }

    /// The distribution of the class of one draw.
    pub fn classes(&self) -> &Categorical {
        &self.classes
    }
}

impl Distribution for Multinomial {
    fn batch_shape(&self) -> &[usize] {
        self.classes.batch_shape()
    }

    fn event_shape(&self) -> &[usize] {
        let shape = self.classes.logits().shape();
        &shape[shape.len() - 1..]
    }

    /// # Collective
    /// As [`ShardTensor::multinomial`].
    ///
    /// # Errors
    /// As [`Categorical`]'s.
    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Multinomial::sample");
        let (shape, logits) = (shape.into(), self.classes.logits().detach());
        let none = repeated(&logits.zeros_like()?, &shape, logits.shape())?.to(DType::I64)?;
        let all: Vec<usize> = [self.total]
            .into_iter()
            .chain(shape.dims().iter().copied())
            .collect();
        let drawn = self.classes.sample(all)?.movedim(0, -1)?;
        let counts = none.scatter_add(-1, &drawn, &drawn.ones_like()?)?;
        counts.to(logits.dtype())
    }

    /// Of counts `[.., classes]`.
    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Multinomial::log_prob");
        let each = formula!("multinomial_log_prob", |[x, logit]| {
            part(x, logit) - (x + 1.0).lgamma()
        } of [value, self.classes.logits()])?;
        let all = value.sum(-1, false)?.add_scalar(1.0)?.lgamma()?;
        each.sum(-1, false)?.add(&all)
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Multinomial::mean");
        self.classes.probs()?.mul_scalar(self.total as f64)
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Multinomial::variance");
        let probs = self.classes.probs()?;
        let once = formula!("multinomial_variance", |[p]| { p * (1.0 - p) } of [&probs])?;
        once.mul_scalar(self.total as f64)
    }
}
