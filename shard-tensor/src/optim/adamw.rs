//! Adam with decoupled weight decay.

use super::{Optimizer, Slot};
use crate::nn::Parameters;
use crate::{Gradients, Result};
use shard_ops::optimize::Update;

/// Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as `torch.optim.AdamW`.
///
/// ```
/// use shard_tensor::{launch, optim::{AdamW, Optimizer}, replicate};
/// let moved = launch(2, |ctx| {
///     let w = ctx.mesh_of(2)?.ones([3], [replicate()])?.requires_grad()?;
///     let mut adam = AdamW::new(vec![("w".to_owned(), w.clone())], 0.1)?.weight_decay(0.0);
///     adam.step(&w.square()?.sum_all()?.backward()?)?;
///     w.mean_all()?.item()
/// })?;
/// assert!((moved[0] - 0.9).abs() < 1e-6); // the first step has the size of the learning rate
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Debug)]
pub struct AdamW {
    slots: Vec<Slot>,
    options: Options,
}

#[derive(Clone, Copy, Debug)]
struct Options {
    rate: f64,
    betas: (f64, f64),
    eps: f64,
    decay: f64,
}

impl AdamW {
    /// For these parameters, with betas 0.9 and 0.999, eps 1e-8 and weight decay 0.01.
    ///
    /// # Collective
    /// All members of the parameters' meshes. No communication.
    ///
    /// # Errors
    /// [`Argument`](crate::Error::Argument) for tensors that are no parameters.
    #[track_caller]
    pub fn new(parameters: Parameters, rate: f64) -> Result<Self> {
        let options = Options {
            rate,
            betas: (0.9, 0.999),
            eps: 1e-8,
            decay: 0.01,
        };
        Ok(Self {
            slots: Slot::all("AdamW", parameters)?,
            options,
        })
    }

    /// How slowly the means of the gradient and of its square forget.
    #[must_use]
    pub fn betas(mut self, first: f64, second: f64) -> Self {
        self.options.betas = (first, second);
        self
    }

    /// What is added to the denominator.
    #[must_use]
    pub fn eps(mut self, eps: f64) -> Self {
        self.options.eps = eps;
        self
    }

    /// What share of itself, times the learning rate, a parameter loses per step.
    #[must_use]
    pub fn weight_decay(mut self, decay: f64) -> Self {
        self.options.decay = decay;
        self
    }
}

impl Optimizer for AdamW {
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
    /// The numbers of one step, computed in double precision as PyTorch does.
    fn step(&self, step: u64) -> Update {
        let (beta1, beta2) = self.betas;
        let step = step as f64;
        Update::AdamW {
            keep: 1.0 - self.rate * self.decay,
            betas: [beta1, beta2],
            size: self.rate / (1.0 - beta1.powf(step)),
            root: (1.0 - beta2.powf(step)).sqrt(),
            eps: self.eps,
        }
    }
}
