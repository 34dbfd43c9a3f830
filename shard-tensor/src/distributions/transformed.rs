//! What a function makes of samples.

use super::categorical::epsilon;
use super::{Distribution, Divergence, Reparametrized, pair, repeated};
use crate::{Branch, DType, Error, Result, Shape, ShardTensor};
use shard_comm::Calling;
use shard_comm::half::f16;
use std::f64::consts::LN_2;

/// A function of each element that can be undone, and is smooth: of a [`Transformed`] distribution.
pub trait Transformation {
    /// The function, in the shape of `x`.
    ///
    /// # Collective
    /// All members of the mesh.
    ///
    /// # Errors
    /// What the ops report that it is made of.
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor>;

    /// What it made `y` of.
    ///
    /// # Collective
    /// As [`forward`](Self::forward).
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    fn inverse(&self, y: &ShardTensor) -> Result<ShardTensor>;

    /// The logarithm of the size of its slope at each element of `x`, in the shape of `x`.
    ///
    /// # Collective
    /// As [`forward`](Self::forward).
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    fn log_slope(&self, x: &ShardTensor) -> Result<ShardTensor>;
}

/// A distribution of what a [`Transformation`] makes of the samples of another, as `torch.distributions.TransformedDistribution`. It may be
/// transformed again. No closed form gives its entropy and its moments.
#[derive(Clone, Debug)]
pub struct Transformed<D, T> {
    base: D,
    by: T,
}

impl<D: Distribution, T: Transformation> Transformed<D, T> {
    /// Of what is transformed, and how.
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, Independent, Normal, TanhTransform, Transformed};
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     // The actions of soft actor-critic: normal numbers that `tanh` bounds.
    ///     let mean = ctx.mesh_of(2)?.randn([5, 3], shard(0))?.requires_grad()?;
    ///     let policy = Transformed::new(Independent::new(Normal::new(&mean, 0.5)?, 1)?, TanhTransform);
    ///     let (action, log_prob) = policy.rsample_with_log_prob([])?;
    ///     assert_eq!((action.shape(), log_prob.shape()), (&[5, 3][..], &[5][..]));
    ///     assert!(policy.log_prob(&action)?.allclose(&log_prob, 1e-2, 1e-2, false)?);
    ///     log_prob.mean_all()?.backward()?;
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    pub fn new(base: D, by: T) -> Self {
        Self { base, by }
    }

    /// What is transformed.
    pub fn base(&self) -> &D {
        &self.base
    }

    /// The log-probability of what becomes of a value of the base.
    #[track_caller]
    fn of_base(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let slope = self.by.log_slope(x)?;
        same_shape("Transformation::log_slope", x, &slope)?;
        let events = self.base.event_shape().len();
        let first = slope.ndim().saturating_sub(events);
        let slope = match events {
            0 => slope,
            _ => slope.sum((first..slope.ndim()).collect::<Vec<_>>(), false)?,
        };
        self.base.log_prob(x)?.sub(&slope)
    }

    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let y = self.by.forward(x)?;
        same_shape("Transformation::forward", x, &y)?;
        Ok(y)
    }
}

/// A transform of each element leaves the shape.
#[track_caller]
fn same_shape(op: &'static str, x: &ShardTensor, found: &ShardTensor) -> Result<()> {
    if found.shape() == x.shape() {
        return Ok(());
    }
    Err(Error::argument(
        op,
        format!("the shape {:?} that it was given", x.shape()),
        format!("{:?}", found.shape()),
        "give the base distribution the shape of the transform's parameters",
    ))
}

impl<D: Reparametrized, T: Transformation> Transformed<D, T> {
    /// Samples with gradients and their log-probabilities, which are found of the base's samples: nothing has to be undone, and the end of a
    /// range costs no digits.
    ///
    /// # Collective
    /// As [`sample`](Distribution::sample) and [`log_prob`](Distribution::log_prob) of the base.
    ///
    /// # Errors
    /// As these.
    #[track_caller]
    pub fn rsample_with_log_prob(
        &self,
        shape: impl Into<Shape>,
    ) -> Result<(ShardTensor, ShardTensor)> {
        let _call = Calling::of("Transformed::rsample_with_log_prob");
        let x = self.base.rsample(shape)?;
        Ok((self.forward(&x)?, self.of_base(&x)?))
    }
}

impl<D: Distribution, T: Transformation> Distribution for Transformed<D, T> {
    fn batch_shape(&self) -> &[usize] {
        self.base.batch_shape()
    }

