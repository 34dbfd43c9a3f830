//! What is largest or smallest among many numbers.

use super::{
    Batch, Cumulative, Distribution, Divergence, Reparametrized, open_uniform, pair, part,
};
use crate::{Branch, Result, Shape, ShardTensor};
use shard_comm::Calling;
use std::f64::consts::PI;

/// Euler's constant.
pub(super) const EULER_GAMMA: f64 = 0.577_215_664_901_532_9;

/// The largest of many numbers, as `torch.distributions.Gumbel`.
#[derive(Clone, Debug)]
pub struct Gumbel(Batch<2>);

impl Gumbel {
    /// Of the likeliest numbers `loc`, and widths `scale`, a tensor or a number, which are above 0.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// Shapes that do not broadcast.
    ///
    /// ```
    /// use shard_tensor::distributions::{Cumulative, Gumbel};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let loc = mesh.zeros([3], shard(0))?;
    ///     Gumbel::new(&loc, 1.0)?.cdf(&loc)?.to_array::<f32>()
    /// })?;
    /// assert!(found[0].iter().all(|below| (below - (-1.0_f32).exp()).abs() < 1e-6));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new<'a>(loc: &ShardTensor, scale: impl Into<Branch<'a>>) -> Result<Self> {
        let _call = Calling::of("Gumbel::new");
        Ok(Self(Batch::new("Gumbel", pair(loc, scale)?)?))
    }

    /// The likeliest numbers.
    pub fn loc(&self) -> &ShardTensor {
        &self.0.of[0]
    }

    /// The widths.
    pub fn scale(&self) -> &ShardTensor {
        &self.0.of[1]
    }
}

impl Distribution for Gumbel {
    fn batch_shape(&self) -> &[usize] {
        &self.0.batch
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Gumbel::sample");
        Self(self.0.detached()).rsample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Gumbel::log_prob");
        formula!("gumbel_log_prob", |[x, loc, scale]| {
            let y = (loc - x) / scale;
            y - y.exp() - scale.log()
        } of [value, self.loc(), self.scale()])
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Gumbel::entropy");
        self.0
            .filled(&self.scale().log()?.add_scalar(1.0 + EULER_GAMMA)?)
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Gumbel::mean");
        self.loc().add_scaled(self.scale(), EULER_GAMMA)
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Gumbel::variance");
        self.0
            .filled(&self.scale().square()?.mul_scalar(PI * PI / 6.0)?)
    }
}

impl Reparametrized for Gumbel {
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Gumbel::rsample");
        let (largest, dtype) = (self.0.largest(&shape.into())?, self.loc().dtype());
        let u = open_uniform(&largest)?;
        let [loc, scale] = self.0.each().map(|of| of.to(u.dtype()));
        formula!("gumbel_sample", |[loc, scale, u]| {
            loc - scale * (-u.log()).log()
        } of [&loc?, &scale?, &u])?
        .to(dtype)
    }
}

impl Cumulative for Gumbel {
    #[track_caller]
    fn cdf(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Gumbel::cdf");
        formula!("gumbel_cdf", |[x, loc, scale]| {
            (-((loc - x) / scale).exp()).exp()
        } of [value, self.loc(), self.scale()])
    }

    #[track_caller]
    fn icdf(&self, share: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Gumbel::icdf");
        formula!("gumbel_icdf", |[share, loc, scale]| {
            loc - scale * (-share.log()).log()
        } of [share, self.loc(), self.scale()])
    }
}

impl Divergence for Gumbel {
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        formula!("gumbel_kl_divergence", |[p_loc, p_scale, q_loc, q_scale]| {
            let (ratio, apart) = (p_scale / q_scale, (q_loc - p_loc) / q_scale);
            let beyond = (apart + (ratio + 1.0).lgamma()).exp();
            beyond - ratio.log() - apart + ratio * EULER_GAMMA - (1.0 + EULER_GAMMA)
        } of [self.loc(), self.scale(), other.loc(), other.scale()])
    }
}

/// How long something lasts whose danger goes with a power of its age, as `torch.distributions.Weibull`.
#[derive(Clone, Debug)]
pub struct Weibull(Batch<2>);

impl Weibull {
    /// Of scales, and the exponents `concentration`, a tensor or a number; both are above 0.
    ///
    /// # Collective
    /// As [`Gumbel::new`].
    ///
    /// # Errors
    /// As [`Gumbel::new`].
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, Weibull};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let scale = ctx.mesh_of(2)?.full([3], 2.0, shard(0))?;
    ///     Weibull::new(&scale, 1.0)?.mean()?.to_array::<f32>() // exponential
    /// })?;
    /// assert!(found[0].iter().all(|mean| (mean - 2.0).abs() < 1e-5));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new<'a>(scale: &ShardTensor, concentration: impl Into<Branch<'a>>) -> Result<Self> {
        let _call = Calling::of("Weibull::new");
        Ok(Self(Batch::new("Weibull", pair(scale, concentration)?)?))
    }

    /// The scales.
    pub fn scale(&self) -> &ShardTensor {
        &self.0.of[0]
    }

    /// The exponents.
    pub fn concentration(&self) -> &ShardTensor {
        &self.0.of[1]
    }
}

impl Distribution for Weibull {
    fn batch_shape(&self) -> &[usize] {
        &self.0.batch
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Weibull::sample");
        Self(self.0.detached()).rsample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Weibull::log_prob");
        formula!("weibull_log_prob", |[x, scale, k]| {
            let log = (x / scale).log();
            (k / scale).log() + part(k - 1.0, log) - (k * log).exp()
        } of [value, self.scale(), self.concentration()])
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Weibull::entropy");
        formula!("weibull_entropy", |[scale, k]| {
            EULER_GAMMA * (1.0 - 1.0 / k) + (scale / k).log() + 1.0
        } of self.0.each())
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Weibull::mean");
        formula!("weibull_mean", |[scale, k]| {
            scale * (1.0 / k + 1.0).lgamma().exp()
        } of self.0.each())
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Weibull::variance");
        formula!("weibull_variance", |[scale, k]| {
            let squares = (2.0 / k + 1.0).lgamma().exp();
            scale.square() * (squares - ((1.0 / k + 1.0).lgamma() * 2.0).exp())
        } of self.0.each())
    }
}

impl Reparametrized for Weibull {
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Weibull::rsample");
        let (largest, dtype) = (self.0.largest(&shape.into())?, self.scale().dtype());
        let u = open_uniform(&largest)?;
        let [scale, k] = self.0.each().map(|of| of.to(u.dtype()));
        formula!("weibull_sample", |[scale, k, u]| {
            scale * ((-u.log()).log() / k).exp()
        } of [&scale?, &k?, &u])?
        .to(dtype)
    }
}

impl Cumulative for Weibull {
    #[track_caller]
    fn cdf(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Weibull::cdf");
        formula!("weibull_cdf", |[x, scale, k]| {
            x.below(0.0, 0.0, -(-((x / scale).log() * k).exp()).expm1())
        } of [value, self.scale(), self.concentration()])
    }

    #[track_caller]
    fn icdf(&self, share: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Weibull::icdf");
        formula!("weibull_icdf", |[share, scale, k]| {
            scale * ((-(-share).log1p()).log() / k).exp()
        } of [share, self.scale(), self.concentration()])
    }
}
