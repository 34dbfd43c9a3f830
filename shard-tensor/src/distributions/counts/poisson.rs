//! How many events come.

use super::sampling::{MANY, by_candidates, one_by_one, zeros};
use crate::distributions::{Batch, Distribution, Divergence, gamma, pair, part};
use crate::{Branch, DType, Fused, Result, Shape, ShardTensor};
use shard_comm::Calling;
use std::sync::LazyLock;

/// How many events come of which each comes by itself, as `torch.distributions.Poisson`. Samples are of the rates' type, and `torch.poisson(x)`
/// is one of each. No closed form gives its entropy.
#[derive(Clone, Debug)]
pub struct Poisson(Batch<1>);

impl Poisson {
    /// Of rates, which are not below 0: the means.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// Types that are no floats.
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, Poisson};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let counts = Poisson::new(&ctx.mesh_of(2)?.full([3], 200.0, shard(0))?)?;
    ///     counts.sample([400])?.mean(.., false)?.item()
    /// })?;
    /// assert!((found[0] - 200.0).abs() < 5.0);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new(rate: &ShardTensor) -> Result<Self> {
        let _call = Calling::of("Poisson::new");
        Ok(Self(Batch::new("Poisson", [rate.clone()])?))
    }

    /// The means.
    pub fn rate(&self) -> &ShardTensor {
        &self.0.of[0]
    }
}

/// A count for each rate, in `f64`: NaN of a rate that is none.
#[track_caller]
pub(super) fn counts(rate: &ShardTensor) -> Result<ShardTensor> {
    // PTRS of Hörmann (1993), without the two tests that save some logarithms.
    static CANDIDATE: LazyLock<Fused<3, 2>> = LazyLock::new(|| {
        Fused::new("poisson_candidate", |[rate, u, v]| {
            let rate = rate.clamp(MANY, f64::INFINITY);
            let b = rate.sqrt() * 2.53 + 0.931;
            let a = b * 0.024_83 - 0.059;
            let u = u - 0.5;
            let near = 0.5 - u.abs();
            let k = ((a * 2.0 / near + b) * u + rate + 0.43).floor();
            let inverse = 1.1239 + 1.1328 / (b - 3.4);
            let height = (v * inverse / (a / near.square() + b)).log();
            let fits = height - (k * rate.log() - rate - (k + 1.0).lgamma());
            [k, k.below(0.0, 1.0, near.below(1e-300, 1.0, fits))]
        })
    });
    let few = one_by_one([&rate.neg()?.exp()?, &rate.zeros_like()?, rate])?;
    let many = by_candidates(rate, |u, v| CANDIDATE.of([rate, u, v]))?;
    formula!("poisson_sample", |[rate, few, many]| {
        rate.below(MANY, few, many) + rate * 0.0
    } of [rate, &few, &many])
}

impl Distribution for Poisson {
    fn batch_shape(&self) -> &[usize] {
        &self.0.batch
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Poisson::sample");
        let rate = self.0.largest(&shape.into())?.to(DType::F64)?;
        counts(&rate)?.to(self.rate().dtype())
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Poisson::log_prob");
        formula!("poisson_log_prob", |[x, rate]| {
            part(x, rate.log()) - rate - (x + 1.0).lgamma()
        } of [value, self.rate()])
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        Ok(self.rate().clone())
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        Ok(self.rate().clone())
    }
}

impl Divergence for Poisson {
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        formula!("poisson_kl_divergence", |[p, q]| {
            part(p, (p / q).log()) - (p - q)
        } of [self.rate(), other.rate()])
    }
}

/// How many successes come before so many failures, as `torch.distributions.NegativeBinomial`: counts that scatter more than [`Poisson`]'s,
/// as those of genes in cells. Samples are of the parameters' type. No closed form gives its entropy.
#[derive(Clone, Debug)]
pub struct NegativeBinomial {
    /// How many failures, and the logits.
    of: Batch<2>,
}

impl NegativeBinomial {
    /// Of numbers of failures, which are above 0 and need not be whole, and the logits of a success, a tensor or a number.
    ///
    /// # Collective
    /// As [`Poisson::new`].
    ///
    /// # Errors
    /// Shapes that do not broadcast.
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, NegativeBinomial};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     // Counts of a mean and an inverse dispersion, as of genes in cells.
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let (mean, dispersion) = (mesh.full([3], 6.0, shard(0))?, mesh.full([3], 2.0, shard(0))?);
    ///     let counts = NegativeBinomial::from_logits(&dispersion, &mean.div(&dispersion)?.log()?)?;
    ///     Ok((counts.mean()?.to_array::<f32>()?, counts.variance()?.to_array::<f32>()?))
    /// })?;
    /// let near = |found: f32, expected: f32| (found - expected).abs() < 1e-4;
    /// assert!(near(found[0].0[0], 6.0) && near(found[0].1[0], 6.0 + 36.0 / 2.0));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn from_logits<'a>(
        total_count: &ShardTensor,
        logits: impl Into<Branch<'a>>,
    ) -> Result<Self> {
        let _call = Calling::of("NegativeBinomial::from_logits");
        let of = Batch::new("NegativeBinomial", pair(total_count, logits)?)?;
        Ok(Self { of })
    }

    /// Of numbers of failures and the probabilities of a success, a tensor or a number, from 0 to below 1.
    ///
    /// # Collective
    /// As [`Poisson::new`].
    ///
    /// # Errors
    /// As [`from_logits`](Self::from_logits).
    #[track_caller]
    pub fn from_probs<'a>(total_count: &ShardTensor, probs: impl Into<Branch<'a>>) -> Result<Self> {
        let _call = Calling::of("NegativeBinomial::from_probs");
        let [total, probs] = pair(total_count, probs)?;
        Self::from_logits(&total, &super::logits(&probs)?)
    }

    /// The numbers of failures.
    pub fn total_count(&self) -> &ShardTensor {
        &self.of.of[0]
    }

    /// The logits of a success.
    pub fn logits(&self) -> &ShardTensor {
        &self.of.of[1]
    }
}

impl Distribution for NegativeBinomial {
    fn batch_shape(&self) -> &[usize] {
        &self.of.batch
    }

    /// Samples of [`Poisson`], whose rates are samples of [`Gamma`](crate::distributions::Gamma).
    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("NegativeBinomial::sample");
        let of = self.of.detached();
        let zeros = zeros(&of.largest(&shape.into())?)?;
        let [total, logits] = of.each().map(|of| of.to(DType::F64));
        let rate = gamma::standard(&zeros.add(&total?)?)?.mul(&logits?.exp()?)?;
        counts(&rate)?.to(self.logits().dtype())
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("NegativeBinomial::log_prob");
        formula!("negative_binomial_log_prob", |[x, total, logit]| {
            let ways = (total + x).lgamma() - (x + 1.0).lgamma() - total.lgamma();
            let ways = (total + x).below(1e-300, 0.0, ways);
            part(total, (-logit).log_sigmoid()) + part(x, logit.log_sigmoid()) + ways
        } of [value, self.total_count(), self.logits()])
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("NegativeBinomial::mean");
        self.total_count().mul(&self.logits().exp()?)
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("NegativeBinomial::variance");
        formula!("negative_binomial_variance", |[total, logit]| {
            total * logit.exp() * (logit.exp() + 1.0)
        } of self.of.each())
    }
}
