//! Adam that waits until it knows how large gradients are.

use super::options::optimizer;
use super::slots::{Formula, Named, Slots, betas, decayed};
use shard_ops::optimize::{self, Update};

/// Adam that goes along its mean alone until enough is known of how gradients vary, in place of a warm-up (Liu and others, 2020), as
/// `torch.optim.RAdam`.
///
/// ```
/// use shard_tensor::{launch, optim::{Optimizer, RAdam}, shard};
/// let moved = launch(2, |ctx| {
///     let w = ctx.mesh_of(2)?.ones([3], shard(0))?.requires_grad()?;
///     let mut radam = RAdam::new(vec![("w".to_owned(), w.clone())], 0.1)?;
///     radam.step(&w.square()?.sum_all()?.backward()?)?;
///     w.mean_all()?.item()
/// })?;
/// assert!((moved[0] - 0.8).abs() < 1e-6); // 1 - 0.1 * 2: nothing divides the gradient in the first five steps
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RAdam(Slots<RAdamOptions>);

/// The options of [`RAdam`] for some parameters.
#[derive(Clone, Copy, Debug)]
pub struct RAdamOptions {
    rate: f64,
    betas: [f64; 2],
    eps: f64,
    decay: f64,
    decoupled: bool,
}

optimizer! { RAdam, RAdamOptions, |rate| RAdamOptions { rate, betas: [0.9, 0.999], eps: 1e-8, decay: 0.0, decoupled: false };
    /// How slowly the means of the gradient and of its square forget; 0.9 and 0.999 at first.
    betas(first: f64, second: f64) |o| o.betas = [first, second];
    /// What is added to the denominator; 1e-8 at first.
    eps(eps: f64) |o| o.eps = eps;
    /// What share of the parameter is added to its gradient; 0 at first.
    weight_decay(decay: f64) |o| o.decay = decay;
    /// Whether decay is taken from the parameter, times the rate, as [`AdamW`](super::AdamW) does. Not at first.
    decoupled(on: bool) |o| o.decoupled = on;
}

impl Formula for RAdamOptions {
    fn limits(&self) -> [Vec<Named>; 2] {
        let any = vec![
            ("learning rate", self.rate),
            ("eps", self.eps),
            ("weight decay", self.decay),
        ];
        [any, betas(self.betas)]
    }

    fn states(&self, _shape: &[usize]) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }

    /// Section 3.3 of the paper: `length` is that of the simple mean which forgets as the second mean does.
    fn update(&self, step: u64) -> Update {
        let ([beta1, beta2], step) = (self.betas, step as f64);
        let corrections = [beta1, beta2].map(|beta| 1.0 - beta.powf(step));
        let longest = 2.0 / (1.0 - beta2) - 1.0;
        let length = longest - 2.0 * step * beta2.powf(step) / corrections[1];
        let adapts = length > 5.0;
        let of = |length: f64| (length - 4.0) * (length - 2.0) / length;
        let rectified = match adapts {
            true => (of(length) / of(longest) * corrections[1]).sqrt(),
            false => 1.0,
        };
        let [keep, decay] = decayed(self.rate, self.decay, self.decoupled);
        let step = optimize::RAdam {
            keep,
            decay,
            betas: self.betas,
            size: self.rate / corrections[0] * rectified,
            eps: self.eps,
            adapts,
        };
        step.into()
    }
}
