//! Maps of one number and of two.

use crate::{Result, ShardTensor};
use shard_comm::{Call, Calling, DType};
use shard_kernels::unary::Unary;
use shard_ops::elementwise as ops;

/// A method for each row of the table.
macro_rules! methods {
    ($_x:ident; $(
        $(#[$doc:meta])*
        $name:ident: $variant:ident $(($($(#[$_about:meta])* $p:ident = $_default:expr),+))? $(, $_form:ident)? {
            $($_formulas:tt)+
        }
    )*) => {
        /// Maps of one number: no communication, but that partial operands of non-linear ones are reduced first.
        impl ShardTensor {$(
            $(#[$doc])*
            ///
            /// # Collective
            /// All members of the mesh. No communication; a partial tensor is reduced first, unless the map is linear.
            ///
            /// # Errors
            /// As [`map`](Self::map).
            #[track_caller]
            pub fn $name(&self $($(, $p: f64)+)?) -> Result<Self> {
                self.map(Unary::$variant $({ $($p),+ })?)
            }
        )*}
    };
}

shard_kernels::unary_table!(methods);

/// Maps of one number that are not rows of the table.
impl ShardTensor {
    /// Any map of one number.
    ///
    /// # Collective
    /// All members of the mesh. No communication; a partial tensor is reduced first, unless the map is linear.
    ///
    /// # Errors
    /// For types other than `f32` and `f64`; what the communicator reports.
    #[track_caller]
    pub fn map(&self, map: Unary) -> Result<Self> {
        self.run(|exec, x| ops::unary(exec, x, map))
    }

    /// `x / value`, rounded once: not the product with the reciprocal. A partial sum stays partial, unless the value is zero
    /// or not finite.
    ///
    /// # Collective
    /// All members of the mesh. No communication; a partial tensor is reduced first, unless the map is linear.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    #[track_caller]
    pub fn div_scalar(&self, value: f64) -> Result<Self> {
        // The number is no attribute of the op, which divides by a tensor.
        let _call = Calling::of("div_scalar");
        let x = self.value();
        let call = Call::new("div_scalar").with(value.to_bits().into());
        let call = call.of(self.dtype(), self.layout());
        x.array().cx().record(call.reading(&[x.array().number()]));
        self.run(|exec, x| ops::div_scalar(exec, x, value))
    }

    /// A number as a tensor of the same type on the same mesh.
    #[track_caller]
    pub(crate) fn number(&self, value: f64) -> Result<Self> {
        self.mesh().full((), value, crate::Placements::replicated())
    }

    /// The same numbers in another type.
    ///
    /// # Collective
    /// All members of the mesh. No communication; a partial tensor is reduced first where the conversion is not
    /// linear.
    ///
    /// # Errors
    /// For types other than `f32` and `f64`.
    #[track_caller]
    pub fn to(&self, dtype: DType) -> Result<Self> {
        self.run(|exec, x| ops::cast(exec, x, dtype))
    }
}

/// Methods that are maps of two numbers.
macro_rules! binaries {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// Maps of two numbers. Shapes broadcast as in NumPy. Where layouts differ the smaller operand moves, unless
        /// [moves are explicit](crate::Context::explicit_moves).
        impl ShardTensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// If shapes do not broadcast or types differ; what the communicator reports.
            #[track_caller]
            pub fn $name(&self, other: &Self) -> Result<Self> {
                self.run2(other, ops::$name)
            }
        )*}
    };
}

binaries! {
    /// `x + y`
    add;
    /// `x - y`
    sub;
    /// `x * y`
    mul;
    /// `x / y`
    div;
    /// `x^y`
    pow;
    /// The greater; NaN if either is.
    maximum;
    /// The lesser; NaN if either is.
    minimum;
    /// 1 where `x > y`, else 0.
    gt;
    /// 1 where `x >= y`, else 0.
    ge;
    /// 1 where `x < y`, else 0.
    lt;
    /// 1 where `x <= y`, else 0.
    le;
    /// 1 where `x == y`, else 0.
    eq;
    /// 1 where `x != y`, else 0.
    ne;
}
