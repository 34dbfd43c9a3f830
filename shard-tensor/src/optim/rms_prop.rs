//! Steps divided by how large gradients have been of late.

use super::options::optimizer;
use super::slots::{Formula, Named, Slots};
use shard_ops::optimize::{self, Update};

/// Divides the gradient by the root of a mean of its squares (Tieleman and Hinton, 2012), as `torch.optim.RMSprop`.
///
/// ```
/// use shard_tensor::{launch, optim::{Optimizer, RmsProp}, shard};
/// let moved = launch(2, |ctx| {
///     let w = ctx.mesh_of(2)?.ones([3], shard(0))?.requires_grad()?;
///     let mut rms = RmsProp::new(vec![("w".to_owned(), w.clone())], 0.01)?;
///     rms.step(&w.square()?.sum_all()?.backward()?)?;
///     w.mean_all()?.item()
/// })?;
/// assert!((moved[0] - 0.9).abs() < 1e-6); // 1 - 0.01 * 2 / sqrt(0.01 * 2 * 2)
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RmsProp(Slots<RmsPropOptions>);

/// The options of [`RmsProp`] for some parameters.
#[derive(Clone, Copy, Debug)]
pub struct RmsPropOptions {
    rate: f64,
    alpha: f64,
    eps: f64,
    decay: f64,
    momentum: f64,
    centered: bool,
}

optimizer! { RmsProp, RmsPropOptions, |rate| RmsPropOptions { rate, alpha: 0.99, eps: 1e-8, decay: 0.0, momentum: 0.0, centered: false };
    /// How slowly the mean of squares forgets; 0.99 at first.
    alpha(alpha: f64) |o| o.alpha = alpha;
    /// What is added to the denominator; 1e-8 at first.
    eps(eps: f64) |o| o.eps = eps;
    /// What share of the parameter is added to its gradient; 0 at first.
    weight_decay(decay: f64) |o| o.decay = decay;
    /// Keeps this share of the last step's direction; 0 at first.
    momentum(momentum: f64) |o| o.momentum = momentum;
    /// Whether the root of the gradient's variance divides, rather than that of its mean square. Not at first.
    centered(on: bool) |o| o.centered = on;
}

impl Formula for RmsPropOptions {
    fn limits(&self) -> [Vec<Named>; 2] {
        let any = vec![
            ("learning rate", self.rate),
            ("eps", self.eps),
            ("weight decay", self.decay),
            ("momentum", self.momentum),
        ];
        [any, vec![("alpha", self.alpha)]]
    }

    fn states(&self, _shape: &[usize]) -> &'static [&'static str] {
        match (self.momentum != 0.0, self.centered) {
            (false, false) => &["square_avg"],
            (true, false) => &["square_avg", "momentum_buffer"],
            (false, true) => &["square_avg", "grad_avg"],
            (true, true) => &["square_avg", "momentum_buffer", "grad_avg"],
        }
    }

    fn update(&self, _step: u64) -> Update {
        let step = optimize::RmsProp {
            rate: self.rate,
            keep: self.alpha,
            decay: self.decay,
            eps: self.eps,
            momentum: self.momentum,
            centered: self.centered,
        };
        step.into()
    }
}
