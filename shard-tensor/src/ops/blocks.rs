//! Pieces of one size, quarter turns, and blocks on a diagonal.

use super::moves::borrowed;
use crate::{Dim, Result, ShardTensor};
use shard_comm::Calling;
use shard_ops::index;
use std::borrow::Borrow;

/// Pieces, turns and blocks.
impl ShardTensor {
    /// A dim in so many pieces, of which the first ones have an index more than the others where it does not divide; some are empty where
    /// there are fewer indices. To name the sizes there is [`split`](Self::split).
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let sizes = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.arange(8, shard(0))?;
    ///     Ok(x.tensor_split(3, 0)?.iter().map(|piece| piece.shape()[0]).collect::<Vec<_>>())
    /// })?;
    /// assert_eq!(sizes[0], [3, 3, 2]);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`split`](Self::split).
    ///
    /// # Errors
    /// For no pieces, more empty ones than a million, and a dim out of range.
    #[track_caller]
    pub fn tensor_split(&self, pieces: usize, dim: impl Into<Dim>) -> Result<Vec<Self>> {
        let _call = Calling::of("tensor_split");
        let dim = self.dim("tensor_split", dim)?;
        self.apart("tensor_split", |exec, x| {
            index::tensor_split(exec, x, pieces, dim)
        })
    }

    /// The tensor turned by so many quarters in the plane of two dims, from the first to the second; by negative numbers the other way.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let turned = launch(2, |ctx| {
    ///     ctx.mesh_of(2)?.arange(4, shard(0))?.reshape([2, 2])?.rot90(1, [0, 1])?.to_array::<f32>()
    /// })?;
    /// assert_eq!(turned[0], ndarray::arr2(&[[1.0, 3.0], [0.0, 2.0]]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. As [`flip`](Self::flip) of one dim, or of both for half a turn; by a quarter each dim comes to lie as the
    /// other did.
    ///
    /// # Errors
    /// For dims out of range, or one that is named twice.
    #[track_caller]
    pub fn rot90(&self, quarters: i64, dims: [impl Into<Dim>; 2]) -> Result<Self> {
        let _call = Calling::of("rot90");
        let [from, to] = dims.map(|dim| self.dim("rot90", dim));
        let dims = [from?, to?];
        self.run(|exec, x| index::rot90(exec, x, quarters, dims))
    }

    /// The matrix with these on its diagonal, one after the other, and zeros elsewhere. A list counts as a matrix of one row, and a number
    /// as one of one element.
    ///
    /// ```
    /// use shard_tensor::{ShardTensor, launch, shard};
    /// let both = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let (x, y) = (mesh.ones([2, 1], shard(0))?, mesh.arange(2, shard(0))?);
    ///     ShardTensor::block_diag(&[x, y])?.to_array::<f32>()
    /// })?;
    /// assert_eq!(both[0], ndarray::arr2(&[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. As [`pad`](Self::pad) and [`cat`](Self::cat): rows move where they are sharded.
    ///
    /// # Errors
    /// For no tensors, for one of more than two dims, and types that differ.
    #[track_caller]
    pub fn block_diag<T: Borrow<Self>>(tensors: &[T]) -> Result<Self> {
        let _call = Calling::of("block_diag");
        Self::joined("block_diag", &borrowed(tensors), index::block_diag)
    }
}
