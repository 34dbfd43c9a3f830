//! Layouts: the map from ranks to boxes of a tensor's global index space.

mod builder;
mod text;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

pub use builder::LayoutBuilder;

use crate::boxes::IndexBox;
use crate::dims::{Dims, checked_numel, numel};
use crate::error::{Result, SpecError};
use crate::hash::{ContentHash, StableHasher};
use crate::mesh::{DeviceMesh, unravel};
use crate::part::DimPart;
use crate::partition::Partition;
use crate::placement::Placement;
use crate::reduce_op::ReduceOp;

/// How one tensor dim is sharded: a flat partition over the product of its mesh axes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DimSharding {
    /// The mesh axes, major first.
    pub axes: SmallVec<[usize; 2]>,
    /// One part per rank along those axes, row-major in their order.
    pub partition: Partition,
}

impl DimSharding {
    /// A dim of `extent` indices that `own` shards, if it does, sharded over more axes: each part, or the whole dim, is divided as `divide`
    /// says of its size, among the ranks along `axes`.
    ///
    /// ```
    /// use shard_spec::{DimSharding, Partition, SpecError};
    /// let rows = DimSharding::further(None, 7, &[0], |n| Ok::<_, SpecError>(Partition::balanced(n, 2)))?;
    /// let both = DimSharding::further(Some(&rows), 7, &[1], |n| Ok::<_, SpecError>(Partition::balanced(n, 3)))?;
    /// assert_eq!(both.axes[..], [0, 1]);
    /// assert!(both.partition.sizes().eq([2, 1, 1, 1, 1, 1]));
    /// # Ok::<(), SpecError>(())
    /// ```
    ///
    /// # Errors
    /// Errors of `divide`; if parts are divided into different numbers of parts, or into too many tiles to write out.
    pub fn further<E: From<SpecError>>(
        own: Option<&Self>,
        extent: usize,
        axes: &[usize],
        mut divide: impl FnMut(usize) -> Result<Partition, E>,
    ) -> Result<Self, E> {
        let Some(own) = own else {
            return Ok(Self {
                axes: axes.into(),
                partition: divide(extent)?,
            });
        };
        let inner = own.partition.sizes().map(divide);
        let inner = inner.collect::<Result<Vec<_>, E>>()?;
        Ok(Self {
            axes: own.axes.iter().chain(axes).copied().collect(),
            partition: Partition::nested(&own.partition, &inner)?,
        })
    }
}

impl ContentHash for DimSharding {
    fn feed(&self, hasher: &mut StableHasher) {
        hasher.usizes(&self.axes);
        self.partition.feed(hasher);
    }
}

/// Where every element of a tensor lives on a mesh. Immutable; a clone is a pointer copy.
///
/// Each tensor dim is whole or sharded over an ordered list of mesh axes. Each remaining axis replicates, or holds terms of a
/// reduction, which all such axes share. `==` compares descriptions; [`Layout::same_boxes`] compares ownership.
///
/// ```
/// use shard_spec::{DeviceMesh, Layout, Partition, Placement};
/// let mesh = DeviceMesh::new(&[2, 2])?;
/// let layout = Layout::new(&mesh, &[10, 5], &[Placement::Shard(0), Placement::Replicate])?;
/// assert_eq!(layout.local_shape(3).as_deref(), Some(&[5, 5][..]));
///
/// let uneven = Layout::builder(&mesh, &[6, 4]).shard(0, &[0, 1], Partition::from_sizes(&[3, 1, 0, 2])?).build()?;
/// assert_eq!(uneven.to_string(), "S(0)[3,1,0,2] S(0)");
/// assert_eq!(uneven.local_box(3).unwrap().interval(0), 4..6);
/// assert_eq!(Layout::parse(&mesh, &[6, 4], "S(0)[3,1,0,2] S(0)")?, uneven);
/// # Ok::<(), shard_spec::SpecError>(())
/// ```
#[derive(Clone)]
pub struct Layout(Arc<Inner>);

struct Inner {
    mesh: DeviceMesh,
    shape: Dims,
    dims: DimShardings,
    partial_op: Option<ReduceOp>,
    partial_axes: Axes,
    replicate_axes: Axes,
    placements: SmallVec<[Placement; 4]>,
    hash: u128,
}

type DimShardings = SmallVec<[Option<DimSharding>; 6]>;
type Axes = SmallVec<[usize; 4]>;

