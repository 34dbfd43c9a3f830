//! Distributions, and how far they are from those of other kinds.

use super::Case;
#[cfg(feature = "linalg")]
use super::three;
use shard_tensor::distributions::{
    Bernoulli, Beta, Distribution, Exponential, Gamma, Gumbel, Laplace, LkjCholesky, Normal,
    Poisson, Uniform, kl_divergence,
};
#[cfg(feature = "linalg")]
use shard_tensor::distributions::{LowRankMultivariateNormal, MultivariateNormal, Wishart};
use shard_tensor::{Placements, Result, ShardTensor};

/// Distributions of the same two parameters.
struct Kinds {
    normal: Normal,
    laplace: Laplace,
    gumbel: Gumbel,
    gamma: Gamma,
    exponential: Exponential,
    beta: Beta,
    /// Between 0 and 1.
    inner: Uniform,
    /// From below 0 to above 1.
    outer: Uniform,
    bernoulli: Bernoulli,
    poisson: Poisson,
}

fn kinds(a: &ShardTensor, b: &ShardTensor) -> Result<Kinds> {
    let [above, wide] = [a.exp()?, b.exp()?];
    let inner = [a.sigmoid()?.mul_scalar(0.3)?, b.sigmoid()?.mul_scalar(0.5)?];
    Ok(Kinds {
        normal: Normal::new(a, &wide)?,
        laplace: Laplace::new(a, &wide)?,
        gumbel: Gumbel::new(a, &wide)?,
        gamma: Gamma::new(&above, &wide)?,
        exponential: Exponential::new(&wide)?,
        beta: Beta::new(&above, &wide)?,
        inner: Uniform::new(&inner[0], &inner[1].add_scalar(0.4)?)?,
        outer: Uniform::new(&above.neg()?, &wide.add_scalar(1.0)?)?,
        bernoulli: Bernoulli::from_logits(a)?,
        poisson: Poisson::new(&wide)?,
    })
}

/// One below the other.
fn stacked(found: impl IntoIterator<Item = Result<ShardTensor>>) -> Result<ShardTensor> {
    let found = found.into_iter().collect::<Result<Vec<_>>>()?;
    ShardTensor::stack(&found, 0)
}

/// All elements of some tensors.
#[cfg(feature = "linalg")]
fn listed(found: impl IntoIterator<Item = Result<ShardTensor>>) -> Result<ShardTensor> {
    let found = found.into_iter().map(|x| x?.flatten());
    ShardTensor::cat(&found.collect::<Result<Vec<_>>>()?, 0)
}

/// A triangle with a large diagonal.
#[cfg(feature = "linalg")]
fn triangle(x: &ShardTensor) -> Result<ShardTensor> {
    x.add(&three(x)?)
}

pub(super) const DISTRIBUTIONS: &[Case] = &[
    ("kl_divergence from normal", |x| {
        let (p, q) = (kinds(&x[0], &x[1])?, kinds(&x[2], &x[3])?);
        stacked([
            kl_divergence(&p.beta, &q.normal),
            kl_divergence(&p.exponential, &q.normal),
            kl_divergence(&p.gamma, &q.normal),
            kl_divergence(&p.gumbel, &q.normal),
            kl_divergence(&p.laplace, &q.normal),
            kl_divergence(&p.outer, &q.normal),
            kl_divergence(&p.normal, &q.laplace),
        ])
    }),
    ("kl_divergence from sides", |x| {
        let (p, q) = (kinds(&x[0], &x[1])?, kinds(&x[2], &x[3])?);
        stacked([
            kl_divergence(&p.beta, &q.exponential),
            kl_divergence(&p.gamma, &q.exponential),
            kl_divergence(&p.inner, &q.exponential),
            kl_divergence(&p.beta, &q.gamma),
            kl_divergence(&p.exponential, &q.gamma),
            kl_divergence(&p.inner, &q.gamma),
            kl_divergence(&p.beta, &q.outer),
            kl_divergence(&p.inner, &q.beta),
        ])
    }),
    ("kl_divergence from gumbel", |x| {
        let (p, q) = (kinds(&x[0], &x[1])?, kinds(&x[2], &x[3])?);
        stacked([
            kl_divergence(&p.exponential, &q.gumbel),
            kl_divergence(&p.gamma, &q.gumbel),
            kl_divergence(&p.normal, &q.gumbel),
            kl_divergence(&p.outer, &q.gumbel),
            kl_divergence(&p.bernoulli, &q.poisson),
        ])
    }),
    ("LkjCholesky", |x| {
        let ones = x[1].mesh().eye([4, 4], Placements::replicated())?;
        let rows = x[1].tril(-1)?.add(&ones)?.normalize(2.0, -1, 0.0)?;
        LkjCholesky::new(4, &x[0].exp()?)?.log_prob(&rows)
    }),
    #[cfg(feature = "linalg")]
    ("LowRankMultivariateNormal", |x| {
        let variances = x[2].exp()?;
        let p = LowRankMultivariateNormal::new(&x[0], &x[1], &variances)?;
        let q = MultivariateNormal::new(&x[3], &triangle(&x[4])?)?;
        let columns = x[1].select(0, 0)?.mul_scalar(2.0)?;
        let r = LowRankMultivariateNormal::new(&x[3], &columns, &variances.add_scalar(1.0)?)?;
        listed([
            p.log_prob(&x[3]),
            p.entropy(),
            p.variance(),
            p.covariance(),
            kl_divergence(&p, &r),
            kl_divergence(&p, &q),
            kl_divergence(&q, &p),
        ])
    }),
    #[cfg(feature = "linalg")]
    ("Wishart", |x| {
        let p = Wishart::new(&x[0].exp()?.add_scalar(3.0)?, &triangle(&x[1])?)?;
        let root = triangle(&x[2])?;
        let value = root.matmul(&root.transpose(1, 2)?)?;
        listed([p.log_prob(&value), p.entropy(), p.mean(), p.variance()])
    }),
];
