//! Sizes of normal numbers.

use super::{Batch, Cumulative, Distribution, Divergence, Reparametrized};
use crate::{Result, Shape, ShardTensor};
use shard_comm::Calling;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI, PI, SQRT_2};

/// The sizes of normal numbers around 0, as `torch.distributions.HalfNormal`: a prior of deviations.
#[derive(Clone, Debug)]
pub struct HalfNormal(Batch<1>);

impl HalfNormal {
    /// Of the deviations of the normal numbers, which are above 0.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// Types that are no floats.
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, HalfNormal};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let prior = HalfNormal::new(&ctx.mesh_of(2)?.ones([3], shard(0))?)?;
    ///     prior.mean()?.to_array::<f32>()
    /// })?;
    /// assert!(found[0].iter().all(|mean| (mean - 0.797_884_6).abs() < 1e-6));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new(scale: &ShardTensor) -> Result<Self> {
        let _call = Calling::of("HalfNormal::new");
        Ok(Self(Batch::new("HalfNormal", [scale.clone()])?))
    }

    /// The deviations of the normal numbers.
    pub fn scale(&self) -> &ShardTensor {
        &self.0.of[0]
    }
}

impl Distribution for HalfNormal {
    fn batch_shape(&self) -> &[usize] {
        &self.0.batch
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("HalfNormal::sample");
        Self(self.0.detached()).rsample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("HalfNormal::log_prob");
        formula!("half_normal_log_prob", |[x, scale]| {
            let density = (x / scale).square() * -0.5 - scale.log() + 0.5 * FRAC_2_PI.ln();
            x.below(0.0, f64::NEG_INFINITY, density)
        } of [value, self.scale()])
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("HalfNormal::entropy");
        self.scale().log()?.add_scalar(0.5 + 0.5 * (0.5 * PI).ln())
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("HalfNormal::mean");
        self.scale().mul_scalar(FRAC_2_PI.sqrt())
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("HalfNormal::variance");
        self.scale().square()?.mul_scalar(1.0 - FRAC_2_PI)
    }
}

impl Reparametrized for HalfNormal {
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("HalfNormal::rsample");
        let noise = self.0.largest(&shape.into())?.randn_like()?.abs()?;
        noise.mul(self.scale())
    }
}

impl Cumulative for HalfNormal {
    #[track_caller]
    fn cdf(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("HalfNormal::cdf");
        formula!("half_normal_cdf", |[x, scale]| {
            x.below(0.0, 0.0, (x / scale * FRAC_1_SQRT_2).erf())
        } of [value, self.scale()])
    }

    #[track_caller]
    fn icdf(&self, share: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("HalfNormal::icdf");
        formula!("half_normal_icdf", |[share, scale]| {
            scale * share.erfinv() * SQRT_2
        } of [share, self.scale()])
    }
}

impl Divergence for HalfNormal {
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        formula!("half_normal_kl_divergence", |[p, q]| {
            let ratio = (p / q).square();
            (ratio - 1.0 - ratio.log()) * 0.5
        } of [self.scale(), other.scale()])
    }
}
