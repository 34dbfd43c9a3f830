//! Ops that move elements and compute nothing.

use super::Branch;
use crate::dim::Slices;
use crate::{Dim, DimList, Index, PartSizes, Result, Shape, ShardTensor, Shifts};
use ndarray::SliceInfoElem;
use shard_comm::{Calling, DType, ErrorClass};
use shard_ops::{Exec, Value, broadcast, index, indexing, shape};
use shard_spec::{EdgeMap, Layout};
use std::borrow::Borrow;
use std::ops::{Bound, RangeBounds};

/// Moves of elements. A dim that is sharded stays sharded, in proportion.
impl ShardTensor {
    /// The elements `range` of a dim: `2..5`, or to an end of the dim, `1..` and `..3`. Ranges that count from the end are those of
    /// [`slices`](Self::slices).
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let parts = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.arange(5, shard(0))?;
    ///     let parts = [x.narrow(0, 1..3)?, x.narrow(0, 3..)?, x.narrow(0, ..2)?];
    ///     parts.iter().map(|x| Ok(x.to_array::<f32>()?.into_raw_vec_and_offset().0)).collect::<shard_tensor::Result<Vec<_>>>()
    /// })?;
    /// assert_eq!(parts[0], [[1.0, 2.0], [3.0, 4.0], [0.0, 1.0]]);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Communicates what crosses the boundaries of parts, if the dim is sharded.
    ///
    /// # Errors
    /// For a dim or range out of bounds, or a range that ends before it starts; what the communicator reports.
    #[track_caller]
    pub fn narrow(&self, dim: impl Into<Dim>, range: impl RangeBounds<usize>) -> Result<Self> {
        let _call = Calling::of("narrow");
        self.between(
            dim.into(),
            range.start_bound().cloned(),
            range.end_bound().cloned(),
        )
    }

