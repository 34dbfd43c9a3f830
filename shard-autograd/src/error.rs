//! What can go wrong when derivatives are taken.

use shard_comm::{CommError, DType, DeviceError, ErrorClass};
use shard_ops::OpError;
use shard_redistribute::RedistributeError;
use shard_spec::SpecError;
use std::fmt;

/// Shorthand for results of this crate.
pub type Result<T, E = AutogradError> = std::result::Result<T, E>;

/// Why a derivative could not be taken.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AutogradError {
    /// An op failed, forward or in a vjp.
    #[error(transparent)]
    Op(#[from] OpError),
    /// An array could not be moved.
    #[error(transparent)]
    Redistribute(#[from] RedistributeError),
    /// A layout is impossible.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The device or the communicator reported an error.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// A value that no tape knows, where one on the tape was expected.
    #[error("{op}: {what} is not on this tape; {fix}")]
    NotTracked {
        /// The call.
        op: &'static str,
        /// Which argument.
        what: String,
        /// What to do instead.
        fix: &'static str,
    },
    /// An array that cannot replace that of a leaf.
    #[error(
        "{op}: the leaf is {expected}, the array {got}; a leaf keeps its type, shape and layout, so move the array \
         there first"
    )]
    Leaf {
        /// The call.
        op: &'static str,
        /// What the leaf is.
        expected: String,
        /// What the array is.
        got: String,
    },
    /// Derivatives are wanted for the inputs of a function of pieces, but its results do not depend on them on the tape.
    #[error(
        "{op}: no path on the tape leads from {from} to {to}, so its gradient would be lost; use ops, write the \
         derivative by hand (`map_local_with_grad`), or call it in `no_grad` or with the input detached if none is wanted"
    )]
    OffTape {
        /// The call.
        op: &'static str,
        /// Where the path should begin.
        from: String,
        /// Where it should end.
        to: String,
    },
    /// Only a one-element value has a default seed.
    #[error(
        "{op}: a value of shape {shape:?} has no default seed; reduce it to one element first (sum, mean), \
         or pass a seed of its shape"
    )]
    SeedNeeded {
        /// The call.
        op: &'static str,
        /// The value's global shape.
        shape: Vec<usize>,
    },
    /// A cotangent must have the shape and type of its value.
    #[error(
        "{op}: {what} has shape {got_shape:?} and type {got_dtype}, expected {shape:?} and {dtype}; {fix}"
    )]
    Cotangent {
        /// The call, or the op whose vjp made the cotangent.
        op: &'static str,
        /// Which cotangent.
        what: String,
        /// The value's shape.
        shape: Vec<usize>,
        /// The value's type.
        dtype: DType,
        /// The cotangent's shape.
        got_shape: Vec<usize>,
        /// The cotangent's type.
        got_dtype: DType,
        /// What to do about it.
        fix: &'static str,
    },
    /// A list has the wrong number of entries.
    #[error("{op}: expected {expected} {what}, got {got}; {fix}")]
    Count {
        /// The call, or the op whose vjp made the list.
        op: &'static str,
        /// What was counted.
        what: &'static str,
        /// How many there must be.
        expected: usize,
        /// How many there are.
        got: usize,
        /// What to do about it.
        fix: &'static str,
    },
    /// Values of this type have no derivative.
    #[error(
        "{op}: {dtype} values have no derivative, expected {expected}; convert it with `.to()` first"
    )]
    NotDifferentiable {
        /// The call.
        op: &'static str,
        /// What the call takes.
        expected: &'static str,
        /// What it was given.
        dtype: DType,
    },
    /// A tracked piece of a value whose reduction has no derivative in its pieces.
    #[error(
        "{op}: piece {piece} is tracked, but no rank knows which of the pieces decides a value {layout}; detach the \
         piece, or reduce with an op"
    )]
    Reduction {
        /// The call.
        op: &'static str,
        /// Which piece.
        piece: usize,
        /// The layout of the value.
        layout: String,
    },
    /// A checkpointed function did something else when it ran again.
    #[error(
        "recompute: the function gave {what} when it was run again; make it a function of its inputs alone"
    )]
    Recompute {
        /// What differed.
        what: String,
    },
    /// The tape and finite differences disagree.
    #[error(transparent)]
    GradMismatch(Box<GradMismatch>),
    /// A layout that a check cannot perturb.
    #[error("{op}: cannot perturb input {input} with layout {layout}; {fix}")]
    Perturb {
        /// The check.
        op: &'static str,
        /// Which input.
        input: usize,
        /// Its layout.
        layout: String,
        /// What to do instead.
        fix: &'static str,
    },
    /// A function or hook handed in by the caller failed in its own way.
    #[error("{message}")]
    External {
        /// What it said.
        message: String,
        /// Who learns of the failure.
        class: ErrorClass,
    },
}

impl AutogradError {
    /// Which of the three classes this error belongs to: decided by layouts and arguments alone (the same on
    /// all ranks), agreed among ranks, or a failure of the group.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Op(e) => e.class(),
            Self::Redistribute(e) => e.class(),
            Self::Comm(e) => e.class(),
            Self::External { class, .. } => *class,
            // Only the rank itself knows which ops it applied.
            Self::OffTape { .. } => ErrorClass::Agreed,
            _ => ErrorClass::Uniform,
        }
    }

    /// The error of a caller's own function, which keeps its class.
    pub fn external(error: impl fmt::Display, class: ErrorClass) -> Self {
        Self::External {
            message: error.to_string(),
            class,
        }
    }
}

/// The element at which a gradient differs most from finite differences.
///
/// ```
/// use shard_autograd::GradMismatch;
/// let m = GradMismatch { op: "gradcheck", input: 1, index: vec![0, 3], analytic: 2.0, numeric: 3.0, bound: 1e-5 };
/// assert!(m.to_string().contains("input 1 at [0, 3]"));
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "{op}: input {input} at {index:?}: the tape gives {analytic}, finite differences {numeric}, more than {bound} \
     apart; see the op's vjp, or whether the function is smooth there"
)]
pub struct GradMismatch {
    /// The check.
    pub op: &'static str,
    /// Which input.
    pub input: usize,
    /// The element's global index.
    pub index: Vec<usize>,
    /// What the tape gives.
    pub analytic: f64,
    /// What central differences give.
    pub numeric: f64,
    /// How far apart they may be.
    pub bound: f64,
}

impl From<DeviceError> for AutogradError {
    fn from(error: DeviceError) -> Self {
        Self::Comm(error.into())
    }
}