    fn event_shape(&self) -> &[usize] {
        self.base.event_shape()
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Transformed::sample");
        Ok(self.forward(&self.base.sample(shape)?)?.detach())
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Transformed::log_prob");
        self.of_base(&self.by.inverse(value)?)
    }
}

impl<D: Reparametrized, T: Transformation> Reparametrized for Transformed<D, T> {
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Transformed::rsample");
        self.forward(&self.base.rsample(shape)?)
    }
}

/// What a function that can be undone makes of both is as far apart as they are.
impl<D: Divergence<Q>, Q, T: PartialEq> Divergence<Transformed<Q, T>> for Transformed<D, T> {
    #[track_caller]
    fn kl_divergence(&self, other: &Transformed<Q, T>) -> Result<ShardTensor> {
        match self.by == other.by {
            true => self.base.kl_divergence(&other.base),
            false => Err(Error::argument(
                "kl_divergence",
                "distributions that one function transforms",
                "two functions",
                "take the mean of differences of `log_prob` over samples of the first",
            )),
        }
    }
}

/// `loc + scale x`, as `torch.distributions.AffineTransform`.
#[derive(Clone, Debug)]
pub struct AffineTransform([ShardTensor; 2]);

impl AffineTransform {
    /// Of what is added, and the factor, a tensor or a number other than 0.
    ///
    /// # Collective
    /// No communication.
    ///
    /// # Errors
    /// What the device reports.
    #[track_caller]
    pub fn new<'a>(loc: &ShardTensor, scale: impl Into<Branch<'a>>) -> Result<Self> {
        let _call = Calling::of("Affine::new");
        Ok(Self(pair(loc, scale)?))
    }
}

impl Transformation for AffineTransform {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let Self([loc, scale]) = self;
        formula!("affine_transform", |[x, loc, scale]| { loc + scale * x } of [x, loc, scale])
    }

    #[track_caller]
    fn inverse(&self, y: &ShardTensor) -> Result<ShardTensor> {
        let Self([loc, scale]) = self;
        formula!("affine_inverse", |[y, loc, scale]| { (y - loc) / scale } of [y, loc, scale])
    }

    #[track_caller]
    fn log_slope(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let Self([_, scale]) = self;
        repeated(&scale.abs()?.log()?, &Shape::default(), x.shape())
    }
}

/// `e^x`, as `torch.distributions.ExpTransform`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpTransform;

impl Transformation for ExpTransform {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        x.exp()
    }

    #[track_caller]
    fn inverse(&self, y: &ShardTensor) -> Result<ShardTensor> {
        y.log()
    }

    fn log_slope(&self, x: &ShardTensor) -> Result<ShardTensor> {
        Ok(x.clone())
    }
}

/// The nearest numbers to the ends of a range count for what is beyond them, so that its inverse is finite.
#[track_caller]
fn within(y: &ShardTensor, least: f64) -> Result<ShardTensor> {
    y.clamp(least, 1.0 - 0.5 * epsilon(y.dtype()))
}

/// `1 / (1 + e^-x)`, as `torch.distributions.SigmoidTransform`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SigmoidTransform;

impl Transformation for SigmoidTransform {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        x.sigmoid()
    }

    #[track_caller]
    fn inverse(&self, y: &ShardTensor) -> Result<ShardTensor> {
        let least = match y.dtype() {
            DType::F64 => f64::MIN_POSITIVE,
            DType::F16 => f16::MIN_POSITIVE.to_f64(),
            _ => f32::MIN_POSITIVE.into(),
        };
        within(y, least)?.logit(-1.0)
    }

    #[track_caller]
    fn log_slope(&self, x: &ShardTensor) -> Result<ShardTensor> {
        formula!("sigmoid_log_slope", |[x]| { x.log_sigmoid() + (-x).log_sigmoid() } of [x])
    }
}

/// The hyperbolic tangent, as `torch.distributions.TanhTransform`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TanhTransform;

impl Transformation for TanhTransform {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        x.tanh()
    }

    #[track_caller]
    fn inverse(&self, y: &ShardTensor) -> Result<ShardTensor> {
        within(y, 0.5 * epsilon(y.dtype()) - 1.0)?.atanh()
    }

    /// Without a difference that cancels.
    #[track_caller]
    fn log_slope(&self, x: &ShardTensor) -> Result<ShardTensor> {
        formula!("tanh_log_slope", |[x]| {
            ((x * 2.0).log_sigmoid() - x + LN_2) * 2.0
        } of [x])
    }
}
