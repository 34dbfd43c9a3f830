//! Steps by rows and columns of squares.

use super::options::optimizer;
use super::slots::{Formula, Named, Slots, apply, straight};
use crate::{Result, ShardTensor};
use shard_comm::{Calling, DType};
use shard_ops::optimize::Update;
use shard_ops::{Exec as _, Value};
use shard_spec::Layout;

/// Divides the gradient by how large it was in its row and in its column (Shazeer and Stern, 2018), as `torch.optim.Adafactor`. Of a matrix
/// it remembers as many numbers as that has rows and columns together, and no momentum; of a vector as many as it has elements.
///
/// Steps are as long as the parameter is, times the rate, which is 0.01 in PyTorch, and no more than one over the root of the step.
///
/// ```
/// use shard_tensor::{launch, optim::{Adafactor, Optimizer}, shard, Stateful};
/// let found = launch(3, |ctx| {
///     let w = ctx.mesh_of(3)?.ones([6, 4], shard(0))?.requires_grad()?;
///     let mut adafactor = Adafactor::new(vec![("w".to_owned(), w.clone())], 0.01)?;
///     adafactor.step(&w.square()?.sum_all()?.backward()?)?;
///     let kept: usize = adafactor.state()?.tensors.iter().map(|(_, t)| t.numel()).sum();
///     Ok((w.mean_all()?.item()?, kept))
/// })?;
/// assert!((found[0].0 - 0.99).abs() < 1e-6);
/// assert_eq!(found[0].1, 6 + 4);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
///
/// # Communication
/// Unlike other optimizers it moves data, of sharded parameters: sums of squares along each of the last two dims, where it is sharded, their
/// mean, and two numbers.
#[derive(Clone, Debug)]
pub struct Adafactor(Slots<AdafactorOptions>);

/// The options of [`Adafactor`] for some parameters.
#[derive(Clone, Copy, Debug)]
pub struct AdafactorOptions {
    rate: f64,
    beta2_decay: f64,
    /// The least root of a mean of squares; what is next to one, if nothing is said.
    eps: Option<f64>,
    least_size: f64,
    threshold: f64,
    decay: f64,
}

impl AdafactorOptions {
    fn new(rate: f64) -> Self {
        Self {
            rate,
            beta2_decay: -0.8,
            eps: None,
            least_size: 1e-3,
            threshold: 1.0,
            decay: 0.0,
        }
    }
}

optimizer! { Adafactor, AdafactorOptions, AdafactorOptions::new;
    /// The power of the step that is the share of a new square; -0.8 at first.
    beta2_decay(power: f64) |o| o.beta2_decay = power;
    /// The least root of a mean of squares, by which a gradient is divided; at first what the type has between 1 and the next number.
    eps(eps: f64) |o| o.eps = Some(eps);
    /// What a parameter counts for if its root mean square is less; 1e-3 at first.
    least_size(size: f64) |o| o.least_size = size;
    /// The root mean square that a step may have before it is scaled; 1 at first.
    threshold(size: f64) |o| o.threshold = size;
    /// What share of itself, times the learning rate, a parameter loses per step; 0 at first.
    weight_decay(decay: f64) |o| o.decay = decay;
}

impl Formula for AdafactorOptions {
    fn limits(&self) -> [Vec<Named>; 2] {
        let any = vec![
            ("learning rate", self.rate),
            ("eps", self.eps.unwrap_or(0.0)),
            ("least size", self.least_size),
            ("threshold", self.threshold),
            ("weight decay", self.decay),
        ];
        [any, Vec::new()]
    }

    fn conflict(&self) -> Option<(&'static str, String, &'static str)> {
        if self.beta2_decay > 0.0 || !self.beta2_decay.is_finite() {
            let got = format!("beta2 decay {}", self.beta2_decay);
            return Some(("a power of 0 or less", got, "take one as -0.8"));
        }
        let got = format!("threshold {}", self.threshold);
        let fix = "take 1, or a number above it";
        (self.threshold < 1.0).then_some(("a threshold of 1 or more", got, fix))
    }

    fn states(&self, shape: &[usize]) -> &'static [&'static str] {
        match shape.len() {
            0 | 1 => &["variance"],
            _ => &["row_var", "col_var"],
        }
    }

    /// Rows have one column, and columns one row.
    fn lies(&self, part: usize, parameter: &Layout) -> Result<Layout> {
        let ndim = parameter.ndim();
        if ndim < 2 {
            return Ok(parameter.clone());
        }
        let dim = ndim - 1 - part;
        let mut shape = parameter.shape().to_vec();
        shape[dim] = 1;
        Ok(parameter.with_sharding(dim, None)?.with_shape(&shape)?)
    }

    /// Along what stands in the gradient's place, which has its length already.
    fn update(&self, _step: u64) -> Update {
        straight(1.0, self.rate * self.decay)
    }

    #[track_caller]
    fn take(
        &self,
        step: u64,
        parameter: &ShardTensor,
        gradient: &Value,
        state: &[Value],
    ) -> Result<Vec<Value>> {
        let _call = Calling::of("step");
        let context = parameter.context();
        let lifted = |value: &Value| parameter.lift(value.detach());
        let keep = 1.0 - (step as f64).powf(self.beta2_decay);
        let eps = self.eps.unwrap_or(match parameter.dtype() {
            DType::F64 => f64::EPSILON,
            _ => f64::from(f32::EPSILON),
        });
        let (old, gradient) = (lifted(&parameter.value()), lifted(gradient));
        context.no_grad(|| {
            let squares = gradient.square()?;
            let mut kept = Vec::with_capacity(2);
            for (part, before) in state.iter().enumerate() {
                let next = match state.len() {
                    1 => squares.clone(),
                    _ => squares.mean(-1 - part as isize, true)?,
                };
                let next = context
                    .tape()
                    .redistribute(&next.value(), before.layout())?;
                kept.extend(apply(
                    parameter,
                    Update::Average { keep },
                    before,
                    &next,
                    &[],
                )?);
            }
            let variance = match &kept[..] {
                [rows, columns] => {
                    let rows = lifted(rows);
                    let mean = rows.mean(-2, true)?.clamp(eps, f64::INFINITY)?;
                    rows.div(&mean)?.mul(&lifted(columns))?
                }
                all => lifted(&all[0]),
            };
            let least = variance.clamp(eps * eps, f64::INFINITY)?;
            let along = gradient.mul(&least.rsqrt()?)?;
            let size = rms(&old)?.clamp(self.least_size, f64::INFINITY)?;
            let over = rms(&along)?.div_scalar(self.threshold)?;
            let rate = self.rate.min(1.0 / (step as f64).sqrt());
            let length = size
                .mul_scalar(rate)?
                .div(&over.clamp(1.0, f64::INFINITY)?)?;
            let along = along.mul(&length)?;
            let along = context
                .tape()
                .redistribute(&along.value(), parameter.layout())?;
            let mut new = apply(parameter, self.update(step), &old.value(), &along, &[])?;
            new.extend(kept);
            Ok(new)
        })
    }
}

/// The root of the mean square of all elements.
#[track_caller]
fn rms(x: &ShardTensor) -> Result<ShardTensor> {
    x.norm(2.0, .., false)?
        .div_scalar((x.numel() as f64).sqrt())
}
