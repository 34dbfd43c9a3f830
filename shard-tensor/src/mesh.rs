//! A mesh of ranks, and the tensors made on it.

use crate::{Context, Error, Placements, Result, Shape, ShardTensor};
use ndarray::{ArrayBase, ArrayViewD, Data, Dimension, Slice};
use shard_comm::half::{bf16, f16};
use shard_comm::{AgreedError, DType, Element, Monoid, Scalar, Strided};
use shard_redistribute::{Array, MeshComm};
use shard_spec::{DeviceMesh, Dims, IndexBox, Layout, Partition, checked_numel, row_major_strides};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

/// A mesh of ranks with its communicators: where tensors are made.
///
/// ```
/// use shard_tensor::{launch, shard};
/// let rows = launch(4, |ctx| {
///     let mesh = ctx.mesh([("rows", 4)])?;
///     let x = mesh.rand([10, 3], [("rows", shard(0))])?; // 3, 3, 3 and 1 rows
///     Ok(x.local_shape()[0])
/// })?;
/// assert_eq!(rows, [3, 3, 3, 1]);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone)]
pub struct Mesh {
    ctx: Context,
    cx: Rc<MeshComm>,
    dtype: DType,
}

/// How `from_local` learns the sizes of the other ranks' pieces.
#[derive(Clone, Debug, PartialEq)]
pub enum LocalSizes {
    /// Every rank tells the others the shape it has; one small round.
    Infer,
    /// The global shape is this, divided as the placements say: by chunk, or by their explicit sizes.
    Global(Shape),
}

impl Mesh {
    pub(crate) fn new(ctx: Context, cx: Rc<MeshComm>) -> Self {
        let dtype = ctx.dtype();
        Self { ctx, cx, dtype }
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.ctx
    }

    /// The ranks, their arrangement and the names of the axes.
    pub fn mesh(&self) -> &DeviceMesh {
        self.cx.mesh()
    }

    /// The communicators.
    pub fn comm(&self) -> &Rc<MeshComm> {
        &self.cx
    }

    /// How many ranks it has.
    pub fn size(&self) -> usize {
        self.mesh().size()
    }

    /// Ranks along each axis.
    pub fn shape(&self) -> &[usize] {
        self.mesh().shape()
    }

    /// This rank's coordinates, `None` if it is not a member.
    pub fn coords(&self) -> Option<&[usize]> {
        self.cx.coords()
    }

    /// Whether this rank is a member.
    pub fn is_member(&self) -> bool {
        self.cx.is_member()
    }

    /// The element type of tensors made from nothing on this handle.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The same mesh, making tensors of another type.
    #[must_use]
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Self {
            dtype,
            ..self.clone()
        }
    }

    /// The layout that placements give a tensor of this shape.
    ///
    /// # Errors
    /// As [`Placements::layout`].
    pub fn layout(
        &self,
        shape: impl Into<Shape>,
        placements: impl Into<Placements>,
    ) -> Result<Layout> {
        let shape = shape.into();
        checked_numel(&shape)?;
        placements.into().layout(self.mesh(), &shape)
    }
}

