//! Layers between moves.

use super::{Leaf, LeafMut, Module, Tree};
use crate::{Placements, Result, ShardTensor};

/// A layer whose input is moved to some placements, or whose output is. Names of parameters stay what they are.
///
/// Placements say what **every** axis of the mesh does, as in [`redistribute`](ShardTensor::redistribute): an axis that they do not
/// name gets copies. On a mesh that divides the batch too, name its axis in each of them, or each move gathers the batch.
///
/// With the sequence divided over the axis that divides the layers in between, Megatron's sequence parallelism: an all-gather
/// before the first layer and a reduce-scatter behind the second.
///
/// ```
/// use shard_tensor::nn::{Linear, ModelExt, Module, Moved, ParallelPlan};
/// use shard_tensor::{launch, replicate, shard, tree};
///
/// struct Mlp { up: Moved<Linear>, down: Moved<Linear> }
/// tree!(Mlp { up, down });
///
/// launch(2, |ctx| {
///     let mesh = ctx.mesh([("tensor", 2)])?;
///     let up = Moved::new(Linear::new(&mesh, 4, 6)?).input(replicate());
///     let down = Moved::new(Linear::new(&mesh, 6, 4)?).output(shard(1));
///     let mlp = Mlp { up, down }.distribute(&ParallelPlan::new().colwise("up", "tensor").rowwise("down", "tensor"))?;
///     let x = mesh.ones([2, 5, 4], shard(1))?;                             // [batch, sequence, width]
///     let y = mlp.down.forward(&mlp.up.forward(&x)?.gelu()?)?;
///     y.expect_layout(shard(1))?;
///     Ok(())
/// })?;
///
/// // With the batch divided over another axis, which both moves name:
/// launch(4, |ctx| {
///     let mesh = ctx.mesh([("data", 2), ("tensor", 2)])?;
///     let up = Moved::new(Linear::new(&mesh, 4, 6)?).input([("data", shard(0))]);
///     let down = Moved::new(Linear::new(&mesh, 6, 4)?).output([("data", shard(0)), ("tensor", shard(1))]);
///     let mlp = Mlp { up, down }.distribute(&ParallelPlan::new().colwise("up", "tensor").rowwise("down", "tensor"))?;
///     let x = mesh.ones([2, 6, 4], [("data", shard(0)), ("tensor", shard(1))])?;
///     let y = mlp.down.forward(&mlp.up.forward(&x)?.gelu()?)?;
///     y.expect_layout(x.layout())?;
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Moved<M> {
    /// The layer.
    pub inner: M,
    input: Option<Placements>,
    output: Option<Placements>,
}

impl<M> Moved<M> {
    /// The layer, without any move yet.
    pub fn new(inner: M) -> Self {
        Self {
            inner,
            input: None,
            output: None,
        }
    }

    /// Moves inputs here. Axes that are not named get copies.
    #[must_use]
    pub fn input(self, placements: impl Into<Placements>) -> Self {
        let input = Some(placements.into());
        Self { input, ..self }
    }

    /// Moves outputs here. Axes that are not named get copies.
    #[must_use]
    pub fn output(self, placements: impl Into<Placements>) -> Self {
        let output = Some(placements.into());
        Self { output, ..self }
    }
}

impl<M: Tree> Tree for Moved<M> {
    fn leaves(&self) -> Vec<(String, Leaf<'_>)> {
        self.inner.leaves()
    }

    fn leaves_mut(&mut self) -> Vec<(String, LeafMut<'_>)> {
        self.inner.leaves_mut()
    }
}

impl<M: Module> Module for Moved<M> {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let y = match &self.input {
            Some(placements) => self.inner.forward(&x.redistribute(placements)?)?,
            None => self.inner.forward(x)?,
        };
        match &self.output {
            Some(placements) => y.redistribute(placements),
            None => Ok(y),
        }
    }
}

/// A module whose parameters were placed, between functions of its input and output: what [`distribute_module`] gives.
#[derive(Clone, Debug)]
pub struct Distributed<M, I, O> {
    /// The module.
    pub inner: M,
    input: I,
    output: O,
}

/// Places the parameters and buffers of a module as `partition` says of each name, and has `input` and `output` see, and mostly
/// move, what goes in and what comes out, as the proposal of distributed tensors for PyTorch has it.
///
/// ```
/// use shard_tensor::nn::{Linear, Module, distribute_module};
/// use shard_tensor::{Placements, launch, replicate, shard};
/// launch(2, |ctx| {
///     let mesh = ctx.mesh([("tensor", 2)])?;
///     let partition = |name: &str, _: &_| match name {
///         "weight" => shard(1).into(),
///         _ => Placements::replicated(),
///     };
///     let linear = distribute_module(Linear::new(&mesh, 4, 6)?, partition, |x| x.redistribute(shard(1)), |y| y.reduced())?;
///     linear.forward(&mesh.ones([3, 4], replicate())?)?.expect_layout(replicate())?;
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
///
/// # Collective
/// All ranks of the program. As [`place`](super::ModelExt::place).
///
/// # Errors
/// As [`place`](super::ModelExt::place).
#[track_caller]
pub fn distribute_module<M, I, O>(
    module: M,
    partition: impl FnMut(&str, &ShardTensor) -> Placements,
    input: I,
    output: O,
) -> Result<Distributed<M, I, O>>
where
    M: Module,
    I: Fn(&ShardTensor) -> Result<ShardTensor>,
    O: Fn(&ShardTensor) -> Result<ShardTensor>,
{
    Ok(Distributed {
        inner: super::ModelExt::place(module, partition)?,
        input,
        output,
    })
}

impl<M: Tree, I, O> Tree for Distributed<M, I, O> {
    fn leaves(&self) -> Vec<(String, Leaf<'_>)> {
        self.inner.leaves()
    }

    fn leaves_mut(&mut self) -> Vec<(String, LeafMut<'_>)> {
        self.inner.leaves_mut()
    }
}

impl<M, I, O> Module for Distributed<M, I, O>
where
    M: Module,
    I: Fn(&ShardTensor) -> Result<ShardTensor>,
    O: Fn(&ShardTensor) -> Result<ShardTensor>,
{
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        (self.output)(&self.inner.forward(&(self.input)(x)?)?)
    }
}
