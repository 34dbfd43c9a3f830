//! Stochastic gradient descent.

use super::{Optimizer, Slot};
use crate::nn::Parameters;
use crate::{Gradients, Result};
use shard_ops::optimize::Update;

/// `p -= rate * (g + decay * p)`, with optional momentum, as `torch.optim.SGD`.
#[derive(Debug)]
pub struct Sgd {
    slots: Vec<Slot>,
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
    /// # Collective
    /// All members of the parameters' meshes. No communication.
    ///
    /// # Errors
    /// [`Argument`](crate::Error::Argument) for tensors that are no parameters.
    #[track_caller]
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
    #[track_caller]
    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        let options = self.options;
        // A loop, and no closure: the caller of this is to be named in errors.
        for slot in &mut self.slots {
            slot.update(gradients, |step| options.step(step))?;
        }
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        self.options.rate
    }

    fn set_learning_rate(&mut self, rate: f64) {
        self.options.rate = rate;
    }
}

impl Options {
    fn step(&self, step: u64) -> Update {
        Update::Sgd {
            rate: self.rate,
            momentum: self.momentum,
            decay: self.decay,
            first: step == 1,
        }
    }
}
