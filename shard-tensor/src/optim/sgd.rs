//! Stochastic gradient descent.

use super::{Optimizer, Real, Slot, Update};
use crate::nn::Parameters;
use crate::{Gradients, Result};

/// `p -= rate * (g + decay * p)`, with optional momentum, as `torch.optim.SGD`.
#[derive(Debug)]
pub struct Sgd {
    slots: Vec<Slot<1>>,
    options: Options,
}

#[derive(Clone, Copy, Debug)]
struct Options {
    rate: f64,
    momentum: f64,
    decay: f64,
}

impl Sgd {
    /// For these parameters.
    ///
    /// # Errors
    /// [`Argument`](crate::Error::Argument) for tensors that are no parameters.
    pub fn new(parameters: Parameters, rate: f64) -> Result<Self> {
        Ok(Self {
            slots: Slot::all("Sgd", parameters)?,
            options: Options {
                rate,
                momentum: 0.0,
                decay: 0.0,
            },
        })
    }

    /// Keeps this share of the last step's direction; 0 at first.
    #[must_use]
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.options.momentum = momentum;
        self
    }

    /// Adds this share of the parameter to its gradient; 0 at first.
    #[must_use]
    pub fn weight_decay(mut self, decay: f64) -> Self {
        self.options.decay = decay;
        self
    }
}

impl Optimizer for Sgd {
    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        let options = self.options;
        self.slots
            .iter_mut()
            .try_for_each(|slot| slot.update(gradients, options))
    }

    fn learning_rate(&self) -> f64 {
        self.options.rate
    }

    fn set_learning_rate(&mut self, rate: f64) {
        self.options.rate = rate;
    }
}

impl Update<1> for Options {
    fn element<T: Real>(&self, first: bool, p: T, g: T, [velocity]: [T; 1]) -> (T, [T; 1]) {
        let number = T::from_f64;
        let g = g + number(self.decay) * p;
        // The first step sets the velocity to the gradient itself.
        let velocity = if first {
            g
        } else {
            number(self.momentum) * velocity + g
        };
        let direction = if self.momentum == 0.0 { g } else { velocity };
        (p - number(self.rate) * direction, [velocity])
    }
}
