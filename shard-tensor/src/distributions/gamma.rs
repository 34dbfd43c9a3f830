//! Numbers above 0, as sums of times between events are.

use super::gamma_slope::with_slope;
use super::{Batch, Distribution, Divergence, LITTLE, Reparametrized, fine, pair, part};
use crate::{Branch, DType, Fused, Result, Shape, ShardTensor};
use shard_comm::Calling;
use std::sync::LazyLock;

/// Numbers above 0 of a concentration and a rate, as `torch.distributions.Gamma`: the time until so many events have come, of which so
/// many come in a unit.
#[derive(Clone, Debug)]
pub struct Gamma(Batch<2>);

impl Gamma {
    /// Of concentrations, and rates, a tensor or a number; both are above 0.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// Shapes that do not broadcast.
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, Gamma};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let gamma = Gamma::new(&ctx.mesh_of(2)?.ones([3], shard(0))?, 2.0)?;
    ///     assert_eq!(gamma.sample([4])?.shape(), [4, 3]);
    ///     gamma.mean()?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0].as_slice(), Some(&[0.5; 3][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new<'a>(concentration: &ShardTensor, rate: impl Into<Branch<'a>>) -> Result<Self> {
        let _call = Calling::of("Gamma::new");
        Ok(Self(Batch::new("Gamma", pair(concentration, rate)?)?))
    }

    /// The concentrations.
    pub fn concentration(&self) -> &ShardTensor {
        &self.0.of[0]
    }

    /// The rates.
    pub fn rate(&self) -> &ShardTensor {
        &self.0.of[1]
    }
}

/// How often a number is drawn, at most: the first that fits is taken, and each fits with a probability of 0.95 or more. None of them
/// does with one below 1e-18.
const TRIES: usize = 14;

/// A number of rate 1 for each concentration, in a type of 32 bits or more, with a gradient for a concentration that has one.
#[track_caller]
pub(super) fn standard(concentration: &ShardTensor) -> Result<ShardTensor> {
    with_slope(concentration, &drawn(&concentration.detach())?)
}

/// A number of rate 1 for each concentration.
///
/// By the method of Marsaglia and Tsang (2000), whose concentration is 1 at least: to the number of one more, a power of a uniform one
/// leads back.
#[track_caller]
fn drawn(concentration: &ShardTensor) -> Result<ShardTensor> {
    // Of a normal and a uniform number in (0, 1] one that may fit, and how far it is from being refused: below 0.
    static CANDIDATE: LazyLock<Fused<3, 2>> = LazyLock::new(|| {
        Fused::new("gamma_candidate", |[concentration, x, u]| {
            let d = concentration + concentration.below(1.0, 2.0 / 3.0, -1.0 / 3.0);
            let cube = x / (d * 9.0).sqrt() + 1.0;
            let v = cube.square() * cube;
            let bound = x.square() * 0.5 + d * (1.0 - v + v.log());
            [d * v, v.below(LITTLE, 1.0, u.log() - bound)]
        })
    });
    static BACK: LazyLock<Fused<3, 1>> = LazyLock::new(|| {
        Fused::new("gamma_sample", |[concentration, found, u]| {
            [concentration.below(1.0, found * (u.log() / concentration).exp(), found)]
        })
    });
    let above_zero = |drawn: ShardTensor| drawn.rsub_scalar(1.0);
    let candidate = || {
        let noise = [
            concentration.randn_like()?,
            above_zero(concentration.rand_like()?)?,
        ];
        CANDIDATE.of([concentration, &noise[0], &noise[1]])
    };
    let [mut found, mut open] = candidate()?;
    for _ in 1..TRIES {
        let [number, refused] = candidate()?;
        let fits = open.lt_scalar(0.0)?;
        found = fits.where_(&found, &number)?;
        open = fits.where_(&open, &refused)?;
    }
    let u = above_zero(concentration.rand_like()?)?;
    let [found] = BACK.of([concentration, &found, &u])?;
    // A number that the type does not hold is no 0: that has a density of its own.
    found.clamp_min(match found.dtype() {
        DType::F64 => f64::MIN_POSITIVE,
        _ => f32::MIN_POSITIVE.into(),
    })
}

impl Distribution for Gamma {
    fn batch_shape(&self) -> &[usize] {
        &self.0.batch
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Gamma::sample");
        Self(self.0.detached()).rsample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        static LOG_PROB: LazyLock<Fused<3, 1>> = LazyLock::new(|| {
            Fused::new("gamma_log_prob", |[x, concentration, rate]| {
                let powers = concentration * rate.log() + part(concentration - 1.0, x.log());
                [powers - rate * x - concentration.lgamma()]
            })
        });
        let _call = Calling::of("Gamma::log_prob");
        let [found] = LOG_PROB.of([value, self.concentration(), self.rate()])?;
        Ok(found)
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        static ENTROPY: LazyLock<Fused<2, 1>> = LazyLock::new(|| {
            Fused::new("gamma_entropy", |[concentration, rate]| {
                let slope = (1.0 - concentration) * concentration.digamma();
                [concentration - rate.log() + concentration.lgamma() + slope]
            })
        });
        let _call = Calling::of("Gamma::entropy");
        let [found] = ENTROPY.of(self.0.each())?;
        Ok(found)
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Gamma::mean");
        self.concentration().div(self.rate())
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        static VARIANCE: LazyLock<Fused<2, 1>> = LazyLock::new(|| {
            Fused::new("gamma_variance", |[concentration, rate]| {
                [concentration / rate.square()]
            })
        });
        let _call = Calling::of("Gamma::variance");
        let [found] = VARIANCE.of(self.0.each())?;
        Ok(found)
    }
}

impl Reparametrized for Gamma {
    /// Gradients for concentrations are those of the probability to be below the sample, to three digits or more, as PyTorch's; they are not
    /// differentiated again.
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Gamma::rsample");
        let ([concentration, rate], dtype) = (self.0.each(), self.rate().dtype());
        // In one layout, whichever parameter it is of.
        let ones = self.0.largest(&shape.into())?.ones_like()?;
        let concentration = ones.mul(concentration)?.to(fine(dtype))?;
        standard(&concentration)?.to(dtype)?.div(rate)
    }
}

impl Divergence for Gamma {
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        static DIVERGENCE: LazyLock<Fused<4, 1>> = LazyLock::new(|| {
            Fused::new("gamma_kl_divergence", |[p, p_rate, q, q_rate]| {
                let shapes = q.lgamma() - p.lgamma() + (p - q) * p.digamma();
                let rates = q * (p_rate / q_rate).log() + (q_rate - p_rate) * p / p_rate;
                [shapes + rates]
            })
        });
        let [p, p_rate] = self.0.each();
        let [found] = DIVERGENCE.of([p, p_rate, other.concentration(), other.rate()])?;
        Ok(found)
    }
}
