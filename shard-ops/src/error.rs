//! Errors of applying an op.

use shard_comm::{Calling, CommError, DType, DeviceError, ErrorClass};
use shard_redistribute::RedistributeError;
use shard_spec::SpecError;
use std::fmt;

/// Shorthand for results of this crate.
pub type Result<T, E = OpError> = std::result::Result<T, E>;

/// Why an op could not be applied.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// Shapes, attributes or their combination make no sense for the op.
    #[error("{op}: {problem} (operand shapes {shapes:?}); {fix}")]
    Shape {
        /// The op.
        op: &'static str,
        /// What does not fit.
        problem: String,
        /// The global shapes of the operands.
        shapes: Vec<Vec<usize>>,
        /// What to do instead.
        fix: &'static str,
    },
    /// An operand has a type that the op does not take.
    #[error(
        "{op}: operand {operand} is {got}, expected {expected}; convert it first: `cast`, or `.to()` of a tensor"
    )]
    DType {
        /// The op.
        op: &'static str,
        /// Position of the operand.
        operand: usize,
        /// What the op takes.
        expected: String,
        /// What it was given.
        got: DType,
    },
    /// A number does not fit the type of the result.
    #[error(
        "{op}: {value:?} is no {dtype}; give a number that the type holds, or take another type"
    )]
    Value {
        /// The op.
        op: &'static str,
        /// The number.
        value: f64,
        /// The type.
        dtype: DType,
    },
    /// The op takes a different number of operands, or gives a different number of results.
    #[error("{op}: expected {}, got {got}", counted(expected))]
    Arity {
        /// The op.
        op: &'static str,
        /// How many there are to be: a number of operands, or what and how many in words.
        expected: String,
        /// How many there are.
        got: usize,
    },
    /// Operands live on different meshes.
    #[error(
        "{op}: operand {operand} lives on another mesh than operand 0; move it to that mesh first (`to_mesh`)"
    )]
    Meshes {
        /// The op.
        op: &'static str,
        /// Position of the operand.
        operand: usize,
    },
    /// Moves must be explicit, and the op would have to move an operand.
    #[error(
        "{op}: operand {operand} with layout {layout} would have to move, and moves are explicit here; \
         redistribute it first, to {wanted}"
    )]
    ImplicitMove {
        /// The op.
        op: &'static str,
        /// Position of the operand.
        operand: usize,
        /// The layout it has.
        layout: String,
        /// The layout that the op's strategy wants.
        wanted: String,
    },
    /// The result is [pinned](crate::Pin) to a layout, and no strategy leaves it there.
    #[error(
        "{op}: its result is pinned to {wanted}, and can be {}; pin it to one of these, or redistribute the result",
        possible.join(" or ")
    )]
    Pinned {
        /// The op.
        op: &'static str,
        /// The layout the result was to have.
        wanted: String,
        /// The layouts it would have by the strategies that the operands suggest.
        possible: Vec<String>,
    },
    /// The op has no derivative with respect to one of its operands. Some gradients, such as those that a program wrote by hand, cannot be
    /// differentiated again.
    #[error(
        "{op}: has no derivative with respect to operand {operand}; detach it first, or, for second derivatives, write what it \
         is the gradient of with ops that have them"
    )]
    NoVjp {
        /// The op.
        op: &'static str,
        /// Position of the operand.
        operand: usize,
    },
    /// An operand belongs to another tape than the one that is to record the op.
    #[error(
        "{op}: operand {operand} is on another tape; apply the op by the recorder that made the operand, or detach it first"
    )]
    OtherTape {
        /// The op.
        op: &'static str,
        /// Position of the operand.
        operand: usize,
    },
    /// The op has no kernel for the device its operands are on.
    #[error(
        "{op}: has no kernel for {device}; move the operands to the host, or let the engine fall back to it"
    )]
    NoKernel {
        /// The op.
        op: &'static str,
        /// The device.
        device: String,
    },
    /// An operand has a layout and no data: a tape keeps only the layout of operands that the op's vjp does not look at.
    #[error(
        "{op}: operand {operand} has only a layout; have the op whose vjp this is keep its elements"
    )]
    NoData {
        /// The op.
        op: &'static str,
        /// Position of the operand.
        operand: usize,
    },
    /// Ranks that hold copies of one piece found different numbers of rows in it.
    #[error(
        "{op}: ranks {} and {} hold copies of one piece and found {} and {} rows in it; give copies the same elements",
        ranks[0], ranks[1], rows[0], rows[1]
    )]
    Copies {
        /// The op.
        op: &'static str,
        /// The two ranks.
        ranks: [usize; 2],
        /// What each found.
        rows: [usize; 2],
    },
    /// Elements stand for indices that there are not.
    #[error(
        "{op}: elements from {least} to {most} are to be indices of {extent}; give some of 0 or more and below {extent}, or clamp them"
    )]
    OutOfRange {
        /// The op.
        op: &'static str,
        /// The least element.
        least: i64,
        /// The greatest.
        most: i64,
        /// How many indices there are.
        extent: usize,
    },
    /// Groups of rows do not end one behind the other, within the rows.
    #[error(
        "{op}: group {group} ends at {end}, and the one before at {before}, of {rows} in all; give offsets that ascend to at most {rows}, such \
         as the cumulative sums of the groups' sizes"
    )]
    Offsets {
        /// The op.
        op: &'static str,
        /// The first group that ends in front of the one before, or behind all rows.
        group: usize,
        /// Where the one before ends, or 0.
        before: i64,
        /// Where it ends.
        end: i64,
        /// How many rows there are.
        rows: usize,
    },
    /// An array could not be moved.
    #[error("{}", named(op, source))]
    Redistribute {
        /// The op.
        op: &'static str,
        /// What happened.
        source: Box<RedistributeError>,
    },
    /// A layout or window is impossible.
    #[error("{}", named(op, source))]
    Spec {
        /// The op.
        op: &'static str,
        /// What happened.
        source: Box<SpecError>,
    },
    /// The device or the communicator reported an error.
    #[error("{}", named(op, source))]
    Comm {
        /// The op.
        op: &'static str,
        /// What happened.
        source: Box<CommError>,
    },
}

