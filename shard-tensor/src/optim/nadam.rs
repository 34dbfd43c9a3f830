//! Adam that looks ahead.

use super::options::optimizer;
use super::slots::{Formula, Named, Slots, betas, decayed};
use shard_ops::optimize::{self, Update};

/// Adam that looks ahead along its mean, as Nesterov's momentum does (Dozat, 2016), as `torch.optim.NAdam`.
///
/// ```
/// use shard_tensor::{launch, optim::{NAdam, Optimizer}, shard};
/// let losses = launch(2, |ctx| {
///     let w = ctx.mesh_of(2)?.ones([3], shard(0))?.requires_grad()?;
///     let mut nadam = NAdam::new(vec![("w".to_owned(), w.clone())], 0.1)?;
///     let mut losses = Vec::new();
///     for _ in 0..20 {
///         let loss = w.square()?.sum_all()?;
///         nadam.step(&loss.backward()?)?;
///         losses.push(loss.item()?);
///     }
///     Ok(losses)
/// })?;
/// assert!(losses[0][19] < 0.1 * losses[0][0]);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct NAdam(Slots<NAdamOptions>);

/// The options of [`NAdam`] for some parameters.
#[derive(Clone, Copy, Debug)]
pub struct NAdamOptions {
    rate: f64,
    betas: [f64; 2],
    eps: f64,
    decay: f64,
    momentum_decay: f64,
    decoupled: bool,
}

optimizer! { NAdam, NAdamOptions, |rate| NAdamOptions { rate, betas: [0.9, 0.999], eps: 1e-8, decay: 0.0, momentum_decay: 0.004, decoupled: false };
    /// How slowly the means of the gradient and of its square forget; 0.9 and 0.999 at first.
    betas(first: f64, second: f64) |o| o.betas = [first, second];
    /// What is added to the denominator; 1e-8 at first.
    eps(eps: f64) |o| o.eps = eps;
    /// What share of the parameter is added to its gradient; 0 at first.
    weight_decay(decay: f64) |o| o.decay = decay;
    /// How fast the momentum rises from half the first beta to all of it; 0.004 at first.
    momentum_decay(decay: f64) |o| o.momentum_decay = decay;
    /// Whether decay is taken from the parameter, times the rate, as [`AdamW`](super::AdamW) does. Not at first.
    decoupled(on: bool) |o| o.decoupled = on;
}

impl NAdamOptions {
    /// The momentum of a step, that of the next, and the product of all so far.
    fn momenta(&self, step: u64) -> [f64; 3] {
        let momentum =
            |step: f64| self.betas[0] * (1.0 - 0.5 * 0.96f64.powf(step * self.momentum_decay));
        let mut product = 1.0;
        for i in 1..=step {
            product *= momentum(i as f64);
            // One less this is one.
            if product < 1e-17 {
                break;
            }
        }
        let step = step as f64;
        [momentum(step), momentum(step + 1.0), product]
    }
}

impl Formula for NAdamOptions {
    fn limits(&self) -> [Vec<Named>; 2] {
        let any = vec![
            ("learning rate", self.rate),
            ("eps", self.eps),
            ("weight decay", self.decay),
            ("momentum decay", self.momentum_decay),
        ];
        [any, betas(self.betas)]
    }

    fn states(&self, _shape: &[usize]) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }

    fn update(&self, step: u64) -> Update {
        let [momentum, next, product] = self.momenta(step);
        let [keep, decay] = decayed(self.rate, self.decay, self.decoupled);
        let step = optimize::NAdam {
            keep,
            decay,
            betas: self.betas,
            sizes: [
                self.rate * (1.0 - momentum) / (1.0 - product),
                self.rate * next / (1.0 - product * next),
            ],
            root: (1.0 - self.betas[1].powf(step as f64)).sqrt(),
            eps: self.eps,
        };
        step.into()
    }
}
