//! A rectifier whose slope below zero is learned.

use super::Module;
use crate::{Mesh, Placements, Result, ShardTensor, tree};

/// `x` where it is above zero, and a multiple of it elsewhere, which is learned: [`ShardTensor::prelu`] as a layer, `torch.nn.PReLU`.
///
/// ```
/// use shard_tensor::nn::{Module, PRelu};
/// use shard_tensor::{launch, shard};
/// let y = launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     PRelu::new(&mesh, 3)?.forward(&mesh.full([4, 3, 2], -2.0, shard(0))?)?.mean_all()?.item()
/// })?;
/// assert_eq!(y[0], -0.5);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PRelu {
    /// One slope for each channel, dim 1, or one for all: a quarter at first.
    pub weight: ShardTensor,
}

impl PRelu {
    /// A layer with so many slopes: as many as channels, or 1.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// If there are too many for an array.
    #[track_caller]
    pub fn new(mesh: &Mesh, slopes: usize) -> Result<Self> {
        let weight = mesh.full(slopes, 0.25, Placements::replicated())?;
        Ok(Self {
            weight: weight.requires_grad()?,
        })
    }
}

tree!(PRelu { weight });

impl Module for PRelu {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        x.prelu(&self.weight)
    }
}
