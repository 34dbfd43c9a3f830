//! Rates that a function says.

use super::Schedule;

/// A rate times what a function gives for the step, as `LambdaLR`.
///
/// ```
/// use shard_tensor::optim::{Lambda, Schedule};
/// let rates = Lambda::new(0.5, |step| 1.0 / (1.0 + step as f64));
/// assert_eq!([0, 1, 3].map(|step| rates.at(step)), [0.5, 0.25, 0.125]);
/// assert_eq!(rates.warmup(4).at(4), 0.5); // the function's own steps begin there
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Lambda<F> {
    rate: f64,
    factor: F,
}

impl<F: Fn(usize) -> f64> Lambda<F> {
    /// This rate, times what `factor` gives for a step, counted from 0. It must give the same on all ranks.
    pub fn new(rate: f64, factor: F) -> Self {
        Self { rate, factor }
    }
}

impl<F: Fn(usize) -> f64> Schedule for Lambda<F> {
    fn at(&self, step: usize) -> f64 {
        self.rate * (self.factor)(step)
    }
}