    /// [`narrow`](Self::narrow), once for all kinds of ranges.
    #[track_caller]
    fn between(&self, dim: Dim, start: Bound<usize>, end: Bound<usize>) -> Result<Self> {
        let dim = self.dim("narrow", dim)?;
        let first = match start {
            Bound::Included(first) => first,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match end {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => end,
            // What is no dim the op refuses.
            Bound::Unbounded => self.shape().get(dim).map_or(first, |&n| n),
        };
        if first > end {
            return Err(crate::Error::argument(
                "narrow",
                "a range that does not end before it starts",
                format!("{first}..{end}"),
                "swap its ends",
            ));
        }
        self.slice(dim, first, 1, end - first)
    }

    /// `len` elements of a dim from `start` on, `step` apart; a negative step runs backwards.
    ///
    /// # Collective
    /// All members of the mesh. Communicates what crosses the boundaries of parts, if the dim is sharded.
    ///
    /// # Errors
    /// As [`narrow`](Self::narrow).
    #[track_caller]
    pub fn slice(
        &self,
        dim: impl Into<Dim>,
        start: usize,
        step: isize,
        len: usize,
    ) -> Result<Self> {
        let _call = Calling::of("slice");
        let dim = self.dim("slice", dim)?;
        self.run(|exec, x| index::slice(exec, x, dim, start, step, len))
    }

    /// The tensor with `src` in place of [that slice](Self::slice) of a dim: from `start` on, `step` apart, as many indices as `src` has.
    /// What PyTorch writes `x[:, 1:3] = y` is `x.slice_assign(1, 1, 1, &y)`; [`slices_assign`](Self::slices_assign) is for several dims.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let found = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let pair = mesh.distribute(&array![8.0_f32, 9.0], shard(0))?;
    ///     mesh.arange(5, shard(0))?.slice_assign(0, 1, 2, &pair)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0].as_slice(), Some(&[0.0, 8.0, 2.0, 9.0, 4.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`index_copy`](Self::index_copy): rows of `src` go to where they are put.
    ///
    /// # Errors
    /// As [`slice`](Self::slice) and [`index_copy`](Self::index_copy).
    #[track_caller]
    pub fn slice_assign(
        &self,
        dim: impl Into<Dim>,
        start: usize,
        step: isize,
        src: &Self,
    ) -> Result<Self> {
        let _call = Calling::of("slice_assign");
        let dim = self.dim("slice_assign", dim)?;
        let len = src.shape().get(dim).copied().unwrap_or_default();
        let (n, last) = (
            self.shape().get(dim).copied().unwrap_or_default(),
            len.max(1) - 1,
        );
        let end = (isize::try_from(last).ok())
            .and_then(|last| start.checked_add_signed(last.checked_mul(step)?))
            .filter(|&end| len == 0 || (start < n && end < n && (step != 0 || len == 1)));
        if end.is_none() {
            return Err(crate::Error::argument(
                "slice_assign",
                format!("{len} indices of {n}, a step apart that is not 0"),
                format!("from {start} on, {step} apart"),
                "give a source that fits into the tensor",
            ));
        }
        let own = src.layout().sharding(dim).cloned();
        let along = Layout::from_dims(src.layout().mesh(), &[len], [own], None)?;
        let places = src.mesh().with_dtype(DType::I64).arange(len, along)?;
        let places = places.mul_scalar(step as f64)?.add_scalar(start as f64)?;
        self.index_copy(dim, &places, src)
    }

    /// Ranges of several dims at once, as `ndarray`'s `s!` writes them: what PyTorch writes `x[1:-1, ::2, 0]` is
    /// `x.slices(s![1..-1, ..;2, 0])`. Dims behind those named are whole. Ends below 0 count from the end, and what is beyond is cut off;
    /// a step below 0 runs backwards from the end of its range. An index takes its dim away, and `NewAxis` adds one.
    ///
    /// ```
    /// use shard_tensor::ndarray::{array, s};
    /// use shard_tensor::{launch, shard};
    /// let part = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.from_fn([4, 5, 2], [shard(0)], |i| (100 * i[0] + 10 * i[1] + i[2]) as f64)?;
    ///     x.slices(s![1..-1, ..;2, -1])?.to_array::<f32>()
    /// })?;
    /// assert_eq!(part[0], array![[101.0, 121.0, 141.0], [201.0, 221.0, 241.0]].into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. One exchange of what crosses the boundaries of parts, if a dim is sharded.
    ///
    /// # Errors
    /// For more ranges than dims, a step of 0, and an index out of bounds; what the communicator reports.
    #[track_caller]
    pub fn slices(&self, of: impl AsRef<[SliceInfoElem]>) -> Result<Self> {
        let _call = Calling::of("slices");
        let read = Slices::of("slices", self.shape(), of.as_ref())?;
        self.run(|exec, x| {
            let part = index::slices(exec, x, &read.ranges)?;
            match read.changes {
                true => shape::reshape(exec, &part, &read.shape),
                false => Ok(part),
            }
        })
    }

    /// The tensor with `src`, another or a number, in place of [those ranges](Self::slices) of several dims, to whose shape it is expanded: what
    /// PyTorch writes `x[1:-1, 1:-1] = y`, and `x[..., 0] = -1`.
    ///
    /// ```
    /// use shard_tensor::ndarray::{array, s};
    /// use shard_tensor::{launch, shard};
    /// let framed = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let inner = mesh.arange(2, shard(0))?;
    ///     let framed = mesh.full([3, 4], 9.0, shard(0))?.slices_assign(s![1..-1, 1..-1], &inner)?;
    ///     framed.slices_assign(s![0, ..2], -1)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(framed[0], array![[-1.0, -1.0, 9.0, 9.0], [9.0, 0.0, 1.0, 9.0], [9.0, 9.0, 9.0, 9.0]].into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`slice`](Self::slice) and [`slice_assign`](Self::slice_assign), for each of the dims that is not whole: the last of them moves
    /// what is assigned, the ones before it also what stays within their ranges.
    ///
    /// # Errors
    /// As [`slices`](Self::slices); for a source that does not [expand](Self::expand) to the shape of the ranges, and a number that the type
    /// does not hold.
    #[track_caller]
    pub fn slices_assign<'a>(
        &self,
        of: impl AsRef<[SliceInfoElem]>,
        src: impl Into<Branch<'a>>,
    ) -> Result<Self> {
        let _call = Calling::of("slices_assign");
        self.replaced_in(of.as_ref(), src.into())
    }

