//! Normal numbers, and numbers whose logarithms are.

use super::{Batch, Distribution, Divergence, Reparametrized, pair};
use crate::{Branch, Fused, Result, Shape, ShardTensor};
use shard_comm::Calling;
use std::sync::LazyLock;

/// `ln √(2π)`
const LOG_ROOT_2_PI: f64 = 0.918_938_533_204_672_8;

/// Normal numbers of a mean and a deviation, as `torch.distributions.Normal`.
#[derive(Clone, Debug)]
pub struct Normal(Batch<2>);

impl Normal {
    /// Of means `loc` and deviations `scale`, a tensor or a number, which are above 0.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// Shapes that do not broadcast.
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, Normal};
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let normal = Normal::new(&mesh.zeros([3], shard(0))?, 2.0)?;
    ///     let at = mesh.arange(3, shard(0))?;
    ///     normal.log_prob(&at)?.to_array::<f32>()
    /// })?;
    /// let expected = [0.0_f32, 1.0, 2.0].map(|x| -x * x / 8.0 - (8.0 * std::f32::consts::PI).sqrt().ln());
    /// assert!(found[0].iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new<'a>(loc: &ShardTensor, scale: impl Into<Branch<'a>>) -> Result<Self> {
        let _call = Calling::of("Normal::new");
        Ok(Self(Batch::new("Normal", pair(loc, scale)?)?))
    }

    /// The means.
    pub fn loc(&self) -> &ShardTensor {
        &self.0.of[0]
    }

    /// The deviations.
    pub fn scale(&self) -> &ShardTensor {
        &self.0.of[1]
    }
}

impl Distribution for Normal {
    fn batch_shape(&self) -> &[usize] {
        &self.0.batch
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Normal::sample");
        Self(self.0.detached()).rsample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        static LOG_PROB: LazyLock<Fused<3, 1>> = LazyLock::new(|| {
            Fused::new("normal_log_prob", |[x, loc, scale]| {
                let z = (x - loc) / scale;
                [z.square() * -0.5 - scale.log() - LOG_ROOT_2_PI]
            })
        });
        let _call = Calling::of("Normal::log_prob");
        let [found] = LOG_PROB.of([value, self.loc(), self.scale()])?;
        Ok(found)
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Normal::entropy");
        let found = self.scale().log()?.add_scalar(0.5 + LOG_ROOT_2_PI)?;
        self.0.filled(&found)
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Normal::mean");
        self.0.filled(self.loc())
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Normal::variance");
        self.0.filled(&self.scale().square()?)
    }
}

impl Reparametrized for Normal {
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Normal::rsample");
        let noise = self.0.largest(&shape.into())?.randn_like()?;
        self.loc().addcmul(self.scale(), &noise, 1.0)
    }
}

impl Divergence for Normal {
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        static DIVERGENCE: LazyLock<Fused<4, 1>> = LazyLock::new(|| {
            Fused::new(
                "normal_kl_divergence",
                |[p_loc, p_scale, q_loc, q_scale]| {
                    let ratio = (p_scale / q_scale).square();
                    let apart = ((p_loc - q_loc) / q_scale).square();
                    [(ratio + apart - 1.0 - ratio.log()) * 0.5]
                },
            )
        });
        let [found] = DIVERGENCE.of([self.loc(), self.scale(), other.loc(), other.scale()])?;
        Ok(found)
    }
}

/// Numbers above 0 whose logarithms are normal, as `torch.distributions.LogNormal`.
#[derive(Clone, Debug)]
pub struct LogNormal(Normal);

impl LogNormal {
    /// Of the means `loc` and the deviations `scale` of the logarithms, a tensor or a number, which are above 0.
    ///
    /// # Collective
    /// As [`Normal::new`].
    ///
    /// # Errors
    /// As [`Normal::new`].
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, LogNormal};
    /// use shard_tensor::{launch, shard};
    /// let mean = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     LogNormal::new(&mesh.zeros([3], shard(0))?, 1.0)?.mean()?.to_array::<f32>()
    /// })?;
    /// assert!(mean[0].iter().all(|mean| (mean - 0.5_f32.exp()).abs() < 1e-6));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new<'a>(loc: &ShardTensor, scale: impl Into<Branch<'a>>) -> Result<Self> {
        let _call = Calling::of("LogNormal::new");
        Ok(Self(Normal(Batch::new("LogNormal", pair(loc, scale)?)?)))
    }

    /// The means of the logarithms.
    pub fn loc(&self) -> &ShardTensor {
        self.0.loc()
    }

    /// The deviations of the logarithms.
    pub fn scale(&self) -> &ShardTensor {
        self.0.scale()
    }
}

impl Distribution for LogNormal {
    fn batch_shape(&self) -> &[usize] {
        self.0.batch_shape()
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("LogNormal::sample");
        self.0.sample(shape)?.exp()
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        static LOG_PROB: LazyLock<Fused<3, 1>> = LazyLock::new(|| {
            Fused::new("log_normal_log_prob", |[x, loc, scale]| {
                let log = x.log();
                let z = (log - loc) / scale;
                [z.square() * -0.5 - scale.log() - LOG_ROOT_2_PI - log]
            })
        });
        let _call = Calling::of("LogNormal::log_prob");
        let [found] = LOG_PROB.of([value, self.loc(), self.scale()])?;
        Ok(found)
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("LogNormal::entropy");
        self.0.entropy()?.add(self.loc())
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        static MEAN: LazyLock<Fused<2, 1>> = LazyLock::new(|| {
            Fused::new("log_normal_mean", |[loc, scale]| {
                [(loc + scale.square() * 0.5).exp()]
            })
        });
        let _call = Calling::of("LogNormal::mean");
        let [found] = MEAN.of([self.loc(), self.scale()])?;
        Ok(found)
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        static VARIANCE: LazyLock<Fused<2, 1>> = LazyLock::new(|| {
            Fused::new("log_normal_variance", |[loc, scale]| {
                let of_logs = scale.square();
                [of_logs.expm1() * (loc * 2.0 + of_logs).exp()]
            })
        });
        let _call = Calling::of("LogNormal::variance");
        let [found] = VARIANCE.of([self.loc(), self.scale()])?;
        Ok(found)
    }
}

impl Reparametrized for LogNormal {
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("LogNormal::rsample");
        self.0.rsample(shape)?.exp()
    }
}

impl Divergence for LogNormal {
    /// That of the logarithms.
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        self.0.kl_divergence(&other.0)
    }
}
