//! Averaged stochastic gradient descent.

use super::options::optimizer;
use super::slots::{Formula, Named, Slots};
use shard_ops::optimize::{self, Update};

/// Averaged stochastic gradient descent (Polyak and Juditsky, 1992), as `torch.optim.ASGD`: steps get smaller, as
/// `rate / (1 + lambd * rate * steps)^alpha`, and the mean of the parameters since step `t0` is in the optimizer's [state](crate::Stateful), as
/// `ax.` and the parameter's name. A rate that a schedule sets holds from the next step on; PyTorch's, from the one after that.
///
/// ```
/// use shard_tensor::{launch, optim::{Asgd, Optimizer}, shard};
/// let moved = launch(2, |ctx| {
///     let w = ctx.mesh_of(2)?.ones([3], shard(0))?.requires_grad()?;
///     let mut asgd = Asgd::new(vec![("w".to_owned(), w.clone())], 0.1)?.lambd(0.0);
///     asgd.step(&w.square()?.sum_all()?.backward()?)?;
///     w.mean_all()?.item()
/// })?;
/// assert!((moved[0] - 0.8).abs() < 1e-6);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Asgd(Slots<AsgdOptions>);

/// The options of [`Asgd`] for some parameters.
#[derive(Clone, Copy, Debug)]
pub struct AsgdOptions {
    rate: f64,
    lambd: f64,
    alpha: f64,
    t0: f64,
    decay: f64,
}

optimizer! { Asgd, AsgdOptions, |rate| AsgdOptions { rate, lambd: 1e-4, alpha: 0.75, t0: 1e6, decay: 0.0 };
    /// How fast steps get smaller, and what share of itself, times the size of a step, a parameter loses; 1e-4 at first.
    lambd(lambd: f64) |o| o.lambd = lambd;
    /// The power by which steps get smaller; 0.75 at first.
    alpha(alpha: f64) |o| o.alpha = alpha;
    /// The number of steps from which on the mean is taken; a million at first. Before it the mean is the parameter.
    t0(steps: f64) |o| o.t0 = steps;
    /// What share of the parameter is added to its gradient; 0 at first.
    weight_decay(decay: f64) |o| o.decay = decay;
}

impl Formula for AsgdOptions {
    fn limits(&self) -> [Vec<Named>; 2] {
        let any = vec![
            ("learning rate", self.rate),
            ("lambd", self.lambd),
            ("alpha", self.alpha),
            ("t0", self.t0),
            ("weight decay", self.decay),
        ];
        [any, Vec::new()]
    }

    fn states(&self, _shape: &[usize]) -> &'static [&'static str] {
        &["ax"]
    }

    fn update(&self, step: u64) -> Update {
        let before = step.saturating_sub(1) as f64;
        let size = self.rate / (1.0 + self.lambd * self.rate * before).powf(self.alpha);
        let step = optimize::Asgd {
            size,
            keep: 1.0 - self.lambd * size,
            decay: self.decay,
            share: 1.0 / (before - self.t0).max(1.0),
        };
        step.into()
    }
}
