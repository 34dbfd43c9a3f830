//! Numbers with heavy tails.

use super::{Batch, Cumulative, Distribution, Divergence, Reparametrized, open_uniform, pair};
use crate::{Branch, Result, Shape, ShardTensor};
use shard_comm::Calling;
use std::f64::consts::{FRAC_1_PI, LN_2, PI};

/// Ratios of two normal numbers, around `loc` and as wide as `scale`, as `torch.distributions.Cauchy`. They have no mean, which is NaN, and
/// an infinite variance.
#[derive(Clone, Debug)]
pub struct Cauchy(Batch<2>);

impl Cauchy {
    /// Of medians `loc`, and half the widths at half the height `scale`, a tensor or a number, which are above 0.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// Shapes that do not broadcast.
    ///
    /// ```
    /// use shard_tensor::distributions::{Cauchy, Cumulative};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let cauchy = Cauchy::new(&mesh.zeros([3], shard(0))?, 2.0)?;
    ///     cauchy.cdf(&mesh.full([3], 2.0, shard(0))?)?.to_array::<f32>()
    /// })?;
    /// assert!(found[0].iter().all(|below| (below - 0.75).abs() < 1e-6));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new<'a>(loc: &ShardTensor, scale: impl Into<Branch<'a>>) -> Result<Self> {
        let _call = Calling::of("Cauchy::new");
        Ok(Self(Batch::new("Cauchy", pair(loc, scale)?)?))
    }

    /// The medians.
    pub fn loc(&self) -> &ShardTensor {
        &self.0.of[0]
    }

    /// Half the widths at half the height.
    pub fn scale(&self) -> &ShardTensor {
        &self.0.of[1]
    }
}

impl Distribution for Cauchy {
    fn batch_shape(&self) -> &[usize] {
        &self.0.batch
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Cauchy::sample");
        Self(self.0.detached()).rsample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Cauchy::log_prob");
        formula!("cauchy_log_prob", |[x, loc, scale]| {
            -((x - loc) / scale).square().log1p() - scale.log() - PI.ln()
        } of [value, self.loc(), self.scale()])
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Cauchy::entropy");
        self.0.filled(&self.scale().mul_scalar(4.0 * PI)?.log()?)
    }

    /// NaN.
    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Cauchy::mean");
        self.0.filled(&self.loc().full_like(f64::NAN)?)
    }

    /// Infinite.
    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Cauchy::variance");
        self.0.filled(&self.loc().full_like(f64::INFINITY)?)
    }
}

impl Reparametrized for Cauchy {
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Cauchy::rsample");
        let (largest, dtype) = (self.0.largest(&shape.into())?, self.loc().dtype());
        let u = open_uniform(&largest)?;
        let [loc, scale] = self.0.each().map(|of| of.to(u.dtype()));
        formula!("cauchy_sample", |[loc, scale, u]| {
            loc + scale * ((u - 0.5) * PI).tan()
        } of [&loc?, &scale?, &u])?
        .to(dtype)
    }
}

impl Cumulative for Cauchy {
    #[track_caller]
    fn cdf(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Cauchy::cdf");
        formula!("cauchy_cdf", |[x, loc, scale]| {
            ((x - loc) / scale).atan() * FRAC_1_PI + 0.5
        } of [value, self.loc(), self.scale()])
    }

    #[track_caller]
    fn icdf(&self, share: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Cauchy::icdf");
        formula!("cauchy_icdf", |[share, loc, scale]| {
            loc + scale * ((share - 0.5) * PI).tan()
        } of [share, self.loc(), self.scale()])
    }
}

impl Divergence for Cauchy {
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        formula!("cauchy_kl_divergence", |[p_loc, p_scale, q_loc, q_scale]| {
            let wide = (p_scale + q_scale).square() + (p_loc - q_loc).square();
            wide.log() - (p_scale * q_scale * 4.0).log()
        } of [self.loc(), self.scale(), other.loc(), other.scale()])
    }
}

/// The sizes of [`Cauchy`] numbers around 0, as `torch.distributions.HalfCauchy`: a prior of deviations. Mean and variance are infinite.
#[derive(Clone, Debug)]
pub struct HalfCauchy(Batch<1>);

impl HalfCauchy {
    /// Of scales above 0: the medians.
    ///
    /// # Collective
    /// As [`Cauchy::new`].
    ///
    /// # Errors
    /// As [`Cauchy::new`].
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, HalfCauchy};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let prior = HalfCauchy::new(&ctx.mesh_of(2)?.ones([3], shard(0))?)?;
    ///     prior.sample([4])?.to_array::<f32>()
    /// })?;
    /// assert!(found[0].iter().all(|&deviation| deviation >= 0.0));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new(scale: &ShardTensor) -> Result<Self> {
        let _call = Calling::of("HalfCauchy::new");
        Ok(Self(Batch::new("HalfCauchy", [scale.clone()])?))
    }

    /// The medians.
    pub fn scale(&self) -> &ShardTensor {
        &self.0.of[0]
    }
}

impl Distribution for HalfCauchy {
    fn batch_shape(&self) -> &[usize] {
        &self.0.batch
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("HalfCauchy::sample");
        Self(self.0.detached()).rsample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("HalfCauchy::log_prob");
        formula!("half_cauchy_log_prob", |[x, scale]| {
            let density = -(x / scale).square().log1p() - scale.log() + (LN_2 - PI.ln());
            x.below(0.0, f64::NEG_INFINITY, density)
        } of [value, self.scale()])
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("HalfCauchy::entropy");
        self.scale().mul_scalar(2.0 * PI)?.log()
    }

    /// Infinite.
    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("HalfCauchy::mean");
        self.scale().full_like(f64::INFINITY)
    }

    /// Infinite.
    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("HalfCauchy::variance");
        self.scale().full_like(f64::INFINITY)
    }
}

impl Reparametrized for HalfCauchy {
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("HalfCauchy::rsample");
        let (largest, dtype) = (self.0.largest(&shape.into())?, self.scale().dtype());
        let u = open_uniform(&largest)?;
        let scale = self.scale().to(u.dtype())?;
        let share = formula!("half_cauchy_sample", |[scale, u]| {
            scale * (u * (0.5 * PI)).tan()
        } of [&scale, &u])?;
        share.to(dtype)
    }
}

impl Cumulative for HalfCauchy {
    #[track_caller]
    fn cdf(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("HalfCauchy::cdf");
        formula!("half_cauchy_cdf", |[x, scale]| {
            x.below(0.0, 0.0, (x / scale).atan() * (2.0 * FRAC_1_PI))
        } of [value, self.scale()])
    }

    #[track_caller]
    fn icdf(&self, share: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("HalfCauchy::icdf");
        formula!("half_cauchy_icdf", |[share, scale]| {
            scale * (share * (0.5 * PI)).tan()
        } of [share, self.scale()])
    }
}
