//! Tensors from data that ranks have.

use super::Mesh;
use crate::placements::resolved;
use crate::{Error, Placements, Result, Shape, ShardTensor};
use ndarray::{ArrayBase, ArrayViewD, Axis, CowArray, Data, Dimension, Slice};
use shard_comm::Calling;
use shard_comm::{AgreedError, Call, DType, Element};
use shard_ops::key_of;
use shard_redistribute::Array;
use shard_spec::{DimPart, Dims, Layout, Partition};

/// How `from_local` learns the sizes of the other ranks' pieces.
#[derive(Clone, Debug, PartialEq)]
pub enum LocalSizes {
    /// Every rank tells the others the shape it has; one small round.
    Infer,
    /// The global shape is this, divided as the placements say: by chunk, or by their explicit sizes.
    Global(Shape),
}

/// What [`Mesh::distribute`] asks of all ranks.
const SAME: &str = "distribute, which takes the same array on all ranks (one rank's goes out by `scatter`, pieces are put together by `from_local`),";

/// How many elements a fingerprint is of, at most: hashing them takes less time than telling other ranks of it.
const COMPARED: usize = 4096;

/// A number that arrays of other elements hardly have, whatever the order in memory. Of a large array it is of some elements alone: of
/// one that is drawn with another seed all are others.
fn fingerprint<T: Element>(whole: &ArrayViewD<'_, T>) -> u128 {
    let count = whole.len();
    let mut bytes: Vec<u8> = Vec::with_capacity(count.min(COMPARED) * size_of::<T>());
    if count <= COMPARED {
        whole
            .iter()
            .for_each(|x| bytes.extend(bytemuck::bytes_of(x)));
        return key_of("distribute", &bytes);
    }
    let mut place = vec![0; whole.ndim()];
    for k in 0..COMPARED {
        let mut at = (k as u128 * (count as u128 - 1) / (COMPARED as u128 - 1)) as usize;
        for (index, &extent) in place.iter_mut().zip(whole.shape()).rev() {
            *index = at % extent;
            at /= extent;
        }
        bytes.extend(bytemuck::bytes_of(&whole[&place[..]]));
    }
    key_of("distribute", &bytes)
}

