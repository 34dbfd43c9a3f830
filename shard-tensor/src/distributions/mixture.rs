//! One of several distributions, each with its share.

use super::{Categorical, Distribution};
use crate::{Error, Result, Shape, ShardTensor};
use shard_comm::Calling;

/// Samples of one of several distributions of one kind, which is drawn by a [`Categorical`]: `torch.distributions.MixtureSameFamily`. No closed
/// form gives its entropy.
#[derive(Clone, Debug)]
pub struct MixtureSameFamily<D> {
    weights: Categorical,
    parts: D,
    batch: Vec<usize>,
}

impl<D: Distribution> MixtureSameFamily<D> {
    /// Of the weights of `k` parts, and the parts, whose last batch dim they are: `[batch.., k]`, with which the weights broadcast.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) if there are more or fewer weights than parts; shapes that do not broadcast.
    ///
    /// ```
    /// use shard_tensor::distributions::{Categorical, Distribution, Independent, MixtureSameFamily, Normal};
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     // A mixture density network: of seven inputs three normal points of a plane each.
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let logits = mesh.randn([7, 3], shard(0))?.requires_grad()?;
    ///     let points = Normal::new(&mesh.randn([7, 3, 2], shard(0))?, 0.5)?;
    ///     let mixture = MixtureSameFamily::new(&Categorical::from_logits(&logits)?, Independent::new(points, 1)?)?;
    ///     assert_eq!((mixture.batch_shape(), mixture.event_shape()), (&[7][..], &[2][..]));
    ///     let target = mixture.sample([])?;
    ///     mixture.log_prob(&target)?.mean_all()?.neg()?.backward()?;
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new(weights: &Categorical, parts: D) -> Result<Self> {
        const OP: &str = "MixtureSameFamily::new";
        let _call = Calling::throughout(OP);
        let of_parts = parts.batch_shape();
        let Some((&count, batch)) = of_parts.split_last() else {
            return Err(Error::argument(
                OP,
                "parts in the last dim of the batch",
                "one distribution",
                "give its parameters a dim for the parts",
            ));
        };
        if weights.classes() != count {
            return Err(Error::argument(
                OP,
                format!("weights of {count} parts"),
                weights.classes().to_string(),
                "give a weight for each part",
            ));
        }
        Ok(Self {
            weights: weights.expanded(batch)?,
            batch: batch.to_vec(),
            parts,
        })
    }

    /// The weights.
    pub fn weights(&self) -> &Categorical {
        &self.weights
    }

    /// The parts.
    pub fn parts(&self) -> &D {
        &self.parts
    }

    /// Something of each part, as dims of the event are behind it.
    #[track_caller]
    fn beside_events(&self, of_parts: ShardTensor) -> Result<ShardTensor> {
        (self.event_shape().iter()).try_fold(of_parts, |found, _| found.unsqueeze(-1))
    }

    /// The mean of something of each part and its event.
    #[track_caller]
    fn averaged(&self, of_parts: &ShardTensor) -> Result<ShardTensor> {
        let weights = self.beside_events(self.weights.probs()?)?;
        weights.mul(of_parts)?.sum(self.batch.len(), false)
    }
}

impl<D: Distribution> Distribution for MixtureSameFamily<D> {
    fn batch_shape(&self) -> &[usize] {
        &self.batch
    }

    fn event_shape(&self) -> &[usize] {
        self.parts.event_shape()
    }

    /// # Collective
    /// As the parts', and [`ShardTensor::multinomial`].
    ///
    /// # Errors
    /// As the parts', and the weights'.
    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("MixtureSameFamily::sample");
        let shape = shape.into();
        let dim = shape.len() + self.batch.len();
        let samples = self.parts.sample(shape.clone())?;
        let chosen = self
            .weights
            .sample(shape)?
            .one_hot(self.weights.classes())?;
        let chosen = self.beside_events(chosen.gt_scalar(0.0)?)?;
        chosen
            .where_(&samples, 0.0)?
            .sum(dim, false)?
            .to(samples.dtype())
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("MixtureSameFamily::log_prob");
        let dim = value.ndim().saturating_sub(self.event_shape().len());
        let of_parts = self.parts.log_prob(&value.unsqueeze(dim)?)?;
        of_parts.add(self.weights.logits())?.logsumexp(-1, false)
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("MixtureSameFamily::mean");
        self.averaged(&self.parts.mean()?)
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("MixtureSameFamily::variance");
        let means = self.parts.mean()?;
        let apart = means.sub(&self.averaged(&means)?.unsqueeze(self.batch.len())?)?;
        self.averaged(&self.parts.variance()?.add(&apart.square()?)?)
    }
}
