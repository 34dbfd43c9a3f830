//! Rates that rise and fall once.

use super::{Schedule, half_wave};

/// Rises to a rate, falls to where it began and on to next to nothing (Smith and Topin, 2018), as `OneCycleLR`; afterwards it
/// stays. Momentum stays what it is.
///
/// ```
/// use shard_tensor::optim::{OneCycle, Schedule};
/// let rates = OneCycle::new(1.0, 100);
/// assert_eq!([0, 29].map(|step| rates.at(step)), [0.04, 1.0]);
/// assert!((rates.at(99) - 4e-6).abs() < 1e-15);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneCycle {
    rate: f64,
    steps: usize,
    rise: f64,
    first: f64,
    last: f64,
    straight: bool,
    symmetric: bool,
}

impl OneCycle {
    /// Up to this rate, in so many steps altogether.
    pub fn new(rate: f64, steps: usize) -> Self {
        Self {
            rate,
            steps,
            rise: 0.3,
            first: 25.0,
            last: 1e4,
            straight: false,
            symmetric: false,
        }
    }

    /// The share of the steps that rise; 0.3 at first.
    #[must_use]
    pub fn rise(mut self, share: f64) -> Self {
        self.rise = share;
        self
    }

    /// How many times smaller than the greatest rate the first one is, and than that the last one; 25 and 10,000 at first.
    #[must_use]
    pub fn divided_by(mut self, first: f64, last: f64) -> Self {
        (self.first, self.last) = (first, last);
        self
    }

    /// Goes in straight lines, and not along cosines.
    #[must_use]
    pub fn straight(mut self) -> Self {
        self.straight = true;
        self
    }

    /// Falls to where it began in as many steps as it rose, and in a third phase to the end.
    #[must_use]
    pub fn three_phases(mut self) -> Self {
        self.symmetric = true;
        self
    }

    /// Where each phase ends, and at which rate.
    fn phases(&self) -> Vec<(f64, f64)> {
        let (steps, first) = (self.steps as f64, self.rate / self.first);
        let top = (self.rise * steps - 1.0, self.rate);
        let end = (steps - 1.0, first / self.last);
        match self.symmetric {
            false => vec![top, end],
            true => vec![top, (2.0 * self.rise * steps - 2.0, first), end],
        }
    }
}

impl Schedule for OneCycle {
    fn at(&self, step: usize) -> f64 {
        let step = step.min(self.steps.saturating_sub(1)) as f64;
        let (mut begin, mut from) = (0.0, self.rate / self.first);
        for (end, to) in self.phases() {
            if step <= end {
                let at = match end > begin {
                    true => (step - begin) / (end - begin),
                    false => 1.0,
                };
                return match self.straight {
                    true => from + (to - from) * at,
                    false => half_wave(from, to, at),
                };
            }
            (begin, from) = (end, to);
        }
        from
    }

    fn shortened(mut self, steps: usize) -> Self {
        self.steps = self.steps.saturating_sub(steps);
        self
    }
}
