//! Maps of one number and of two.

use crate::{Result, ShardTensor};
use shard_comm::DType;
use shard_kernels::unary::Unary;
use shard_ops::elementwise as ops;

/// Methods that are maps of one number.
macro_rules! maps {
    ($($(#[$doc:meta])* $name:ident => $map:expr;)*) => {
        /// Maps of one number: no communication, but that partial operands of non-linear ones are reduced first.
        impl ShardTensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// For types other than `f32` and `f64`; what the communicator reports.
            #[track_caller]
            pub fn $name(&self) -> Result<Self> {
                self.map($map)
            }
        )*}
    };
}

maps! {
    /// `-x`
    neg => Unary::Neg;
    /// `|x|`
    abs => Unary::Abs;
    /// The square root.
    sqrt => Unary::Sqrt;
    /// The reciprocal of the square root.
    rsqrt => Unary::Rsqrt;
    /// `e^x`
    exp => Unary::Exp;
    /// The natural logarithm.
    log => Unary::Log;
    /// The sine.
    sin => Unary::Sin;
    /// The cosine.
    cos => Unary::Cos;
    /// The hyperbolic tangent.
    tanh => Unary::Tanh;
    /// `1 / (1 + e^-x)`
    sigmoid => Unary::Sigmoid;
    /// `max(x, 0)`
    relu => Unary::Relu;
    /// `x Φ(x)`, Φ the standard normal's distribution.
    gelu => Unary::Gelu;
    /// The tanh approximation of gelu.
    gelu_tanh => Unary::GeluTanh;
    /// `x sigmoid(x)`
    silu => Unary::Silu;
    /// `x tanh(ln(1 + e^x))`
    mish => Unary::Mish;
    /// `selu`, with its self-normalising constants.
    selu => Unary::Selu;
    /// `x / (1 + |x|)`
    softsign => Unary::Softsign;
    /// `clamp(x + 3, 0, 6) / 6`
    hardsigmoid => Unary::Hardsigmoid;
    /// `x clamp(x + 3, 0, 6) / 6`
    hardswish => Unary::Hardswish;
    /// `ln sigmoid(x)`
    log_sigmoid => Unary::LogSigmoid;
    /// The error function.
    erf => Unary::Erf;
    /// `x²`
    square => Unary::Square;
    /// `1 / x`
    reciprocal => Unary::Reciprocal;
    /// -1, 0 or 1.
    sign => Unary::Sign;
    /// The largest integer not above.
    floor => Unary::Floor;
}

/// Maps of one number with parameters.
impl ShardTensor {
    /// Any map of one number.
    ///
    /// # Errors
    /// For types other than `f32` and `f64`; what the communicator reports.
    #[track_caller]
    pub fn map(&self, map: Unary) -> Result<Self> {
        self.run(|exec, x| ops::unary(exec, x, map))
    }

    /// `x` above 0, `slope * x` elsewhere.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    #[track_caller]
    pub fn leaky_relu(&self, slope: f64) -> Result<Self> {
        self.map(Unary::LeakyRelu(slope))
    }

    /// `x` above 0, `alpha (e^x - 1)` elsewhere.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    #[track_caller]
    pub fn elu(&self, alpha: f64) -> Result<Self> {
        self.map(Unary::Elu(alpha))
    }

    /// `ln(1 + e^(beta x)) / beta`, and `x` itself where `beta x` is above the threshold. PyTorch's defaults are 1 and 20.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    #[track_caller]
    pub fn softplus(&self, beta: f64, threshold: f64) -> Result<Self> {
        self.map(Unary::Softplus { beta, threshold })
    }

    /// `min(max(x, min), max)`
    ///
    /// # Errors
    /// As [`map`](Self::map).
    #[track_caller]
    pub fn clamp(&self, min: f64, max: f64) -> Result<Self> {
        self.map(Unary::Clamp { min, max })
    }

    /// `x^power`
    ///
    /// # Errors
    /// As [`map`](Self::map).
    #[track_caller]
    pub fn pow_scalar(&self, power: f64) -> Result<Self> {
        self.map(Unary::PowScalar(power))
    }

    /// `x + value`
    ///
    /// # Errors
    /// As [`map`](Self::map).
    #[track_caller]
    pub fn add_scalar(&self, value: f64) -> Result<Self> {
        self.map(Unary::AddScalar(value))
    }

    /// `x * value`
    ///
    /// # Errors
    /// As [`map`](Self::map).
    #[track_caller]
    pub fn mul_scalar(&self, value: f64) -> Result<Self> {
        self.map(Unary::MulScalar(value))
    }

    /// `x / value`, rounded once: not the product with the reciprocal. A partial sum stays partial, unless the value is zero
    /// or not finite.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    #[track_caller]
    pub fn div_scalar(&self, value: f64) -> Result<Self> {
        self.run(|exec, x| ops::div_scalar(exec, x, value))
    }

    /// A number as a tensor of the same type on the same mesh.
    #[track_caller]
    pub(crate) fn number(&self, value: f64) -> Result<Self> {
        self.mesh().full((), value, crate::Placements::replicated())
    }

    /// The same numbers in another type.
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
