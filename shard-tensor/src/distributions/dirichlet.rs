//! Shares of a whole.

use super::{Batch, Distribution, Divergence, Reparametrized, Symbol, gamma, pair, part, repeated};
use crate::{Branch, DType, Error, Fused, Result, Shape, ShardTensor};
use shard_comm::Calling;
use std::sync::LazyLock;

/// Numbers between 0 and 1, shares of a whole of two, as `torch.distributions.Beta`.
#[derive(Clone, Debug)]
pub struct Beta(Batch<2>);

impl Beta {
    /// Of the concentrations at 1 and at 0, the second a tensor or a number; both are above 0.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// Shapes that do not broadcast.
    ///
    /// ```
    /// use shard_tensor::distributions::{Beta, Distribution};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let beta = Beta::new(&ctx.mesh_of(2)?.ones([3], shard(0))?, 3.0)?;
    ///     beta.log_prob(&beta.sample([4])?)?;
    ///     beta.mean()?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0].as_slice(), Some(&[0.25; 3][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new<'a>(
        concentration1: &ShardTensor,
        concentration0: impl Into<Branch<'a>>,
    ) -> Result<Self> {
        let _call = Calling::of("Beta::new");
        let both = pair(concentration1, concentration0)?;
        Ok(Self(Batch::new("Beta", both)?))
    }

    /// The concentrations at 1.
    pub fn concentration1(&self) -> &ShardTensor {
        &self.0.of[0]
    }

    /// The concentrations at 0.
    pub fn concentration0(&self) -> &ShardTensor {
        &self.0.of[1]
    }
}

/// The logarithm of the beta function.
pub(super) fn log_beta<'f>(a: Symbol<'f>, b: Symbol<'f>) -> Symbol<'f> {
    a.lgamma() + b.lgamma() - (a + b).lgamma()
}

impl Distribution for Beta {
    fn batch_shape(&self) -> &[usize] {
        &self.0.batch
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Beta::sample");
        Self(self.0.detached()).rsample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        static LOG_PROB: LazyLock<Fused<3, 1>> = LazyLock::new(|| {
            Fused::new("beta_log_prob", |[x, a, b]| {
                let powers = part(a - 1.0, x.log()) + part(b - 1.0, (-x).log1p());
                [powers - log_beta(a, b)]
            })
        });
        let _call = Calling::of("Beta::log_prob");
        let [a, b] = self.0.each();
        let [found] = LOG_PROB.of([value, a, b])?;
        Ok(found)
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        static ENTROPY: LazyLock<Fused<2, 1>> = LazyLock::new(|| {
            Fused::new("beta_entropy", |[a, b]| {
                let each = (a - 1.0) * a.digamma() + (b - 1.0) * b.digamma();
                [log_beta(a, b) - each + (a + b - 2.0) * (a + b).digamma()]
            })
        });
        let _call = Calling::of("Beta::entropy");
        let [found] = ENTROPY.of(self.0.each())?;
        Ok(found)
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        static MEAN: LazyLock<Fused<2, 1>> =
            LazyLock::new(|| Fused::new("beta_mean", |[a, b]| [a / (a + b)]));
        let _call = Calling::of("Beta::mean");
        let [found] = MEAN.of(self.0.each())?;
        Ok(found)
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        static VARIANCE: LazyLock<Fused<2, 1>> = LazyLock::new(|| {
            Fused::new("beta_variance", |[a, b]| {
                [a * b / ((a + b).square() * (a + b + 1.0))]
            })
        });
        let _call = Calling::of("Beta::variance");
        let [found] = VARIANCE.of(self.0.each())?;
        Ok(found)
    }
}

impl Reparametrized for Beta {
    /// Gradients are those of two [`Gamma`](super::Gamma) samples, of which one is the share of both. PyTorch's differ sample by sample, and
    /// agree in the mean. They are not differentiated again.
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        static SHARE: LazyLock<Fused<2, 1>> =
            LazyLock::new(|| Fused::new("beta_sample", |[a, b]| [a / (a + b)]));
        let _call = Calling::of("Beta::rsample");
        let ones = self.0.largest(&shape.into())?.ones_like()?;
        let [a, b] = self.0.each();
        let a = gamma::standard(&ones.mul(a)?.to(DType::F64)?)?;
        let b = gamma::standard(&ones.mul(b)?.to(DType::F64)?)?;
        let [found] = SHARE.of([&a, &b])?;
        found.to(ones.dtype())
    }
}

impl Divergence for Beta {
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        static DIVERGENCE: LazyLock<Fused<4, 1>> = LazyLock::new(|| {
            Fused::new("beta_kl_divergence", |[a, b, to_a, to_b]| {
                let each = (a - to_a) * a.digamma() + (b - to_b) * b.digamma();
                let both = (to_a - a + to_b - b) * (a + b).digamma();
                [log_beta(to_a, to_b) - log_beta(a, b) + each + both]
            })
        });
        let ([a, b], [to_a, to_b]) = (self.0.each(), other.0.each());
        let [found] = DIVERGENCE.of([a, b, to_a, to_b])?;
        Ok(found)
    }
}