/// Tensors from data.
impl Mesh {
    /// Divides an array that every rank has. Nothing moves.
    ///
    /// # Collective
    /// All ranks of the program. That they pass the same data is taken on trust; the same shape, type and
    /// placements are checked.
    ///
    /// # Errors
    /// As [`Placements::layout`]; a mismatch if ranks disagree.
    pub fn distribute<S, D>(
        &self,
        whole: &ArrayBase<S, D>,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor>
    where
        S: Data,
        S::Elem: Element,
        D: Dimension,
    {
        let layout = self.layout(whole.shape(), placements);
        let key = layout.as_ref().map_or(0, Layout::hash128);
        let layout = self.ctx.uniform(
            "distribute",
            shard_ops::key_of(S::Elem::DTYPE.name(), &key),
            layout,
        )?;
        if layout.is_partial() {
            return Err(Error::argument(
                "distribute",
                "shards and replicas",
                layout.to_string(),
                "a partial tensor is the result of an op; distribute it replicated",
            ));
        }
        let local = match layout.local_box(self.ctx.rank()) {
            Some(bounds) => Some(
                self.ctx
                    .device()
                    .upload_slice(&cut(whole.view().into_dyn(), &bounds))?,
            ),
            None => None,
        };
        self.wrap(Array::from_parts(&self.cx, &layout, local, S::Elem::DTYPE)?)
    }

    /// Sends out the pieces of an array that one rank has. No other rank holds more than its piece.
    ///
    /// # Collective
    /// All ranks of the program, with the same root and placements; only the root passes an array.
    ///
    /// # Errors
    /// As [`Placements::layout`]; an agreed error if the root passes none; a mismatch if ranks disagree.
    pub fn scatter<T: Element>(
        &self,
        root: usize,
        whole: Option<ArrayViewD<'_, T>>,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        const OP: &str = "scatter";
        let (world, placements) = (self.ctx.world(), placements.into());
        world.check_uniform(
            OP,
            shard_ops::key_of(OP, &(root, T::DTYPE, format!("{placements:?}"))),
        )?;
        if !self.mesh().contains(root) {
            return Err(Error::argument(
                OP,
                "a root on the mesh",
                format!("rank {root}"),
                "pick a member of the mesh",
            ));
        }
        let is_root = self.ctx.rank() == root;
        world.agree(match &whole {
            None if is_root => Err(AgreedError::new(
                OP,
                "an array at the root",
                "none",
                "pass `Some` at the root",
            )),
            _ => Ok(()),
        })?;
        let shape = self.broadcast_shape(
            root,
            whole.as_ref().filter(|_| is_root).map(ArrayBase::shape),
        )?;
        let layout = self.layout(&shape[..], placements)?;
        // A tensor without dims is sent as one of one element.
        let flat: Dims = if shape.is_empty() {
            [1].into_iter().collect()
        } else {
            shape
        };
        let owned = self.owned_by(root, &flat)?;
        let local = match whole {
            Some(whole) if is_root => Some(whole.iter().copied().collect()),
            _ => self.is_member().then(Vec::new),
        };
        let local = match local {
            Some(elements) => Some(self.ctx.device().upload_slice::<T>(&elements)?),
            None => None,
        };
        let source = Array::from_parts(&self.cx, &owned, local, T::DTYPE)?;
        let target = if layout.ndim() == 0 {
            Layout::replicated(self.mesh(), &flat)
        } else {
            layout.clone()
        };
        let moved = source.redistribute(&target)?;
        let array = Array::from_parts(
            &self.cx,
            &layout.with_partial_reduced(),
            moved.buffer().cloned(),
            T::DTYPE,
        )?;
        self.wrap(array)
    }

    /// Makes a tensor of the pieces the ranks have.
    ///
    /// # Collective
    /// All ranks of the program, with the same placements; a rank outside the mesh passes an empty array of the
    /// same number of dims.
    ///
    /// # Errors
    /// An agreed error naming the lowest rank whose piece does not fit what the others have, or the sizes given;
    /// as [`Placements::layout`]; a mismatch if ranks disagree on placements, type or number of dims.
    ///
    /// ```
    /// use shard_tensor::{LocalSizes, launch, shard};
    /// let shapes = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let piece = ndarray::Array2::<f32>::ones((3 * ctx.rank() + 1, 2));
    ///     let x = mesh.from_local(&piece, [shard(0)], LocalSizes::Infer)?;
    ///     Ok(format!("{:?} {}", x.shape(), x.layout()))
    /// })?;
    /// assert_eq!(shapes, ["[5, 2] S(0)[1,4]", "[5, 2] S(0)[1,4]"]);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    pub fn from_local<S, D>(
        &self,
        piece: &ArrayBase<S, D>,
        placements: impl Into<Placements>,
        sizes: LocalSizes,
    ) -> Result<ShardTensor>
    where
        S: Data,
        S::Elem: Element,
        D: Dimension,
    {
        const OP: &str = "from_local";
        let (world, placements, dtype) = (self.ctx.world(), placements.into(), S::Elem::DTYPE);
        let asked = format!("{placements:?} {sizes:?}");
        world.check_uniform(OP, shard_ops::key_of(OP, &(asked, dtype, piece.ndim())))?;
        let layout = match sizes {
            LocalSizes::Global(shape) => self.layout(shape, placements)?,
            LocalSizes::Infer => self.infer(piece.shape(), &placements)?,
        };
        let local_shape = layout.local_shape(self.ctx.rank());
        world.agree(match &local_shape {
            Some(expected) if expected[..] != *piece.shape() => Err(AgreedError::new(
                OP,
                format!("a piece of shape {:?} (layout {layout} of {:?})", &expected[..], layout.shape()),
                format!("{:?}", piece.shape()),
                "state the sizes the ranks have, as in `shard(0).sizes([..])`, or let `LocalSizes::Infer` ask them",
            )),
            _ => Ok(()),
        })?;
        let local = match local_shape {
            Some(_) => Some(
                self.ctx
                    .device()
                    .upload_slice(&piece.iter().copied().collect::<Vec<_>>())?,
            ),
            None => None,
        };
        self.wrap(Array::from_parts(&self.cx, &layout, local, dtype)?)
    }

