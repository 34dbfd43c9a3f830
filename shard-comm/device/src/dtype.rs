//! Element types: the run-time tag [`DType`], the compile-time trait [`Element`], and untyped [`Scalar`]s.

use std::fmt;

use crate::kernel::half_float::{narrow_f16, widen_f16};
use half::{bf16, f16};

/// The type of a buffer's elements, known at run time.
///
/// ```
/// use shard_device::DType;
/// assert_eq!(DType::F32.size(), 4);
/// assert_eq!(DType::BF16.to_string(), "bf16");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum DType {
    /// IEEE double.
    F64,
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// Brain float: the upper half of a single.
    BF16,
    /// Signed 64-bit integer; sums and products wrap.
    I64,
    /// Signed 32-bit integer; sums and products wrap.
    I32,
    /// Unsigned byte; sums and products wrap.
    U8,
    /// Truth value, stored in one byte: zero is false, anything else true.
    Bool,
}

impl DType {
    /// Every dtype, in declaration order.
    pub const ALL: [Self; 8] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::I64,
        Self::I32,
        Self::U8,
        Self::Bool,
    ];

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::U8 | Self::Bool => 1,
        }
    }

    /// The short name: `f32`, `bf16`, `bool`, ...
    pub const fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::U8 => "u8",
            Self::Bool => "bool",
        }
    }

    /// Whether this is one of the floating-point types.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::BF16)
    }

    /// Whether this is a 16-bit float, whose sums are accumulated in [`DType::F32`] and rounded once.
    pub const fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::BF16)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A Rust type that can be an element of a buffer.
///
/// Implemented for `f64`, `f32`, [`half::f16`], [`half::bf16`], `i64`, `i32`, `u8` and [`Bool`].
///
/// ```
/// use shard_device::{DType, Element};
/// fn dtype_of<T: Element>(_: &[T]) -> DType { T::DTYPE }
/// assert_eq!(dtype_of(&[1.0f32]), DType::F32);
/// assert_eq!(i32::from_f64(3.9), 3);
/// ```
pub trait Element:
    bytemuck::Pod + Send + Sync + fmt::Debug + Default + PartialEq + PartialOrd + 'static
{
    /// The run-time tag of this type.
    const DTYPE: DType;

    /// The value as a double; exact except for large `i64`.
    fn to_f64(self) -> f64;

    /// The nearest value of this type; integers truncate towards zero and saturate, `Bool` tests for non-zero. Doubles become
    /// 16-bit floats by way of `f32`, the same on every machine.
    fn from_f64(value: f64) -> Self;

    /// The value of an untyped scalar in this type.
    fn from_scalar(value: Scalar) -> Self {
        match value {
            Scalar::F64(v) => Self::from_f64(v),
            Scalar::I64(v) => Self::from_i64(v),
            Scalar::Bool(v) => Self::from_f64(f64::from(u8::from(v))),
        }
    }

    /// The nearest value of this type to an integer.
    fn from_i64(value: i64) -> Self;

    /// The value without its type; integers stay exact.
    fn to_scalar(self) -> Scalar;
}

macro_rules! element {
    ($type:ty, $tag:ident, $to:expr, $from:expr, $from_int:expr, $scalar:expr) => {
        impl Element for $type {
            const DTYPE: DType = DType::$tag;
            #[inline]
            fn to_f64(self) -> f64 {
                $to(self)
            }
            #[inline]
            fn from_f64(value: f64) -> Self {
                $from(value)
            }
            #[inline]
            fn from_i64(value: i64) -> Self {
                $from_int(value)
            }
            #[inline]
            fn to_scalar(self) -> Scalar {
                $scalar(self)
            }
        }
    };
}

