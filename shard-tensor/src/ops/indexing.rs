//! Ops whose operands name rows of others.

use crate::{Dim, Result, ShardTensor};
use shard_comm::Calling;
use shard_ops::{RouteBy, indexing};

/// Rows and elements by index, and what folds rows into those that are named.
///
/// An index is a tensor of `i64` or `i32`; negative ones count from the end. Where the dim is sharded, owners are asked for the distinct
/// rows a rank needs, or contributions are sent to them: see [`RouteBy`]. Who asks whom is found out at the first use of an index, and kept as
/// long as that value lives: a list of edges that every layer and every step uses, forward and backward, is asked about once. An index out of range
/// on any rank is the same error on all of them, before a row moves.
impl ShardTensor {
    /// The indices `index` of a dim, in its order. The dims of an index of several take that dim's place.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let picked = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let rows = mesh.from_fn([5, 2], [shard(0)], |i| (10 * i[0] + i[1]) as f64)?;
    ///     let index = mesh.from_fn([3], [shard(0)], |i| [4_i64, 0, -1][i[0]])?;
    ///     rows.index_select(0, &index)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(picked[0].as_slice(), Some(&[40.0, 41.0, 0.0, 1.0, 40.0, 41.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Where the dim is sharded, the rows that this rank's part of the index names and others have, each once; and
    /// at the first use of the index, a number to each rank and a request of at most eight bytes per such row.
    ///
    /// # Errors
    /// For a dim or an index out of range, or an index that is not `i64` or `i32`; what the communicator reports.
    #[track_caller]
    pub fn index_select(&self, dim: impl Into<Dim>, index: &Self) -> Result<Self> {
        self.index_select_by(dim, index, RouteBy::Auto)
    }

    /// [`index_select`](Self::index_select), saying how rows come; the result is the same.
    ///
    /// # Collective
    /// As [`index_select`](Self::index_select).
    ///
    /// # Errors
    /// As [`index_select`](Self::index_select).
    #[track_caller]
    pub fn index_select_by(
        &self,
        dim: impl Into<Dim>,
        index: &Self,
        by: RouteBy,
    ) -> Result<Self> {
        let dim = self.dim("index_select", dim)?;
        self.run2(index, |exec, x, i| indexing::index_select_by(exec, x, dim, i, by))
    }

    /// The elements along a dim that `index` names: where it holds `j` at a place, the element at that place with `j` for the dim. In other
    /// dims it may be shorter than the tensor.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let picked = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.from_fn([4, 2], [shard(0)], |i| (10 * i[0] + i[1]) as f64)?;
    ///     let index = mesh.from_fn([1, 2], [shard(1)], |i| [3_i64, 0][i[1]])?;
    ///     x.gather(0, &index)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(picked[0].as_slice(), Some(&[30.0, 1.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`index_select`](Self::index_select), with elements for rows.
    ///
    /// # Errors
    /// As [`index_select`](Self::index_select); for an index of another number of dims, or longer than the tensor in another dim.
    #[track_caller]
    pub fn gather(&self, dim: impl Into<Dim>, index: &Self) -> Result<Self> {
        let dim = self.dim("gather", dim)?;
        self.run2(index, |exec, x, i| indexing::gather(exec, x, dim, i))
    }

    /// [`gather`](Self::gather) with the other dims of both broadcast, as NumPy's `take_along_axis`.
    ///
    /// # Collective
    /// As [`gather`](Self::gather).
    ///
    /// # Errors
    /// As [`gather`](Self::gather); for shapes that do not broadcast outside of the dim.
    #[track_caller]
    pub fn take_along_dim(&self, dim: impl Into<Dim>, index: &Self) -> Result<Self> {
        let dim = self.dim("take_along_dim", dim)?;
        self.run2(index, |exec, x, i| indexing::take_along_dim(exec, x, i, dim))
    }

    /// The rows of this table that `indices` name, `[..indices, ..row]`. The row `padding` gets no gradient.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let words = launch(3, |ctx| {
    ///     let mesh = ctx.mesh_of(3)?;
    ///     let table = mesh.from_fn([7, 1], [shard(0)], |i| i[0] as f64)?;
    ///     let text = mesh.from_fn([2, 2], [shard(0)], |i| (3 * i[0] + 2 * i[1]) as i64)?;
    ///     table.embedding(&text, None)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(words[0].shape(), [2, 2, 1]);
    /// assert_eq!(words[0].as_slice(), Some(&[0.0, 2.0, 3.0, 5.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`index_select`](Self::index_select). Where rows are sharded and indices are not, each rank may look at its own rows alone, and the
    /// result is partial.
    ///
    /// # Errors
    /// As [`index_select`](Self::index_select); for a padding that is no row.
    #[track_caller]
    pub fn embedding(&self, indices: &Self, padding: Option<usize>) -> Result<Self> {
        self.run2(indices, |exec, x, i| indexing::embedding(exec, i, x, padding))
    }

