//! One of several classes, as a row.

use super::{Batch, Categorical, Distribution, Divergence, Reparametrized, repeated};
use crate::{Error, Result, Shape, ShardTensor};
use shard_comm::Calling;

/// One of several classes as a row that is 1 at the class and else 0, as `torch.distributions.OneHotCategorical`. Samples are of the
/// parameter's type. Those of [`rsample`](Reparametrized::rsample) are PyTorch's `OneHotCategoricalStraightThrough`: rows of zeros and a
/// one, whose gradients are those of the probabilities.
#[derive(Clone, Debug)]
pub struct OneHotCategorical(Categorical);

impl OneHotCategorical {
    /// Of logits `[batch.., classes]`, as [`Categorical::from_logits`].
    ///
    /// # Collective
    /// As [`Categorical::from_logits`].
    ///
    /// # Errors
    /// As [`Categorical::from_logits`].
    ///
    /// ```
    /// use shard_tensor::distributions::{OneHotCategorical, Reparametrized};
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let logits = mesh.randn([5, 4], shard(0))?.requires_grad()?;
    ///     let row = OneHotCategorical::from_logits(&logits)?.rsample([])?;
    ///     assert_eq!(row.sum(-1, false)?.to_array::<f32>()?.as_slice(), Some(&[1.0; 5][..]));
    ///     // It moves with the probabilities.
    ///     let value = mesh.arange(4, shard(0))?;
    ///     let slope = row.mul(&value)?.sum_all()?.grad1(&logits, false)?;
    ///     let direct = logits.softmax(-1)?.mul(&value)?.sum_all()?.grad1(&logits, false)?;
    ///     assert!(slope.allclose(&direct, 1e-6, 1e-6, false)?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn from_logits(logits: &ShardTensor) -> Result<Self> {
        let _call = Calling::of("OneHotCategorical::from_logits");
        Ok(Self(Categorical::from_logits(logits)?))
    }

    /// Of weights `[batch.., classes]`, as [`Categorical::from_probs`].
    ///
    /// # Collective
    /// As [`Categorical::from_probs`].
    ///
    /// # Errors
    /// As [`Categorical::from_probs`].
    #[track_caller]
    pub fn from_probs(probs: &ShardTensor) -> Result<Self> {
        let _call = Calling::of("OneHotCategorical::from_probs");
        Ok(Self(Categorical::from_probs(probs)?))
    }

    /// The distribution of the class.
    pub fn classes(&self) -> &Categorical {
        &self.0
    }

    /// The probabilities, `[batch.., classes]`.
    ///
    /// # Collective
    /// As [`Categorical::probs`].
    ///
    /// # Errors
    /// As [`Categorical::probs`].
    #[track_caller]
    pub fn probs(&self) -> Result<ShardTensor> {
        let _call = Calling::of("OneHotCategorical::probs");
        self.0.probs()
    }
}

impl Distribution for OneHotCategorical {
    fn batch_shape(&self) -> &[usize] {
        self.0.batch_shape()
    }

    fn event_shape(&self) -> &[usize] {
        let shape = self.0.logits().shape();
        &shape[shape.len() - 1..]
    }

    /// # Collective
    /// As [`ShardTensor::multinomial`].
    ///
    /// # Errors
    /// As [`Categorical`]'s.
    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("OneHotCategorical::sample");
        let class = self.0.sample(shape)?;
        class.one_hot(self.0.classes())?.to(self.0.logits().dtype())
    }

    /// Of rows: the class is where a row is largest.
    ///
    /// # Collective
    /// As [`Categorical`]'s.
    ///
    /// # Errors
    /// Rows of another extent than there are classes; as [`Categorical`]'s.
    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        const OP: &str = "OneHotCategorical::log_prob";
        let _call = Calling::of(OP);
        if value.shape().last() != Some(&self.0.classes()) {
            return Err(Error::argument(
                OP,
                format!("rows of {} classes", self.0.classes()),
                format!("shape {:?}", value.shape()),
                "give rows, or ask `classes()` for a class",
            ));
        }
        self.0.log_prob(&value.argmax(-1)?)
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("OneHotCategorical::entropy");
        self.0.entropy()
    }

    /// The probabilities.
    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("OneHotCategorical::mean");
        self.0.probs()
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("OneHotCategorical::variance");
        let probs = self.0.probs()?;
        formula!("one_hot_variance", |[p]| { p * (1.0 - p) } of [&probs])
    }
}

