//! Numbers between 0 and 1 whose shares below a value are known.

use super::dirichlet::log_beta;
use super::extremes::EULER_GAMMA;
use super::{
    Batch, Cumulative, Distribution, Divergence, Reparametrized, Symbol, open_uniform, pair, part,
};
use crate::{Branch, Result, Shape, ShardTensor};
use shard_comm::Calling;

/// Numbers between 0 and 1 with a closed form for the share below each, as `torch.distributions.Kumaraswamy`: much like [`Beta`](super::Beta).
#[derive(Clone, Debug)]
pub struct Kumaraswamy(Batch<2>);

impl Kumaraswamy {
    /// Of the exponents of a value, and of what is above it, a tensor or a number; both are above 0.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// Shapes that do not broadcast.
    ///
    /// ```
    /// use shard_tensor::distributions::{Cumulative, Kumaraswamy};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let shares = Kumaraswamy::new(&mesh.full([3], 2.0, shard(0))?, 1.0)?;
    ///     shares.cdf(&mesh.full([3], 0.5, shard(0))?)?.to_array::<f32>()
    /// })?;
    /// assert!(found[0].iter().all(|below| (below - 0.25).abs() < 1e-6));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new<'a>(
        concentration1: &ShardTensor,
        concentration0: impl Into<Branch<'a>>,
    ) -> Result<Self> {
        let _call = Calling::of("Kumaraswamy::new");
        let both = pair(concentration1, concentration0)?;
        Ok(Self(Batch::new("Kumaraswamy", both)?))
    }

    /// The exponents of values.
    pub fn concentration1(&self) -> &ShardTensor {
        &self.0.of[0]
    }

    /// The exponents of what is above values.
    pub fn concentration0(&self) -> &ShardTensor {
        &self.0.of[1]
    }
}

/// The mean of a power.
fn power<'f>(a: Symbol<'f>, b: Symbol<'f>, exponent: f64) -> Symbol<'f> {
    (b.log() + log_beta(exponent / a + 1.0, b)).exp()
}

impl Distribution for Kumaraswamy {
    fn batch_shape(&self) -> &[usize] {
        &self.0.batch
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Kumaraswamy::sample");
        Self(self.0.detached()).rsample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Kumaraswamy::log_prob");
        formula!("kumaraswamy_log_prob", |[x, a, b]| {
            let log = x.log();
            let above = (-(a * log).expm1()).log();
            (a * b).log() + part(a - 1.0, log) + part(b - 1.0, above)
        } of [value, self.concentration1(), self.concentration0()])
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Kumaraswamy::entropy");
        formula!("kumaraswamy_entropy", |[a, b]| {
            let harmonic = (b + 1.0).digamma() + EULER_GAMMA;
            1.0 - 1.0 / b + (1.0 - 1.0 / a) * harmonic - (a * b).log()
        } of self.0.each())
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Kumaraswamy::mean");
        formula!("kumaraswamy_mean", |[a, b]| { power(a, b, 1.0) } of self.0.each())
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Kumaraswamy::variance");
        formula!("kumaraswamy_variance", |[a, b]| {
            power(a, b, 2.0) - power(a, b, 1.0).square()
        } of self.0.each())
    }
}

impl Reparametrized for Kumaraswamy {
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Kumaraswamy::rsample");
        let (largest, dtype) = (
            self.0.largest(&shape.into())?,
            self.concentration1().dtype(),
        );
        let u = open_uniform(&largest)?;
        let [a, b] = self.0.each().map(|of| of.to(u.dtype()));
        // The share above a sample is as uniform as that below.
        formula!("kumaraswamy_sample", |[a, b, u]| {
            ((-(u.log() / b).expm1()).log() / a).exp()
        } of [&a?, &b?, &u])?
        .to(dtype)
    }
}

impl Cumulative for Kumaraswamy {
    #[track_caller]
    fn cdf(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Kumaraswamy::cdf");
        formula!("kumaraswamy_cdf", |[x, a, b]| {
            let inside = -(b * (-(a * x.log()).exp()).log1p()).expm1();
            x.below(0.0, 0.0, x.below(1.0, inside, 1.0))
        } of [value, self.concentration1(), self.concentration0()])
    }

