//! Uniform and exponential numbers.

use super::{Batch, Distribution, Divergence, Reparametrized, fine, pair};
use crate::{Branch, Fused, Result, Shape, ShardTensor};
use shard_comm::Calling;
use std::sync::LazyLock;

/// Uniform numbers in `[low, high)`, as `torch.distributions.Uniform`.
#[derive(Clone, Debug)]
pub struct Uniform(Batch<2>);

impl Uniform {
    /// From `low` to `high`, a tensor or a number, which is above it.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// Shapes that do not broadcast.
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, Uniform};
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let uniform = Uniform::new(&mesh.zeros([3], shard(0))?, 2.0)?;
    ///     uniform.log_prob(&mesh.arange(3, shard(0))?)?.to_array::<f32>()
    /// })?;
    /// let within = -std::f32::consts::LN_2;
    /// assert_eq!(found[0], array![within, within, f32::NEG_INFINITY].into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new<'a>(low: &ShardTensor, high: impl Into<Branch<'a>>) -> Result<Self> {
        let _call = Calling::of("Uniform::new");
        Ok(Self(Batch::new("Uniform", pair(low, high)?)?))
    }

    /// Where the ranges begin.
    pub fn low(&self) -> &ShardTensor {
        &self.0.of[0]
    }

    /// Where the ranges end.
    pub fn high(&self) -> &ShardTensor {
        &self.0.of[1]
    }

    #[track_caller]
    fn width(&self) -> Result<ShardTensor> {
        self.high().sub(self.low())
    }
}

impl Distribution for Uniform {
    fn batch_shape(&self) -> &[usize] {
        &self.0.batch
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Uniform::sample");
        Self(self.0.detached()).rsample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        static LOG_PROB: LazyLock<Fused<3, 1>> = LazyLock::new(|| {
            Fused::new("uniform_log_prob", |[x, low, high]| {
                let inside = x.below(high, -(high - low).log(), f64::NEG_INFINITY);
                [x.below(low, f64::NEG_INFINITY, inside)]
            })
        });
        let _call = Calling::of("Uniform::log_prob");
        let [found] = LOG_PROB.of([value, self.low(), self.high()])?;
        Ok(found)
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Uniform::entropy");
        self.width()?.log()
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Uniform::mean");
        self.low().lerp(self.high(), 0.5)
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Uniform::variance");
        self.width()?.square()?.div_scalar(12.0)
    }
}

impl Reparametrized for Uniform {
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        static SAMPLE: LazyLock<Fused<3, 1>> = LazyLock::new(|| {
            Fused::new("uniform_sample", |[low, high, u]| [low + (high - low) * u])
        });
        let _call = Calling::of("Uniform::rsample");
        let u = self.0.largest(&shape.into())?.rand_like()?;
        let [found] = SAMPLE.of([self.low(), self.high(), &u])?;
        Ok(found)
    }
}

impl Divergence for Uniform {
    /// Infinite where the other range does not hold this one.
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        static DIVERGENCE: LazyLock<Fused<4, 1>> = LazyLock::new(|| {
            Fused::new("uniform_kl_divergence", |[p_low, p_high, q_low, q_high]| {
                let held = ((q_high - q_low) / (p_high - p_low)).log();
                let held = q_high.below(p_high, f64::INFINITY, held);
                [p_low.below(q_low, f64::INFINITY, held)]
            })
        });
        let [found] = DIVERGENCE.of([self.low(), self.high(), other.low(), other.high()])?;
        Ok(found)
    }
}

/// Numbers above 0 of which so many come in a unit, as the times between events: `torch.distributions.Exponential`.
#[derive(Clone, Debug)]
pub struct Exponential(Batch<1>);

impl Exponential {
    /// Of rates above 0: the means' reciprocals.
    ///
    /// # Collective
    /// As [`Uniform::new`].
    ///
    /// # Errors
    /// As [`Uniform::new`].
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, Exponential};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let rates = ctx.mesh_of(2)?.arange(3, shard(0))?.add_scalar(1.0)?;
    ///     Exponential::new(&rates)?.mean()?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0].as_slice(), Some(&[1.0, 1.0 / 2.0, 1.0 / 3.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new(rate: &ShardTensor) -> Result<Self> {
        let _call = Calling::of("Exponential::new");
        Ok(Self(Batch::new("Exponential", [rate.clone()])?))
    }

    /// How many come in a unit.
    pub fn rate(&self) -> &ShardTensor {
        &self.0.of[0]
    }
}

impl Distribution for Exponential {
    fn batch_shape(&self) -> &[usize] {
        &self.0.batch
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Exponential::sample");
        Self(self.0.detached()).rsample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        static LOG_PROB: LazyLock<Fused<2, 1>> = LazyLock::new(|| {
            Fused::new("exponential_log_prob", |[x, rate]| {
                [x.below(0.0, f64::NEG_INFINITY, rate.log() - rate * x)]
            })
        });
        let _call = Calling::of("Exponential::log_prob");
        let [found] = LOG_PROB.of([value, self.rate()])?;
        Ok(found)
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        static ENTROPY: LazyLock<Fused<1, 1>> =
            LazyLock::new(|| Fused::new("exponential_entropy", |[rate]| [1.0 - rate.log()]));
        let _call = Calling::of("Exponential::entropy");
        let [found] = ENTROPY.of([self.rate()])?;
        Ok(found)
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Exponential::mean");
        self.rate().reciprocal()
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Exponential::variance");
        self.rate().pow_scalar(-2.0)
    }
}

impl Reparametrized for Exponential {
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        static SAMPLE: LazyLock<Fused<2, 1>> =
            LazyLock::new(|| Fused::new("exponential_sample", |[rate, u]| [-(-u).log1p() / rate]));
        let _call = Calling::of("Exponential::rsample");
        let dtype = self.rate().dtype();
        let wide = fine(dtype);
        let u = self.0.largest(&shape.into())?.to(wide)?.rand_like()?;
        let [found] = SAMPLE.of([&self.rate().to(wide)?, &u])?;
        found.to(dtype)
    }
}

impl Divergence for Exponential {
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        static DIVERGENCE: LazyLock<Fused<2, 1>> = LazyLock::new(|| {
            Fused::new("exponential_kl_divergence", |[p, q]| {
                let ratio = q / p;
                [ratio - 1.0 - ratio.log()]
            })
        });
        let [found] = DIVERGENCE.of([self.rate(), other.rate()])?;
        Ok(found)
    }
}
