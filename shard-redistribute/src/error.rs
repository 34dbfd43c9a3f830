//! What can go wrong when arrays are made and moved.

use shard_comm::{CommError, DType, DeviceError, ErrorClass};
use shard_spec::{Layout, SpecError};

/// Shorthand for results of this crate.
pub type Result<T, E = RedistributeError> = std::result::Result<T, E>;

/// Why an array could not be made or moved.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedistributeError {
    /// The layout itself is impossible.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The communicator reported an error.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// Source and destination do not describe the same global tensor.
    #[error(transparent)]
    Incompatible(Box<Incompatible>),
    /// The layouts share boundaries in too few places: the move would be cut into more pieces than a rank can list.
    #[error(transparent)]
    TooManyPieces(Box<TooManyPieces>),
    /// An array's local data does not have the type that was asked for.
    #[error("{op}: the array holds {got}, not {expected}; convert it first or read it as {got}")]
    DType {
        /// The operation that was asked for.
        op: &'static str,
        /// The type that was asked for.
        expected: DType,
        /// The type the array has.
        got: DType,
    },
    /// The layout's mesh is not the mesh of the given communicators.
    #[error(
        "{op}: the layout lives on another mesh than the communicators; build a MeshComm for its mesh"
    )]
    OtherMesh {
        /// The operation that was asked for.
        op: &'static str,
    },
    /// A rank was named that the program, or the mesh that a plan is made on, does not have.
    #[error("{op}: there is no rank {rank} among {size}; name a rank below {size}")]
    NoSuchRank {
        /// The operation that was asked for.
        op: &'static str,
        /// The rank named.
        rank: usize,
        /// The number of ranks there are.
        size: usize,
    },
    /// A value was read on a rank that holds none of it.
    #[error("{op}: rank {rank} is not a member of the tensor's mesh; read it on a member rank")]
    NotMember {
        /// The operation that was asked for.
        op: &'static str,
        /// This rank in the world.
        rank: usize,
    },
}

/// A move that cannot be made.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{op}: cannot go from {from:?} to {to:?}: {why}; {fix}")]
pub struct Incompatible {
    /// The operation that was asked for.
    pub op: &'static str,
    /// The source layout.
    pub from: Layout,
    /// The destination layout.
    pub to: Layout,
    /// What does not fit.
    pub why: &'static str,
    /// What to do instead.
    pub fix: &'static str,
}

/// A move of more pieces than a plan may have.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "{op}: from {from} to {to} {:?} one rank would read or send up to {pieces} pieces, expected at most {most}; use fewer, longer tiles, or move through a contiguous layout", to.shape()
)]
pub struct TooManyPieces {
    /// The operation that was asked for.
    pub op: &'static str,
    /// The source layout.
    pub from: Layout,
    /// The destination layout.
    pub to: Layout,
    /// A bound on the pieces that one rank would read or send; `usize::MAX` where it does not fit.
    pub pieces: usize,
    /// The most that is planned.
    pub most: usize,
}

impl RedistributeError {
    /// Which of the three classes this error belongs to: decided by layouts alone (the same on all ranks),
    /// agreed among ranks, or a failure of the group.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Comm(e) => e.class(),
            _ => ErrorClass::Uniform,
        }
    }
}

impl From<DeviceError> for RedistributeError {
    fn from(error: DeviceError) -> Self {
        Self::Comm(error.into())
    }
}