    /// [`slices_assign`](Self::slices_assign), once for all kinds of ranges and sources.
    #[track_caller]
    fn replaced_in(&self, of: &[SliceInfoElem], src: Branch<'_>) -> Result<Self> {
        const OP: &str = "slices_assign";
        let read = Slices::of(OP, self.shape(), of)?;
        let given = src.put_into(OP, self)?;
        let mut src = (given.expand(&read.shape[..])).map_err(|error| match error.class() {
            ErrorClass::Uniform => read.refuses(OP, given.shape()),
            _ => error,
        })?;
        if read.changes {
            let extents: Vec<usize> = read.ranges.iter().map(|range| range.2).collect();
            src = src.reshape(&extents[..])?;
        }
        if read.ranges.is_empty() {
            let replaced = self
                .reshape([1])?
                .slice_assign(0, 0, 1, &src.reshape([1])?)?;
            return replaced.reshape(());
        }
        self.with_ranges(&read.ranges, 0, &src)
    }

    /// With a source in place of ranges of the dims from one on; those before are as the source's.
    #[track_caller]
    fn with_ranges(
        &self,
        ranges: &[(usize, isize, usize)],
        from: usize,
        src: &Self,
    ) -> Result<Self> {
        let is_whole = |d: usize| ranges[d] == (0, 1, self.shape()[d]);
        let mut parts = (from..ranges.len()).filter(|&d| !is_whole(d));
        // Where all are whole, the first is replaced as a part would be, so that types and meshes are compared.
        let dim = parts.next().unwrap_or_default();
        let (start, step, len) = ranges[dim];
        let part = match parts.next() {
            None => src.clone(),
            Some(next) => {
                let old = self.slice(dim, start, step, len)?;
                old.with_ranges(ranges, next, src)?
            }
        };
        self.slice_assign(dim, start, step, &part)
    }

    /// One index of a dim, without the dim: `x.select(1, -1)` is `x[:, -1]` of PyTorch.
    ///
    /// # Collective
    /// All members of the mesh. Communicates what crosses the boundaries of parts, if the dim is sharded.
    ///
    /// # Errors
    /// [`Argument`](crate::Error::Argument) for an index that the dim has not; as [`narrow`](Self::narrow).
    #[track_caller]
    pub fn select(&self, dim: impl Into<Dim>, index: impl Into<Index>) -> Result<Self> {
        let _call = Calling::of("select");
        let dim = self.dim("select", dim)?;
        let index = index.into().of("select", self.shape(), dim)?;
        self.slice(dim, index, 1, 1)?.squeeze(dim)
    }

    /// Pads every dim by (before, after); negative pads crop. `value` fills where the edge map is zeros.
    ///
    /// # Collective
    /// All members of the mesh. Communicates what crosses the boundaries of parts.
    ///
    /// # Errors
    /// For a wrong number of pads, or pads the edge map cannot serve.
    #[track_caller]
    pub fn pad(&self, pads: &[(isize, isize)], edge: EdgeMap, value: f64) -> Result<Self> {
        let _call = Calling::of("pad");
        self.run(|exec, x| index::pad(exec, x, pads, edge, value))
    }

    /// Tensors one after the other along a dim: a list of them, or of references to them.
    ///
    /// ```
    /// use shard_tensor::{ShardTensor, launch, shard};
    /// launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.arange(6, shard(0))?.reshape([3, 2])?;
    ///     let halves = x.chunk(2, -1)?;
    ///     let swapped = ShardTensor::cat(&[&halves[1], &halves[0]], -1)?;
    ///     assert_eq!(swapped.to_array::<f32>()?.as_slice(), Some(&[1.0, 0.0, 3.0, 2.0, 5.0, 4.0][..]));
    ///     assert_eq!(ShardTensor::cat(&halves, -1)?.to_array::<f32>()?, x.to_array::<f32>()?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Communicates if the dim is sharded or the tensors are misaligned.
    ///
    /// # Errors
    /// If shapes differ elsewhere, types differ, or the list is empty.
    #[track_caller]
    pub fn cat<T: Borrow<Self>>(tensors: &[T], dim: impl Into<Dim>) -> Result<Self> {
        let _call = Calling::of("cat");
        let tensors = borrowed(tensors);
        let ndim = tensors.first().map_or(0, |t| t.ndim());
        let dim = dim.into().of("cat", ndim)?;
        Self::joined("cat", &tensors, |exec, values| {
            index::cat(exec, values, dim)
        })
    }