    /// The tensor with each row of `src` added to the row that `index` names along a dim.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let sums = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let zeros = mesh.zeros([3], [shard(0)])?;
    ///     let edges = mesh.from_fn([4], [shard(0)], |i| [2_i64, 0, 2, 2][i[0]])?;
    ///     let messages = mesh.from_fn([4], [shard(0)], |i| 1.0 + i[0] as f64)?;
    ///     zeros.index_add(0, &edges, &messages)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(sums[0].as_slice(), Some(&[2.0, 0.0, 8.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// Rows that meet are added in the order of the index, on each rank by itself, and these sums by the row's owner: its own first, then by
    /// rank. So the bits are fixed for a layout.
    ///
    /// # Collective
    /// As [`index_select`](Self::index_select), of sums that go the other way.
    ///
    /// # Errors
    /// As [`index_select`](Self::index_select); for rows that are not as many as indices, or of another shape or type than the tensor's.
    #[track_caller]
    pub fn index_add(&self, dim: impl Into<Dim>, index: &Self, src: &Self) -> Result<Self> {
        let dim = self.dim("index_add", dim)?;
        self.run3(index, src, |exec, x, i, s| indexing::index_add(exec, x, dim, i, s, 1.0))
    }

    /// The tensor with every element of `src` added at the place that `index` names along a dim: where it holds `j` at a place, to the element at
    /// that place with `j` for the dim. It may be shorter than `src`, and than the tensor in other dims.
    ///
    /// # Collective
    /// As [`index_add`](Self::index_add), with elements for rows.
    ///
    /// # Errors
    /// As [`gather`](Self::gather); for a source shorter than the index, or of another type.
    #[track_caller]
    pub fn scatter_add(&self, dim: impl Into<Dim>, index: &Self, src: &Self) -> Result<Self> {
        let dim = self.dim("scatter_add", dim)?;
        self.run3(index, src, |exec, x, i, s| indexing::scatter_add(exec, x, dim, i, s))
    }

    /// The sum of the rows of each of `count` segments: row `i` is of segment `ids[i]`. Ids need not be sorted, and a segment without
    /// rows has zeros. Segments are divided evenly over the mesh axes that divide the ids.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let rows = mesh.from_fn([5], [shard(0)], |i| 1.0 + i[0] as f64)?;
    ///     let ids = mesh.from_fn([5], [shard(0)], |i| [2_i64, 0, 2, 0, 3][i[0]])?;
    ///     let sums = rows.segment_sum(&ids, 4)?.to_array::<f32>()?;
    ///     let means = rows.segment_mean(&ids, 4)?.to_array::<f32>()?;
    ///     Ok((sums, means))
    /// })?;
    /// assert_eq!(found[0].0.as_slice(), Some(&[6.0, 0.0, 4.0, 5.0][..]));
    /// assert_eq!(found[0].1.as_slice(), Some(&[3.0, 0.0, 2.0, 5.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`index_add`](Self::index_add).
    ///
    /// # Errors
    /// As [`index_add`](Self::index_add); for ids of more or fewer than one dim.
    #[track_caller]
    pub fn segment_sum(&self, ids: &Self, count: usize) -> Result<Self> {
        self.run2(ids, |exec, x, i| indexing::segment_sum(exec, x, i, count))
    }

    /// The mean of the rows of each segment; zeros for those without rows. See [`segment_sum`](Self::segment_sum).
    ///
    /// # Collective
    /// As [`segment_sum`](Self::segment_sum), of rows and of a number each.
    ///
    /// # Errors
    /// As [`segment_sum`](Self::segment_sum); for types other than `f32` and `f64`.
    #[track_caller]
    pub fn segment_mean(&self, ids: &Self, count: usize) -> Result<Self> {
        self.run2(ids, |exec, x, i| indexing::segment_mean(exec, x, i, count))
    }

    /// The largest of the rows of each segment, element by element; -∞ for those without rows. Ties share the gradient evenly. See
    /// [`segment_sum`](Self::segment_sum).
    ///
    /// # Collective
    /// As [`segment_sum`](Self::segment_sum).
    ///
    /// # Errors
    /// As [`segment_sum`](Self::segment_sum).
    #[track_caller]
    pub fn segment_max(&self, ids: &Self, count: usize) -> Result<Self> {
        self.run2(ids, |exec, x, i| indexing::segment_max(exec, x, i, count))
    }

    /// The smallest of the rows of each segment, as [`segment_max`](Self::segment_max).
    ///
    /// # Collective
    /// As [`segment_sum`](Self::segment_sum).
    ///
    /// # Errors
    /// As [`segment_sum`](Self::segment_sum).
    #[track_caller]
    pub fn segment_min(&self, ids: &Self, count: usize) -> Result<Self> {
        self.run2(ids, |exec, x, i| indexing::segment_min(exec, x, i, count))
    }

    /// `exp` of every row divided by the sum over the rows of its segment, element by element: attention over the edges of each node. See
    /// [`segment_sum`](Self::segment_sum).
    ///
    /// # Collective
    /// Twice [`segment_sum`](Self::segment_sum) and twice [`index_select`](Self::index_select) of its result, all by one route.
    ///
    /// # Errors
    /// As [`segment_mean`](Self::segment_mean).
    #[track_caller]
    pub fn segment_softmax(&self, ids: &Self, count: usize) -> Result<Self> {
        self.run2(ids, |exec, x, i| indexing::segment_softmax(exec, x, i, count))
    }

    /// Runs one op of `shard_ops` on three tensors.
    #[track_caller]
    fn run3(
        &self,
        second: &Self,
        third: &Self,
        f: impl FnOnce(
            &dyn shard_ops::Exec,
            &shard_ops::Value,
            &shard_ops::Value,
            &shard_ops::Value,
        ) -> Result<shard_ops::Value, shard_ops::OpError>,
    ) -> Result<Self> {
        let _call = Calling::here();
        let (a, b, c) = (self.value(), second.value(), third.value());
        Ok(self.lift(f(self.context().tape(), &a, &b, &c)?))
    }
}
