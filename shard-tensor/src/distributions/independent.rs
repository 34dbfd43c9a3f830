//! Dims of a batch that are one event.

use super::{Distribution, Divergence, Reparametrized};
use crate::{Error, Result, Shape, ShardTensor};
use shard_comm::Calling;

/// A distribution whose last batch dims are dims of one event, as `torch.distributions.Independent`: its log-probabilities, entropies
/// and divergences are sums over them.
#[derive(Clone, Debug)]
pub struct Independent<D> {
    base: D,
    dims: usize,
    batch: Vec<usize>,
    event: Vec<usize>,
}

impl<D: Distribution> Independent<D> {
    /// With so many of the last batch dims as dims of the event.
    ///
    /// # Collective
    /// No communication.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for more dims than the batch has.
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, Independent, Normal};
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let actions = Independent::new(Normal::new(&mesh.zeros([5, 3], shard(0))?, 1.0)?, 1)?;
    ///     assert_eq!((actions.batch_shape(), actions.event_shape()), (&[5][..], &[3][..]));
    ///     let action = actions.sample([])?;
    ///     assert_eq!(actions.log_prob(&action)?.shape(), [5]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new(base: D, dims: usize) -> Result<Self> {
        let batch = base.batch_shape();
        if dims > batch.len() {
            return Err(Error::argument(
                "Independent::new",
                format!("as many dims as the batch {batch:?} has, or fewer"),
                dims.to_string(),
                "give parameters the dims of the event",
            ));
        }
        let (batch, own) = batch.split_at(batch.len() - dims);
        let (batch, event) = (batch.to_vec(), [own, base.event_shape()].concat());
        Ok(Self {
            base,
            dims,
            batch,
            event,
        })
    }

    /// The distribution of each element.
    pub fn base(&self) -> &D {
        &self.base
    }

    /// The sum over the dims of the event, which come last.
    #[track_caller]
    fn summed(&self, found: ShardTensor) -> Result<ShardTensor> {
        let first = found.ndim() - self.dims;
        match self.dims {
            0 => Ok(found),
            _ => found.sum((first..found.ndim()).collect::<Vec<_>>(), false),
        }
    }
}

impl<D: Distribution> Distribution for Independent<D> {
    fn batch_shape(&self) -> &[usize] {
        &self.batch
    }

    fn event_shape(&self) -> &[usize] {
        &self.event
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Independent::sample");
        self.base.sample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("Independent::log_prob");
        self.summed(self.base.log_prob(value)?)
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Independent::entropy");
        self.summed(self.base.entropy()?)
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Independent::mean");
        self.base.mean()
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Independent::variance");
        self.base.variance()
    }
}

impl<D: Reparametrized> Reparametrized for Independent<D> {
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Independent::rsample");
        self.base.rsample(shape)
    }
}

impl<D: Distribution + Divergence<Q>, Q> Divergence<Independent<Q>> for Independent<D> {
    #[track_caller]
    fn kl_divergence(&self, other: &Independent<Q>) -> Result<ShardTensor> {
        if self.dims != other.dims {
            return Err(Error::argument(
                "kl_divergence",
                format!("{} dims of the event, as the first has", self.dims),
                other.dims.to_string(),
                "give both distributions events of the same dims",
            ));
        }
        self.summed(self.base.kl_divergence(&other.base)?)
    }
}
