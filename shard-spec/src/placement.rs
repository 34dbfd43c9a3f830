//! What one mesh axis does with a tensor: split a dim, copy, or hold terms of a reduction.

use std::fmt;
use std::str::FromStr;

use crate::error::SpecError;

/// An associative, commutative reduction whose terms may live on different ranks.
///
/// There is no average: a mean is a sum and a global count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "String", try_from = "String")
)]
pub enum ReduceOp {
    /// Addition; identity 0.
    Sum,
    /// Multiplication; identity 1.
    Prod,
    /// Greatest value; identity the least value of the type.
    Max,
    /// Least value; identity the greatest value of the type.
    Min,
    /// Logical or; identity false.
    Any,
    /// Logical and; identity true.
    All,
}

impl ReduceOp {
    /// Every reduction, in declaration order.
    pub const ALL: [Self; 6] = [
        Self::Sum,
        Self::Prod,
        Self::Max,
        Self::Min,
        Self::Any,
        Self::All,
    ];

    /// The name used in short forms: `"sum"`, `"prod"`, `"max"`, `"min"`, `"any"` or `"all"`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Any => "any",
            Self::All => "all",
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

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

/// What one mesh axis does with a tensor.
///
/// ```
/// use shard_spec::{Placement, ReduceOp};
/// assert_eq!(Placement::Shard(0).to_string(), "S(0)");
/// assert_eq!("P(sum)".parse::<Placement>()?, Placement::Partial(ReduceOp::Sum));
/// # Ok::<(), shard_spec::SpecError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "String", try_from = "String")
)]
pub enum Placement {
    /// Ranks along the axis hold consecutive parts of this dim.
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

/// Serde goes through the short form, which is readable in any format.
#[cfg(feature = "serde")]
mod text {
    use super::{Placement, ReduceOp, SpecError};

    impl From<ReduceOp> for String {
        fn from(op: ReduceOp) -> Self {
            op.name().to_owned()
        }
    }

    impl TryFrom<String> for ReduceOp {
        type Error = SpecError;

        fn try_from(text: String) -> Result<Self, SpecError> {
            text.parse()
        }
    }

    impl From<Placement> for String {
        fn from(placement: Placement) -> Self {
            placement.to_string()
        }
    }

    impl TryFrom<String> for Placement {
        type Error = SpecError;

        fn try_from(text: String) -> Result<Self, SpecError> {
            text.parse()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placement_prints_and_parses() {
        let all = ReduceOp::ALL
            .map(Placement::Partial)
            .into_iter()
            .chain([Placement::Replicate, Placement::Shard(17)]);
        for placement in all {
            assert_eq!(placement.to_string().parse(), Ok(placement));
        }
    }

    #[test]
    fn junk_is_refused_with_its_text() {
        for junk in [
            "",
            "S",
            "S()",
            "S(x)",
            "S(-1)",
            "P(avg)",
            "R ",
            "s(0)",
            "S(0",
            "S(99999999999999999999)",
        ] {
            match junk.parse::<Placement>() {
                Err(SpecError::Parse { got, .. }) => assert_eq!(got, junk),
                other => panic!("{junk:?} gave {other:?}"),
            }
        }
    }
}
