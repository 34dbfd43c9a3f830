//! Layouts described dim by dim.

use smallvec::{SmallVec, smallvec};

use super::{DimSharding, Layout, Partials, axis_sizes};
use crate::dims::Dims;
use crate::error::{Result, SpecError};
use crate::mesh::DeviceMesh;
use crate::partition::Partition;
use crate::reduce_op::ReduceOp;

/// Collects shardings and partial axes; axes not named replicate. Mistakes surface in [`LayoutBuilder::build`].
///
/// ```
/// use shard_spec::{DeviceMesh, Layout, ReduceOp};
/// let mesh = DeviceMesh::new(&[2, 3, 2])?;
/// let layout = Layout::builder(&mesh, &[7, 9]).shard_balanced(1, &[1, 0]).partial(2, ReduceOp::Sum).build()?;
/// assert_eq!(layout.to_string(), "S(1;1,0)[2,2,2,1,1,1] S(1) P(sum)");
/// # Ok::<(), shard_spec::SpecError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct LayoutBuilder {
    mesh: DeviceMesh,
    shape: Dims,
    shards: Vec<(usize, DimSharding)>,
    partial: Partials,
    /// The first mistake, kept for `build` so that calls chain.
    error: Option<SpecError>,
}

impl LayoutBuilder {
    pub(super) fn new(mesh: &DeviceMesh, shape: &[usize]) -> Self {
        let shape = SmallVec::from_slice(shape);
        Self {
            mesh: mesh.clone(),
            shape,
            shards: Vec::new(),
            partial: Partials::default(),
            error: None,
        }
    }

    /// Shards a dim over mesh axes, major first, with one part per rank along them.
    pub fn shard(mut self, dim: usize, axes: &[usize], partition: Partition) -> Self {
        self.shards.push((
            dim,
            DimSharding {
                axes: SmallVec::from_slice(axes),
                partition,
            },
        ));
        self
    }

    /// Shards a dim evenly over the product of mesh axes, see [`Partition::balanced`].
    pub fn shard_balanced(mut self, dim: usize, axes: &[usize]) -> Self {
        // An axis given many times would multiply to more parts than a partition can have.
        if let Err(error) = self.mesh.check_axes("layout", axes) {
            self.error.get_or_insert(error);
            return self;
        }
        let parts = axis_sizes(&self.mesh, axes).iter().product();
        let partition = Partition::balanced(self.extent(dim), parts);
        self.shard(dim, axes, partition)
    }

    /// Shards a dim by chunks of chunks, major axis first, see [`Partition::nested_chunk`].
    pub fn shard_chunk(mut self, dim: usize, axes: &[usize]) -> Self {
        if let Err(error) = self.mesh.check_axes("layout", axes) {
            self.error.get_or_insert(error);
            return self;
        }
        let partition = Partition::nested_chunk(self.extent(dim), &axis_sizes(&self.mesh, axes));
        self.shard(dim, axes, partition)
    }

    /// Makes a mesh axis hold terms of a reduction.
    pub fn partial(mut self, axis: usize, op: ReduceOp) -> Self {
        let added = self.partial.add(axis, op);
        self.error = self.error.or(added.err());
        self
    }

    /// The layout.
    ///
    /// # Errors
    /// [`SpecError::DimOutOfRange`], [`SpecError::RepeatedDim`], [`SpecError::AxisOutOfRange`], [`SpecError::RepeatedAxis`],
    /// [`SpecError::PartCount`] and [`SpecError::Extent`] for a partition that does not fit, [`SpecError::MixedPartial`],
    /// [`SpecError::Overflow`].
    pub fn build(self) -> Result<Layout> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let ndim = self.shape.len();
        let mut dims: super::DimShardings = smallvec![None; ndim];
        for (dim, sharding) in self.shards {
            match dims.get_mut(dim) {
                None => {
                    return Err(SpecError::DimOutOfRange {
                        op: "layout",
                        dim,
                        ndim,
                    });
                }
                Some(Some(_)) => return Err(SpecError::RepeatedDim { op: "layout", dim }),
                Some(slot) => *slot = Some(sharding),
            }
        }
        Layout::assemble(&self.mesh, &self.shape, dims, self.partial)
    }

    /// The extent of a dim; 0 beyond the shape, which `build` refuses.
    fn extent(&self, dim: usize) -> usize {
        self.shape.get(dim).copied().unwrap_or(0)
    }
}