    /// Tensors of one shape one after the other along a new dim: a list of them, or of references to them.
    ///
    /// # Collective
    /// All members of the mesh. Communicates if the tensors are misaligned.
    ///
    /// # Errors
    /// As [`cat`](Self::cat).
    #[track_caller]
    pub fn stack<T: Borrow<Self>>(tensors: &[T], dim: impl Into<Dim>) -> Result<Self> {
        let _call = Calling::of("stack");
        let tensors = borrowed(tensors);
        let ndim = tensors.first().map_or(0, |t| t.ndim());
        let dim = dim.into().of("stack", ndim + 1)?;
        Self::joined("stack", &tensors, |exec, values| {
            index::stack(exec, values, dim)
        })
    }

    /// Consecutive parts of a dim: of a size, but for the last, which may be shorter, or of a size each.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.arange(9, shard(0))?;
    ///     let parts = x.split(4, 0)?;
    ///     assert_eq!(parts.iter().map(|part| part.shape()[0]).collect::<Vec<_>>(), [4, 4, 1]);
    ///     assert_eq!(x.split([2, 7], 0)?[1].shape(), [7]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Communicates what crosses the boundaries of parts, if the dim is sharded.
    ///
    /// # Errors
    /// If sizes do not sum to the extent, and for parts of size 0 of what has elements.
    #[track_caller]
    pub fn split(&self, sizes: impl Into<PartSizes>, dim: impl Into<Dim>) -> Result<Vec<Self>> {
        let _call = Calling::of("split");
        let dim = self.dim("split", dim)?;
        // What is no dim the op refuses.
        let extent = self.shape().get(dim).copied().unwrap_or_default();
        let sizes = sizes.into().of("split", extent)?;
        self.apart("split", |exec, x| index::split(exec, x, &sizes, dim))
    }

    /// A dim in `chunks` pieces of equal size but for the last, which is shorter; fewer than `chunks` if the extent is used up before, as
    /// in PyTorch.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let sizes = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.arange(9, [shard(0)])?;
    ///     Ok(x.chunk(4, 0)?.iter().map(|piece| piece.shape()[0]).collect::<Vec<_>>())
    /// })?;
    /// assert_eq!(sizes[0], [3, 3, 3]);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`split`](Self::split).
    ///
    /// # Errors
    /// For no chunks, and a dim out of range.
    #[track_caller]
    pub fn chunk(&self, chunks: usize, dim: impl Into<Dim>) -> Result<Vec<Self>> {
        let _call = Calling::of("chunk");
        let dim = self.dim("chunk", dim)?;
        self.apart("chunk", |exec, x| index::chunk(exec, x, chunks, dim))
    }

    /// The slices of a dim, one for each index and without the dim.
    ///
    /// # Collective
    /// As [`select`](Self::select), for each.
    ///
    /// # Errors
    /// For a dim out of range.
    #[track_caller]
    pub fn unbind(&self, dim: impl Into<Dim>) -> Result<Vec<Self>> {
        let _call = Calling::of("unbind");
        let dim = self.dim("unbind", dim)?;
        self.apart("unbind", |exec, x| index::unbind(exec, x, dim))
    }