/// Constructors.
impl Layout {
    /// One placement per mesh axis; several shards of one dim nest in mesh-axis order, as chunks of chunks.
    ///
    /// # Errors
    /// [`SpecError::PlacementCount`], [`SpecError::DimOutOfRange`], [`SpecError::MixedPartial`], [`SpecError::Overflow`].
    pub fn new(mesh: &DeviceMesh, shape: &[usize], placements: &[Placement]) -> Result<Self> {
        if placements.len() != mesh.ndim() {
            let (expected, got) = (mesh.ndim(), placements.len());
            return Err(SpecError::PlacementCount {
                op: "layout",
                expected,
                got,
            });
        }
        let mut axes: SmallVec<[SmallVec<[usize; 2]>; 6]> = smallvec![SmallVec::new(); shape.len()];
        let mut partial = Partials::default();
        for (axis, placement) in placements.iter().enumerate() {
            match *placement {
                Placement::Shard(dim) if dim < shape.len() => axes[dim].push(axis),
                Placement::Shard(dim) => {
                    return Err(SpecError::DimOutOfRange {
                        op: "layout",
                        dim,
                        ndim: shape.len(),
                    });
                }
                Placement::Partial(op) => partial.add(axis, op)?,
                Placement::Replicate => {}
            }
        }
        let dims = axes.into_iter().zip(shape).map(|(axes, &n)| {
            let partition = Partition::nested_chunk(n, &axis_sizes(mesh, &axes));
            (!axes.is_empty()).then_some(DimSharding { axes, partition })
        });
        Self::assemble(mesh, shape, dims.collect(), partial)
    }

    /// A copy of the whole tensor on every rank.
    ///
    /// The shape is taken as valid: see [`checked_numel`] for one from a user.
    pub fn replicated(mesh: &DeviceMesh, shape: &[usize]) -> Self {
        Self::finish(
            mesh,
            shape,
            smallvec![None; shape.len()],
            Partials::default(),
        )
    }

    /// A layout described dim by dim, with any partitions and axis orders.
    pub fn builder(mesh: &DeviceMesh, shape: &[usize]) -> LayoutBuilder {
        LayoutBuilder::new(mesh, shape)
    }

    /// The layout of the given shardings, one entry per dim, with partial axes.
    ///
    /// # Errors
    /// [`SpecError::DimCount`] where `dims` does not have one entry per dim, and the errors of [`LayoutBuilder::build`].
    pub fn from_dims(
        mesh: &DeviceMesh,
        shape: &[usize],
        dims: impl IntoIterator<Item = Option<DimSharding>>,
        partial: Option<(ReduceOp, &[usize])>,
    ) -> Result<Self> {
        let dims: DimShardings = dims.into_iter().collect();
        let mut partials = Partials::default();
        if let Some((op, axes)) = partial {
            axes.iter().try_for_each(|&axis| partials.add(axis, op))?;
        }
        Self::assemble(mesh, shape, dims, partials)
    }

    /// Validates and normalises. Every layout that a user describes passes through here.
    fn assemble(
        mesh: &DeviceMesh,
        shape: &[usize],
        mut dims: DimShardings,
        mut partial: Partials,
    ) -> Result<Self> {
        let op = "layout";
        checked_numel(shape)?;
        if dims.len() != shape.len() {
            return Err(SpecError::DimCount {
                op,
                expected: shape.len(),
                got: dims.len(),
            });
        }
        let used: Axes = dims
            .iter()
            .flatten()
            .flat_map(|s| s.axes.iter())
            .chain(&partial.axes)
            .copied()
            .collect();
        mesh.check_axes(op, &used)?;
        for (sharding, &n) in dims.iter_mut().zip(shape) {
            let Some(DimSharding { axes, partition }) = sharding else {
                continue;
            };
            let expected = axis_sizes(mesh, axes).iter().product();
            if partition.parts() != expected {
                return Err(SpecError::PartCount {
                    op,
                    expected,
                    got: partition.parts(),
                });
            }
            if partition.extent() != n {
                return Err(SpecError::Extent {
                    op,
                    expected: n,
                    got: partition.extent(),
                });
            }
            // A dim sharded over no axis is whole, which is always written as `None`.
            if axes.is_empty() {
                *sharding = None;
            }
        }
        partial.axes.sort_unstable();
        Ok(Self::finish(mesh, shape, dims, partial))
    }

