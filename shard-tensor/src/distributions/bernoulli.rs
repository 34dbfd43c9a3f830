//! Yes or no.

use super::categorical::epsilon;
use super::{Batch, Distribution, Divergence, LITTLE, part, repeated};
use crate::{Fused, Result, Shape, ShardTensor, Symbol};
use shard_comm::Calling;
use std::sync::LazyLock;

/// 1 with a probability and else 0, as `torch.distributions.Bernoulli`. Samples are of the parameter's type.
#[derive(Clone, Debug)]
pub struct Bernoulli {
    /// `ln p - ln (1 - p)`, finite if it was made of probabilities.
    logits: Batch<1>,
    probs: ShardTensor,
}

impl Bernoulli {
    /// Of logits: `ln p - ln (1 - p)` of a probability `p`.
    ///
    /// # Collective
    /// All members of the mesh. No communication; a partial tensor is reduced first.
    ///
    /// # Errors
    /// Types that are no floats.
    ///
    /// ```
    /// use shard_tensor::distributions::{Bernoulli, Distribution};
    /// use shard_tensor::{launch, shard};
    /// let entropy = launch(2, |ctx| {
    ///     let gates = Bernoulli::from_logits(&ctx.mesh_of(2)?.zeros([3], shard(0))?)?;
    ///     gates.entropy()?.to_array::<f32>()
    /// })?;
    /// assert!(entropy[0].iter().all(|entropy| (entropy - std::f32::consts::LN_2).abs() < 1e-6));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn from_logits(logits: &ShardTensor) -> Result<Self> {
        let _call = Calling::of("Bernoulli::from_logits");
        let probs = logits.sigmoid()?;
        let logits = Batch::new("Bernoulli", [logits.clone()])?;
        Ok(Self { logits, probs })
    }

    /// Of probabilities, from 0 to 1.
    ///
    /// # Collective
    /// As [`from_logits`](Self::from_logits).
    ///
    /// # Errors
    /// As [`from_logits`](Self::from_logits).
    #[track_caller]
    pub fn from_probs(probs: &ShardTensor) -> Result<Self> {
        let _call = Calling::of("Bernoulli::from_probs");
        let least = epsilon(probs.dtype());
        let logits = Batch::new("Bernoulli", [probs.logit(least)?])?;
        let probs = probs.clone();
        Ok(Self { logits, probs })
    }

    /// The logits.
    pub fn logits(&self) -> &ShardTensor {
        &self.logits.of[0]
    }

    /// The probabilities of 1.
    pub fn probs(&self) -> &ShardTensor {
        &self.probs
    }
}

impl Distribution for Bernoulli {
    fn batch_shape(&self) -> &[usize] {
        &self.logits.batch
    }

    /// # Collective
    /// As [`bernoulli`](ShardTensor::bernoulli).
    ///
    /// # Errors
    /// [`Argument`](crate::Error::Argument) for what are no probabilities.
    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        const OP: &str = "Bernoulli::sample";
        let _call = Calling::of(OP);
        repeated(&self.probs.detach(), &shape.into(), self.batch_shape())?.tossed(OP)
    }

    /// The logarithms of the probabilities of 0 and 1, which may be truth values or integers too. Numbers between them have their share
    /// of both.
    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        static LOG_PROB: LazyLock<Fused<2, 1>> = LazyLock::new(|| {
            Fused::new("bernoulli_log_prob", |[x, logit]| {
                [part(x, logit.log_sigmoid()) + part(1.0 - x, (-logit).log_sigmoid())]
            })
        });
        let _call = Calling::of("Bernoulli::log_prob");
        let value = value.to(self.probs.dtype())?;
        let [found] = LOG_PROB.of([&value, self.logits()])?;
        Ok(found)
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Bernoulli::entropy");
        self.log_prob(&self.probs)?.neg()
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        Ok(self.probs.clone())
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        static VARIANCE: LazyLock<Fused<1, 1>> =
            LazyLock::new(|| Fused::new("bernoulli_variance", |[p]| [p * (1.0 - p)]));
        let _call = Calling::of("Bernoulli::variance");
        let [found] = VARIANCE.of([&self.probs])?;
        Ok(found)
    }
}

impl Divergence for Bernoulli {
    /// Infinite where the other never gives what this gives.
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        static DIVERGENCE: LazyLock<Fused<4, 1>> = LazyLock::new(|| {
            Fused::new("bernoulli_kl_divergence", |[p_logit, p, q_logit, q]| {
                let [yes, no] = [(p_logit, q_logit), (-p_logit, -q_logit)]
                    .map(|(p, q)| p.log_sigmoid() - q.log_sigmoid());
                [apart(p, q, yes) + apart(1.0 - p, 1.0 - q, no)]
            })
        });
        let [found] = DIVERGENCE.of([self.logits(), &self.probs, other.logits(), &other.probs])?;
        Ok(found)
    }
}

/// What an answer adds to a divergence: nothing if it is never given, and infinity if the other never gives it.
fn apart<'f>(p: Symbol<'f>, q: Symbol<'f>, logs: Symbol<'f>) -> Symbol<'f> {
    p.below(LITTLE, 0.0, q.below(LITTLE, f64::INFINITY, p * logs))
}
