//! Reciprocals of numbers that are Gamma distributed, and quotients of two such.

use super::dirichlet::log_beta;
use super::{Batch, Distribution, Divergence, Gamma, LITTLE, Reparametrized, gamma, pair, part};
use crate::{Branch, DType, Result, Shape, ShardTensor};
use shard_comm::Calling;

/// Reciprocals of [`Gamma`] numbers, as `torch.distributions.InverseGamma`.
#[derive(Clone, Debug)]
pub struct InverseGamma(Gamma);

impl InverseGamma {
    /// Of the concentrations of the reciprocals, and their rates, a tensor or a number; both are above 0.
    ///
    /// # Collective
    /// As [`Gamma::new`].
    ///
    /// # Errors
    /// As [`Gamma::new`].
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, InverseGamma};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let variances = InverseGamma::new(&ctx.mesh_of(2)?.full([3], 3.0, shard(0))?, 4.0)?;
    ///     assert_eq!(variances.sample([5])?.shape(), [5, 3]);
    ///     variances.mean()?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0].as_slice(), Some(&[2.0; 3][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new<'a>(concentration: &ShardTensor, rate: impl Into<Branch<'a>>) -> Result<Self> {
        let _call = Calling::of("InverseGamma::new");
        Ok(Self(Gamma::new(concentration, rate)?))
    }

    /// The concentrations of the reciprocals.
    pub fn concentration(&self) -> &ShardTensor {
        self.0.concentration()
    }

    /// The rates of the reciprocals.
    pub fn rate(&self) -> &ShardTensor {
        self.0.rate()
    }

    fn each(&self) -> [&ShardTensor; 2] {
        [self.concentration(), self.rate()]
    }
}

impl Distribution for InverseGamma {
    fn batch_shape(&self) -> &[usize] {
        self.0.batch_shape()
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("InverseGamma::sample");
        self.0.sample(shape)?.reciprocal()
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("InverseGamma::log_prob");
        formula!("inverse_gamma_log_prob", |[x, concentration, rate]| {
            let powers = concentration * rate.log() - (concentration + 1.0) * x.log();
            let found = powers - rate / x - concentration.lgamma();
            x.below(LITTLE, f64::NEG_INFINITY, found)
        } of [value, self.concentration(), self.rate()])
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("InverseGamma::entropy");
        formula!("inverse_gamma_entropy", |[concentration, rate]| {
            let slope = (concentration + 1.0) * concentration.digamma();
            concentration + rate.log() + concentration.lgamma() - slope
        } of self.each())
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("InverseGamma::mean");
        formula!("inverse_gamma_mean", |[concentration, rate]| {
            let above = concentration - 1.0;
            above.below(LITTLE, f64::INFINITY, rate / above)
        } of self.each())
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("InverseGamma::variance");
        formula!("inverse_gamma_variance", |[concentration, rate]| {
            let above = concentration - 2.0;
            let found = (rate / (concentration - 1.0)).square() / above;
            above.below(LITTLE, f64::INFINITY, found)
        } of self.each())
    }
}

impl Reparametrized for InverseGamma {
    /// Gradients are as [`Gamma`]'s.
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("InverseGamma::rsample");
        self.0.rsample(shape)?.reciprocal()
    }
}

/// Reciprocals are as far apart as what they are of.
impl Divergence for InverseGamma {
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        self.0.kl_divergence(&other.0)
    }
}

/// Quotients of two mean squares of so many normal numbers, as `torch.distributions.FisherSnedecor`: F of an analysis of variance. No closed
/// form gives its entropy here.
#[derive(Clone, Debug)]
pub struct FisherSnedecor(Batch<2>);

impl FisherSnedecor {
    /// Of the degrees of freedom of the dividend and of the divisor, a tensor or a number; both are above 0.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// Shapes that do not broadcast.
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, FisherSnedecor};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let f = FisherSnedecor::new(&ctx.mesh_of(2)?.full([3], 5.0, shard(0))?, 4.0)?;
    ///     f.mean()?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0].as_slice(), Some(&[2.0; 3][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new<'a>(df1: &ShardTensor, df2: impl Into<Branch<'a>>) -> Result<Self> {
        let _call = Calling::of("FisherSnedecor::new");
        Ok(Self(Batch::new("FisherSnedecor", pair(df1, df2)?)?))
    }

    /// The degrees of freedom of the dividend.
    pub fn df1(&self) -> &ShardTensor {
        &self.0.of[0]
    }

    /// The degrees of freedom of the divisor.
    pub fn df2(&self) -> &ShardTensor {
        &self.0.of[1]
    }
}

impl Distribution for FisherSnedecor {
    fn batch_shape(&self) -> &[usize] {
        &self.0.batch
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("FisherSnedecor::sample");
        Self(self.0.detached()).rsample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("FisherSnedecor::log_prob");
        formula!("fisher_snedecor_log_prob", |[x, df1, df2]| {
            let (a, b, ratio) = (df1 * 0.5, df2 * 0.5, df1 / df2);
            let powers = a * ratio.log() + part(a - 1.0, x.log());
            powers - (a + b) * (ratio * x).log1p() - log_beta(a, b)
        } of [value, self.df1(), self.df2()])
    }

    /// NaN for two degrees of freedom or fewer of the divisor, as in PyTorch.
    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("FisherSnedecor::mean");
        let found = formula!("fisher_snedecor_mean", |[df2]| {
            let above = df2 - 2.0;
            above.below(LITTLE, f64::NAN, df2 / above)
        } of [self.df2()])?;
        self.0.filled(&found)
    }

    /// NaN for four degrees of freedom or fewer of the divisor, as in PyTorch.
    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("FisherSnedecor::variance");
        formula!("fisher_snedecor_variance", |[df1, df2]| {
            let above = df2 - 4.0;
            let mean = df2 / (df2 - 2.0);
            let found = mean.square() * 2.0 * (df1 + df2 - 2.0) / (df1 * above);
            above.below(LITTLE, f64::NAN, found)
        } of self.0.each())
    }
}

impl Reparametrized for FisherSnedecor {
    /// Gradients are those of two [`Gamma`] samples.
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("FisherSnedecor::rsample");
        let ones = self.0.largest(&shape.into())?.ones_like()?;
        let halves = self
            .0
            .each()
            .map(|df| ones.mul(df)?.to(DType::F64)?.mul_scalar(0.5));
        let [a, b] = halves;
        let (a, b) = (a?, b?);
        let [x, y] = [gamma::standard(&a)?, gamma::standard(&b)?];
        formula!("fisher_snedecor_sample", |[x, y, a, b]| { x / a / (y / b) } of [&x, &y, &a, &b])?
            .to(ones.dtype())
    }
}
