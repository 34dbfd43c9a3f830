//! One of several classes.

use super::{Distribution, Divergence, repeated};
use crate::{ClassLoss, Error, LossReduction, Result, Shape, ShardTensor};
use shard_comm::half::{bf16, f16};
use shard_comm::{Calling, DType};
use shard_ops::elementwise::broadcast_shape;

/// One of several classes, which are the last dim of the parameter, as `torch.distributions.Categorical`. Samples are `i64`.
#[derive(Clone, Debug)]
pub struct Categorical {
    /// Logarithms of probabilities, `[batch.., classes]`.
    logits: ShardTensor,
    /// The probabilities, if it was made of them: the logarithms of those that are 0 are finite then, and so is their slope.
    probs: Option<ShardTensor>,
}

impl Categorical {
    /// Of logits `[batch.., classes]`, logarithms of probabilities but for a number added to each row. A class of -∞ is never drawn.
    ///
    /// # Collective
    /// All members of the mesh. As [`log_softmax`](ShardTensor::log_softmax).
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for a tensor without classes; types that are no floats.
    ///
    /// ```
    /// use shard_tensor::distributions::{Categorical, Distribution};
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let allowed = array![[0.0_f32, f32::NEG_INFINITY], [f32::NEG_INFINITY, 2.0], [0.0, 0.0]];
    ///     let policy = Categorical::from_logits(&mesh.distribute(&allowed, shard(0))?)?;
    ///     let action = policy.sample([4])?.to_array::<i64>()?;
    ///     Ok((action, policy.entropy()?.to_array::<f32>()?))
    /// })?;
    /// let (action, entropy) = &found[0];
    /// assert_eq!(action.shape(), [4, 3]);
    /// assert!(action.rows().into_iter().all(|row| (row[0], row[1]) == (0, 1)));
    /// assert_eq!(entropy, &array![0.0, 0.0, 2_f32.ln()].into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn from_logits(logits: &ShardTensor) -> Result<Self> {
        let _call = Calling::of("Categorical::from_logits");
        check("Categorical::from_logits", logits)?;
        Ok(Self {
            logits: logits.log_softmax(-1)?,
            probs: None,
        })
    }

    /// Of weights `[batch.., classes]` that are not below 0: probabilities but for a factor of each row.
    ///
    /// # Collective
    /// All members of the mesh. Sums along rows move where the classes are sharded.
    ///
    /// # Errors
    /// As [`from_logits`](Self::from_logits).
    #[track_caller]
    pub fn from_probs(probs: &ShardTensor) -> Result<Self> {
        let _call = Calling::of("Categorical::from_probs");
        check("Categorical::from_probs", probs)?;
        let probs = probs.div(&probs.sum(-1, true)?)?;
        let least = epsilon(probs.dtype());
        Ok(Self {
            logits: probs.clamp(least, 1.0 - least)?.log()?,
            probs: Some(probs),
        })
    }

    /// The logarithms of the probabilities, `[batch.., classes]`.
    pub fn logits(&self) -> &ShardTensor {
        &self.logits
    }

    /// The probabilities, `[batch.., classes]`.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// What the device reports.
    #[track_caller]
    pub fn probs(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Categorical::probs");
        match &self.probs {
            Some(probs) => Ok(probs.clone()),
            None => self.logits.exp(),
        }
    }

    /// The logarithms, of which those of nothing are the type's least number: products with a probability of 0 are 0 then.
    #[track_caller]
    fn finite(&self) -> Result<ShardTensor> {
        self.logits.clamp_min(match self.logits.dtype() {
            DType::F64 => f64::MIN,
            DType::F16 => f16::MIN.to_f64(),
            DType::BF16 => bf16::MIN.to_f64(),
            _ => f32::MIN.into(),
        })
    }

    /// The same for each distribution of a batch, with which its own broadcasts.
    #[track_caller]
    pub(super) fn expanded(&self, batch: &[usize]) -> Result<Self> {
        let whole = [batch, &[self.classes()]].concat();
        let expanded = |of: &ShardTensor| repeated(of, &Shape::default(), &whole);
        Ok(Self {
            logits: expanded(&self.logits)?,
            probs: self.probs.as_ref().map(expanded).transpose()?,
        })
    }

    /// How many classes there are.
    pub(super) fn classes(&self) -> usize {
        self.logits.shape().last().copied().unwrap_or_default()
    }

    /// Classes have no moments.
    #[track_caller]
    fn none(&self) -> Result<ShardTensor> {
        self.logits.detach().amax(-1, false)?.full_like(f64::NAN)
    }
}

