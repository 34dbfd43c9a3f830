//! Rates that fall when nothing gets better.

use crate::optim::slots::{real, whole};
use crate::{Result, State, StateNumber, Stateful};

/// Falls by a factor when a loss has not become better for some time, as `ReduceLROnPlateau`. It is told the loss, which
/// must be the same on all ranks, as [`item`](crate::ShardTensor::item) gives it, and has a state.
///
/// ```
/// use shard_tensor::optim::Plateau;
/// let mut plateau = Plateau::new(1.0).factor(0.5).patience(1);
/// let rates = [3.0, 2.0, 2.0, 2.0, 1.0].map(|loss| plateau.observe(loss));
/// assert_eq!(rates, [1.0, 1.0, 1.0, 0.5, 0.5]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plateau {
    rate: f64,
    factor: f64,
    patience: u64,
    cooldown: u64,
    minimum: f64,
    threshold: Threshold,
    /// Whether greater is better.
    greater: bool,
    best: Option<f64>,
    /// How many losses in a row were not better.
    waited: u64,
    /// For how many losses it still does not count.
    rests: u64,
}

/// By how much a loss has to be better to count as better.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Threshold {
    Share(f64),
    Difference(f64),
}

/// A change of the rate smaller than this is not made.
const LEAST_CHANGE: f64 = 1e-8;

impl Plateau {
    /// From this rate on: a tenth of it after ten losses that are not better by a share of 1e-4.
    pub fn new(rate: f64) -> Self {
        Self {
            rate,
            factor: 0.1,
            patience: 10,
            cooldown: 0,
            minimum: 0.0,
            threshold: Threshold::Share(1e-4),
            greater: false,
            best: None,
            waited: 0,
            rests: 0,
        }
    }

    /// By what the rate is multiplied; 0.1 at first.
    #[must_use]
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// How many losses in a row need not be better; 10 at first.
    #[must_use]
    pub fn patience(mut self, losses: u64) -> Self {
        self.patience = losses;
        self
    }

    /// How many losses after a fall do not count; 0 at first.
    #[must_use]
    pub fn cooldown(mut self, losses: u64) -> Self {
        self.cooldown = losses;
        self
    }

    /// The rate below which it does not fall; 0 at first.
    #[must_use]
    pub fn minimum(mut self, rate: f64) -> Self {
        self.minimum = rate;
        self
    }

    /// By what share of the best a loss has to be better; 1e-4 at first.
    #[must_use]
    pub fn threshold_share(mut self, share: f64) -> Self {
        self.threshold = Threshold::Share(share);
        self
    }

    /// By how much a loss has to be better than the best.
    #[must_use]
    pub fn threshold(mut self, difference: f64) -> Self {
        self.threshold = Threshold::Difference(difference);
        self
    }

    /// Greater is better, as of a score.
    #[must_use]
    pub fn of_scores(mut self) -> Self {
        self.greater = true;
        self
    }

    /// The rate at present.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Hears of a loss; the rate from now on.
    pub fn observe(&mut self, loss: f64) -> f64 {
        if self.is_better(loss) {
            (self.best, self.waited) = (Some(loss), 0);
        } else {
            self.waited = self.waited.saturating_add(1);
        }
        if self.rests > 0 {
            self.rests -= 1;
            self.waited = 0;
        }
        if self.waited > self.patience {
            let lower = (self.rate * self.factor).max(self.minimum);
            if self.rate - lower > LEAST_CHANGE {
                self.rate = lower;
            }
            (self.rests, self.waited) = (self.cooldown, 0);
        }
        self.rate
    }

    fn is_better(&self, loss: f64) -> bool {
        let Some(best) = self.best else {
            // PyTorch begins at infinity, than which NaN and infinity are not better.
            return match self.greater {
                true => loss > f64::NEG_INFINITY,
                false => loss < f64::INFINITY,
            };
        };
        match (self.greater, self.threshold) {
            (false, Threshold::Share(share)) => loss < best * (1.0 - share),
            (false, Threshold::Difference(by)) => loss < best - by,
            (true, Threshold::Share(share)) => loss > best * (1.0 + share),
            (true, Threshold::Difference(by)) => loss > best + by,
        }
    }
}

/// Its numbers are `rate`, `best`, which is NaN before it has heard of a loss, `waited` and `rests`.
impl Stateful for Plateau {
    fn state(&self) -> Result<State> {
        let whole = [("waited", self.waited), ("rests", self.rests)]
            .map(|(k, n)| (k, StateNumber::Whole(n)));
        // Also before there is one: what takes a state up from a file asks for the numbers that are listed here.
        let best = self.best.unwrap_or(f64::NAN);
        let real = [("rate", self.rate), ("best", best)].map(|(k, x)| (k, StateNumber::Real(x)));
        let numbers = real
            .into_iter()
            .chain(whole)
            .map(|(k, n)| (k.to_owned(), n))
            .collect();
        Ok(State {
            numbers,
            ..State::default()
        })
    }

    #[track_caller]
    fn load_state(&mut self, state: &State) -> Result<()> {
        *self = Self {
            rate: real(state, "rate")?,
            waited: whole(state, "waited")?,
            rests: whole(state, "rests")?,
            best: Some(real(state, "best")?).filter(|best| !best.is_nan()),
            ..*self
        };
        Ok(())
    }
}