    /// Dims in reverse, one or several; a tensor without dims, along 0 or -1, as it is.
    ///
    /// # Collective
    /// All members of the mesh. Communicates what crosses the boundaries of parts, for each dim that is sharded.
    ///
    /// # Errors
    /// For a dim out of range, or named twice.
    #[track_caller]
    pub fn flip(&self, dims: impl Into<DimList>) -> Result<Self> {
        let _call = Calling::of("flip");
        let dims = dims.into();
        if self.ndim() == 0 && dims.is_first() {
            return Ok(self.lift(self.value()));
        }
        let dims = dims.of("flip", self.ndim())?;
        if let Some(twice) = (1..dims.len()).find(|&i| dims[..i].contains(&dims[i])) {
            return Err(crate::Error::argument(
                "flip",
                "different dims",
                format!("dim {} twice", dims[twice]),
                "name each once",
            ));
        }
        self.run(|exec, x| (dims.iter()).try_fold(x.clone(), |x, &dim| index::flip(exec, &x, dim)))
    }

    /// Dims shifted by some places, around the end: one, or each of several by its own shift. Shifts of a dim that is named twice add up.
    /// Dims come first, as in all ops here; PyTorch's function has the shifts first.
    ///
    /// ```
    /// use shard_tensor::ndarray::array;
    /// use shard_tensor::{launch, shard};
    /// let rolled = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.from_fn([2, 3], [shard(1)], |i| (3 * i[0] + i[1]) as f64)?;
    ///     x.roll([0, -1], [1, -1])?.to_array::<f32>()
    /// })?;
    /// assert_eq!(rolled[0], array![[4.0, 5.0, 3.0], [1.0, 2.0, 0.0]].into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. One exchange of what crosses the boundaries of parts, if one of the dims is sharded.
    ///
    /// # Errors
    /// For a dim out of range, and more or fewer shifts than dims.
    #[track_caller]
    pub fn roll(&self, dims: impl Into<DimList>, shifts: impl Into<Shifts>) -> Result<Self> {
        let _call = Calling::of("roll");
        let dims = dims.into().of("roll", self.ndim())?;
        let Shifts(shifts) = shifts.into();
        if shifts.len() != dims.len() {
            return Err(crate::Error::argument(
                "roll",
                "a shift for each dim",
                format!("{} for {}", shifts.len(), dims.len()),
                "give as many shifts as dims",
            ));
        }
        let by: Vec<_> = dims.into_iter().zip(shifts).collect();
        self.run(|exec, x| index::roll_dims(exec, x, &by))
    }

    /// Dims, several times over: one, or each of several by its own number. PyTorch's, which numbers all dims, is [`tile`](Self::tile).
    ///
    /// ```
    /// use shard_tensor::ndarray::array;
    /// use shard_tensor::{launch, shard};
    /// let repeated = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.from_fn([1, 2], [shard(1)], |i| i[1] as f64)?;
    ///     x.repeat([0, 1], [2, 2])?.to_array::<f32>()
    /// })?;
    /// assert_eq!(repeated[0], array![[0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0]].into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. One exchange of what crosses the boundaries of parts, if one of the dims is sharded.
    ///
    /// # Errors
    /// For a dim out of range, more or fewer numbers than dims, and more than 1,048,576 times.
    #[track_caller]
    pub fn repeat(&self, dims: impl Into<DimList>, times: impl Into<Shape>) -> Result<Self> {
        let _call = Calling::of("repeat");
        let (dims, times) = (dims.into().of("repeat", self.ndim())?, times.into());
        if times.len() != dims.len() {
            return Err(crate::Error::argument(
                "repeat",
                "a number for each dim",
                format!("{} for {}", times.len(), dims.len()),
                "give as many numbers as dims",
            ));
        }
        let by: Vec<_> = dims.into_iter().zip(times.iter().copied()).collect();
        self.run(|exec, x| index::repeat_dims(exec, x, &by))
    }