impl Reparametrized for OneHotCategorical {
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("OneHotCategorical::rsample");
        let probs = self.0.probs()?;
        // Nothing is added but the gradient.
        self.sample(shape)?.add(&probs.sub(&probs.detach())?)
    }
}

impl Divergence for OneHotCategorical {
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        self.0.kl_divergence(&other.0)
    }
}

/// Shares of classes that are the nearer to one of them the lower a temperature is (the Gumbel softmax), as
/// `torch.distributions.RelaxedOneHotCategorical`.
#[derive(Clone, Debug)]
pub struct RelaxedOneHotCategorical {
    temperature: f64,
    logits: Batch<1>,
    classes: Categorical,
}

impl RelaxedOneHotCategorical {
    /// Of a temperature above 0 and logits `[batch.., classes]`.
    ///
    /// # Collective
    /// As [`Categorical::from_logits`].
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for a temperature that is not above 0; as [`Categorical::from_logits`].
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, RelaxedOneHotCategorical, Reparametrized};
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let logits = ctx.mesh_of(2)?.randn([5, 4], shard(0))?.requires_grad()?;
    ///     let relaxed = RelaxedOneHotCategorical::from_logits(0.5, &logits)?;
    ///     let shares = relaxed.rsample([])?;
    ///     let whole = shares.sum(-1, false)?;
    ///     assert!(whole.allclose(&whole.ones_like()?, 1e-5, 1e-5, false)?);
    ///     relaxed.log_prob(&shares)?.sum_all()?.backward()?;
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn from_logits(temperature: f64, logits: &ShardTensor) -> Result<Self> {
        const OP: &str = "RelaxedOneHotCategorical::from_logits";
        let _call = Calling::of(OP);
        if !(temperature > 0.0 && temperature.is_finite()) {
            return Err(Error::argument(
                OP,
                "a temperature above 0",
                temperature.to_string(),
                "raise it; without one there is OneHotCategorical",
            ));
        }
        let classes = Categorical::from_logits(logits)?;
        Ok(Self {
            temperature,
            logits: Batch::new(OP, [classes.logits().clone()])?,
            classes,
        })
    }

    /// The logarithms of the probabilities, `[batch.., classes]`.
    pub fn logits(&self) -> &ShardTensor {
        self.classes.logits()
    }
}

impl Distribution for RelaxedOneHotCategorical {
    fn batch_shape(&self) -> &[usize] {
        self.classes.batch_shape()
    }

    fn event_shape(&self) -> &[usize] {
        let shape = self.logits().shape();
        &shape[shape.len() - 1..]
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("RelaxedOneHotCategorical::sample");
        Ok(self.rsample(shape)?.detach())
    }

    /// Of shares above 0, whose sum is 1.
    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("RelaxedOneHotCategorical::log_prob");
        let (t, classes) = (self.temperature, self.classes.classes() as f64);
        let log = value.log()?;
        let score = self.logits().add_scaled(&log, -t)?.log_softmax(-1)?;
        let whole = ln_factorial(self.classes.classes() - 1) + (classes - 1.0) * t.ln();
        score.sub(&log)?.sum(-1, false)?.add_scalar(whole)
    }
}

/// The logarithm of a factorial.
fn ln_factorial(n: usize) -> f64 {
    (1..=n).map(|i| (i as f64).ln()).sum()
}

impl Reparametrized for RelaxedOneHotCategorical {
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("RelaxedOneHotCategorical::rsample");
        let logits = repeated(self.logits(), &shape.into(), &self.logits.batch)?;
        logits.gumbel_softmax(self.temperature, false, -1)
    }
}
