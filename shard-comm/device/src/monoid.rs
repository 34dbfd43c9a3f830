//! Monoids: the operations that combine values of several ranks.

use std::fmt;

use shard_spec::ReduceOp;

use crate::{DType, DeviceError, Result, Scalar};

/// An associative operation with an identity, on groups of [`Monoid::width`] neighbouring elements.
///
/// | monoid | group | merge |
/// |---|---|---|
/// | `Op` | one value | the operation; maxima and minima propagate NaN; for truth values `Sum` is "or" and `Prod` is "and" |
/// | `Moments` | count, mean, sum of squared deviations | Chan's update, exact where sums of squares cancel |
/// | `MaxSumExp` | maximum, sum of exp(value - maximum) | rescale to the greater maximum |
/// | `ArgMax`, `ArgMin` | value, global index | the better value, NaN before all; the lower index on ties |
///
/// The index of `ArgMax` and `ArgMin` is held in the value's own type, so in `f32` it is exact up to 2^24.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Monoid {
    /// One value at a time.
    Op(ReduceOp),
    /// Triples (count, mean, M2).
    Moments,
    /// Pairs (max, sum of exponentials relative to it).
    MaxSumExp,
    /// Pairs (value, index), greatest value.
    ArgMax,
    /// Pairs (value, index), least value.
    ArgMin,
}

impl Monoid {
    /// Addition.
    pub const SUM: Self = Self::Op(ReduceOp::Sum);
    /// Greatest value.
    pub const MAX: Self = Self::Op(ReduceOp::Max);
    /// Least value.
    pub const MIN: Self = Self::Op(ReduceOp::Min);

    /// Elements per group.
    pub const fn width(self) -> usize {
        match self {
            Self::Op(_) => 1,
            Self::Moments => 3,
            Self::MaxSumExp | Self::ArgMax | Self::ArgMin => 2,
        }
    }

    /// A name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Op(ReduceOp::Sum) => "sum",
            Self::Op(ReduceOp::Prod) => "prod",
            Self::Op(ReduceOp::Max) => "max",
            Self::Op(ReduceOp::Min) => "min",
            Self::Op(ReduceOp::Any) => "any",
            Self::Op(ReduceOp::All) => "all",
            Self::Moments => "moments",
            Self::MaxSumExp => "max-sum-exp",
            Self::ArgMax => "argmax",
            Self::ArgMin => "argmin",
        }
    }

    /// The group that changes nothing when it is merged with another, as one scalar per element of the group.
    pub fn identity(self, dtype: DType) -> &'static [Scalar] {
        const ZERO: Scalar = Scalar::I64(0);
        const ONE: Scalar = Scalar::I64(1);
        const HIGHEST: Scalar = Scalar::F64(f64::INFINITY);
        const LOWEST: Scalar = Scalar::F64(f64::NEG_INFINITY);
        const MOST: Scalar = Scalar::I64(i64::MAX);
        const LEAST: Scalar = Scalar::I64(i64::MIN);
        // Integers clamp i64::MAX and i64::MIN to their own range.
        let float = dtype.is_float();
        match self {
            Self::Op(ReduceOp::Sum | ReduceOp::Any) => &[ZERO],
            Self::Op(ReduceOp::Prod | ReduceOp::All) => &[ONE],
            Self::Op(ReduceOp::Max) if float => &[LOWEST],
            Self::Op(ReduceOp::Min) if float => &[HIGHEST],
            Self::Op(ReduceOp::Max) if dtype == DType::Bool => &[ZERO],
            Self::Op(ReduceOp::Max) => &[LEAST],
            Self::Op(ReduceOp::Min) => &[MOST],
            Self::Moments => &[ZERO, ZERO, ZERO],
            Self::MaxSumExp => &[LOWEST, ZERO],
            Self::ArgMax if float => &[LOWEST, HIGHEST],
            Self::ArgMin if float => &[HIGHEST, HIGHEST],
            Self::ArgMax => &[LEAST, MOST],
            Self::ArgMin => &[MOST, MOST],
        }
    }

    /// Checks that the monoid can combine values of a type.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for statistics of integers, and for indices in truth values or 16-bit floats.
    pub fn check(self, dtype: DType) -> Result<()> {
        let (fits, expected) = match self {
            Self::Op(_) => (true, "any type"),
            Self::Moments | Self::MaxSumExp => (dtype.is_float(), "a float type"),
            Self::ArgMax | Self::ArgMin => (
                !dtype.is_half() && !matches!(dtype, DType::Bool | DType::U8),
                "f64, f32, i64 or i32, which can hold an index",
            ),
        };
        if fits {
            return Ok(());
        }
        Err(DeviceError::invalid(
            self.name(),
            expected,
            dtype.name(),
            "convert the values first",
        ))
    }

    /// Whether folds of 16-bit floats accumulate in `f32` and round once. Exact operations need not.
    pub fn accumulates(self) -> bool {
        matches!(
            self,
            Self::Op(ReduceOp::Sum | ReduceOp::Prod) | Self::Moments | Self::MaxSumExp
        )
    }
}

impl From<ReduceOp> for Monoid {
    fn from(op: ReduceOp) -> Self {
        Self::Op(op)
    }
}

impl fmt::Display for Monoid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
