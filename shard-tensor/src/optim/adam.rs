//! Adam, with decay in the gradient or decoupled from it.

use super::options::optimizer;
use super::slots::{Formula, Named, Rated, Slots, betas, decayed};
use shard_ops::optimize::{self, Update};

/// Adam (Kingma and Ba, 2015), as `torch.optim.Adam`: weight decay is added to the gradient.
#[derive(Clone, Debug)]
pub struct Adam(Slots<AdamOptions>);

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
#[derive(Clone, Debug)]
pub struct AdamW(Slots<AdamWOptions>);

/// The options of [`Adam`] for some parameters.
pub type AdamOptions = Options<false>;

/// The options of [`AdamW`] for some parameters.
pub type AdamWOptions = Options<true>;

/// The options of both.
#[derive(Clone, Copy, Debug)]
pub struct Options<const DECOUPLED: bool> {
    rate: f64,
    betas: [f64; 2],
    eps: f64,
    decay: f64,
    amsgrad: bool,
}

impl<const DECOUPLED: bool> Options<DECOUPLED> {
    fn new(rate: f64, decay: f64) -> Self {
        Self {
            rate,
            betas: [0.9, 0.999],
            eps: 1e-8,
            decay,
            amsgrad: false,
        }
    }
}

optimizer! { Adam, AdamOptions, |rate| AdamOptions::new(rate, 0.0);
    /// How slowly the means of the gradient and of its square forget; 0.9 and 0.999 at first.
    betas(first: f64, second: f64) |o| o.betas = [first, second];
    /// What is added to the denominator; 1e-8 at first.
    eps(eps: f64) |o| o.eps = eps;
    /// What share of the parameter is added to its gradient; 0 at first.
    weight_decay(decay: f64) |o| o.decay = decay;
    /// Whether the largest mean of squares so far divides (Reddi, Kale and Kumar, 2018). Not at first.
    amsgrad(on: bool) |o| o.amsgrad = on;
}

optimizer! { AdamW, AdamWOptions, |rate| AdamWOptions::new(rate, 0.01);
    /// How slowly the means of the gradient and of its square forget; 0.9 and 0.999 at first.
    betas(first: f64, second: f64) |o| o.betas = [first, second];
    /// What is added to the denominator; 1e-8 at first.
    eps(eps: f64) |o| o.eps = eps;
    /// What share of itself, times the learning rate, a parameter loses per step; 0.01 at first.
    weight_decay(decay: f64) |o| o.decay = decay;
    /// Whether the largest mean of squares so far divides (Reddi, Kale and Kumar, 2018). Not at first.
    amsgrad(on: bool) |o| o.amsgrad = on;
}

impl<const DECOUPLED: bool> Formula for Options<DECOUPLED>
where
    Self: Rated,
{
    fn limits(&self) -> [Vec<Named>; 2] {
        let any = vec![
            ("learning rate", self.rate),
            ("eps", self.eps),
            ("weight decay", self.decay),
        ];
        [any, betas(self.betas)]
    }

    fn states(&self, _shape: &[usize]) -> &'static [&'static str] {
        match self.amsgrad {
            false => &["exp_avg", "exp_avg_sq"],
            true => &["exp_avg", "exp_avg_sq", "max_exp_avg_sq"],
        }
    }

    /// The numbers are computed in double precision, as PyTorch does.
    fn update(&self, step: u64) -> Update {
        let ([beta1, beta2], step) = (self.betas, step as f64);
        let [keep, decay] = decayed(self.rate, self.decay, DECOUPLED);
        let step = optimize::Adam {
            keep,
            decay,
            betas: self.betas,
            size: self.rate / (1.0 - beta1.powf(step)),
            root: (1.0 - beta2.powf(step)).sqrt(),
            eps: self.eps,
            amsgrad: self.amsgrad,
        };
        step.into()
    }
}