    /// The layout of the pieces the ranks have.
    fn infer(&self, mine: &[usize], placements: &Placements) -> Result<Layout> {
        let placements = placements.plain(self.mesh())?;
        let shapes = self.all_shapes(mine)?;
        let mut shape = Dims::new();
        let mut shardings = Vec::new();
        for dim in 0..mine.len() {
            let axes: Vec<usize> = (0..placements.len())
                .filter(|&a| placements[a].shard_dim() == Some(dim))
                .collect();
            let sizes = self.sizes_along(dim, &axes, &shapes)?;
            let partition = Partition::from_sizes(&sizes)?;
            shape.push(partition.extent());
            shardings.push((dim, axes, partition));
        }
        // Validates the placements.
        Layout::new(self.mesh(), &shape, &placements)?;
        let mut builder = Layout::builder(self.mesh(), &shape);
        for (dim, axes, partition) in shardings.into_iter().filter(|s| !s.1.is_empty()) {
            builder = builder.shard(dim, &axes, partition);
        }
        for (axis, placement) in placements.iter().enumerate() {
            if let Some(op) = placement.partial_op() {
                builder = builder.partial(axis, op);
            }
        }
        Ok(builder.build()?)
    }

    /// The size of each part of one dim. Ranks that share a part must have the same.
    fn sizes_along(&self, dim: usize, axes: &[usize], shapes: &[Dims]) -> Result<Vec<usize>> {
        let mesh = self.mesh();
        let parts: usize = axes.iter().map(|&a| mesh.axis_size(a)).product();
        let mut first: Vec<Option<usize>> = vec![None; parts];
        // In rank order, so that the rank named is the lowest that differs from one before it.
        for rank in 0..shapes.len() {
            let Some(coords) = mesh.coords(rank) else {
                continue;
            };
            let part = axes
                .iter()
                .fold(0, |part, &a| part * mesh.axis_size(a) + coords[a]);
            let holder = *first[part].get_or_insert(rank);
            let (expected, got) = (shapes[holder][dim], shapes[rank][dim]);
            if expected != got {
                let mut error = AgreedError::new(
                    "from_local",
                    format!("extent {expected} in dim {dim}, as rank {holder} has"),
                    format!("{got} (shape {:?})", &shapes[rank][..]),
                    "ranks that differ only along other dims' axes must hold pieces of one size; check the placements",
                );
                error.rank = rank;
                return Err(error.into());
            }
        }
        Ok(first
            .iter()
            .map(|holder| holder.map_or(0, |rank| shapes[rank][dim]))
            .collect())
    }

    /// Everyone's shape; all have the same number of dims.
    fn all_shapes(&self, mine: &[usize]) -> Result<Vec<Dims>> {
        let (world, device) = (self.ctx.world(), self.ctx.device());
        if mine.is_empty() {
            return Ok(vec![Dims::new(); world.size()]);
        }
        let extents: Vec<i64> = mine.iter().map(|&n| n as i64).collect();
        let all = world.all_gather_v(
            &device.upload_slice(&extents)?,
            &vec![mine.len(); world.size()],
        )?;
        let all = device.download_vec::<i64>(&all)?;
        Ok(all
            .chunks(mine.len())
            .map(|shape| shape.iter().map(|&n| n as usize).collect())
            .collect())
    }