impl OpError {
    /// An operand of a type that the op does not take: of what it [expected](Self::DType), and what it got.
    ///
    /// ```
    /// use shard_comm::DType;
    /// use shard_ops::OpError;
    /// let error = OpError::dtype("blur", 1, "f32 or f64", DType::I64);
    /// assert!(error.to_string().starts_with("blur: operand 1 is i64, expected f32 or f64"));
    /// ```
    pub fn dtype(
        op: &'static str,
        operand: usize,
        expected: impl Into<String>,
        got: DType,
    ) -> Self {
        Self::DType {
            op,
            operand,
            expected: expected.into(),
            got,
        }
    }

    /// A wrong number of operands or results: how many there are to be, as a number of operands or in words, and how many there are.
    ///
    /// ```
    /// use shard_ops::OpError;
    /// assert_eq!(OpError::arity("blur", "2", 1).to_string(), "blur: expected 2 operands, got 1");
    /// ```
    pub fn arity(op: &'static str, expected: impl Into<String>, got: usize) -> Self {
        Self::Arity {
            op,
            expected: expected.into(),
            got,
        }
    }

    /// Which of the three classes this error belongs to: decided by layouts alone (the same on all ranks),
    /// agreed among ranks, or a failure of the group.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Comm { source, .. } => source.class(),
            Self::Redistribute { source, .. } => source.class(),
            Self::Copies { .. } | Self::OutOfRange { .. } | Self::Offsets { .. } => {
                ErrorClass::Agreed
            }
            _ => ErrorClass::Uniform,
        }
    }
}

/// What was expected: operands, where it is only a number.
fn counted(expected: &str) -> String {
    match expected.parse::<usize>() {
        Ok(1) => "1 operand".to_owned(),
        Ok(n) => format!("{n} operands"),
        Err(_) => expected.to_owned(),
    }
}

/// The text of an error of a crate below, after the op's name unless it begins with that.
fn named(op: &str, source: &dyn fmt::Display) -> String {
    let said = source.to_string();
    let behind = said.strip_prefix(op).unwrap_or_default();
    match [": ", " on rank ", " ("]
        .iter()
        .any(|begin| behind.starts_with(begin))
    {
        true => said,
        false => format!("{op}: {said}"),
    }
}

/// Adds an op's name to errors of the crates below, for use in the rule of an op.
///
/// ```
/// use shard_ops::InOp;
/// let window = shard_spec::Window::conv(0, 1, 1, 0, 0).in_op("blur");
/// assert!(window.unwrap_err().to_string().starts_with("blur: "));
/// ```
pub trait InOp<T> {
    /// The same result, with errors that name `op`.
    ///
    /// # Errors
    /// The error of `self`, if it is one.
    fn in_op(self, op: &'static str) -> Result<T>;
}

impl<T> InOp<T> for Result<T, SpecError> {
    fn in_op(self, op: &'static str) -> Result<T> {
        self.map_err(|e| OpError::Spec {
            op,
            source: Box::new(e),
        })
    }
}

impl<T> InOp<T> for Result<T, CommError> {
    #[inline]
    fn in_op(self, op: &'static str) -> Result<T> {
        self.map_err(|e| of_comm(op, e))
    }
}

impl<T> InOp<T> for Result<T, DeviceError> {
    #[inline]
    fn in_op(self, op: &'static str) -> Result<T> {
        self.map_err(|e| of_comm(op, e.into()))
    }
}

impl<T> InOp<T> for Result<T, RedistributeError> {
    #[inline]
    fn in_op(self, op: &'static str) -> Result<T> {
        self.map_err(|e| of_redistribute(op, e))
    }
}

// Errors are rare: what makes them is not compiled into every op's way.
#[cold]
fn of_comm(op: &'static str, e: CommError) -> OpError {
    OpError::Comm {
        op: called(op),
        source: Box::new(e),
    }
}

#[cold]
fn of_redistribute(op: &'static str, e: RedistributeError) -> OpError {
    OpError::Redistribute {
        op: called(op),
        source: Box::new(e),
    }
}

/// The method that the program called, where that is known; this op if not.
fn called(op: &'static str) -> &'static str {
    Calling::method().unwrap_or(op)
}