    /// The last dims, each so many times over, as `torch.tile`, and as `torch.Tensor.repeat`, which takes no fewer numbers than dims: of
    /// more numbers, dims of 1 stand in front.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.arange(3, shard(0))?;
    ///     assert_eq!(x.tile([2, 2])?.shape(), [2, 6]);
    ///     assert_eq!(x.unsqueeze(0)?.tile(2)?.shape(), [1, 6]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`repeat`](Self::repeat).
    ///
    /// # Errors
    /// For more than 1,048,576 times.
    #[track_caller]
    pub fn tile(&self, times: impl Into<Shape>) -> Result<Self> {
        let _call = Calling::of("tile");
        let times = times.into();
        let mut x = self.clone();
        if times.len() > self.ndim() {
            let front = vec![1; times.len() - self.ndim()];
            x = x.reshape([&front[..], self.shape()].concat())?;
        }
        let first = x.ndim() - times.len();
        let by: Vec<_> = (first..).zip(times.iter().copied()).collect();
        x.run(|exec, x| index::repeat_dims(exec, x, &by))
    }

    /// Lists, or numbers, as coordinates of a grid, as `torch.meshgrid` with `indexing="ij"`: the one of a dim tells of each place of the grid
    /// its index along that dim.
    ///
    /// ```
    /// use shard_tensor::{ShardTensor, launch, replicate, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let (rows, columns) = (mesh.arange(4, shard(0))?, mesh.arange(3, replicate())?);
    ///     let grid = ShardTensor::meshgrid(&[&rows, &columns])?;
    ///     let points = ShardTensor::stack(&grid, -1)?;                // [4, 3, 2], with the rows
    ///     assert_eq!(points.select(0, 3)?.select(0, 1)?.to_array::<f32>()?.as_slice(), Some(&[3.0, 1.0][..]));
    ///     points.expect_layout(shard(0)).map(|_| ())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. No communication: each divides the grid as it is divided itself.
    ///
    /// # Errors
    /// For tensors of two dims or more, types that differ, and none.
    #[track_caller]
    pub fn meshgrid<T: Borrow<Self>>(lists: &[T]) -> Result<Vec<Self>> {
        let _call = Calling::of("meshgrid");
        let lists = borrowed(lists);
        let values: Vec<Value> = lists.iter().map(|t| t.value()).collect();
        let values: Vec<&Value> = values.iter().collect();
        let Some(first) = lists.first() else {
            return Err(none("meshgrid"));
        };
        let grid = broadcast::meshgrid(first.context().tape(), &values)?;
        Ok(grid.into_iter().map(|v| first.lift(v)).collect())
    }

    /// Every index of a dim so many times, one behind the other.
    ///
    /// For counts that differ see [`repeat_interleave_each`](Self::repeat_interleave_each).
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let twice = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.arange(3, [shard(0)])?.repeat_interleave(0, 2)?;
    ///     assert_eq!(x.layout().to_string(), "S(0)[4,2]"); // with what they repeat
    ///     x.to_array::<f32>()
    /// })?;
    /// assert_eq!(twice[0].as_slice(), Some(&[0.0, 0.0, 1.0, 1.0, 2.0, 2.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. No communication: copies lie with what they repeat.
    ///
    /// # Errors
    /// For a dim out of range, and more copies than can be counted.
    #[track_caller]
    pub fn repeat_interleave(&self, dim: impl Into<Dim>, times: usize) -> Result<Self> {
        let _call = Calling::of("repeat_interleave");
        let dim = self.dim("repeat_interleave", dim)?;
        self.run(|exec, x| index::repeat_interleave(exec, x, dim, times))
    }

    /// Every index of a dim as often as `counts` says, a list of integers, one behind the other. `total` is their sum, PyTorch's
    /// `output_size`; where it is `None` all ranks find it out.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let repeated = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.distribute(&array![5.0_f32, 6.0, 7.0], [shard(0)])?;
    ///     let counts = mesh.distribute(&array![2_i64, 0, 3], [shard(0)])?;
    ///     assert!(x.repeat_interleave_each(0, &counts, Some(4)).is_err());
    ///     x.repeat_interleave_each(0, &counts, Some(5))?.to_array::<f32>()
    /// })?;
    /// assert_eq!(repeated[0].as_slice(), Some(&[5.0, 5.0, 7.0, 7.0, 7.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh; without a total, all ranks of the program. Two reductions of a number; where the dim is sharded, as
    /// [`index_select`](Self::index_select); where the counts are, what [`cumsum`](Self::cumsum) and [`searchsorted`](Self::searchsorted) of as
    /// many numbers take.
    ///
    /// # Errors
    /// For a dim out of range, and counts that are no list of whole numbers, one for each index; on all ranks, for a count below 0, and
    /// another total than the sum.
    #[track_caller]
    pub fn repeat_interleave_each(
        &self,
        dim: impl Into<Dim>,
        counts: &Self,
        total: Option<usize>,
    ) -> Result<Self> {
        let _call = Calling::of("repeat_interleave_each");
        let dim = self.dim("repeat_interleave_each", dim)?;
        self.run2(counts, |exec, x, counts| {
            indexing::repeat_interleave_each(exec, x, dim, counts, total)
        })
    }