    /// The root's shape, on every rank.
    fn broadcast_shape(&self, root: usize, shape: Option<&[usize]>) -> Result<Dims> {
        let (world, device) = (self.ctx.world(), self.ctx.device());
        let send = |numbers: Option<Vec<i64>>, len: usize| -> Result<Vec<i64>> {
            let buffer = numbers.map(|n| device.upload_slice(&n)).transpose()?;
            Ok(device.download_vec(&world.broadcast(buffer.as_ref(), root, DType::I64, len)?)?)
        };
        let ndim = send(shape.map(|s| vec![s.len() as i64]), 1)?[0] as usize;
        let extents = send(shape.map(|s| s.iter().map(|&n| n as i64).collect()), ndim)?;
        Ok(extents.into_iter().map(|n| n as usize).collect())
    }

    /// The layout in which one rank holds everything. The shape has at least one dim.
    pub(crate) fn owned_by(&self, root: usize, shape: &[usize]) -> Result<Layout> {
        let mesh = self.mesh();
        let axes: Vec<usize> = (0..mesh.ndim()).collect();
        let mut sizes = vec![0; mesh.size()];
        if let Some(index) = mesh.index_of(root) {
            sizes[index] = shape[0];
        }
        Ok(Layout::builder(mesh, shape)
            .shard(0, &axes, Partition::from_sizes(&sizes)?)
            .build()?)
    }
}

/// Tensors from nothing. No communication.
impl Mesh {
    /// A tensor of zeros.
    ///
    /// # Errors
    /// As [`Placements::layout`].
    pub fn zeros(
        &self,
        shape: impl Into<Shape>,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        self.full(shape, 0.0, placements)
    }

    /// A tensor of ones.
    ///
    /// # Errors
    /// As [`Placements::layout`].
    pub fn ones(
        &self,
        shape: impl Into<Shape>,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        self.full(shape, 1.0, placements)
    }

    /// A tensor of one value.
    ///
    /// # Errors
    /// As [`Placements::layout`].
    pub fn full(
        &self,
        shape: impl Into<Shape>,
        value: f64,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        let layout = self.layout(shape, placements)?;
        let Some(local) = layout.local_shape(self.ctx.rank()) else {
            return self.wrap(Array::from_parts(&self.cx, &layout, None, self.dtype)?);
        };
        // The terms of a partial tensor: the value at coordinate 0, the identity elsewhere.
        let holds = self
            .coords()
            .is_some_and(|c| layout.partial_axes().iter().all(|&a| c[a] == 0));
        let scalar = match layout.partial_op() {
            Some(op) if !holds => Monoid::Op(op).identity(self.dtype)[0],
            _ => Scalar::F64(value),
        };
        let device = self.ctx.device();
        let mut buffer = device.alloc(self.dtype, local.iter().product())?;
        device.fill(&mut buffer, &Strided::contiguous(&local), scalar)?;
        self.wrap(Array::from_parts(
            &self.cx,
            &layout,
            Some(buffer.freeze()),
            self.dtype,
        )?)
    }

    /// A tensor whose contents do not matter.
    ///
    /// # Errors
    /// As [`Placements::layout`].
    pub fn empty(
        &self,
        shape: impl Into<Shape>,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        let layout = self.layout(shape, placements)?;
        let local = match layout.local_shape(self.ctx.rank()) {
            Some(shape) => Some(
                self.ctx
                    .device()
                    .alloc(self.dtype, shape.iter().product())?
                    .freeze(),
            ),
            None => None,
        };
        self.wrap(Array::from_parts(&self.cx, &layout, local, self.dtype)?)
    }

    /// The numbers 0, 1, ... `n - 1`.
    ///
    /// # Errors
    /// As [`Placements::layout`].
    pub fn arange(&self, n: usize, placements: impl Into<Placements>) -> Result<ShardTensor> {
        self.from_fn(n, placements, |i| i[0] as f64)
    }

