//! Steps that grow shorter the more a parameter has been moved.

use super::options::optimizer;
use super::slots::{Formula, Named, Slots};
use shard_ops::optimize::{self, Update};

/// Divides the gradient by the root of the sum of all its squares so far (Duchi, Hazan and Singer, 2011), as `torch.optim.Adagrad`: for
/// parameters that few samples have a gradient for, such as rows of an embedding.
///
/// ```
/// use shard_tensor::{launch, optim::{Adagrad, Optimizer}, replicate};
/// let moved = launch(2, |ctx| {
///     let w = ctx.mesh_of(2)?.ones([3], replicate())?.requires_grad()?;
///     let mut adagrad = Adagrad::new(vec![("w".to_owned(), w.clone())], 0.1)?;
///     adagrad.step(&w.sum_all()?.backward()?)?;
///     adagrad.step(&w.sum_all()?.backward()?)?;
///     w.mean_all()?.item()
/// })?;
/// assert!((moved[0] - (0.9 - 0.1 / 2f64.sqrt())).abs() < 1e-6);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Adagrad(Slots<AdagradOptions>);

/// The options of [`Adagrad`] for some parameters.
#[derive(Clone, Copy, Debug)]
pub struct AdagradOptions {
    rate: f64,
    rate_decay: f64,
    decay: f64,
    initial: f64,
    eps: f64,
}

optimizer! { Adagrad, AdagradOptions, |rate| AdagradOptions { rate, rate_decay: 0.0, decay: 0.0, initial: 0.0, eps: 1e-10 };
    /// The rate of a step is divided by one and this for each step before it; 0 at first.
    rate_decay(decay: f64) |o| o.rate_decay = decay;
    /// What share of the parameter is added to its gradient; 0 at first.
    weight_decay(decay: f64) |o| o.decay = decay;
    /// What the sum of squares begins with; 0 at first.
    initial(sum: f64) |o| o.initial = sum;
    /// What is added to the denominator; 1e-10 at first.
    eps(eps: f64) |o| o.eps = eps;
}

impl Formula for AdagradOptions {
    fn limits(&self) -> [Vec<Named>; 2] {
        let any = vec![
            ("learning rate", self.rate),
            ("rate decay", self.rate_decay),
            ("weight decay", self.decay),
            ("initial sum", self.initial),
            ("eps", self.eps),
        ];
        [any, Vec::new()]
    }

    fn states(&self, _shape: &[usize]) -> &'static [&'static str] {
        &["sum"]
    }

    fn start(&self) -> f64 {
        self.initial
    }

    fn update(&self, step: u64) -> Update {
        let before = step.saturating_sub(1) as f64;
        let step = optimize::Adagrad {
            rate: self.rate / (1.0 + before * self.rate_decay),
            decay: self.decay,
            eps: self.eps,
        };
        step.into()
    }
}
