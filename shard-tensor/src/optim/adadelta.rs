//! Steps as large as the last ones were.

use super::options::optimizer;
use super::slots::{Formula, Named, Slots};
use shard_ops::optimize::{self, Update};

/// Scales the gradient to the size of the last steps (Zeiler, 2012), as `torch.optim.Adadelta`. Its rate is the share of such a step that
/// is taken; PyTorch's is 1.
///
/// ```
/// use shard_tensor::{launch, optim::{Adadelta, Optimizer}, shard};
/// let moved = launch(2, |ctx| {
///     let w = ctx.mesh_of(2)?.ones([3], shard(0))?.requires_grad()?;
///     let mut adadelta = Adadelta::new(vec![("w".to_owned(), w.clone())], 1.0)?.rho(0.5);
///     adadelta.step(&w.sum_all()?.backward()?)?;
///     w.mean_all()?.item()
/// })?;
/// // The first step is as long as the root of eps says.
/// assert!((moved[0] - (1.0 - 1e-3 * 2f64.sqrt())).abs() < 1e-5);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Adadelta(Slots<AdadeltaOptions>);

/// The options of [`Adadelta`] for some parameters.
#[derive(Clone, Copy, Debug)]
pub struct AdadeltaOptions {
    rate: f64,
    rho: f64,
    eps: f64,
    decay: f64,
}

optimizer! { Adadelta, AdadeltaOptions, |rate| AdadeltaOptions { rate, rho: 0.9, eps: 1e-6, decay: 0.0 };
    /// How slowly the means of squares of gradients and of steps forget; 0.9 at first.
    rho(rho: f64) |o| o.rho = rho;
    /// What is added to both means; 1e-6 at first.
    eps(eps: f64) |o| o.eps = eps;
    /// What share of the parameter is added to its gradient; 0 at first.
    weight_decay(decay: f64) |o| o.decay = decay;
}

impl Formula for AdadeltaOptions {
    fn limits(&self) -> [Vec<Named>; 2] {
        let any = vec![
            ("learning rate", self.rate),
            ("eps", self.eps),
            ("weight decay", self.decay),
        ];
        [any, vec![("rho", self.rho)]]
    }

    fn states(&self, _shape: &[usize]) -> &'static [&'static str] {
        &["square_avg", "acc_delta"]
    }

    fn update(&self, _step: u64) -> Update {
        let step = optimize::Adadelta {
            rate: self.rate,
            keep: self.rho,
            decay: self.decay,
            eps: self.eps,
        };
        step.into()
    }
}