/// Shares of a whole of several, which are the last dim of the parameter, as `torch.distributions.Dirichlet`.
#[derive(Clone, Debug)]
pub struct Dirichlet(ShardTensor);

impl Dirichlet {
    /// Of concentrations `[batch.., shares]`, which are above 0.
    ///
    /// # Collective
    /// No communication.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for a tensor without dims.
    ///
    /// ```
    /// use shard_tensor::distributions::{Dirichlet, Distribution};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let shares = Dirichlet::new(&ctx.mesh_of(2)?.ones([5, 3], shard(0))?)?;
    ///     assert_eq!((shares.batch_shape(), shares.event_shape()), (&[5][..], &[3][..]));
    ///     shares.sample([])?.sum(-1, false)?.to_array::<f32>()
    /// })?;
    /// assert!(found[0].iter().all(|whole| (whole - 1.0).abs() < 1e-6));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new(concentration: &ShardTensor) -> Result<Self> {
        let _call = Calling::of("Dirichlet::new");
        match concentration.ndim() {
            0 => Err(Error::argument(
                "Dirichlet::new",
                "shares in the last dim",
                "a tensor without dims",
                "give a concentration for each share",
            )),
            _ => Ok(Self(concentration.clone())),
        }
    }

    /// The concentrations, `[batch.., shares]`.
    pub fn concentration(&self) -> &ShardTensor {
        &self.0
    }

    /// The sums of the concentrations, with a dim of one share.
    #[track_caller]
    fn total(&self) -> Result<ShardTensor> {
        self.0.sum(-1, true)
    }

    /// What a formula of two gives for each share and the sum of all, summed over shares.
    #[track_caller]
    fn over_shares(&self, formula: &Fused<2, 1>, total: &ShardTensor) -> Result<ShardTensor> {
        let [each] = formula.of([&self.0, total])?;
        each.sum(-1, false)
    }
}

impl Distribution for Dirichlet {
    fn batch_shape(&self) -> &[usize] {
        let shape = self.0.shape();
        &shape[..shape.len() - 1]
    }

    fn event_shape(&self) -> &[usize] {
        let shape = self.0.shape();
        &shape[shape.len() - 1..]
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Dirichlet::sample");
        Self(self.0.detach()).rsample(shape)
    }

    /// The logarithms of the densities at shares `[.., shares]` of 1 together.
    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        static EACH: LazyLock<Fused<2, 1>> = LazyLock::new(|| {
            Fused::new("dirichlet_log_prob", |[x, a]| {
                [part(a - 1.0, x.log()) - a.lgamma()]
            })
        });
        let _call = Calling::of("Dirichlet::log_prob");
        let [each] = EACH.of([value, &self.0])?;
        each.sum(-1, false)?
            .add(&self.total()?.squeeze(-1)?.lgamma()?)
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        static EACH: LazyLock<Fused<2, 1>> = LazyLock::new(|| {
            Fused::new("dirichlet_entropy", |[a, total]| {
                [a.lgamma() - (a - 1.0) * (a.digamma() - total.digamma())]
            })
        });
        let _call = Calling::of("Dirichlet::entropy");
        let total = self.total()?;
        let each = self.over_shares(&EACH, &total)?;
        each.sub(&total.squeeze(-1)?.lgamma()?)
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Dirichlet::mean");
        self.0.div(&self.total()?)
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        static VARIANCE: LazyLock<Fused<2, 1>> = LazyLock::new(|| {
            Fused::new("dirichlet_variance", |[a, total]| {
                let mean = a / total;
                [mean * (1.0 - mean) / (total + 1.0)]
            })
        });
        let _call = Calling::of("Dirichlet::variance");
        let [found] = VARIANCE.of([&self.0, &self.total()?])?;
        Ok(found)
    }
}

impl Reparametrized for Dirichlet {
    /// Gradients are those of [`Gamma`](super::Gamma) samples, which are divided by their sum. PyTorch's differ sample by sample, and agree in
    /// the mean. They are not differentiated again.
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Dirichlet::rsample");
        let whole = repeated(&self.0, &shape.into(), self.0.shape())?;
        let found = gamma::standard(&whole.to(DType::F64)?)?;
        found.div(&found.sum(-1, true)?)?.to(self.0.dtype())
    }
}

impl Divergence for Dirichlet {
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        static EACH: LazyLock<Fused<3, 1>> = LazyLock::new(|| {
            Fused::new("dirichlet_kl_divergence", |[p, q, total]| {
                [q.lgamma() - p.lgamma() + (p - q) * (p.digamma() - total.digamma())]
            })
        });
        let [total, others] = [self.total()?, other.total()?];
        let [each] = EACH.of([&self.0, &other.0, &total])?;
        let [total, others] = [total, others].map(|of| of.squeeze(-1)?.lgamma());
        each.sum(-1, false)?.add(&total?)?.sub(&others?)
    }
}