impl Distribution for Categorical {
    fn batch_shape(&self) -> &[usize] {
        let shape = self.logits.shape();
        &shape[..shape.len() - 1]
    }

    /// Samples of classes, `[shape.., batch..]`.
    ///
    /// # Collective
    /// As [`multinomial`](ShardTensor::multinomial).
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for NaN, weights below 0, and rows of which nothing can be drawn.
    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Categorical::sample");
        let shape = shape.into();
        // More than a number counts are more than any array has.
        let count = (shape.iter()).fold(1_usize, |all, &n| all.saturating_mul(n));
        let drawn = self.probs()?.chosen("Categorical::sample", count, true)?;
        match shape.len() {
            0 => drawn.squeeze(-1),
            _ => drawn.movedim(-1, 0)?.unflatten(0, shape.dims()),
        }
    }

    /// The logarithms of the probabilities of classes, `i64` or `i32`.
    ///
    /// # Collective
    /// As [`nll_loss`](ShardTensor::nll_loss).
    ///
    /// # Errors
    /// An agreed error for classes that there are not; shapes that do not broadcast.
    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        const OP: &str = "Categorical::log_prob";
        let _call = Calling::of(OP);
        if value.dtype().is_float() {
            return Err(Error::argument(
                OP,
                "classes as i64 or i32",
                value.dtype().to_string(),
                "convert them: `.to(DType::I64)`",
            ));
        }
        // Rows of classes, for each value; a loss takes them in dim 1, and refuses a class below 0.
        let value = value.unsqueeze(-1)?;
        let rows = broadcast_shape(OP, &[&value.value(), &self.logits.value()])?;
        let each = &rows[..rows.len() - 1];
        let value = repeated(&value.squeeze(-1)?, &Shape::default(), each)?;
        let logits = repeated(&self.logits, &Shape::default(), &rows)?;
        let logits = match each.len() {
            0 => logits,
            _ => logits.movedim(-1, 1)?,
        };
        let of_each = ClassLoss::new()
            .ignore(i64::MIN)
            .reduction(LossReduction::None);
        logits.nll_loss(&value, &of_each)?.neg()
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Categorical::entropy");
        self.finite()?.mul(&self.probs()?)?.sum(-1, false)?.neg()
    }

    /// NaN.
    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Categorical::mean");
        self.none()
    }

    /// NaN.
    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Categorical::variance");
        self.none()
    }
}

impl Divergence for Categorical {
    /// Infinite where the other never draws what this draws.
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        let [p, q] = [self.probs()?, other.probs()?];
        let terms = p.mul(&self.finite()?.sub(&other.finite()?)?)?;
        let terms = terms.masked_fill(&q.detach().eq_scalar(0.0)?, f64::INFINITY)?;
        let terms = terms.masked_fill(&p.detach().eq_scalar(0.0)?, 0.0)?;
        terms.sum(-1, false)
    }
}

/// Whether there are classes.
fn check(op: &'static str, parameter: &ShardTensor) -> Result<()> {
    match parameter.shape().last() {
        None | Some(0) => Err(Error::argument(
            op,
            "one class or more in the last dim",
            format!("shape {:?}", parameter.shape()),
            "give a number for each class",
        )),
        _ => Ok(()),
    }
}

/// The distance of 1 from the next number of a type.
pub(super) fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F16 => f16::EPSILON.to_f64(),
        DType::BF16 => bf16::EPSILON.to_f64(),
        _ => f32::EPSILON.into(),
    }
}
