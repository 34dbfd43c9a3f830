//! Losses that are made larger, so that small gradients do not vanish in 16 bits.

use super::slots::{real, whole};
use crate::{Error, Gradients, Result, ShardTensor, State, StateNumber, Stateful};
use shard_comm::Calling;

/// A factor of the loss that is as large as it may be, as `torch.amp.GradScaler`: it is halved when a gradient is not finite,
/// and doubled after many steps in which all were.
///
/// ```
/// use shard_tensor::optim::{LossScale, Optimizer, Sgd};
/// use shard_tensor::{DType, launch, shard};
///
/// let steps = launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let w = mesh.ones([4], shard(0))?.requires_grad()?;
///     let mut sgd = Sgd::new(vec![("w".to_owned(), w.clone())], 0.1)?;
///     let mut scale = LossScale::new();
///     let mut taken = 0;
///     for _ in 0..4 {
///         // In 16 bits the first scales are too large for this loss.
///         let loss = w.to(DType::F16)?.to(DType::F32)?.mul_scalar(3.0)?.sum_all()?;
///         let mut gradients = scale.scaled(&loss)?.backward()?;
///         if scale.unscale(&mut gradients)? {
///             sgd.step(&gradients)?;
///             taken += 1;
///         }
///     }
///     Ok((taken, scale.factor()))
/// })?;
/// assert_eq!(steps[0], (2, 16384.0));
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    factor: f64,
    growth: f64,
    backoff: f64,
    interval: u64,
    /// How many steps in a row had finite gradients.
    finite: u64,
}

impl Default for LossScale {
    fn default() -> Self {
        Self::new()
    }
}

impl LossScale {
    /// From 65,536 on, doubled after 2,000 steps.
    pub fn new() -> Self {
        Self {
            factor: 65_536.0,
            growth: 2.0,
            backoff: 0.5,
            interval: 2_000,
            finite: 0,
        }
    }

    /// The first factor.
    #[must_use]
    pub fn from(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// What multiplies the factor after so many steps with finite gradients, and after one without.
    #[must_use]
    pub fn growing(mut self, by: f64, steps: u64, backoff: f64) -> Self {
        (self.growth, self.interval, self.backoff) = (by, steps, backoff);
        self
    }

    /// The factor at present.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// The loss times the factor. The loss should be of `f32`: in `f16` the product overflows.
    ///
    /// # Collective
    /// All members of the loss's mesh. No communication.
    ///
    /// # Errors
    /// As [`mul_scalar`](ShardTensor::mul_scalar).
    #[track_caller]
    pub fn scaled(&self, loss: &ShardTensor) -> Result<ShardTensor> {
        loss.mul_scalar(self.factor)
    }

    /// Divides gradients of the [scaled](Self::scaled) loss by the factor. Returns whether all are finite; if they are not, the
    /// step is to be skipped. Call it once per step, before gradients are clipped, and where those of several passes are
    /// [accumulated](Gradients::accumulate), after that.
    ///
    /// # Collective
    /// All ranks of the program. Outstanding sums over ranks are taken, and one all-reduce of a number per gradient makes the
    /// answer the same on all ranks.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) if the factor is so small that `f32` has no number to divide by it with, or not finite, and for
    /// gradients that it was taken out of before, or some that are accumulated in them. What the communicator reports.
    #[track_caller]
    pub fn unscale(&mut self, gradients: &mut Gradients) -> Result<bool> {
        let _call = Calling::of("unscale");
        // By a smaller one gradients of `f32` cannot be divided: what is left of them would be infinite, and NaN.
        if !(self.factor >= f64::from(f32::MIN_POSITIVE) && self.factor.is_finite()) {
            return Err(Error::argument(
                "unscale",
                format!("a factor of {:e} or more that is finite", f32::MIN_POSITIVE),
                format!("{:e}", self.factor),
                "gradients were not finite many times over: look for the cause in the model, or begin anew with another factor",
            ));
        }
        if gradients.set_unscaled() {
            return Err(Error::argument(
                "unscale",
                "gradients of a scaled loss",
                "gradients that were unscaled before",
                "unscale once per step, after the last `accumulate`",
            ));
        }
        let finite = gradients.norm(f64::INFINITY)?.is_finite();
        if !finite {
            self.factor *= self.backoff;
            self.finite = 0;
            return Ok(false);
        }
        gradients.scale(1.0 / self.factor)?;
        self.finite = self.finite.saturating_add(1);
        if self.finite >= self.interval {
            self.factor *= self.growth;
            self.finite = 0;
        }
        Ok(true)
    }
}

/// Its numbers are `factor`, and `finite`: how many steps in a row had finite gradients.
impl Stateful for LossScale {
    fn state(&self) -> Result<State> {
        let numbers = vec![
            ("factor".to_owned(), StateNumber::Real(self.factor)),
            ("finite".to_owned(), StateNumber::Whole(self.finite)),
        ];
        Ok(State {
            numbers,
            ..State::default()
        })
    }

    #[track_caller]
    fn load_state(&mut self, state: &State) -> Result<()> {
        *self = Self {
            factor: real(state, "factor")?,
            finite: whole(state, "finite")?,
            ..*self
        };
        Ok(())
    }
}