    /// Fills in the fields that follow from the given ones, which are valid.
    fn finish(mesh: &DeviceMesh, shape: &[usize], dims: DimShardings, partial: Partials) -> Self {
        let mut placements: SmallVec<[Placement; 4]> = smallvec![Placement::Replicate; mesh.ndim()];
        for (dim, sharding) in dims.iter().enumerate() {
            for &axis in sharding.iter().flat_map(|s| &s.axes) {
                placements[axis] = Placement::Shard(dim);
            }
        }
        if let Some(op) = partial.op {
            for &axis in &partial.axes {
                placements[axis] = Placement::Partial(op);
            }
        }
        let replicate_axes = (0..mesh.ndim())
            .filter(|&a| placements[a].is_replicate())
            .collect();

        let mut hasher = StableHasher::new("layout");
        mesh.feed(&mut hasher);
        hasher.usizes(shape);
        for sharding in &dims {
            match sharding {
                None => hasher.usizes(&[]),
                Some(sharding) => sharding.feed(&mut hasher),
            }
        }
        hasher.str(partial.op.map_or("", ReduceOp::name));
        hasher.usizes(&partial.axes);

        let shape = SmallVec::from_slice(shape);
        let (partial_op, partial_axes) = (partial.op, partial.axes);
        let (mesh, hash) = (mesh.clone(), hasher.finish());
        Self(Arc::new(Inner {
            mesh,
            shape,
            dims,
            partial_op,
            partial_axes,
            replicate_axes,
            placements,
            hash,
        }))
    }
}

/// What the layout is.
impl Layout {
    /// The mesh.
    pub fn mesh(&self) -> &DeviceMesh {
        &self.0.mesh
    }

    /// The global shape.
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// Number of tensor dims.
    pub fn ndim(&self) -> usize {
        self.0.shape.len()
    }

    /// Number of global elements.
    pub fn numel(&self) -> usize {
        numel(self.shape())
    }

    /// One placement per mesh axis, in mesh order.
    pub fn placements(&self) -> &[Placement] {
        &self.0.placements
    }

    /// How a dim is sharded; `None` where it is whole on every rank, or out of range.
    pub fn sharding(&self, dim: usize) -> Option<&DimSharding> {
        self.0.dims.get(dim)?.as_ref()
    }

    /// The shardings of all dims, in dim order.
    pub fn shardings(&self) -> &[Option<DimSharding>] {
        &self.0.dims
    }

    /// The mesh axes that shard a dim, major first; empty where it is whole.
    pub fn axis_order(&self, dim: usize) -> &[usize] {
        self.sharding(dim).map_or(&[], |s| &s.axes)
    }

    /// The reduction that the partial axes share.
    pub fn partial_op(&self) -> Option<ReduceOp> {
        self.0.partial_op
    }

    /// The partial axes, ascending.
    pub fn partial_axes(&self) -> &[usize] {
        &self.0.partial_axes
    }

    /// The replicate axes, ascending.
    pub fn replicate_axes(&self) -> &[usize] {
        &self.0.replicate_axes
    }

    /// Whether every axis replicates.
    pub fn is_replicated(&self) -> bool {
        self.0.replicate_axes.len() == self.mesh().ndim()
    }

    /// Whether some axis is partial.
    pub fn is_partial(&self) -> bool {
        self.0.partial_op.is_some()
    }

    /// The content hash, equal on every process and platform.
    pub fn hash128(&self) -> u128 {
        self.0.hash
    }
}

/// Where things are.
impl Layout {
    /// The flat part of a dim that a rank holds: 0 on a whole dim, `None` off the mesh or beyond the dims.
    pub fn part_of(&self, rank: usize, dim: usize) -> Option<usize> {
        let sharding = self.0.dims.get(dim)?;
        let coords = self.mesh().coords(rank)?;
        Some(sharding.as_ref().map_or(0, |s| self.flat_part(s, &coords)))
    }

    /// The coordinates of a flat part along the axes of [`Layout::axis_order`].
    ///
    /// # Panics
    /// Where `part >= parts(dim)`.
    pub fn part_coords(&self, dim: usize, part: usize) -> SmallVec<[usize; 2]> {
        let parts = self.parts(dim);
        assert!(part < parts, "part {part} of {parts} of dim {dim}");
        let axes = self.axis_order(dim);
        unravel(part, &axis_sizes(self.mesh(), axes))
            .into_iter()
            .collect()
    }

    /// Number of flat parts of a dim; 1 where it is whole.
    pub fn parts(&self, dim: usize) -> usize {
        self.sharding(dim).map_or(1, |s| s.partition.parts())
    }

