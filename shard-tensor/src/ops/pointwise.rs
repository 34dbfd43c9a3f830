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
    /// For types other than `f32` and `f64`, and integers where the map does not stay with them; what the communicator reports.
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

    /// `x - value`
    ///
    /// # Collective
    /// As [`add_scalar`](Self::add_scalar).
    ///
    /// # Errors
    /// As [`map`](Self::map); a number that integers do not hold.
    #[track_caller]
    pub fn sub_scalar(&self, value: f64) -> Result<Self> {
        self.run(|exec, x| ops::sub_scalar(exec, x, value))
    }

    /// A number as a tensor of the same type on the same mesh.
    #[track_caller]
    pub(crate) fn number(&self, value: f64) -> Result<Self> {
        self.mesh().full((), value, crate::Placements::replicated())
    }

    /// The same numbers in another type: the nearest float; an integer towards zero, at most as far from it as the type
    /// reaches, and 0 for NaN; and as `bool`, whether they are not zero.
    ///
    /// # Collective
    /// All members of the mesh. No communication; a partial tensor is reduced first.
    ///
    /// # Errors
    /// What the communicator or the device reports.
    ///
    /// ```
    /// use shard_tensor::{DType, launch, shard};
    /// let same = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let guesses = mesh.from_fn([5], [shard(0)], |i| (i[0] % 3) as f64)?.to(DType::I64)?;
    ///     let labels = mesh.with_dtype(DType::I64).arange(5, [shard(0)])?;
    ///     guesses.eq(&labels)?.to(DType::F32)?.mean_all()?.item()
    /// })?;
    /// assert!((same[0] - 0.6).abs() < 1e-6);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn to(&self, dtype: DType) -> Result<Self> {
        self.run(|exec, x| ops::cast(exec, x, dtype))
    }
}

/// Methods that are maps of two numbers.
macro_rules! binaries {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// Maps of two numbers of one type. Shapes broadcast as in NumPy. Where layouts differ the smaller operand moves,
        /// unless [moves are explicit](crate::Context::explicit_moves). Integers wrap, as in PyTorch; truth values are added
        /// by "or" and multiplied by "and".
        impl ShardTensor {$(
            $(#[$doc])*
            ///
            /// # Collective
            /// All members of the mesh. Communicates to align misaligned operands.
            ///
            /// # Errors
            /// If shapes do not broadcast; if types differ, or have no such map: [`to`](Self::to) converts. What the
            /// communicator reports.
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
    /// `x / y`; of integers and truth values the true quotient, in `f32`.
    div;
    /// The largest whole number not above `x / y`, of integers 0 where `y` is 0. It has no gradient.
    floor_div;
    /// What [`floor_div`](Self::floor_div) leaves, with the sign of `y`; of integers 0 where `y` is 0.
    remainder;
    /// `x^y`; of integers to negative powers 0, but for those of 1 and -1.
    pow;
    /// The greater; NaN if either is.
    maximum;
    /// The lesser; NaN if either is.
    minimum;
    /// The bits that both have, of integers and truth values.
    bitwise_and;
    /// The bits that either has, of integers and truth values.
    bitwise_or;
    /// The bits that one of the two has, of integers and truth values.
    bitwise_xor;
    /// The bits of integers moved up by `y`: 0 where that is below 0 or as many as there are.
    shift_left;
    /// The bits of integers moved down by `y`, the sign staying: only the sign where that is below 0 or as many as there are.
    shift_right;
}

impl ShardTensor {
    /// The bits that integers lack; the contrary of truth values.
    ///
    /// # Collective
    /// All members of the mesh. No communication; a partial tensor is reduced first.
    ///
    /// # Errors
    /// For floats.
    #[track_caller]
    pub fn bitwise_not(&self) -> Result<Self> {
        self.run(ops::bitwise_not)
    }
}