    /// The index of a dim.
    pub(super) fn dim(&self, op: &'static str, dim: impl Into<Dim>) -> Result<usize> {
        dim.into().of(op, self.ndim())
    }

    /// The tensor that an op along a dim works on, and the index of the dim. A number has no dims, and is to PyTorch one element along
    /// dim 0.
    pub(super) fn line(&self, op: &'static str, dim: impl Into<Dim>) -> Result<(Self, usize)> {
        let dim = dim.into();
        match self.ndim() == 0 && dim.is_first() {
            true => Ok((self.unsqueeze(0)?, 0)),
            false => Ok((self.clone(), dim.of(op, self.ndim())?)),
        }
    }

    /// What an op found along the [line](Self::line) of a tensor: of a number a number.
    pub(super) fn of_line(&self, found: Self) -> Result<Self> {
        match self.ndim() == 0 && found.ndim() == 1 {
            true => found.squeeze(0),
            false => Ok(found),
        }
    }

    /// Runs one op along a dim.
    #[track_caller]
    pub(super) fn along(
        &self,
        op: &'static str,
        dim: impl Into<Dim>,
        f: impl Fn(&dyn Exec, &Value, usize) -> shard_ops::Result<Value>,
    ) -> Result<Self> {
        let _call = Calling::of(op);
        let (x, dim) = self.line(op, dim)?;
        self.of_line(x.run(|exec, x| f(exec, x, dim))?)
    }

    /// Runs one op along a dim with two results.
    #[track_caller]
    pub(super) fn two_along(
        &self,
        op: &'static str,
        dim: impl Into<Dim>,
        f: impl FnOnce(&dyn Exec, &Value, usize) -> shard_ops::Result<(Value, Value)>,
    ) -> Result<(Self, Self)> {
        let _call = Calling::of(op);
        let (x, dim) = self.line(op, dim)?;
        let (first, second) = x.pair(|exec, x| f(exec, x, dim))?;
        Ok((self.of_line(first)?, self.of_line(second)?))
    }

    #[track_caller]
    pub(super) fn apart(
        &self,
        op: &'static str,
        f: impl FnOnce(&dyn Exec, &Value) -> shard_ops::Result<Vec<Value>>,
    ) -> Result<Vec<Self>> {
        let _call = Calling::of(op);
        let parts = f(self.context().tape(), &self.value())?;
        Ok(parts.into_iter().map(|v| self.lift(v)).collect())
    }

    #[track_caller]
    pub(super) fn joined(
        op: &'static str,
        tensors: &[&Self],
        f: impl FnOnce(&dyn Exec, &[&Value]) -> shard_ops::Result<Value>,
    ) -> Result<Self> {
        let _call = Calling::of(op);
        let Some(first) = tensors.first() else {
            return Err(none(op));
        };
        let values: Vec<Value> = tensors.iter().map(|t| t.value()).collect();
        let values: Vec<&Value> = values.iter().collect();
        Ok(first.lift(f(first.context().tape(), &values)?))
    }
}

fn none(op: &'static str) -> crate::Error {
    crate::Error::argument(
        op,
        "at least one tensor",
        "none",
        "pass the tensors to join",
    )
}

/// References to tensors, from a list of either.
pub(super) fn borrowed<T: Borrow<ShardTensor>>(tensors: &[T]) -> Vec<&ShardTensor> {
    tensors.iter().map(Borrow::borrow).collect()
}