element!(f64, F64, |v| v, |v| v, |v: i64| v as Self, Scalar::F64);
element!(
    f32,
    F32,
    f64::from,
    |v: f64| v as Self,
    |v: i64| v as Self,
    float
);
// By way of `f32`, which is exact: there are loops over vectors of that.
element!(
    f16,
    F16,
    |v| f64::from(widen_f16(v)),
    |v: f64| narrow_f16(v as f32),
    |v: i64| narrow_f16(v as f32),
    float
);
element!(
    bf16,
    BF16,
    |v: Self| f64::from(v.to_f32()),
    |v: f64| Self::from_f32(v as f32),
    |v: i64| Self::from_f32(v as f32),
    float
);
element!(
    i64,
    I64,
    |v| v as f64,
    |v: f64| v as Self,
    |v| v,
    Scalar::I64
);
element!(i32, I32, f64::from, |v: f64| v as Self, clamp::<Self>, int);
element!(u8, U8, f64::from, |v: f64| v as Self, clamp::<Self>, int);
element!(
    Bool,
    Bool,
    |v: Self| f64::from(u8::from(v.get())),
    |v: f64| Self::new(v != 0.0),
    |v: i64| Self::new(v != 0),
    |v: Self| Scalar::Bool(v.get())
);

fn float(value: impl Element) -> Scalar {
    Scalar::F64(value.to_f64())
}

fn int(value: impl Into<i64>) -> Scalar {
    Scalar::I64(value.into())
}

/// The nearest value of a narrower integer type.
fn clamp<T: num_traits::Bounded + TryFrom<i64>>(value: i64) -> T {
    let end = if value < 0 {
        T::min_value()
    } else {
        T::max_value()
    };
    T::try_from(value).unwrap_or(end)
}

/// A truth value that may live in a buffer: one byte, zero is false.
///
/// ```
/// use shard_device::Bool;
/// assert!(Bool::from(true).get());
/// assert_eq!(Bool::FALSE, Bool::new(false));
/// ```
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct Bool(u8);

impl Bool {
    /// False.
    pub const FALSE: Self = Self(0);
    /// True.
    pub const TRUE: Self = Self(1);

    /// From a Rust `bool`.
    #[inline]
    pub const fn new(value: bool) -> Self {
        Self(value as u8)
    }

    /// As a Rust `bool`.
    #[inline]
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool {
    fn from(value: bool) -> Self {
        Self::new(value)
    }
}

impl From<Bool> for bool {
    fn from(value: Bool) -> Self {
        value.get()
    }
}

// Equality is that of the truth values, not of the bytes: a byte of 2 read from a file is as true as a byte of 1.
impl PartialEq for Bool {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Bool {}

impl PartialOrd for Bool {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Bool {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.get().cmp(&other.get())
    }
}

impl fmt::Debug for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}

/// A value without an element type; it takes the type of the buffer it meets.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scalar {
    /// A floating-point value.
    F64(f64),
    /// An integer, kept exact.
    I64(i64),
    /// A truth value.
    Bool(bool),
}

impl Scalar {
    /// Zero, or false.
    pub const ZERO: Self = Self::I64(0);

    /// The value's bits: those of a fingerprint, which tells every two values of one kind apart.
    pub fn to_bits(self) -> u64 {
        match self {
            Self::F64(v) => v.to_bits(),
            Self::I64(v) => v.cast_unsigned(),
            Self::Bool(v) => u64::from(v),
        }
    }

    /// The value as a double.
    pub fn to_f64(self) -> f64 {
        match self {
            Self::F64(v) => v,
            Self::I64(v) => v as f64,
            Self::Bool(v) => f64::from(u8::from(v)),
        }
    }
}

impl From<f64> for Scalar {
    fn from(value: f64) -> Self {
        Self::F64(value)
    }
}

impl From<i64> for Scalar {
    fn from(value: i64) -> Self {
        Self::I64(value)
    }
}

impl From<bool> for Scalar {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

/// Runs an expression with `$T` bound to the Rust type of a run-time [`DType`].
///
/// ```
/// use shard_device::{dispatch_dtype, DType, Element};
/// let size = dispatch_dtype!(DType::F16, T => std::mem::size_of::<T>());
/// assert_eq!(size, 2);
/// ```
#[macro_export]
macro_rules! dispatch_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F64 => {
                type $T = f64;
                $body
            }
            $crate::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::DType::F16 => {
                type $T = $crate::half::f16;
                $body
            }
            $crate::DType::BF16 => {
                type $T = $crate::half::bf16;
                $body
            }
            $crate::DType::I64 => {
                type $T = i64;
                $body
            }
            $crate::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::DType::U8 => {
                type $T = u8;
                $body
            }
            $crate::DType::Bool => {
                type $T = $crate::Bool;
                $body
            }
        }
    };
}