/// Tensors from data.
impl Mesh {
    /// Divides an array that every rank has. Nothing moves.
    ///
    /// An array that is read or drawn by each rank for itself, as with a seed of its own, is another one on each: the ranks compare a
    /// fingerprint of it, of all elements or, where there are more, of 4096 that are spread over it. What one rank has is
    /// [scattered](Self::scatter), what each has of its own is [`from_local`](Self::from_local).
    ///
    /// # Collective
    /// All ranks of the program, except on a mesh of one rank, as that of a [piece](ShardTensor::to_local), with the same array and
    /// placements.
    ///
    /// # Errors
    /// As [`Placements::layout`]; a mismatch if ranks disagree.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::Array1, replicate};
    /// let refused = launch(2, |ctx| {
    ///     let own = Array1::from_elem(3, ctx.rank() as f32);
    ///     ctx.mesh_of(2)?.distribute(&own, replicate())?.to_array::<f32>()
    /// });
    /// assert!(refused.unwrap_err().to_string().contains("with elements"));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
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
        let _call = Calling::of("distribute");
        self.divided(whole.view().into_dyn(), &placements.into())
    }

    /// [`distribute`](Self::distribute), once for each type of elements.
    #[track_caller]
    fn divided<T: Element>(
        &self,
        whole: ArrayViewD<'_, T>,
        placements: &Placements,
    ) -> Result<ShardTensor> {
        let layout = self.laid_out(&whole.shape().into(), placements);
        let words = |layout: &Layout| {
            let elements = fingerprint(&whole);
            format!(
                "{} {:?} {layout} with elements {elements:032x}",
                T::DTYPE,
                layout.shape()
            )
        };
        let layout = match self.size() {
            // Every rank may be on a mesh of its own, with an array of its own.
            1 => layout,
            _ => self.ctx.uniform(SAME, layout, words),
        }?;
        check_whole("distribute", &layout)?;
        (self.cx).record(Call::new("distribute").of(T::DTYPE, &layout));
        let local = match layout.local_parts(self.ctx.rank()) {
            Some(held) => Some(self.ctx.device().upload_slice(&cut(whole, &held))?),
            None => None,
        };
        self.wrap(Array::from_parts(&self.cx, &layout, local, T::DTYPE)?)
    }

    /// Sends out the pieces of an array that one rank has. No other rank holds more than its piece.
    ///
    /// # Collective
    /// All ranks of the program, with the same root and placements; only the root passes an array.
    ///
    /// # Errors
    /// As [`Placements::layout`]; an agreed error if the root passes none; a mismatch if ranks disagree.
    #[track_caller]
    pub fn scatter<T: Element>(
        &self,
        root: usize,
        whole: Option<ArrayViewD<'_, T>>,
        placements: impl Into<Placements>,
    ) -> Result<ShardTensor> {
        let _call = Calling::of("scatter");
        const OP: &str = "scatter";
        let (world, placements) = (self.ctx.world(), placements.into());
        let words = format!("{} from rank {root} to {placements:?}", T::DTYPE);
        world.check_uniform_as(OP, shard_ops::key_of(OP, &words), || words)?;
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
        check_whole(OP, &layout)?;
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
        let call = Call::new(OP).with(root as u128);
        self.cx.record(call.of(T::DTYPE, &layout));
        let source = Array::from_parts(&self.cx, &owned, local, T::DTYPE)?;
        let target = if layout.ndim() == 0 {
            Layout::replicated(self.mesh(), &flat)
        } else {
            layout.clone()
        };
        let moved = source.redistribute(&target)?;
        let local = moved.buffer().cloned();
        self.wrap(Array::from_parts(&self.cx, &layout, local, T::DTYPE)?)
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
    #[track_caller]
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
        let _call = Calling::of("from_local");
        self.of_pieces(&piece.view().into_dyn(), placements.into(), sizes)
    }

    /// [`from_local`](Self::from_local), once for each type of elements.
    #[track_caller]
    fn of_pieces<T: Element>(
        &self,
        piece: &ArrayViewD<'_, T>,
        placements: Placements,
        sizes: LocalSizes,
    ) -> Result<ShardTensor> {
        const OP: &str = "from_local";
        let (world, dtype) = (self.ctx.world(), T::DTYPE);
        let words = format!("{dtype} of {} dims, {placements:?} {sizes:?}", piece.ndim());
        world.check_uniform_as(OP, shard_ops::key_of(OP, &words), || words)?;
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
        self.cx.record(Call::new(OP).of(dtype, &layout));
        self.wrap(Array::from_parts(&self.cx, &layout, local, dtype)?)
    }

    /// The layout of the pieces the ranks have.
    #[track_caller]
    pub(crate) fn infer(&self, mine: &[usize], placements: &Placements) -> Result<Layout> {
        let placements = placements.plain(self.mesh())?;
        let shapes = self.all_shapes(mine)?;
        // All have as many dims.
        let placements = resolved(&placements, mine.len())?;
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
    #[track_caller]
    fn sizes_along(&self, dim: usize, axes: &[usize], shapes: &[Dims]) -> Result<Vec<usize>> {
        let mesh = self.mesh();
        let parts = mesh.part_count(axes);
        let mut first: Vec<Option<usize>> = vec![None; parts];
        // In rank order, so that the rank named is the lowest that differs from one before it.
        for rank in 0..shapes.len() {
            let Some(coords) = mesh.coords(rank) else {
                continue;
            };
            let part = mesh.part_at(axes, &coords);
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
    #[track_caller]
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
    #[track_caller]
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
    #[track_caller]
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

/// Refuses placements that make terms of a sum of data, which has none.
#[track_caller]
pub(crate) fn check_whole(op: &'static str, layout: &Layout) -> Result<()> {
    match layout.is_partial() {
        false => Ok(()),
        true => Err(Error::argument(
            op,
            "shards and replicas",
            layout.to_string(),
            "a partial tensor is the result of an op; place the data replicated there",
        )),
    }
}

/// The elements at these indices of each dim, row-major.
fn cut<T: Element>(mut whole: ArrayViewD<'_, T>, held: &[DimPart]) -> Vec<T> {
    whole.slice_each_axis_inplace(|axis| {
        let interval = held[axis.axis.index()].interval();
        interval.map_or_else(|| Slice::from(..), Slice::from)
    });
    let scattered = held.iter().enumerate();
    let scattered = scattered.filter(|(_, part)| part.interval().is_none());
    let mut picked = CowArray::from(whole);
    for (axis, part) in scattered {
        let indices: Vec<usize> = part.indices().collect();
        picked = picked.select(Axis(axis), &indices).into();
    }
    picked.iter().copied().collect()
}
