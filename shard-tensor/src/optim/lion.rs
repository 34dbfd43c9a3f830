//! Steps along the sign of a mean.

use super::options::optimizer;
use super::slots::{Formula, Named, Slots, betas};
use shard_ops::optimize::{self, Update};

/// Lion (Chen and others, 2023): every element moves by the rate, along the sign of a mean of gradients. Decay is decoupled. Its
/// rates are some three to ten times smaller, and its decay as much larger, than those of [`AdamW`](super::AdamW).
///
/// ```
/// use shard_tensor::{launch, optim::{Lion, Optimizer}, shard};
/// let moved = launch(2, |ctx| {
///     let w = ctx.mesh_of(2)?.ones([3], shard(0))?.requires_grad()?;
///     let mut lion = Lion::new(vec![("w".to_owned(), w.clone())], 0.25)?;
///     lion.step(&w.square()?.sum_all()?.backward()?)?;
///     w.mean_all()?.item()
/// })?;
/// assert_eq!(moved, [0.75, 0.75]);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Lion(Slots<LionOptions>);

/// The options of [`Lion`] for some parameters.
#[derive(Clone, Copy, Debug)]
pub struct LionOptions {
    rate: f64,
    betas: [f64; 2],
    decay: f64,
}

optimizer! { Lion, LionOptions, |rate| LionOptions { rate, betas: [0.9, 0.99], decay: 0.0 };
    /// The share of the mean in the direction, and how slowly the mean forgets; 0.9 and 0.99 at first.
    betas(first: f64, second: f64) |o| o.betas = [first, second];
    /// What share of itself, times the learning rate, a parameter loses per step; 0 at first.
    weight_decay(decay: f64) |o| o.decay = decay;
}

impl Formula for LionOptions {
    fn limits(&self) -> [Vec<Named>; 2] {
        let any = vec![("learning rate", self.rate), ("weight decay", self.decay)];
        [any, betas(self.betas)]
    }

    fn states(&self, _shape: &[usize]) -> &'static [&'static str] {
        &["exp_avg"]
    }

    fn update(&self, _step: u64) -> Update {
        let step = optimize::Lion {
            rate: self.rate,
            keep: 1.0 - self.rate * self.decay,
            betas: self.betas,
        };
        step.into()
    }
}
