//! Adam by the largest gradient of late.

use super::options::optimizer;
use super::slots::{Formula, Named, Slots, betas};
use shard_ops::optimize::{self, Update};

/// Adam whose steps are divided by the largest gradient of late (Kingma and Ba, 2015, section 7.1), as `torch.optim.Adamax`.
///
/// ```
/// use shard_tensor::{launch, optim::{Adamax, Optimizer}, shard};
/// let moved = launch(2, |ctx| {
///     let w = ctx.mesh_of(2)?.ones([3], shard(0))?.requires_grad()?;
///     let mut adamax = Adamax::new(vec![("w".to_owned(), w.clone())], 0.1)?;
///     adamax.step(&w.square()?.sum_all()?.backward()?)?;
///     w.mean_all()?.item()
/// })?;
/// assert!((moved[0] - 0.9).abs() < 1e-6); // the first step has the size of the learning rate
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Adamax(Slots<AdamaxOptions>);

/// The options of [`Adamax`] for some parameters.
#[derive(Clone, Copy, Debug)]
pub struct AdamaxOptions {
    rate: f64,
    betas: [f64; 2],
    eps: f64,
    decay: f64,
}

optimizer! { Adamax, AdamaxOptions, |rate| AdamaxOptions { rate, betas: [0.9, 0.999], eps: 1e-8, decay: 0.0 };
    /// How slowly the mean of the gradient, and the largest one, forget; 0.9 and 0.999 at first.
    betas(first: f64, second: f64) |o| o.betas = [first, second];
    /// What is added to the size of each gradient; 1e-8 at first.
    eps(eps: f64) |o| o.eps = eps;
    /// What share of the parameter is added to its gradient; 0 at first.
    weight_decay(decay: f64) |o| o.decay = decay;
}

impl Formula for AdamaxOptions {
    fn limits(&self) -> [Vec<Named>; 2] {
        let any = vec![
            ("learning rate", self.rate),
            ("eps", self.eps),
            ("weight decay", self.decay),
        ];
        [any, betas(self.betas)]
    }

    fn states(&self, _shape: &[usize]) -> &'static [&'static str] {
        &["exp_avg", "exp_inf"]
    }

    fn update(&self, step: u64) -> Update {
        let step = optimize::Adamax {
            size: self.rate / (1.0 - self.betas[0].powf(step as f64)),
            decay: self.decay,
            betas: self.betas,
            eps: self.eps,
        };
        step.into()
    }
}
