//! Stochastic depth.

use super::{Module, Training};
use crate::{Result, ShardTensor, tree};

/// While it [trains](super::ModelExt::train), sets whole samples, the indices of dim 0, to zero with a probability and scales the
/// others up (stochastic depth; Huang et al., 2016): for the branch of a residual layer. Which samples is the same under any
/// layout.
///
/// ```
/// use shard_tensor::nn::{DropPath, Linear, ModelExt, Module};
/// use shard_tensor::{Result, ShardTensor, launch, shard, tree};
///
/// struct Block { branch: Linear, drop: DropPath }
/// tree!(Block { branch, drop });
///
/// impl Module for Block {
///     fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
///         x.add(&self.drop.forward(&self.branch.forward(x)?)?)
///     }
/// }
///
/// let differ = launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let block = Block { branch: Linear::new(&mesh, 4, 4)?, drop: DropPath::new(1.0) };
///     let x = mesh.randn([6, 4], shard(0))?;
///     let skipped = block.forward(&x)?.to_array::<f32>()? == x.to_array::<f32>()?;
///     block.eval();
///     Ok((skipped, block.forward(&x)?.to_array::<f32>()? == x.to_array::<f32>()?))
/// })?;
/// assert_eq!(differ[0], (true, false));
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DropPath {
    p: f64,
    training: Training,
}

impl DropPath {
    /// A layer that drops samples with this probability.
    pub fn new(p: f64) -> Self {
        let training = Training::default();
        Self { p, training }
    }
}

tree!(DropPath { training });

impl Module for DropPath {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        match self.training.is_on() && self.p != 0.0 {
            true => x.drop_path(self.p),
            false => Ok(x.clone()),
        }
    }
}