    #[track_caller]
    fn icdf(&self, share: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Kumaraswamy::icdf");
        formula!("kumaraswamy_icdf", |[share, a, b]| {
            ((-((-share).log1p() / b).expm1()).log() / a).exp()
        } of [share, self.concentration1(), self.concentration0()])
    }
}

/// Numbers between 0 and 1 whose densities are powers of two numbers, as `torch.distributions.ContinuousBernoulli`: the likelihood that goes with
/// binary cross entropy of values in between (Loaiza-Ganem and Cunningham, 2019). Near a logit of 0, where PyTorch's samples do not move with it,
/// these do, and moments have all digits.
#[derive(Clone, Debug)]
pub struct ContinuousBernoulli(Batch<1>);

impl ContinuousBernoulli {
    /// Of logits: how the logarithm of the density grows from 0 to 1.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// Types that are no floats.
    ///
    /// ```
    /// use shard_tensor::distributions::{ContinuousBernoulli, Distribution};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let logits = ctx.mesh_of(2)?.zeros([3], shard(0))?;
    ///     ContinuousBernoulli::from_logits(&logits)?.mean()?.to_array::<f32>() // uniform
    /// })?;
    /// assert_eq!(found[0].as_slice(), Some(&[0.5; 3][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn from_logits(logits: &ShardTensor) -> Result<Self> {
        let _call = Calling::of("ContinuousBernoulli::from_logits");
        Ok(Self(Batch::new("ContinuousBernoulli", [logits.clone()])?))
    }

    /// Of the numbers, above 0 and below 1, of which densities are powers.
    ///
    /// # Collective
    /// As [`from_logits`](Self::from_logits).
    ///
    /// # Errors
    /// As [`from_logits`](Self::from_logits).
    #[track_caller]
    pub fn from_probs(probs: &ShardTensor) -> Result<Self> {
        let _call = Calling::of("ContinuousBernoulli::from_probs");
        Self::from_logits(&super::counts::logits(probs)?)
    }

    /// The logits.
    pub fn logits(&self) -> &ShardTensor {
        &self.0.of[0]
    }
}

/// Up to where series serve instead of quotients, which lose digits there.
const NEAR: f64 = 0.5;

/// `Σ c[k] x^k`
pub(super) fn series<'f>(x: Symbol<'f>, numbers: &[f64]) -> Symbol<'f> {
    let numbers = numbers.iter().rev();
    numbers.fold(x * 0.0, |sum, &number| sum * x + number)
}

/// The size of a logit, and the same where series do not serve.
fn sizes<'f>(logit: Symbol<'f>) -> [Symbol<'f>; 2] {
    let size = logit.abs();
    [size, size.below(NEAR, NEAR, size)]
}

/// The logarithm of what densities `e^(logit x)` are divided by.
pub(super) fn log_norm<'f>(logit: Symbol<'f>) -> Symbol<'f> {
    let [size, large] = sizes(logit);
    let squares = [
        0.0,
        1.0 / 24.0,
        -1.0 / 2880.0,
        1.0 / 181_440.0,
        -1.0 / 9_676_800.0,
        1.0 / 479_001_600.0,
        -691.0 / 15_692_092_416_000.0,
    ];
    let exact = large * 0.5 + (-(-large).expm1() / large).log();
    logit * 0.5 + size.below(NEAR, series(logit.square(), &squares), exact)
}

/// The mean of a logit: how the former grows.
pub(super) fn mean<'f>(logit: Symbol<'f>) -> Symbol<'f> {
    let [size, large] = sizes(logit);
    let squares = [
        1.0 / 12.0,
        -1.0 / 720.0,
        1.0 / 30_240.0,
        -1.0 / 1_209_600.0,
        1.0 / 47_900_160.0,
        -691.0 / 1_307_674_368_000.0,
        1.0 / 74_724_249_600.0,
    ];
    let near = logit * series(logit.square(), &squares);
    let apart = 0.5 - 1.0 / large + large.expm1().reciprocal();
    size.below(NEAR, near, logit.below(0.0, -apart, apart)) + 0.5
}

