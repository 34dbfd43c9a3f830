//! Comparisons and logic.

use crate::{Result, ShardTensor};
use shard_comm::Calling;
use shard_ops::elementwise as ops;

/// Methods that compare, each with tensors and with numbers.
macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident, $(#[$number_doc:meta])* $with_number:ident;)*) => {
        /// Comparisons: the result is `bool`, `true` or `false` per element. Shapes broadcast as in NumPy. With
        /// [`to`](Self::to) it is 1 or 0 in another type; [`any`](Self::any), [`all`](Self::all) and
        /// [`count_nonzero`](Self::count_nonzero) reduce it, [`where_`](Self::where_) and [`masked_fill`](Self::masked_fill)
        /// choose by it.
        impl ShardTensor {$(
            $(#[$doc])*
            ///
            /// # Collective
            /// All members of the mesh. Communicates to align misaligned operands; partial ones are reduced first.
            ///
            /// # Errors
            /// If shapes do not broadcast; if types differ: [`to`](Self::to) converts. What the communicator reports.
            #[track_caller]
            pub fn $name(&self, other: &Self) -> Result<Self> {
                self.run2(other, ops::$name)
            }

            $(#[$number_doc])*
            ///
            /// # Collective
            /// All members of the mesh. No communication; a partial tensor is reduced first.
            ///
            /// # Errors
            /// For numbers that integers do not hold; what the communicator reports.
            #[track_caller]
            pub fn $with_number(&self, value: f64) -> Result<Self> {
                self.run(|exec, x| ops::$name(exec, x, &ops::number(stringify!($name), x, value)?))
            }
        )*}
    };
}

comparisons! {
    /// Whether `x > y`.
    gt,
    /// Whether `x > value`.
    gt_scalar;
    /// Whether `x >= y`.
    ge,
    /// Whether `x >= value`.
    ge_scalar;
    /// Whether `x < y`.
    lt,
    /// Whether `x < value`.
    lt_scalar;
    /// Whether `x <= y`.
    le,
    /// Whether `x <= value`.
    le_scalar;
    /// Whether `x == y`; NaN equals nothing.
    eq,
    /// Whether `x == value`.
    eq_scalar;
    /// Whether `x != y`.
    ne,
    /// Whether `x != value`.
    ne_scalar;
}

/// Methods of logic on two tensors.
macro_rules! logic {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// Logic: whatever is not zero is true, and the result is `bool`.
        impl ShardTensor {$(
            $(#[$doc])*
            ///
            /// # Collective
            /// As [`eq`](Self::eq).
            ///
            /// # Errors
            /// As [`eq`](Self::eq).
            #[track_caller]
            pub fn $name(&self, other: &Self) -> Result<Self> {
                self.run2(other, ops::$name)
            }
        )*}
    };
}

logic! {
    /// Whether both are true.
    logical_and;
    /// Whether either is true.
    logical_or;
    /// Whether just one of the two is true.
    logical_xor;
}

impl ShardTensor {
    /// Whether an element is zero, that is, not true.
    ///
    /// # Collective
    /// All members of the mesh. No communication; a partial tensor is reduced first.
    ///
    /// # Errors
    /// What the communicator reports.
    #[track_caller]
    pub fn logical_not(&self) -> Result<Self> {
        let _call = Calling::of("logical_not");
        self.run(ops::logical_not)
    }
}
