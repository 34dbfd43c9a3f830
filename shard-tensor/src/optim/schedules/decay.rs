//! Rates that stay, fall in a straight line, along a power, in steps, or by a factor.

use super::{Schedule, progress};

/// The same rate always: something to [warm up](Schedule::warmup) to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constant {
    rate: f64,
}

impl Constant {
    /// This rate.
    pub fn new(rate: f64) -> Self {
        Self { rate }
    }
}

impl Schedule for Constant {
    fn at(&self, _step: usize) -> f64 {
        self.rate
    }
}

/// Goes in a straight line from one rate to another, as `LinearLR`, and stays there.
///
/// ```
/// use shard_tensor::optim::{LinearRate, Schedule};
/// assert_eq!([0, 5, 10, 11].map(|step| LinearRate::new(1.0, 0.0, 10).at(step)), [1.0, 0.5, 0.0, 0.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearRate {
    from: f64,
    to: f64,
    steps: usize,
}

impl LinearRate {
    /// From one rate to another in so many steps.
    pub fn new(from: f64, to: f64, steps: usize) -> Self {
        Self { from, to, steps }
    }
}

impl Schedule for LinearRate {
    fn at(&self, step: usize) -> f64 {
        self.from + (self.to - self.from) * progress(step, self.steps)
    }

    fn shortened(mut self, steps: usize) -> Self {
        self.steps = self.steps.saturating_sub(steps);
        self
    }
}

/// Falls to nothing as a power of the steps that are left, as `PolynomialLR`, and stays there.
///
/// ```
/// use shard_tensor::optim::{Polynomial, Schedule};
/// assert_eq!([0, 5, 10, 11].map(|step| Polynomial::new(1.0, 10).power(2.0).at(step)), [1.0, 0.25, 0.0, 0.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Polynomial {
    rate: f64,
    steps: usize,
    power: f64,
}

impl Polynomial {
    /// From this rate to nothing in so many steps.
    pub fn new(rate: f64, steps: usize) -> Self {
        Self {
            rate,
            steps,
            power: 1.0,
        }
    }

    /// The power; 1 at first, a straight line.
    #[must_use]
    pub fn power(mut self, power: f64) -> Self {
        self.power = power;
        self
    }
}

impl Schedule for Polynomial {
    fn at(&self, step: usize) -> f64 {
        self.rate * (1.0 - progress(step, self.steps)).powf(self.power)
    }

    fn shortened(mut self, steps: usize) -> Self {
        self.steps = self.steps.saturating_sub(steps);
        self
    }
}

/// Multiplied by a factor every so many steps, as `StepLR`.
///
/// ```
/// use shard_tensor::optim::{Schedule, StepDecay};
/// assert_eq!([0, 9, 10, 20].map(|step| StepDecay::new(1.0, 10, 0.5).at(step)), [1.0, 1.0, 0.5, 0.25]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepDecay {
    rate: f64,
    every: usize,
    factor: f64,
}

impl StepDecay {
    /// This rate, multiplied by the factor every so many steps; 0 counts as 1.
    pub fn new(rate: f64, every: usize, factor: f64) -> Self {
        let every = every.max(1);
        Self {
            rate,
            every,
            factor,
        }
    }
}

impl Schedule for StepDecay {
    fn at(&self, step: usize) -> f64 {
        self.rate * power(self.factor, step / self.every)
    }
}

/// Multiplied by a factor at each of some steps, as `MultiStepLR`.
///
/// ```
/// use shard_tensor::optim::{Milestones, Schedule};
/// let rates = Milestones::new(1.0, [3, 5], 0.1);
/// assert_eq!([2, 3, 5].map(|step| rates.at(step)), [1.0, 0.1, 0.010000000000000002]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Milestones {
    rate: f64,
    steps: Vec<usize>,
    factor: f64,
}

impl Milestones {
    /// This rate, multiplied by the factor at each of these steps.
    pub fn new(rate: f64, steps: impl IntoIterator<Item = usize>, factor: f64) -> Self {
        Self {
            rate,
            steps: steps.into_iter().collect(),
            factor,
        }
    }
}

impl Schedule for Milestones {
    fn at(&self, step: usize) -> f64 {
        let passed = self.steps.iter().filter(|&&s| s <= step).count();
        self.rate * power(self.factor, passed)
    }
}

/// Multiplied by a factor in every step, as `ExponentialLR`.
///
/// ```
/// use shard_tensor::optim::{Exponential, Schedule};
/// assert_eq!(Exponential::new(1.0, 0.5).at(3), 0.125);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exponential {
    rate: f64,
    factor: f64,
}

impl Exponential {
    /// This rate, multiplied by the factor in every step.
    pub fn new(rate: f64, factor: f64) -> Self {
        Self { rate, factor }
    }
}

impl Schedule for Exponential {
    fn at(&self, step: usize) -> f64 {
        self.rate * power(self.factor, step)
    }
}

fn power(factor: f64, n: usize) -> f64 {
    factor.powi(i32::try_from(n).unwrap_or(i32::MAX))
}
