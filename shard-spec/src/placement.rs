//! What one mesh axis does with a tensor: split a dim, copy, or hold terms of a reduction.

use std::fmt;
use std::str::FromStr;

use crate::error::SpecError;
use crate::reduce_op::ReduceOp;

/// What one mesh axis does with a tensor.
///
/// ```
/// use shard_spec::{Placement, ReduceOp};
/// assert_eq!(Placement::Shard(0).to_string(), "S(0)");
/// assert_eq!("P(sum)".parse::<Placement>()?, Placement::Partial(ReduceOp::Sum));
/// # Ok::<(), shard_spec::SpecError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Placement {
    /// Ranks along the axis hold the parts of this dim.
    Shard(usize),
    /// Ranks along the axis hold copies.
    Replicate,
    /// Ranks along the axis hold terms; the value is their reduction.
    Partial(ReduceOp),
}

impl Placement {
    /// The dim this axis shards.
    pub const fn shard_dim(self) -> Option<usize> {
        match self {
            Self::Shard(dim) => Some(dim),
            Self::Replicate | Self::Partial(_) => None,
        }
    }

    /// The reduction this axis leaves to be done.
    pub const fn partial_op(self) -> Option<ReduceOp> {
        match self {
            Self::Partial(op) => Some(op),
            Self::Replicate | Self::Shard(_) => None,
        }
    }

    /// Whether ranks along this axis hold copies.
    pub const fn is_replicate(self) -> bool {
        matches!(self, Self::Replicate)
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shard(dim) => write!(f, "S({dim})"),
            Self::Replicate => f.write_str("R"),
            Self::Partial(op) => write!(f, "P({op})"),
        }
    }
}

impl FromStr for Placement {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let argument = |prefix: &str| text.strip_prefix(prefix)?.strip_suffix(')');
        let parsed = if text == "R" {
            Some(Self::Replicate)
        } else if let Some(dim) = argument("S(") {
            dim.parse().ok().map(Self::Shard)
        } else if let Some(op) = argument("P(") {
            op.parse().ok().map(Self::Partial)
        } else {
            None
        };
        parsed.ok_or_else(|| SpecError::Parse {
            what: "a placement",
            input: text.to_owned(),
            expected: "S(dim), R or P(op)".to_owned(),
            got: text.to_owned(),
        })
    }
}

/// The short form of a reduction, as it stands in `P(sum)`.
impl FromStr for ReduceOp {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        Self::ALL
            .into_iter()
            .find(|op| op.name() == text)
            .ok_or_else(|| SpecError::Parse {
                what: "a reduction",
                input: text.to_owned(),
                expected: "one of sum, prod, max, min, any, all".to_owned(),
                got: text.to_owned(),
            })
    }
}
