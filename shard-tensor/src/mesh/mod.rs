//! A mesh of ranks, and the tensors made on it.

mod data;
mod fill;
mod like;
mod steps;

pub use data::LocalSizes;
pub(crate) use data::check_whole;
pub use steps::Steps;

use crate::{Context, Placements, Result, Shape, ShardTensor};
use shard_comm::Calling;
use shard_comm::DType;
use shard_ops::Measured;
use shard_redistribute::{Array, MeshComm};
use shard_spec::{DeviceMesh, Layout, checked_numel};
use std::fmt;
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

    /// What its links cost and its ranks compute; prints itself. Plans and ways to serve attention are chosen by
    /// `measured.links` after `mesh.comm().planner().set_model(Some(measured.links))`; a [`Simulation`](crate::Simulation)
    /// takes the machine.
    ///
    /// # Collective
    /// All members of the mesh: see [`shard_ops::measure`].
    ///
    /// # Errors
    /// What a communicator or the device reports.
    #[track_caller]
    pub fn measure(&self) -> Result<Measured> {
        let _call = Calling::of("measure");
        Ok(shard_ops::measure(&self.cx)?)
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
    /// # Collective
    /// None: pure layout maths.
    ///
    /// # Errors
    /// As [`Placements::layout`].
    #[track_caller]
    pub fn layout(
        &self,
        shape: impl Into<Shape>,
        placements: impl Into<Placements>,
    ) -> Result<Layout> {
        self.laid_out(&shape.into(), &placements.into())
    }

    /// [`layout`](Self::layout), once for all kinds of arguments.
    #[track_caller]
    fn laid_out(&self, shape: &Shape, placements: &Placements) -> Result<Layout> {
        checked_numel(shape)?;
        placements.layout(self.mesh(), shape)
    }

    #[track_caller]
    fn wrap(&self, array: Array) -> Result<ShardTensor> {
        Ok(ShardTensor::new(&self.ctx, array.into()))
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mesh({}, rank {})", self.mesh(), self.ctx.rank())
    }
}
