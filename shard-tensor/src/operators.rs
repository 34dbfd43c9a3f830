//! `+ - * /`, `+= -= *= /=` and unary `-`.
//!
//! Operators cannot return a `Result`: on an error they panic with its message. The methods of the same meaning
//! return it.

use crate::{Error, Result, ShardTensor};
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Sub, SubAssign};

/// What may stand on the right of an operator: a tensor, by reference or by value, or a number, which takes the tensor's
/// type.
pub trait Operand {
    /// `left + self`
    #[doc(hidden)]
    fn add_to(self, left: &ShardTensor) -> Result<ShardTensor>;
    /// `left - self`
    #[doc(hidden)]
    fn subtract_from(self, left: &ShardTensor) -> Result<ShardTensor>;
    /// `left * self`
    #[doc(hidden)]
    fn multiply(self, left: &ShardTensor) -> Result<ShardTensor>;
    /// `left / self`
    #[doc(hidden)]
    fn divide(self, left: &ShardTensor) -> Result<ShardTensor>;
}

macro_rules! tensors {
    ($($tensor:ty)*) => {$(
        impl Operand for $tensor {
            #[track_caller]
            fn add_to(self, left: &ShardTensor) -> Result<ShardTensor> {
                ShardTensor::add(left, &self)
            }

            #[track_caller]
            fn subtract_from(self, left: &ShardTensor) -> Result<ShardTensor> {
                ShardTensor::sub(left, &self)
            }

            #[track_caller]
            fn multiply(self, left: &ShardTensor) -> Result<ShardTensor> {
                ShardTensor::mul(left, &self)
            }

            #[track_caller]
            fn divide(self, left: &ShardTensor) -> Result<ShardTensor> {
                ShardTensor::div(left, &self)
            }
        }
    )*};
}

macro_rules! numbers {
    ($($number:ty: $convert:expr;)*) => {$(
        impl Operand for $number {
            #[track_caller]
            fn add_to(self, left: &ShardTensor) -> Result<ShardTensor> {
                left.add_scalar($convert(self)?)
            }

            #[track_caller]
            fn subtract_from(self, left: &ShardTensor) -> Result<ShardTensor> {
                left.sub_scalar($convert(self)?)
            }

            #[track_caller]
            fn multiply(self, left: &ShardTensor) -> Result<ShardTensor> {
                left.mul_scalar($convert(self)?)
            }

            #[track_caller]
            fn divide(self, left: &ShardTensor) -> Result<ShardTensor> {
                left.div_scalar($convert(self)?)
            }
        }
    )*};
}

tensors!(ShardTensor & ShardTensor);
numbers! {
    f64: as_it_is;
    f32: as_it_is;
    i32: as_it_is;
    i64: exact;
}

fn as_it_is(number: impl Into<f64>) -> Result<f64> {
    Ok(number.into())
}

/// An integer, if `f64` holds it.
fn exact(whole: i64) -> Result<f64> {
    let number = whole as f64;
    match number as i128 == i128::from(whole) {
        true => Ok(number),
        false => Err(Error::argument(
            "operator",
            "a number that f64 holds",
            whole.to_string(),
            "split it in two",
        )),
    }
}

/// A tensor on the left, or a number. There are fewer kinds of numbers on the left, so that the type of `2.0 * &x` is known.
macro_rules! operators {
    ($($trait:ident $method:ident $apply:ident $assign:ident $assigning:ident $reversed:expr;)*) => {$(
        operators!(@ $trait $method $apply &ShardTensor);
        operators!(@ $trait $method $apply ShardTensor);
        operators!(@ left $trait $method $reversed, f64 &ShardTensor);
        operators!(@ left $trait $method $reversed, f64 ShardTensor);
        operators!(@ left $trait $method $reversed, i32 &ShardTensor);
        operators!(@ left $trait $method $reversed, i32 ShardTensor);

        /// The variable becomes another tensor; whoever else holds the old one keeps it.
        impl<T: Operand> $assign<T> for ShardTensor {
            /// # Panics
            /// Where the operator without assignment does, and for a parameter, whose value only
            /// [`set`](ShardTensor::set) replaces.
            #[track_caller]
            fn $assigning(&mut self, other: T) {
                assert!(
                    !self.is_parameter(),
                    "{}: a parameter would become a tensor that is none; replace its value with `set`",
                    stringify!($assigning)
                );
                *self = other.$apply(self).unwrap_or_else(|e| panic!("{e}"));
            }
        }
    )*};
    (@ left $trait:ident $method:ident $reversed:expr, $left:ident $($right:tt)+) => {
        impl $trait<$($right)+> for $left {
            type Output = ShardTensor;

            /// # Panics
            /// Where the methods it stands for return an error, with its message.
            #[track_caller]
            fn $method(self, other: $($right)+) -> ShardTensor {
                let compute: fn(f64, &ShardTensor) -> Result<ShardTensor> = $reversed;
                compute(f64::from(self), &other).unwrap_or_else(|e| panic!("{e}"))
            }
        }
    };
    (@ $trait:ident $method:ident $apply:ident $($left:tt)+) => {
        impl<T: Operand> $trait<T> for $($left)+ {
            type Output = ShardTensor;

            /// # Panics
            /// Where the method of the same name returns an error, with its message.
            #[track_caller]
            fn $method(self, other: T) -> ShardTensor {
                other.$apply(&self).unwrap_or_else(|e| panic!("{e}"))
            }
        }
    };
}

operators! {
    Add add add_to AddAssign add_assign |a, x| x.add_scalar(a);
    Sub sub subtract_from SubAssign sub_assign |a, x| x.rsub_scalar(a);
    Mul mul multiply MulAssign mul_assign |a, x| x.mul_scalar(a);
    Div div divide DivAssign div_assign |a, x| ShardTensor::div(&x.number(a)?, x);
}

impl Neg for &ShardTensor {
    type Output = ShardTensor;

    /// # Panics
    /// Where [`ShardTensor::neg`] returns an error, with its message.
    #[track_caller]
    fn neg(self) -> ShardTensor {
        ShardTensor::neg(self).unwrap_or_else(|e| panic!("{e}"))
    }
}

impl Neg for ShardTensor {
    type Output = Self;

    /// # Panics
    /// Where [`ShardTensor::neg`] returns an error, with its message.
    #[track_caller]
    fn neg(self) -> Self {
        -&self
    }
}
