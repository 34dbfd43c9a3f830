//! Shares of what is drawn below a number.

use super::Distribution;
use super::{Exponential, Laplace, LogNormal, Normal, Uniform};
use crate::{Result, ShardTensor};
use shard_comm::Calling;
use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};

/// Distributions of one number whose share below a value is known, and the value below which a share is.
///
/// ```
/// use shard_tensor::distributions::{Cumulative, Normal};
/// use shard_tensor::{launch, ndarray::array, shard};
/// let found = launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let normal = Normal::new(&mesh.zeros([3], shard(0))?, 2.0)?;
///     let x = mesh.distribute(&array![-2.0_f32, 0.0, 3.0], shard(0))?;
///     let below = normal.cdf(&x)?;
///     assert!(normal.icdf(&below)?.allclose(&x, 1e-5, 1e-5, false)?);
///     below.to_array::<f32>()
/// })?;
/// assert!((found[0][1] - 0.5).abs() < 1e-6);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
pub trait Cumulative: Distribution {
    /// The probability of a number up to a value, whose shape broadcasts with the batch's.
    ///
    /// # Collective
    /// All members of the mesh. Communicates to align what does not lie alike.
    ///
    /// # Errors
    /// Shapes that do not broadcast; types that differ.
    fn cdf(&self, value: &ShardTensor) -> Result<ShardTensor>;

    /// The number up to which a probability between 0 and 1 is found: what [`cdf`](Self::cdf) undoes.
    ///
    /// # Collective
    /// As [`cdf`](Self::cdf).
    ///
    /// # Errors
    /// As [`cdf`](Self::cdf).
    fn icdf(&self, share: &ShardTensor) -> Result<ShardTensor>;
}

impl Cumulative for Normal {
    /// With all digits of small shares, which PyTorch's is without.
    #[track_caller]
    fn cdf(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Normal::cdf");
        formula!("normal_cdf", |[x, loc, scale]| {
            ((loc - x) / scale * FRAC_1_SQRT_2).erfc() * 0.5
        } of [value, self.loc(), self.scale()])
    }

    #[track_caller]
    fn icdf(&self, share: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Normal::icdf");
        formula!("normal_icdf", |[share, loc, scale]| {
            loc + scale * (share * 2.0 - 1.0).erfinv() * SQRT_2
        } of [share, self.loc(), self.scale()])
    }
}

impl Cumulative for LogNormal {
    #[track_caller]
    fn cdf(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("LogNormal::cdf");
        formula!("log_normal_cdf", |[x, loc, scale]| {
            // Nothing is below 0.
            let log = x.below(0.0, f64::NEG_INFINITY, x.log());
            ((loc - log) / scale * FRAC_1_SQRT_2).erfc() * 0.5
        } of [value, self.loc(), self.scale()])
    }

    #[track_caller]
    fn icdf(&self, share: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("LogNormal::icdf");
        formula!("log_normal_icdf", |[share, loc, scale]| {
            (loc + scale * (share * 2.0 - 1.0).erfinv() * SQRT_2).exp()
        } of [share, self.loc(), self.scale()])
    }
}

impl Cumulative for Laplace {
    #[track_caller]
    fn cdf(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Laplace::cdf");
        formula!("laplace_cdf", |[x, loc, scale]| {
            let far = (x - loc) / scale;
            let beyond = (-far.abs()).exp() * 0.5;
            far.below(0.0, beyond, 1.0 - beyond)
        } of [value, self.loc(), self.scale()])
    }

    #[track_caller]
    fn icdf(&self, share: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Laplace::icdf");
        formula!("laplace_icdf", |[share, loc, scale]| {
            let (low, high) = ((share * 2.0).log(), -(2.0 - share * 2.0).log());
            loc + scale * share.below(0.5, low, high)
        } of [share, self.loc(), self.scale()])
    }
}

impl Cumulative for Uniform {
    #[track_caller]
    fn cdf(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Uniform::cdf");
        formula!("uniform_cdf", |[x, low, high]| {
            ((x - low) / (high - low)).clamp(0.0, 1.0)
        } of [value, self.low(), self.high()])
    }

    #[track_caller]
    fn icdf(&self, share: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Uniform::icdf");
        formula!("uniform_icdf", |[share, low, high]| {
            low + (high - low) * share
        } of [share, self.low(), self.high()])
    }
}

impl Cumulative for Exponential {
    #[track_caller]
    fn cdf(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Exponential::cdf");
        formula!("exponential_cdf", |[x, rate]| {
            x.below(0.0, 0.0, -(-rate * x).expm1())
        } of [value, self.rate()])
    }

    #[track_caller]
    fn icdf(&self, share: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Exponential::icdf");
        formula!("exponential_icdf", |[share, rate]| {
            -(-share).log1p() / rate
        } of [share, self.rate()])
    }
}
