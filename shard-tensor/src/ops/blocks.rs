//! Pieces of one size, and so many of them, quarter turns, and blocks on a diagonal.

use super::moves::borrowed;
use crate::{Dim, Error, Result, ShardTensor};
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

    /// A dim in as many pieces of equal size as are asked for by name, where [`chunk`](Self::chunk) gives a list: queries, keys and values of one
    /// product, or the gates of a cell.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let joint = ctx.mesh_of(2)?.randn([5, 12], shard(0))?;
    ///     let [q, k, v] = joint.chunk_array(-1)?;
    ///     assert_eq!([q.shape(), k.shape(), v.shape()], [[5, 4]; 3]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`split`](Self::split).
    ///
    /// # Errors
    /// For a dim out of range, and one that does not divide by the number of pieces.
    #[track_caller]
    pub fn chunk_array<const N: usize>(&self, dim: impl Into<Dim>) -> Result<[Self; N]> {
        const OP: &str = "chunk_array";
        let _call = Calling::of(OP);
        let dim = self.dim(OP, dim)?;
        // What is no dim the op refuses.
        let extent = self.shape().get(dim).copied().unwrap_or_default();
        if N == 0 || !extent.is_multiple_of(N) {
            return Err(Error::argument(
                OP,
                format!("an extent that divides into {N} pieces of equal size"),
                extent.to_string(),
                "take as many names as there are pieces, or name the sizes: `split_array`",
            ));
        }
        self.split_array([extent / N; N], dim)
    }

    /// The pieces of a dim of these sizes, as many as are named, where [`split`](Self::split) gives a list.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let joint = ctx.mesh_of(2)?.randn([5, 8], shard(0))?;
    ///     let [step, into, out] = joint.split_array([2, 3, 3], -1)?;
    ///     assert_eq!((step.shape(), into.shape(), out.shape()), (&[5, 2][..], &[5, 3][..], &[5, 3][..]));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`split`](Self::split).
    ///
    /// # Errors
    /// As [`split`](Self::split).
    #[track_caller]
    pub fn split_array<const N: usize>(
        &self,
        sizes: [usize; N],
        dim: impl Into<Dim>,
    ) -> Result<[Self; N]> {
        let _call = Calling::of("split_array");
        Ok(array(self.split(sizes, dim)?))
    }

    /// The slices of a dim, as many as are named, where [`unbind`](Self::unbind) gives a list.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let edges = ctx.mesh_of(2)?.with_dtype(shard_tensor::DType::I64).arange(14, shard(0))?.reshape([2, 7])?;
    ///     let [source, target] = edges.unbind_array(0)?;
    ///     assert_eq!([source.shape(), target.shape()], [[7]; 2]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`unbind`](Self::unbind).
    ///
    /// # Errors
    /// For a dim out of range, and one of another extent than there are names.
    #[track_caller]
    pub fn unbind_array<const N: usize>(&self, dim: impl Into<Dim>) -> Result<[Self; N]> {
        const OP: &str = "unbind_array";
        let _call = Calling::of(OP);
        let dim = self.dim(OP, dim)?;
        match self.shape().get(dim) {
            Some(&extent) if extent != N => Err(Error::argument(
                OP,
                format!("a dim of extent {N}"),
                extent.to_string(),
                "take as many names as there are slices, or `unbind` into a list",
            )),
            _ => Ok(array(self.unbind(dim)?)),
        }
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

/// Pieces that are known to be so many.
fn array<const N: usize>(pieces: Vec<ShardTensor>) -> [ShardTensor; N] {
    match pieces.try_into() {
        Ok(pieces) => pieces,
        Err(_) => unreachable!("there is a piece for each size"),
    }
}
