//! Stochastic gradient descent.

use super::options::optimizer;
use super::slots::{Formula, Named, Slots};
use shard_ops::optimize::{self, Update};

/// `p -= rate * (g + decay * p)`, with optional momentum, as `torch.optim.SGD`.
///
/// ```
/// use shard_tensor::{launch, optim::{Optimizer, Sgd}, replicate};
/// let moved = launch(2, |ctx| {
///     let w = ctx.mesh_of(2)?.ones([3], replicate())?.requires_grad()?;
///     let mut sgd = Sgd::new(vec![("w".to_owned(), w.clone())], 0.1)?.momentum(0.9).nesterov(true);
///     sgd.step(&w.sum_all()?.backward()?)?;
///     w.mean_all()?.item()
/// })?;
/// assert!((moved[0] - 0.81).abs() < 1e-6); // 1 - 0.1 (1 + 0.9)
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sgd(Slots<SgdOptions>);

/// The options of [`Sgd`] for some parameters.
#[derive(Clone, Copy, Debug)]
pub struct SgdOptions {
    rate: f64,
    momentum: f64,
    dampening: f64,
    decay: f64,
    nesterov: bool,
}

optimizer! { Sgd, SgdOptions, |rate| SgdOptions { rate, momentum: 0.0, dampening: 0.0, decay: 0.0, nesterov: false };
    /// Keeps this share of the last step's direction; 0 at first.
    momentum(momentum: f64) |o| o.momentum = momentum;
    /// Leaves this share of the gradient out of the direction, but in the first step; 0 at first.
    dampening(dampening: f64) |o| o.dampening = dampening;
    /// Adds this share of the parameter to its gradient; 0 at first.
    weight_decay(decay: f64) |o| o.decay = decay;
    /// Whether to look ahead along the direction (Nesterov), which takes momentum and no dampening. Not at first.
    nesterov(on: bool) |o| o.nesterov = on;
}

impl Formula for SgdOptions {
    fn limits(&self) -> [Vec<Named>; 2] {
        let any = vec![
            ("learning rate", self.rate),
            ("momentum", self.momentum),
            ("dampening", self.dampening),
            ("weight decay", self.decay),
        ];
        [any, Vec::new()]
    }

    fn conflict(&self) -> Option<(&'static str, String, &'static str)> {
        let looks_ahead = self.momentum > 0.0 && self.dampening == 0.0;
        (self.nesterov && !looks_ahead).then(|| {
            (
                "momentum and no dampening with nesterov",
                format!(
                    "momentum {} and dampening {}",
                    self.momentum, self.dampening
                ),
                "give a momentum above 0 and leave dampening out, or leave nesterov out",
            )
        })
    }

    fn states(&self, _shape: &[usize]) -> &'static [&'static str] {
        match self.momentum {
            0.0 => &[],
            _ => &["momentum_buffer"],
        }
    }

    fn update(&self, step: u64) -> Update {
        let step = optimize::Sgd {
            rate: self.rate,
            momentum: self.momentum,
            dampening: self.dampening,
            decay: self.decay,
            nesterov: self.nesterov,
            first: step == 1,
        };
        step.into()
    }
}