    /// The global indices of a flat part of a dim.
    ///
    /// # Panics
    /// Where `dim >= ndim()` or `part >= parts(dim)`.
    pub fn part(&self, dim: usize, part: usize) -> DimPart {
        match &self.0.dims[dim] {
            Some(sharding) => sharding.partition.part(part),
            None => {
                assert!(part == 0, "part {part} of dim {dim}, which is whole");
                (0..self.0.shape[dim]).into()
            }
        }
    }

    /// The number of indices of a flat part of a dim.
    ///
    /// # Panics
    /// As [`Layout::part`].
    pub fn part_size(&self, dim: usize, part: usize) -> usize {
        match &self.0.dims[dim] {
            Some(sharding) => sharding.partition.size(part),
            None => {
                assert!(part == 0, "part {part} of dim {dim}, which is whole");
                self.0.shape[dim]
            }
        }
    }

    /// What a rank holds of each dim; `None` off the mesh. Its local array is the product of these.
    pub fn local_parts(&self, rank: usize) -> Option<SmallVec<[DimPart; 4]>> {
        let coords = self.mesh().coords(rank)?;
        let part = |(sharding, &n): (&Option<DimSharding>, &usize)| match sharding {
            Some(s) => s.partition.part(self.flat_part(s, &coords)),
            None => (0..n).into(),
        };
        Some(self.0.dims.iter().zip(&self.0.shape).map(part).collect())
    }

    /// The box a rank holds; `None` off the mesh, or where what it holds is not one box: see [`Layout::local_parts`].
    pub fn local_box(&self, rank: usize) -> Option<IndexBox> {
        self.local_parts(rank)?
            .iter()
            .map(DimPart::interval)
            .collect::<Option<IndexBox>>()
    }

    /// Whether what every rank holds is one box, because every partition is contiguous.
    pub fn is_contiguous(&self) -> bool {
        let contiguous = |s: &DimSharding| s.partition.is_contiguous();
        self.0.dims.iter().flatten().all(contiguous)
    }

    /// The shape of a rank's local array; `None` off the mesh.
    pub fn local_shape(&self, rank: usize) -> Option<Dims> {
        let coords = self.mesh().coords(rank)?;
        let size = |(sharding, &n): (&Option<DimSharding>, &usize)| match sharding {
            Some(s) => s.partition.size(self.flat_part(s, &coords)),
            None => n,
        };
        Some(self.0.dims.iter().zip(&self.0.shape).map(size).collect())
    }

    /// Elements of the largest local array.
    pub fn max_local_numel(&self) -> usize {
        // Dims are sharded over disjoint axes, so some rank holds the largest part of each.
        let largest = |(s, &n): (&Option<DimSharding>, &usize)| {
            s.as_ref().map_or(n, |s| s.partition.max_size())
        };
        numel(
            &self
                .0
                .dims
                .iter()
                .zip(&self.0.shape)
                .map(largest)
                .collect::<Dims>(),
        )
    }

    /// Whether both place the same elements on the same ranks, however they are described. Empty boxes are equal wherever they
    /// lie; what partial axes do is not compared.
    pub fn same_boxes(&self, other: &Self) -> bool {
        if self.shape() != other.shape() || self.mesh().size() != other.mesh().size() {
            return false;
        }
        if self.mesh() == other.mesh() && self.0.dims == other.0.dims {
            return true;
        }
        self.mesh().ranks().iter().all(|&rank| {
            let empty = |parts: &[DimPart]| parts.iter().any(DimPart::is_empty);
            match (self.local_parts(rank), other.local_parts(rank)) {
                (Some(a), Some(b)) => a == b || (empty(&a) && empty(&b)),
                _ => false,
            }
        })
    }

    fn flat_part(&self, sharding: &DimSharding, coords: &[usize]) -> usize {
        self.mesh().part_at(&sharding.axes, coords)
    }

    fn partials(&self) -> Partials {
        Partials {
            op: self.0.partial_op,
            axes: self.0.partial_axes.clone(),
        }
    }
}

/// Layouts derived from this one.
impl Layout {
    /// The layout once its reduction is done: partial axes replicate.
    #[must_use]
    pub fn with_partial_reduced(&self) -> Self {
        if !self.is_partial() {
            return self.clone();
        }
        Self::finish(
            self.mesh(),
            self.shape(),
            self.0.dims.clone(),
            Partials::default(),
        )
    }

