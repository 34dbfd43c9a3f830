//! Rates along a cosine.

use super::{Schedule, half_wave, progress};

/// Falls along half a wave of a cosine, as `CosineAnnealingLR`, and stays at its minimum afterwards.
///
/// ```
/// use shard_tensor::optim::{Cosine, Schedule};
/// let rates = Cosine::new(1.0, 10);
/// assert!((rates.at(5) - 0.5).abs() < 1e-12);
/// assert_eq!(rates.at(11), 0.0);
/// assert_eq!(rates.restarts(2).at(10), 1.0); // from there it takes 20 steps
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cosine {
    rate: f64,
    steps: usize,
    minimum: f64,
    /// How many times longer each fall is than the one before, if there is one after the first.
    longer: Option<usize>,
}

impl Cosine {
    /// From this rate to nothing in so many steps.
    pub fn new(rate: f64, steps: usize) -> Self {
        Self {
            rate,
            steps,
            minimum: 0.0,
            longer: None,
        }
    }

    /// The rate at the end; 0 at first.
    #[must_use]
    pub fn minimum(mut self, rate: f64) -> Self {
        self.minimum = rate;
        self
    }

    /// Begins again at its end, each time for so many times as many steps as the time before, as
    /// `CosineAnnealingWarmRestarts`. A number below 1 counts as 1.
    #[must_use]
    pub fn restarts(mut self, longer: usize) -> Self {
        self.longer = Some(longer.max(1));
        self
    }

    /// The step within the fall that a step is in, and how long that fall is.
    fn within(&self, mut step: usize) -> (usize, usize) {
        let mut steps = self.steps;
        match self.longer {
            None => {}
            Some(_) if steps == 0 => {}
            Some(1) => step %= steps,
            Some(longer) => {
                while step >= steps {
                    step -= steps;
                    steps = steps.saturating_mul(longer);
                }
            }
        }
        (step, steps)
    }
}

impl Schedule for Cosine {
    fn at(&self, step: usize) -> f64 {
        let (step, steps) = self.within(step);
        half_wave(self.rate, self.minimum, progress(step, steps))
    }

    fn shortened(mut self, steps: usize) -> Self {
        self.steps = self.steps.saturating_sub(steps);
        self
    }
}