/// The variance of a logit: how the mean grows.
pub(super) fn variance<'f>(logit: Symbol<'f>) -> Symbol<'f> {
    let [size, large] = sizes(logit);
    let squares = [
        1.0 / 12.0,
        -1.0 / 240.0,
        1.0 / 6048.0,
        -1.0 / 172_800.0,
        1.0 / 5_322_240.0,
        -7601.0 / 1_307_674_368_000.0,
        13.0 / 74_724_249_600.0,
    ];
    let slope = (-large).exp() / (-large).expm1().square();
    let far = large.square().reciprocal() - slope;
    size.below(NEAR, series(logit.square(), &squares), far)
}

impl Distribution for ContinuousBernoulli {
    fn batch_shape(&self) -> &[usize] {
        &self.0.batch
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("ContinuousBernoulli::sample");
        Self(self.0.detached()).rsample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("ContinuousBernoulli::log_prob");
        formula!("continuous_bernoulli_log_prob", |[x, logit]| {
            x * logit - log_norm(logit)
        } of [value, self.logits()])
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("ContinuousBernoulli::entropy");
        formula!("continuous_bernoulli_entropy", |[logit]| {
            log_norm(logit) - logit * mean(logit)
        } of [self.logits()])
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("ContinuousBernoulli::mean");
        formula!("continuous_bernoulli_mean", |[logit]| { mean(logit) } of [self.logits()])
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("ContinuousBernoulli::variance");
        formula!("continuous_bernoulli_variance", |[logit]| {
            variance(logit)
        } of [self.logits()])
    }
}

impl Reparametrized for ContinuousBernoulli {
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("ContinuousBernoulli::rsample");
        let (largest, dtype) = (self.0.largest(&shape.into())?, self.logits().dtype());
        let u = open_uniform(&largest)?;
        let logits = self.logits().to(u.dtype())?;
        formula!("continuous_bernoulli_sample", |[logit, u]| { reached(logit, u) } of [&logits, &u])?
            .to(dtype)
    }
}

/// The value below which a share is.
fn reached<'f>(logit: Symbol<'f>, share: Symbol<'f>) -> Symbol<'f> {
    const CLOSE: f64 = 1e-2;
    const STEEP: f64 = 30.0;
    let size = logit.abs();
    let far = size.below(CLOSE, CLOSE, size);
    let falls = -(share * (-far).expm1()).log1p() / far;
    // A steep one would leave the range of floats from there.
    let steep = far.below(STEEP, STEEP, far);
    let gentle = far.below(STEEP, far, STEEP);
    let steep = (share + (1.0 - share) * (-steep).exp()).log() / steep + 1.0;
    let rises = far.below(STEEP, (share * gentle.expm1()).log1p() / gentle, steep);
    let exact = logit.below(0.0, falls, rises);
    // The cumulants of a truth value.
    let wide = share * (1.0 - share);
    let third = wide * (1.0 - share * 2.0) / 6.0;
    let fourth = wide * (1.0 - wide * 6.0) / 24.0;
    let near = share + logit * (wide * 0.5 + logit * (third + logit * fourth));
    size.below(CLOSE, near, exact)
}

impl Cumulative for ContinuousBernoulli {
    #[track_caller]
    fn cdf(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("ContinuousBernoulli::cdf");
        formula!("continuous_bernoulli_cdf", |[x, logit]| {
            let size = logit.abs();
            let size = size.below(1e-20, 1e-20, size);
            let falls = (-(x * size)).expm1() / (-size).expm1();
            let inside = falls * (-(logit.relu() * (1.0 - x))).exp();
            x.below(0.0, 0.0, x.below(1.0, inside, 1.0))
        } of [value, self.logits()])
    }

    #[track_caller]
    fn icdf(&self, share: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("ContinuousBernoulli::icdf");
        formula!("continuous_bernoulli_icdf", |[share, logit]| { reached(logit, share) } of [share, self.logits()])
    }
}

impl Divergence for ContinuousBernoulli {
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        formula!("continuous_bernoulli_kl_divergence", |[p, q]| {
            (p - q) * mean(p) - log_norm(p) + log_norm(q)
        } of [self.logits(), other.logits()])
    }
}
