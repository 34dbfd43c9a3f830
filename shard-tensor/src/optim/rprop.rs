//! Resilient backpropagation.

use super::options::optimizer;
use super::slots::{Formula, Named, Slots};
use shard_ops::optimize::{self, Update};

/// Resilient backpropagation (Riedmiller and Braun, 1993), as `torch.optim.Rprop`, for gradients of all the data: steps look at signs of gradients
/// alone, and each element's grows while its sign stays and shrinks where it turns. The learning rate is the size of the first ones, and
/// is not looked at afterwards.
///
/// ```
/// use shard_tensor::{launch, optim::{Optimizer, Rprop}, shard};
/// let moved = launch(2, |ctx| {
///     let w = ctx.mesh_of(2)?.ones([3], shard(0))?.requires_grad()?;
///     let mut rprop = Rprop::new(vec![("w".to_owned(), w.clone())], 0.1)?;
///     for _ in 0..2 {
///         rprop.step(&w.square()?.sum_all()?.backward()?)?;
///     }
///     w.mean_all()?.item()
/// })?;
/// assert!((moved[0] - (1.0 - 0.1 - 0.12)).abs() < 1e-6);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Rprop(Slots<RpropOptions>);

/// The options of [`Rprop`] for some parameters.
#[derive(Clone, Copy, Debug)]
pub struct RpropOptions {
    rate: f64,
    factors: [f64; 2],
    sizes: [f64; 2],
}

optimizer! { Rprop, RpropOptions, |rate| RpropOptions { rate, factors: [0.5, 1.2], sizes: [1e-6, 50.0] };
    /// By what the size of a step is multiplied where the sign of the gradient has turned, and where it has stayed; 0.5 and 1.2 at first.
    etas(minus: f64, plus: f64) |o| o.factors = [minus, plus];
    /// The least and the largest size of a step; 1e-6 and 50 at first.
    step_sizes(least: f64, most: f64) |o| o.sizes = [least, most];
}

impl Formula for RpropOptions {
    fn limits(&self) -> [Vec<Named>; 2] {
        let ([minus, plus], [least, most]) = (self.factors, self.sizes);
        let any = vec![
            ("learning rate", self.rate),
            ("plus eta", plus),
            ("least step", least),
            ("largest step", most),
        ];
        [any, vec![("minus eta", minus)]]
    }

    fn conflict(&self) -> Option<(&'static str, String, &'static str)> {
        let ([minus, plus], [least, most]) = (self.factors, self.sizes);
        if minus == 0.0 || plus <= 1.0 {
            let got = format!("{minus} and {plus}");
            return Some((
                "etas below 1 and above it, and above 0",
                got,
                "take 0.5 and 1.2",
            ));
        }
        (least > most).then(|| {
            let got = format!("from {least} to {most}");
            (
                "sizes of steps from the least to the largest",
                got,
                "exchange them",
            )
        })
    }

    fn states(&self, _shape: &[usize]) -> &'static [&'static str] {
        &["prev", "step_size"]
    }

    fn update(&self, step: u64) -> Update {
        let step = optimize::Rprop {
            rate: self.rate,
            factors: self.factors,
            sizes: self.sizes,
            first: step == 1,
        };
        step.into()
    }
}
