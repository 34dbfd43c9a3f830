//! Reductions whose terms may live on different ranks.

use std::fmt;

/// An associative, commutative reduction whose terms may live on different ranks.
///
/// There is no average: a mean is a sum and a global count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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