    /// Makes more axes partial.
    ///
    /// # Errors
    /// [`SpecError::RepeatedAxis`] where an axis shards or is partial already, [`SpecError::AxisOutOfRange`],
    /// [`SpecError::MixedPartial`].
    pub fn with_partial(&self, axes: &[usize], op: ReduceOp) -> Result<Self> {
        let mut partial = self.partials();
        axes.iter().try_for_each(|&axis| partial.add(axis, op))?;
        Self::assemble(self.mesh(), self.shape(), self.0.dims.clone(), partial)
    }

    /// The same axes over another shape of as many dims, boundaries scaled to the new extents.
    ///
    /// # Errors
    /// [`SpecError::DimCount`] where the number of dims differs, [`SpecError::Overflow`].
    pub fn with_shape(&self, shape: &[usize]) -> Result<Self> {
        if shape.len() != self.ndim() {
            let (expected, got) = (self.ndim(), shape.len());
            return Err(SpecError::DimCount {
                op: "with_shape",
                expected,
                got,
            });
        }
        let scaled = self.0.dims.iter().zip(shape).map(|(sharding, &n)| {
            let DimSharding { axes, partition } = sharding.as_ref()?;
            Some(DimSharding {
                axes: axes.clone(),
                partition: partition.scaled(n),
            })
        });
        self.with_dims(shape, scaled)
    }

    /// Another shape and other shardings on the same mesh with the same partial axes.
    ///
    /// # Errors
    /// As [`Layout::from_dims`].
    pub fn with_dims(
        &self,
        shape: &[usize],
        dims: impl IntoIterator<Item = Option<DimSharding>>,
    ) -> Result<Self> {
        let dims = dims.into_iter().collect();
        Self::assemble(self.mesh(), shape, dims, self.partials())
    }

    /// Another sharding of one dim.
    ///
    /// # Errors
    /// [`SpecError::DimOutOfRange`], and as [`Layout::from_dims`].
    pub fn with_sharding(&self, dim: usize, sharding: Option<DimSharding>) -> Result<Self> {
        let mut dims = self.0.dims.clone();
        let ndim = self.ndim();
        let slot = dims.get_mut(dim).ok_or(SpecError::DimOutOfRange {
            op: "layout",
            dim,
            ndim,
        })?;
        *slot = sharding;
        self.with_dims(self.shape(), dims)
    }

    /// The same layout on other ranks: a mesh of the same shape.
    ///
    /// # Errors
    /// [`SpecError::Argument`] where the shapes of the meshes differ.
    pub fn with_mesh(&self, mesh: &DeviceMesh) -> Result<Self> {
        if mesh.shape() != self.mesh().shape() {
            return Err(SpecError::Argument {
                op: "with_mesh",
                argument: "mesh shape",
                got: format!("{:?}", mesh.shape()),
                expected: format!("{:?}", self.mesh().shape()),
                remedy: "build a new layout for a mesh of another shape",
            });
        }
        Ok(Self::finish(
            mesh,
            self.shape(),
            self.0.dims.clone(),
            self.partials(),
        ))
    }
}

impl PartialEq for Layout {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.0, &other.0);
        // The hash only rejects; equality rests on the fields.
        Arc::ptr_eq(a, b)
            || (a.hash == b.hash
                && a.shape == b.shape
                && a.dims == b.dims
                && a.partial_op == b.partial_op
                && a.partial_axes == b.partial_axes
                && a.mesh == b.mesh)
    }
}

impl Eq for Layout {}

impl Hash for Layout {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash.hash(state);
    }
}

impl ContentHash for Layout {
    fn feed(&self, hasher: &mut StableHasher) {
        hasher.u128(self.0.hash);
    }
}

impl fmt::Debug for Layout {
    /// The short form, with the shape and the mesh that belong to it: `S(0)[3,1] of [4, 8] on mesh(2)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} of {:?} on {}", self.shape(), self.mesh())
    }
}

/// Partial axes and the reduction they share.
#[derive(Clone, Default, Debug)]
struct Partials {
    op: Option<ReduceOp>,
    axes: Axes,
}

impl Partials {
    fn add(&mut self, axis: usize, op: ReduceOp) -> Result<()> {
        let first = *self.op.get_or_insert(op);
        if first != op {
            return Err(SpecError::MixedPartial {
                op: "layout",
                first,
                second: op,
            });
        }
        self.axes.push(axis);
        Ok(())
    }
}

/// The number of ranks along each of these axes. An axis off the mesh counts as one and is refused elsewhere.
fn axis_sizes(mesh: &DeviceMesh, axes: &[usize]) -> SmallVec<[usize; 4]> {
    axes.iter()
        .map(|&a| mesh.shape().get(a).copied().unwrap_or(1))
        .collect()
}
