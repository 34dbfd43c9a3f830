//! How often something succeeds, and how long that takes.

use super::sampling::{MANY, by_candidates, one_by_one, zeros};
use crate::distributions::{Batch, Distribution, Divergence, fine, pair, part};
use crate::{Branch, DType, Fused, Result, Shape, ShardTensor};
use shard_comm::Calling;
use std::sync::LazyLock;

/// How many of so many trials succeed, as `torch.distributions.Binomial`. Samples are of the parameters' type. No closed form gives its
/// entropy.
#[derive(Clone, Debug)]
pub struct Binomial {
    /// How many trials, and the logits.
    of: Batch<2>,
}

impl Binomial {
    /// Of whole numbers of trials, as floats, and the logits of a success, a tensor or a number.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// Shapes that do not broadcast.
    #[track_caller]
    pub fn from_logits<'a>(
        total_count: &ShardTensor,
        logits: impl Into<Branch<'a>>,
    ) -> Result<Self> {
        let _call = Calling::of("Binomial::from_logits");
        let of = Batch::new("Binomial", pair(total_count, logits)?)?;
        Ok(Self { of })
    }

    /// Of whole numbers of trials, as floats, and the probabilities of a success, a tensor or a number.
    ///
    /// # Collective
    /// As [`from_logits`](Self::from_logits).
    ///
    /// # Errors
    /// As [`from_logits`](Self::from_logits).
    ///
    /// ```
    /// use shard_tensor::distributions::{Binomial, Distribution};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let trials = ctx.mesh_of(2)?.full([3], 20.0, shard(0))?;
    ///     let successes = Binomial::from_probs(&trials, 0.25)?;
    ///     Ok((successes.sample([9])?.to_array::<f32>()?, successes.mean()?.to_array::<f32>()?))
    /// })?;
    /// let (drawn, mean) = &found[0];
    /// assert!(drawn.iter().all(|&k| (0.0..=20.0).contains(&k) && k.fract() == 0.0));
    /// assert!(mean.iter().all(|mean| (mean - 5.0).abs() < 1e-5));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn from_probs<'a>(total_count: &ShardTensor, probs: impl Into<Branch<'a>>) -> Result<Self> {
        let _call = Calling::of("Binomial::from_probs");
        let [total, probs] = pair(total_count, probs)?;
        Self::from_logits(&total, &super::logits(&probs)?)
    }

    /// The numbers of trials.
    pub fn total_count(&self) -> &ShardTensor {
        &self.of.of[0]
    }

    /// The logits of a success.
    pub fn logits(&self) -> &ShardTensor {
        &self.of.of[1]
    }
}

/// A number of successes for each number of trials and probability of at most a half, in `f64`.
#[track_caller]
fn successes(trials: &ShardTensor, p: &ShardTensor) -> Result<ShardTensor> {
    // BTRS of Hörmann (1993), without the test that saves some logarithms.
    static CANDIDATE: LazyLock<Fused<4, 2>> = LazyLock::new(|| {
        Fused::new("binomial_candidate", |[n, p, u, v]| {
            let wide = (n * p * (1.0 - p)).sqrt();
            let b = wide * 2.53 + 1.15;
            let a = b * 0.0248 + p * 0.01 - 0.0873;
            let u = u - 0.5;
            let near = 0.5 - u.abs();
            let k = ((a * 2.0 / near + b) * u + n * p + 0.5).floor();
            let alpha = (2.83 + 5.1 / b) * wide;
            let height = (v * alpha / (a / near.square() + b)).log();
            let likeliest = ((n + 1.0) * p).floor();
            let ways = (likeliest + 1.0).lgamma() + (n - likeliest + 1.0).lgamma()
                - (k + 1.0).lgamma()
                - (n - k + 1.0).lgamma();
            let fits = height - (ways + (k - likeliest) * (p / (1.0 - p)).log());
            let fits = n.below(k, 1.0, near.below(1e-300, 1.0, fits));
            [k, k.below(0.0, 1.0, fits)]
        })
    });
    let odds = formula!("binomial_odds", |[p]| { p / (1.0 - p) } of [p])?;
    let none = formula!("binomial_none", |[n, p]| { (n * (-p).log1p()).exp() } of [trials, p])?;
    let more = trials.add_scalar(1.0)?.mul(&odds)?;
    let few = one_by_one([&none, &odds.neg()?, &more])?;
    let many = by_candidates(trials, |u, v| CANDIDATE.of([trials, p, u, v]))?;
    formula!("binomial_sample", |[n, p, few, many]| {
        // What rounding leaves of the last probabilities is no further success.
        let few = n.below(few, n, few);
        (n * p).below(MANY, few, many) + p * 0.0
    } of [trials, p, &few, &many])
}

