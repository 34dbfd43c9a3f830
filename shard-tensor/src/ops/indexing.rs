//! Ops whose operands name rows of others.

use super::Branch;
use crate::{Dim, Result, ShardTensor};
use shard_comm::Calling;
use shard_ops::indexing::{self, BagReduce, Bags, ScatterReduce};
use shard_ops::{Exec, RouteBy, Value, search, select, sort};

/// Rows and elements by index, and what folds rows into those that are named.
///
/// An index is a tensor of `i64` or `i32`; negative ones count from the end. Where the dim is sharded, owners are asked for the distinct
/// rows a rank needs, or contributions are sent to them: see [`RouteBy`]. Who asks whom is found out at the first use of an index, and kept as
/// long as that value lives: a list of edges that every layer and every step uses, forward and backward, is asked about once. An index out of range
/// on any rank is the same error on all of them, before a row moves. A tensor without dims, and an index without, is one of one element, as in
/// PyTorch.
impl ShardTensor {
    /// The indices `index` of a dim, in its order. The dims of an index of several take that dim's place.
    ///
    /// ```
    /// use ndarray::array;
    /// use shard_tensor::{launch, shard};
    /// let picked = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let rows = mesh.from_fn([5, 2], [shard(0)], |i| (10 * i[0] + i[1]) as f64)?;
    ///     let index = mesh.distribute(&array![4_i64, 0, -1], [shard(0)])?;
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
        self.picked("index_select", dim.into(), index, RouteBy::Auto)
    }

    /// [`index_select`](Self::index_select), saying how rows come; the result is the same.
    ///
    /// # Collective
    /// As [`index_select`](Self::index_select).
    ///
    /// # Errors
    /// As [`index_select`](Self::index_select).
    #[track_caller]
    pub fn index_select_by(&self, dim: impl Into<Dim>, index: &Self, by: RouteBy) -> Result<Self> {
        self.picked("index_select_by", dim.into(), index, by)
    }

    #[track_caller]
    fn picked(&self, op: &'static str, dim: Dim, index: &Self, by: RouteBy) -> Result<Self> {
        let _call = Calling::of(op);
        let (x, dim) = self.line(op, dim)?;
        if self.ndim() == 0 && index.numel() != 1 {
            return Err(crate::Error::argument(
                op,
                "one index of a tensor without dims",
                format!("{}", index.numel()),
                "give the tensor a dim: `unsqueeze(0)`",
            ));
        }
        self.of_line(x.run2(index, |exec, x, i| {
            indexing::index_select_by(exec, x, dim, i, by)
        })?)
    }

    /// The elements along a dim that `index` names: where it holds `j` at a place, the element at that place with `j` for the dim. In other
    /// dims it may be shorter than the tensor.
    ///
    /// ```
    /// use ndarray::array;
    /// use shard_tensor::{launch, shard};
    /// let picked = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.from_fn([4, 2], [shard(0)], |i| (10 * i[0] + i[1]) as f64)?;
    ///     let index = mesh.distribute(&array![[3_i64, 0]], [shard(1)])?;
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
        let _call = Calling::of("gather");
        let (x, dim) = self.line("gather", dim)?;
        let listed = index.listed(&x)?;
        let found = x.run2(&listed, |exec, x, i| indexing::gather(exec, x, dim, i))?;
        index.of_line(found)
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
        let _call = Calling::of("take_along_dim");
        let dim = self.dim("take_along_dim", dim)?;
        self.run2(index, |exec, x, i| {
            indexing::take_along_dim(exec, x, i, dim)
        })
    }

    /// The elements that an index of any shape names of all of this tensor, counted row-major, in the shape of the index; negative indices
    /// count from the end.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.arange(6, shard(0))?.reshape([2, 3])?;
    ///     x.take(&mesh.distribute(&array![[4_i64, -1]], shard(1))?)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0], array![[4.0, 5.0]].into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`reshape`](Self::reshape) to a list, which moves nothing where the first dim alone is sharded, and
    /// [`index_select`](Self::index_select).
    ///
    /// # Errors
    /// As [`index_select`](Self::index_select).
    #[track_caller]
    pub fn take(&self, index: &Self) -> Result<Self> {
        let _call = Calling::of("take");
        self.run2(index, indexing::take)
    }

    /// The rows of this table that `indices` name, `[..indices, ..row]`. The row `padding` gets no gradient. Negative numbers name none, as in
    /// PyTorch: they are marks for what is missing, and a row from the end would stand in its place unseen.
    ///
    /// ```
    /// use ndarray::array;
    /// use shard_tensor::{launch, shard};
    /// let words = launch(3, |ctx| {
    ///     let mesh = ctx.mesh_of(3)?;
    ///     let table = mesh.from_fn([7, 1], [shard(0)], |i| i[0] as f64)?;
    ///     let text = mesh.distribute(&array![[0_i64, 2], [3, 5]], [shard(0)])?;
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
    /// As [`index_select`](Self::index_select); for negative indices; for a padding that is no row.
    #[track_caller]
    pub fn embedding(&self, indices: &Self, padding: Option<usize>) -> Result<Self> {
        let _call = Calling::of("embedding");
        self.run2(indices, |exec, x, i| {
            indexing::embedding(exec, i, x, padding)
        })
    }

    /// The tensor with each row of `src` added to the row that `index` names along a dim.
    ///
    /// ```
    /// use ndarray::array;
    /// use shard_tensor::{launch, shard};
    /// let sums = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let zeros = mesh.zeros([3], [shard(0)])?;
    ///     let edges = mesh.distribute(&array![2_i64, 0, 2, 2], [shard(0)])?;
    ///     let messages = mesh.from_fn([4], [shard(0)], |i| 1.0 + i[0] as f64)?;
    ///     zeros.index_add(0, &edges, &messages)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(sums[0].as_slice(), Some(&[2.0, 0.0, 8.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// Rows that meet are added in the order of the index, on each rank by itself, and these sums by the row's owner in the order
    /// of the ranks, its own one by one when it is its turn. So the bits are fixed for a layout.
    ///
    /// # Collective
    /// As [`index_select`](Self::index_select), of sums that go the other way.
    ///
    /// # Errors
    /// As [`index_select`](Self::index_select); for rows that are not as many as indices, or of another shape or type than the tensor's.
    #[track_caller]
    pub fn index_add(&self, dim: impl Into<Dim>, index: &Self, src: &Self) -> Result<Self> {
        self.put("index_add", dim, [index, src], |exec, x, dim, i, s| {
            indexing::index_add(exec, x, dim, i, s, 1.0)
        })
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
        self.put("scatter_add", dim, [index, src], |exec, x, dim, i, s| {
            indexing::scatter_add(exec, x, dim, i, s)
        })
    }

    /// The tensor with the elements of `src` combined at the places that `index` names along a dim, as [`scatter_add`](Self::scatter_add) adds
    /// them. With `include_self` the tensor's own element is one of them; without, it stays only where nothing is put.
    ///
    /// ```
    /// use ndarray::array;
    /// use shard_tensor::{ScatterReduce, launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.distribute(&array![5.0_f32, 5.0, 5.0], [shard(0)])?;
    ///     let index = mesh.distribute(&array![0_i64, 2, 0, 0], [shard(0)])?;
    ///     let src = mesh.distribute(&array![1.0_f32, 2.0, 3.0, 8.0], [shard(0)])?;
    ///     let means = x.scatter_reduce(0, &index, &src, ScatterReduce::Mean, false)?;
    ///     means.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0].as_slice(), Some(&[4.0, 5.0, 2.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`scatter_add`](Self::scatter_add); means, and what leaves out the tensor's own, count elements at the first use of an index.
    ///
    /// # Errors
    /// As [`scatter_add`](Self::scatter_add).
    #[track_caller]
    pub fn scatter_reduce(
        &self,
        dim: impl Into<Dim>,
        index: &Self,
        src: &Self,
        how: ScatterReduce,
        include_self: bool,
    ) -> Result<Self> {
        self.put("scatter_reduce", dim, [index, src], |exec, x, dim, i, s| {
            indexing::scatter_reduce(exec, x, dim, i, s, how, include_self)
        })
    }

    /// The tensor with every element of `src` put at the place that `index` names along a dim, as [`scatter_add`](Self::scatter_add) adds it. Of
    /// several that are put to one place the last in the order of the index stays, and gets the gradient.
    ///
    /// # Collective
    /// As [`scatter_add`](Self::scatter_add): at the first use of an index the last ones are found out, after which their elements alone move.
    ///
    /// # Errors
    /// As [`scatter_add`](Self::scatter_add).
    #[track_caller]
    pub fn scatter(&self, dim: impl Into<Dim>, index: &Self, src: &Self) -> Result<Self> {
        self.put("scatter", dim, [index, src], |exec, x, dim, i, s| {
            indexing::scatter(exec, x, dim, i, s)
        })
    }

    /// The tensor with rows of `src` in place of those that the list `index` names along a dim; of several the last stays.
    ///
    /// # Collective
    /// As [`scatter`](Self::scatter), with rows for elements.
    ///
    /// # Errors
    /// As [`index_add`](Self::index_add); for an index of more or fewer than one dim.
    #[track_caller]
    pub fn index_copy(&self, dim: impl Into<Dim>, index: &Self, src: &Self) -> Result<Self> {
        self.put("index_copy", dim, [index, src], |exec, x, dim, i, s| {
            indexing::index_copy(exec, x, dim, i, s)
        })
    }

    /// What is at the places that `indices` name: one for each of the dims from `dim` on, broadcast to one shape, which takes the place of these
    /// dims. PyTorch's `x[rows, columns]` is `x.index(0, &[&rows, &columns])`, and `x[:, rows, columns]` begins at dim 1. A mask (`bool`) stands for
    /// the indices of all its true elements, in row-major order, of as many dims as it has: `x[mask]` is `x.index(0, &[&mask])`.
    ///
    /// ```
    /// use ndarray::array;
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.from_fn([3, 4], shard(0), |i| (10 * i[0] + i[1]) as f64)?;
    ///     let [rows, columns] = [array![2_i64, 0], array![1, -1]].map(|i| mesh.distribute(&i, shard(0)));
    ///     assert_eq!(x.index(0, &[&rows?, &columns?])?.to_array::<f32>()?, array![21.0, 3.0].into_dyn());
    ///
    ///     let valid = mesh.distribute(&array![true, false, true].mapv(shard_tensor::Bool::from), shard(0))?;
    ///     assert_eq!(x.index(0, &[&valid])?.shape(), [2, 4]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`index_select`](Self::index_select), of the dims that are named made one; with a mask all ranks of the program, as
    /// [`nonzero`](Self::nonzero). Routes are not kept: the places are worked out anew. One index of integers is better left to `index_select`, which
    /// keeps them.
    ///
    /// # Errors
    /// For no indices, or more than dims from `dim` on; for shapes that do not broadcast, and a mask of other extents than its dims; for what is out
    /// of range, as [`index_select`](Self::index_select).
    #[track_caller]
    pub fn index(&self, dim: impl Into<Dim>, indices: &[&Self]) -> Result<Self> {
        let _call = Calling::of("index");
        let dim = self.dim("index", dim)?;
        let indices: Vec<_> = indices.iter().map(|i| i.value()).collect();
        let indices: Vec<_> = indices.iter().collect();
        self.run(|exec, x| indexing::index(exec, x, dim, &indices))
    }

    /// The tensor with `values` put, or added if `accumulate`, at the places that `indices` name: one for each of the first dims, broadcast to one
    /// shape, to which rows of `values` of the other dims belong, or a number. Of several values put to one place the last stays. A mask is as that of
    /// [`index`](Self::index): `x[mask] = rows` is `x.index_put(&[&mask], &rows, false)`.
    ///
    /// ```
    /// use ndarray::array;
    /// use shard_tensor::{launch, shard};
    /// let marked = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let grid = mesh.zeros([3, 2], [shard(0)])?;
    ///     let rows = mesh.distribute(&array![0_i64, 2, 2], [shard(0)])?;
    ///     let columns = mesh.distribute(&array![1_i64, 0, -2], [shard(0)])?;
    ///     let values = mesh.distribute(&array![1.0_f32, 2.0, 3.0], [shard(0)])?;
    ///     grid.index_put(&[&rows, &columns], &values, true)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(marked[0].as_slice(), Some(&[0.0, 1.0, 0.0, 0.0, 5.0, 0.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`scatter`](Self::scatter), or [`scatter_add`](Self::scatter_add); with a mask all ranks of the program. Routes are not kept: the places are
    /// worked out anew.
    ///
    /// # Errors
    /// For more indices than dims, or none; for shapes that do not broadcast; for what is out of range, as
    /// [`index_select`](Self::index_select), and a number that the type does not hold.
    #[track_caller]
    pub fn index_put<'a>(
        &self,
        indices: &[&Self],
        values: impl Into<Branch<'a>>,
        accumulate: bool,
    ) -> Result<Self> {
        let _call = Calling::of("index_put");
        let values = &values.into().put_into("index_put", self)?;
        let indices: Vec<_> = indices.iter().map(|i| i.value()).collect();
        let indices: Vec<_> = indices.iter().collect();
        self.run2(values, |exec, x, v| {
            indexing::index_put(exec, x, &indices, v, accumulate)
        })
    }

    /// The indices of all elements that are not zero, `[found, dims]`, in row-major order. NaN is not zero. A scalar has one index, or none,
    /// of no dims.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.from_fn([5], [shard(0)], |i| (i[0] % 2) as f64)?;
    ///     x.nonzero()?.to_array::<i64>()
    /// })?;
    /// assert_eq!(found[0].as_slice(), Some(&[1, 3][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program: one round of a number per rank. Other dims than the first are brought together where they are sharded.
    ///
    /// # Errors
    /// What the communicator reports.
    #[track_caller]
    pub fn nonzero(&self) -> Result<Self> {
        let _call = Calling::of("nonzero");
        self.run(select::nonzero)
    }

    /// The elements where `mask` is true, in row-major order. Shapes broadcast.
    ///
    /// # Collective
    /// As [`nonzero`](Self::nonzero).
    ///
    /// # Errors
    /// For a mask that is not bool, and shapes that do not broadcast; what the communicator reports.
    #[track_caller]
    pub fn masked_select(&self, mask: &Self) -> Result<Self> {
        let _call = Calling::of("masked_select");
        self.run2(mask, select::masked_select)
    }

    /// The tensor with elements of `source` where `mask` is true: the first of them, in row-major order of both. The mask is broadcast.
    ///
    /// ```
    /// use ndarray::array;
    /// use shard_tensor::{launch, shard};
    /// let put = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.arange(5, [shard(0)])?;
    ///     let tens = mesh.distribute(&array![10.0_f32, 20.0, 30.0], [shard(0)])?;
    ///     x.masked_scatter(&x.gt_scalar(2.0)?, &tens)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(put[0].as_slice(), Some(&[0.0, 1.0, 2.0, 10.0, 20.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`masked_select`](Self::masked_select); the elements that are put move to where they belong.
    ///
    /// # Errors
    /// For a mask that is not bool, or does not broadcast, types that differ, and fewer elements than places; what the communicator reports.
    #[track_caller]
    pub fn masked_scatter(&self, mask: &Self, source: &Self) -> Result<Self> {
        let _call = Calling::of("masked_scatter");
        self.run3(mask, source, select::masked_scatter)
    }

    /// For every one of `values` the place among these elements, ascending along the last dim, where it could be put and leave them sorted: the
    /// first such place, or with `right` the last. Of a list, values may have any dims; else those before the last are those of this tensor.
    ///
    /// ```
    /// use ndarray::array;
    /// use shard_tensor::{launch, shard};
    /// let places = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let sorted = mesh.distribute(&array![1.0_f32, 2.0, 2.0, 5.0], [shard(0)])?;
    ///     let values = mesh.distribute(&array![2.0_f32, 9.0, 0.0], [shard(0)])?;
    ///     sorted.searchsorted(&values, false)?.to_array::<i64>()
    /// })?;
    /// assert_eq!(places[0].as_slice(), Some(&[1, 4, 0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Sorted elements stay where values are replicated along the mesh axes that divide them: the result is then partial.
    ///
    /// # Errors
    /// For shapes that do not belong together, types that differ, and truth values; what the communicator reports.
    #[track_caller]
    pub fn searchsorted(&self, values: &Self, right: bool) -> Result<Self> {
        let _call = Calling::of("searchsorted");
        self.run2(values, |exec, s, v| search::searchsorted(exec, s, v, right))
    }

    /// The elements of a dim in ascending order, or in descending, and the indices they had. Equal elements keep their order; NaN stands behind
    /// all numbers, which descending is first. Results lie as the tensor does. A tensor without dims is sorted along its only dim, 0 or -1, as
    /// in PyTorch, and so it is by [`argsort`](Self::argsort), [`topk`](Self::topk), [`kthvalue`](Self::kthvalue) and
    /// [`median`](Self::median).
    ///
    /// ```
    /// use ndarray::array;
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.distribute(&array![3.0_f32, 1.0, 2.0, 1.0], [shard(0)])?;
    ///     let (values, indices) = x.sort(0, false)?;
    ///     Ok((values.to_array::<f32>()?, indices.to_array::<i64>()?))
    /// })?;
    /// assert_eq!(found[0].0.as_slice(), Some(&[1.0, 1.0, 2.0, 3.0][..]));
    /// assert_eq!(found[0].1.as_slice(), Some(&[1, 3, 2, 0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Where the dim is sharded, each rank sorts its part and tells few of its elements, and reads and merges what
    /// its part of the result is made of: that part with its indices at most. Lines too short for that are gathered.
    ///
    /// # Errors
    /// For a dim out of range, and truth values; what the communicator reports.
    #[track_caller]
    pub fn sort(&self, dim: impl Into<Dim>, descending: bool) -> Result<(Self, Self)> {
        self.two_along("sort", dim, |exec, x, dim| {
            sort::sort(exec, x, dim, descending)
        })
    }

    /// The indices that [`sort`](Self::sort) gives.
    ///
    /// # Collective
    /// As [`sort`](Self::sort).
    ///
    /// # Errors
    /// As [`sort`](Self::sort).
    #[track_caller]
    pub fn argsort(&self, dim: impl Into<Dim>, descending: bool) -> Result<Self> {
        self.along("argsort", dim, |exec, x, dim| {
            sort::argsort(exec, x, dim, descending)
        })
    }

    /// The `k` largest elements of a dim, largest first, or the smallest, smallest first, and their indices. Of equal elements the first come
    /// first; NaN is larger than all numbers.
    ///
    /// # Collective
    /// All members of the mesh. Where the dim is sharded, the first `k` of every part at most, with their indices.
    ///
    /// # Errors
    /// As [`sort`](Self::sort); for more elements than there are.
    #[track_caller]
    pub fn topk(&self, k: usize, dim: impl Into<Dim>, largest: bool) -> Result<(Self, Self)> {
        self.two_along("topk", dim, |exec, x, dim| {
            // What PyTorch takes from a number is that number, also of none.
            let k = if self.ndim() == 0 { k.max(1) } else { k };
            sort::topk(exec, x, k, dim, largest)
        })
    }

    /// The `k`-th smallest element of a dim, counted from 1, and its index, without the dim.
    ///
    /// # Collective
    /// As [`sort`](Self::sort), of one element.
    ///
    /// # Errors
    /// As [`topk`](Self::topk); for a `k` of 0.
    #[track_caller]
    pub fn kthvalue(&self, k: usize, dim: impl Into<Dim>) -> Result<(Self, Self)> {
        self.two_along("kthvalue", dim, |exec, x, dim| {
            sort::kthvalue(exec, x, k, dim)
        })
    }

    /// The middle element of a dim, of an even number the lower of the two in the middle, and its index, without the dim; the first NaN if there
    /// is one.
    ///
    /// # Collective
    /// As [`kthvalue`](Self::kthvalue).
    ///
    /// # Errors
    /// As [`sort`](Self::sort); for a dim without elements.
    #[track_caller]
    pub fn median(&self, dim: impl Into<Dim>) -> Result<(Self, Self)> {
        self.two_along("median", dim, sort::median)
    }

    /// The most frequent element of a dim, of several the smallest, and its last index, without the dim. Each NaN is another number.
    ///
    /// # Collective
    /// As [`sort`](Self::sort) and [`gather`](Self::gather) of an element per line; where the dim is sharded, a number per line and part.
    ///
    /// # Errors
    /// As [`median`](Self::median).
    #[track_caller]
    pub fn mode(&self, dim: impl Into<Dim>) -> Result<(Self, Self)> {
        self.two_along("mode", dim, sort::mode)
    }

    /// Of which of the intervals between ascending `boundaries` each element is: [`searchsorted`](Self::searchsorted) the other way round.
    ///
    /// # Collective
    /// As [`searchsorted`](Self::searchsorted).
    ///
    /// # Errors
    /// As [`searchsorted`](Self::searchsorted); for boundaries of more than one dim.
    #[track_caller]
    pub fn bucketize(&self, boundaries: &Self, right: bool) -> Result<Self> {
        let _call = Calling::of("bucketize");
        self.run2(boundaries, |exec, x, b| {
            search::bucketize(exec, x, b, right)
        })
    }

    /// Whether each element is equal to one of `among`, which may have any shape: `bool`, as `torch.isin`. NaN is equal to nothing.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.distribute(&array![4_i64, 1, 7, 1], shard(0))?;
    ///     x.isin(&mesh.distribute(&array![1_i64, 9, 7], shard(0))?)?.count_nonzero(.., false)?.item()
    /// })?;
    /// assert_eq!(found, [3.0, 3.0]);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`sort`](Self::sort) of `among`, and [`searchsorted`](Self::searchsorted) of the tensor.
    ///
    /// # Errors
    /// For types that differ; what the communicator reports.
    #[track_caller]
    pub fn isin(&self, among: &Self) -> Result<Self> {
        let _call = Calling::of("isin");
        self.run2(among, search::isin)
    }

    /// The sum of the rows of each of `count` segments: row `i` is of segment `ids[i]`. Ids need not be sorted, and a segment without
    /// rows has zeros. Segments are divided evenly over the mesh axes that divide the ids.
    ///
    /// ```
    /// use ndarray::array;
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let rows = mesh.from_fn([5], [shard(0)], |i| 1.0 + i[0] as f64)?;
    ///     let ids = mesh.distribute(&array![2_i64, 0, 2, 0, 3], [shard(0)])?;
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
        let _call = Calling::of("segment_sum");
        self.run2(ids, |exec, x, i| indexing::segment_sum(exec, x, i, count))
    }

    /// The mean of the rows of each segment; zeros for those without rows. See [`segment_sum`](Self::segment_sum).
    ///
    /// # Collective
    /// As [`segment_sum`](Self::segment_sum), of rows and of a number each.
    ///
    /// # Errors
    /// As [`segment_sum`](Self::segment_sum); for integers.
    #[track_caller]
    pub fn segment_mean(&self, ids: &Self, count: usize) -> Result<Self> {
        let _call = Calling::of("segment_mean");
        self.run2(ids, |exec, x, i| indexing::segment_mean(exec, x, i, count))
    }

    /// The largest of the rows of each segment, element by element; -∞ for those without rows. Ties share the gradient evenly, and where
    /// the largest is NaN all have that. See [`segment_sum`](Self::segment_sum).
    ///
    /// Another value for segments without rows, such as PyTorch Geometric's 0, takes their place so:
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let largest = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.distribute(&array![1.0_f32, 4.0, -2.0], [shard(0)])?;
    ///     let ids = mesh.distribute(&array![0_i64, 0, 2], [shard(0)])?;
    ///     let has_none = ids.bincount(None, 3)?.eq_scalar(0.0)?;
    ///     x.segment_max(&ids, 3)?.masked_fill(&has_none, 0.0)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(largest[0].as_slice(), Some(&[4.0, 0.0, -2.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`segment_sum`](Self::segment_sum).
    ///
    /// # Errors
    /// As [`segment_sum`](Self::segment_sum).
    #[track_caller]
    pub fn segment_max(&self, ids: &Self, count: usize) -> Result<Self> {
        let _call = Calling::of("segment_max");
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
        let _call = Calling::of("segment_min");
        self.run2(ids, |exec, x, i| indexing::segment_min(exec, x, i, count))
    }

    /// [`segment_max`](Self::segment_max), and of each element the row that it is from, `i64`: of equal ones the first, and -1 where a segment
    /// has no rows. The gradient goes to that element alone.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let rows = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.distribute(&array![1.0_f32, 4.0, -2.0, 4.0], [shard(0)])?;
    ///     let ids = mesh.distribute(&array![0_i64, 0, 2, 0], [shard(0)])?;
    ///     x.segment_max_with_indices(&ids, 3)?.1.to_array::<i64>()
    /// })?;
    /// assert_eq!(rows[0].as_slice(), Some(&[1, -1, 2][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// Twice [`segment_sum`](Self::segment_sum) and once [`index_select`](Self::index_select) of its result, all by one route; where gradients
    /// are wanted, also [`gather`](Self::gather) of an element for each of the result.
    ///
    /// # Errors
    /// As [`segment_sum`](Self::segment_sum).
    #[track_caller]
    pub fn segment_max_with_indices(&self, ids: &Self, count: usize) -> Result<(Self, Self)> {
        let _call = Calling::of("segment_max_with_indices");
        let ids = ids.value();
        self.pair(|exec, x| indexing::segment_max_with_indices(exec, x, &ids, count))
    }

    /// [`segment_min`](Self::segment_min) with rows, as [`segment_max_with_indices`](Self::segment_max_with_indices).
    ///
    /// # Collective
    /// As [`segment_max_with_indices`](Self::segment_max_with_indices).
    ///
    /// # Errors
    /// As [`segment_sum`](Self::segment_sum).
    #[track_caller]
    pub fn segment_min_with_indices(&self, ids: &Self, count: usize) -> Result<(Self, Self)> {
        let _call = Calling::of("segment_min_with_indices");
        let ids = ids.value();
        self.pair(|exec, x| indexing::segment_min_with_indices(exec, x, &ids, count))
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
        let _call = Calling::of("segment_softmax");
        self.run2(ids, |exec, x, i| {
            indexing::segment_softmax(exec, x, i, count)
        })
    }

    /// The rows of this table, `[rows, features]`, that each bag names, combined: `[bags, features]`. A bag is a row of `indices`,
    /// `[bags, length]`; or a part of a list of them, which begins where its offset says and ends where the next one begins. The row `padding`
    /// counts as none and gets no gradient, `weights` are factors of the rows for sums, and a bag without rows gives zeros. Of greatest
    /// elements that are equal each has its share of the gradient; in PyTorch the first has it.
    ///
    /// ```
    /// use shard_tensor::{BagReduce, launch, ndarray::array, replicate, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let table = mesh.from_fn([5, 1], shard(0), |i| i[0] as f64)?;
    ///     let words = mesh.distribute(&array![1_i64, 4, 3, 2], shard(0))?;
    ///     let begins = mesh.distribute(&array![0_i64, 3, 3], replicate())?;
    ///     let largest = table.embedding_bag(&words, Some(&begins), BagReduce::Max, None, None)?;
    ///     let padded = mesh.distribute(&array![[1_i64, 4], [3, 0]], shard(0))?;
    ///     let means = table.embedding_bag(&padded, None, BagReduce::Mean, None, Some(0))?;
    ///     Ok((largest.to_array::<f32>()?, means.to_array::<f32>()?))
    /// })?;
    /// assert_eq!(found[0], (array![[4.0], [0.0], [2.0]].into_dyn(), array![[2.5], [3.0]].into_dyn()));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`embedding`](Self::embedding), and with offsets as [`segment_sum`](Self::segment_sum) of as many rows: what is combined goes to
    /// where its bag is. At the first use of offsets three reductions of a number find out whether they are such.
    ///
    /// # Errors
    /// As [`embedding`](Self::embedding); for shapes that do not belong together, and weights for other than sums; on all ranks, for offsets
    /// that do not begin with 0, fall, or end behind the list.
    #[track_caller]
    pub fn embedding_bag(
        &self,
        indices: &Self,
        offsets: Option<&Self>,
        how: BagReduce,
        weights: Option<&Self>,
        padding: Option<usize>,
    ) -> Result<Self> {
        let _call = Calling::of("embedding_bag");
        let (offsets, weights) = (offsets.map(Self::value), weights.map(Self::value));
        self.run2(indices, |exec, table, indices| {
            let bags = Bags {
                offsets: offsets.as_ref(),
                padding,
                weights: weights.as_ref(),
            };
            indexing::embedding_bag(exec, indices, table, how, bags)
        })
    }

    /// The tensor with a number in the rows that the list `index` names along a dim.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let filled = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let rows = mesh.distribute(&array![2_i64, 0], shard(0))?;
    ///     mesh.arange(3, shard(0))?.index_fill(0, &rows, 9.0)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(filled[0].as_slice(), Some(&[9.0, 1.0, 9.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`index_add`](Self::index_add) of a number for each index; no rows move, and nothing does when the index is used again.
    ///
    /// # Errors
    /// As [`index_select`](Self::index_select); for an index of more than one dim, and a number that the type does not hold.
    #[track_caller]
    pub fn index_fill(&self, dim: impl Into<Dim>, index: &Self, value: f64) -> Result<Self> {
        let _call = Calling::of("index_fill");
        let (x, dim) = self.line("index_fill", dim)?;
        self.of_line(x.run2(index, |exec, x, i| {
            indexing::index_fill(exec, x, dim, i, value)
        })?)
    }

    /// The tensor with a number at the places that `index` names along a dim, as [`scatter`](Self::scatter) puts elements.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let marked = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let classes = mesh.distribute(&array![[2_i64], [0]], shard(0))?;
    ///     mesh.zeros([2, 3], shard(0))?.scatter_value(1, &classes, 1.0)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(marked[0], array![[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]].into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`scatter`](Self::scatter), of which no elements move: nothing does when the index is used again.
    ///
    /// # Errors
    /// As [`gather`](Self::gather); for a number that the type does not hold.
    #[track_caller]
    pub fn scatter_value(&self, dim: impl Into<Dim>, index: &Self, value: f64) -> Result<Self> {
        let _call = Calling::of("scatter_value");
        let (x, dim) = self.line("scatter_value", dim)?;
        self.of_line(x.run2(&index.listed(&x)?, |exec, x, i| {
            indexing::scatter_value(exec, x, dim, i, value)
        })?)
    }

    /// What is put into a tensor of one dim as a list: a number is one of one element, as in PyTorch.
    fn listed(&self, into: &Self) -> Result<Self> {
        match self.ndim() == 0 && into.ndim() == 1 {
            true => self.unsqueeze(0),
            false => Ok(self.clone()),
        }
    }

    /// Runs an op that puts what an index names, and a source has, into the [line](Self::line) of this tensor.
    #[track_caller]
    fn put(
        &self,
        op: &'static str,
        dim: impl Into<Dim>,
        [index, src]: [&Self; 2],
        f: impl FnOnce(&dyn Exec, &Value, usize, &Value, &Value) -> shard_ops::Result<Value>,
    ) -> Result<Self> {
        let _call = Calling::of(op);
        let (x, dim) = self.line(op, dim)?;
        let (index, src) = (index.listed(&x)?, src.listed(&x)?);
        self.of_line(x.run3(&index, &src, |exec, x, i, s| f(exec, x, dim, i, s))?)
    }

    /// Runs one op of `shard_ops` with two results.
    #[track_caller]
    pub(super) fn pair(
        &self,
        f: impl FnOnce(
            &dyn shard_ops::Exec,
            &shard_ops::Value,
        ) -> Result<(shard_ops::Value, shard_ops::Value), shard_ops::OpError>,
    ) -> Result<(Self, Self)> {
        let _call = Calling::here();
        let (a, b) = f(self.context().tape(), &self.value())?;
        Ok((self.lift(a), self.lift(b)))
    }

    /// Runs one op of `shard_ops` on three tensors.
    #[track_caller]
    pub(super) fn run3(
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