    /// A tensor whose elements are a function of the global index, converted to the handle's type.
    ///
    /// ```
    /// let x = shard_tensor::launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.from_fn([3, 2], [shard_tensor::shard(0)], |i| (10 * i[0] + i[1]) as f64)?;
    ///     x.to_array::<f32>()
    /// })?;
    /// assert_eq!(x[1], ndarray::arr2(&[[0.0, 1.0], [10.0, 11.0], [20.0, 21.0]]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Placements::layout`].
    pub fn from_fn(
        &self,
        shape: impl Into<Shape>,
        placements: impl Into<Placements>,
        f: impl Fn(&[usize]) -> f64,
    ) -> Result<ShardTensor> {
        let layout = self.layout(shape, placements)?;
        let cx = &self.cx;
        self.wrap(match self.dtype {
            DType::F64 => Array::from_fn(cx, &layout, f),
            DType::F32 => Array::from_fn(cx, &layout, |i| f32::from_f64(f(i))),
            DType::F16 => Array::from_fn(cx, &layout, |i| f16::from_f64(f(i))),
            DType::BF16 => Array::from_fn(cx, &layout, |i| bf16::from_f64(f(i))),
            DType::I64 => Array::from_fn(cx, &layout, |i| i64::from_f64(f(i))),
            DType::I32 => Array::from_fn(cx, &layout, |i| i32::from_f64(f(i))),
            DType::U8 => Array::from_fn(cx, &layout, |i| u8::from_f64(f(i))),
            DType::Bool => Array::from_fn(cx, &layout, |i| shard_comm::Bool::from_f64(f(i))),
        }?)
    }

    /// Uniform random numbers in `[0, 1)`: the same tensor under any placements and on any number of ranks.
    ///
    /// # Collective
    /// All ranks of the program must draw the same tensors in the same order.
    ///
    /// # Errors
    /// As [`Placements::layout`].
    pub fn rand(
        &self,
        shape: impl Into<Shape>,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        let (shape, stream) = (shape.into(), self.ctx.next_stream());
        let at = linear(&shape)?;
        match self.dtype {
            DType::F64 => self.from_fn(&shape, placements, |i| stream.uniform_f64(at(i))),
            _ => self.from_fn(&shape, placements, |i| f64::from(stream.uniform_f32(at(i)))),
        }
    }

    /// Uniform random numbers in a range.
    ///
    /// # Collective
    /// As [`rand`](Self::rand).
    ///
    /// # Errors
    /// As [`Placements::layout`].
    pub fn uniform(
        &self,
        shape: impl Into<Shape>,
        range: Range<f64>,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        let (shape, stream) = (shape.into(), self.ctx.next_stream());
        let (at, width) = (linear(&shape)?, range.end - range.start);
        self.from_fn(&shape, placements, |i| {
            range.start + width * stream.uniform_f64(at(i))
        })
    }

    /// Standard normal random numbers: the same tensor under any placements and on any number of ranks.
    ///
    /// # Collective
    /// As [`rand`](Self::rand).
    ///
    /// # Errors
    /// As [`Placements::layout`].
    pub fn randn(
        &self,
        shape: impl Into<Shape>,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        let (shape, stream) = (shape.into(), self.ctx.next_stream());
        let at = linear(&shape)?;
        self.from_fn(&shape, placements, |i| stream.normal(at(i)))
    }

    fn wrap(&self, array: Array) -> Result<ShardTensor> {
        Ok(ShardTensor::new(&self.ctx, array.into()))
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mesh({}, rank {})", self.mesh(), self.ctx.rank())
    }
}

/// The elements of a box, row-major.
pub(crate) fn cut<T: Element>(mut whole: ArrayViewD<'_, T>, bounds: &IndexBox) -> Vec<T> {
    whole.slice_each_axis_inplace(|axis| {
        let axis = axis.axis.index();
        Slice::from(bounds.lo[axis]..bounds.hi[axis])
    });
    whole.iter().copied().collect()
}

/// The row-major position of a global index.
fn linear(shape: &[usize]) -> Result<impl Fn(&[usize]) -> u64> {
    checked_numel(shape)?;
    let strides = row_major_strides(shape);
    Ok(move |index: &[usize]| {
        index
            .iter()
            .zip(&strides)
            .map(|(&i, &s)| i as u64 * s as u64)
            .sum()
    })
}
