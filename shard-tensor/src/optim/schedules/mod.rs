//! Learning rates that change while a program trains.
//!
//! A schedule is a value from which the rate of any step is computed, so there is nothing to keep in a checkpoint but the
//! step. [`Plateau`] alone listens to losses, and has a state.

mod cosine;
mod decay;
mod lambda;
mod one_cycle;
mod plateau;

pub use cosine::Cosine;
pub use decay::{Constant, Exponential, LinearRate, Milestones, Polynomial, StepDecay};
pub use lambda::Lambda;
pub use one_cycle::OneCycle;
pub use plateau::Plateau;

/// A learning rate for every step. All of them give the numbers of PyTorch's schedulers.
///
/// ```
/// use shard_tensor::optim::{Cosine, Schedule};
/// let rates = Cosine::new(1e-3, 1000).minimum(1e-5).warmup(100);
/// assert!(rates.at(0) < rates.at(50));
/// assert_eq!(rates.at(100), 1e-3);
/// assert!((rates.at(1000) - 1e-5).abs() < 1e-12);
/// ```
pub trait Schedule {
    /// The rate of a step, counted from 0.
    fn at(&self, step: usize) -> f64;

    /// The same to its end in so many steps less. Schedules without an end stay as they are.
    #[must_use]
    fn shortened(self, _steps: usize) -> Self
    where
        Self: Sized,
    {
        self
    }

    /// Rises in a straight line to the first rate during so many steps, which are taken from the schedule's own: it ends where it
    /// ended. As PyTorch's `SequentialLR` of a `LinearLR` and the shortened schedule. Of a schedule with no more steps than these
    /// its end is left, after one step at the first rate.
    fn warmup(self, steps: usize) -> Warmup<Self>
    where
        Self: Sized,
    {
        Warmup {
            // Of the whole schedule: one that is shortened to nothing may be at its end at once.
            top: self.at(0),
            schedule: self.shortened(steps),
            steps,
            from: 1.0 / (steps as f64 + 1.0),
        }
    }

    /// This for so many steps, and then another from its own first step on, as PyTorch's `SequentialLR`.
    ///
    /// ```
    /// use shard_tensor::optim::{Constant, LinearRate, Schedule};
    /// // Rises for 10 steps, stays for 70 and falls for 20.
    /// let rates = Constant::new(1e-3).then(80, LinearRate::new(1e-3, 0.0, 20)).warmup(10);
    /// assert_eq!([10, 79, 80, 90, 100].map(|step| rates.at(step)), [1e-3, 1e-3, 1e-3, 5e-4, 0.0]);
    /// ```
    fn then<S: Schedule>(self, steps: usize, next: S) -> Then<Self, S>
    where
        Self: Sized,
    {
        Then {
            first: self,
            steps,
            next,
        }
    }
}

impl<S: Schedule + ?Sized> Schedule for Box<S> {
    fn at(&self, step: usize) -> f64 {
        (**self).at(step)
    }
}

/// A schedule with a rise before it; see [`Schedule::warmup`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warmup<S> {
    schedule: S,
    /// The rate to which it rises.
    top: f64,
    steps: usize,
    from: f64,
}

impl<S> Warmup<S> {
    /// The share of the rate in the first step; at first the share of one step in a rise from nothing.
    #[must_use]
    pub fn from(mut self, share: f64) -> Self {
        self.from = share;
        self
    }
}

impl<S: Schedule> Schedule for Warmup<S> {
    fn at(&self, step: usize) -> f64 {
        match step.checked_sub(self.steps) {
            Some(step) => self.schedule.at(step),
            None => {
                let done = step as f64 / self.steps as f64;
                self.top * (self.from + (1.0 - self.from) * done)
            }
        }
    }

    fn shortened(mut self, steps: usize) -> Self {
        self.schedule = self.schedule.shortened(steps);
        self
    }
}

/// A schedule and what comes after it; see [`Schedule::then`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Then<A, B> {
    first: A,
    steps: usize,
    next: B,
}

impl<A: Schedule, B: Schedule> Schedule for Then<A, B> {
    fn at(&self, step: usize) -> f64 {
        match step.checked_sub(self.steps) {
            Some(step) => self.next.at(step),
            None => self.first.at(step),
        }
    }

    fn shortened(self, steps: usize) -> Self {
        Self {
            first: self.first.shortened(steps.min(self.steps)),
            next: self.next.shortened(steps.saturating_sub(self.steps)),
            steps: self.steps.saturating_sub(steps),
        }
    }
}

/// How far a step is on the way to the end of some steps, from 0 to 1. The first is at the beginning, even if there are none.
fn progress(step: usize, steps: usize) -> f64 {
    match (step, steps) {
        (0, _) => 0.0,
        (_, 0) => 1.0,
        _ => step.min(steps) as f64 / steps as f64,
    }
}

/// Half a wave from one number, at 0, to another, at 1.
fn half_wave(from: f64, to: f64, at: f64) -> f64 {
    let share = 0.5 * (1.0 + (std::f64::consts::PI * at).cos());
    from * share + to * (1.0 - share)
}