impl Distribution for Binomial {
    fn batch_shape(&self) -> &[usize] {
        &self.of.batch
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Binomial::sample");
        let of = self.of.detached();
        let zeros = zeros(&of.largest(&shape.into())?)?;
        let [total, logits] = of.each().map(|of| of.to(DType::F64)?.add(&zeros));
        let (total, logits) = (total?, logits?);
        // Of the rarer outcome, of which the others are the rest.
        let rare = successes(&total, &logits.abs()?.neg()?.sigmoid()?)?;
        formula!("binomial_turned", |[n, logit, rare]| {
            (-logit).below(0.0, n - rare, rare)
        } of [&total, &logits, &rare])?
        .to(self.logits().dtype())
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Binomial::log_prob");
        formula!("binomial_log_prob", |[x, total, logit]| {
            let ways = (total + 1.0).lgamma() - (x + 1.0).lgamma() - (total - x + 1.0).lgamma();
            part(x, logit.log_sigmoid()) + part(total - x, (-logit).log_sigmoid()) + ways
        } of [value, self.total_count(), self.logits()])
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Binomial::mean");
        self.total_count().mul(&self.logits().sigmoid()?)
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Binomial::variance");
        formula!("binomial_variance", |[total, logit]| {
            total * logit.sigmoid() * (-logit).sigmoid()
        } of self.of.each())
    }
}

impl Divergence for Binomial {
    /// Infinite where this has more trials, and NaN where it has fewer: no closed form is known then.
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        formula!("binomial_kl_divergence", |[n, p, to_n, q]| {
            let yes = part(p.sigmoid(), p.log_sigmoid() - q.log_sigmoid());
            let no = part((-p).sigmoid(), (-p).log_sigmoid() - (-q).log_sigmoid());
            let fewer = n.below(to_n, f64::NAN, n * (yes + no));
            to_n.below(n, f64::INFINITY, fewer)
        } of [self.total_count(), self.logits(), other.total_count(), other.logits()])
    }
}

/// How many failures come before the first success, as `torch.distributions.Geometric`. Samples are of the parameter's type.
#[derive(Clone, Debug)]
pub struct Geometric(Batch<1>);

impl Geometric {
    /// Of the probabilities of a success, above 0 and up to 1.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// Types that are no floats.
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, Geometric};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let failures = Geometric::from_probs(&ctx.mesh_of(2)?.full([3], 0.25, shard(0))?)?;
    ///     failures.mean()?.to_array::<f32>()
    /// })?;
    /// assert!(found[0].iter().all(|mean| (mean - 3.0).abs() < 1e-5));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn from_probs(probs: &ShardTensor) -> Result<Self> {
        let _call = Calling::of("Geometric::from_probs");
        Ok(Self(Batch::new("Geometric", [probs.clone()])?))
    }

    /// Of the logits of a success.
    ///
    /// # Collective
    /// As [`from_probs`](Self::from_probs).
    ///
    /// # Errors
    /// As [`from_probs`](Self::from_probs).
    #[track_caller]
    pub fn from_logits(logits: &ShardTensor) -> Result<Self> {
        let _call = Calling::of("Geometric::from_logits");
        Ok(Self(Batch::new("Geometric", [logits.sigmoid()?])?))
    }

    /// The probabilities of a success.
    pub fn probs(&self) -> &ShardTensor {
        &self.0.of[0]
    }
}

impl Distribution for Geometric {
    fn batch_shape(&self) -> &[usize] {
        &self.0.batch
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Geometric::sample");
        let dtype = self.probs().dtype();
        let p = self.0.largest(&shape.into())?.to(fine(dtype))?;
        // Above 0, and up to 1.
        let u = p.rand_like()?.rsub_scalar(1.0)?;
        formula!("geometric_sample", |[p, u]| {
            (u.log() / (-p).log1p()).floor().abs()
        } of [&p, &u])?
        .to(dtype)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Geometric::log_prob");
        formula!("geometric_log_prob", |[x, p]| {
            part(x, (-p).log1p()) + p.log()
        } of [value, self.probs()])
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Geometric::entropy");
        formula!("geometric_entropy", |[p]| {
            -(part(p, p.log()) + part(1.0 - p, (-p).log1p())) / p
        } of [self.probs()])
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Geometric::mean");
        self.probs().reciprocal()?.sub_scalar(1.0)
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Geometric::variance");
        formula!("geometric_variance", |[p]| { (1.0 / p - 1.0) / p } of [self.probs()])
    }
}

impl Divergence for Geometric {
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        formula!("geometric_kl_divergence", |[p, q]| {
            let no = part(1.0 - p, (-p).log1p() - (-q).log1p());
            (part(p, p.log() - q.log()) + no) / p
        } of [self.probs(), other.probs()])
    }
}
