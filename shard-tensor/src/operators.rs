//! `+ - * /` and unary `-`.
//!
//! Operators cannot return a `Result`: on an error they panic with its message. The methods of the same meaning
//! return it.

use crate::ShardTensor;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// Between tensors, by reference or by value.
macro_rules! between_tensors {
    ($($trait:ident $method:ident),*) => {$(
        between_tensors!(@ $trait $method &ShardTensor, &ShardTensor);
        between_tensors!(@ $trait $method &ShardTensor, ShardTensor);
        between_tensors!(@ $trait $method ShardTensor, &ShardTensor);
        between_tensors!(@ $trait $method ShardTensor, ShardTensor);
    )*};
    (@ $trait:ident $method:ident $left:ty, $right:ty) => {
        impl $trait<$right> for $left {
            type Output = ShardTensor;

            /// # Panics
            /// Where the method of the same name returns an error, with its message.
            #[track_caller]
            fn $method(self, other: $right) -> ShardTensor {
                ShardTensor::$method(&self, &other).unwrap_or_else(|e| panic!("{e}"))
            }
        }
    };
}

/// Between a tensor and a number, which takes the tensor's type.
macro_rules! with_numbers {
    ($($trait:ident $method:ident $right:expr, $left:expr;)*) => {$(
        with_numbers!(@ $trait $method &ShardTensor, f64, $right);
        with_numbers!(@ $trait $method ShardTensor, f64, $right);
        with_numbers!(@ $trait $method f64, &ShardTensor, $left);
        with_numbers!(@ $trait $method f64, ShardTensor, $left);
    )*};
    (@ $trait:ident $method:ident $left:ty, $right:ty, $compute:expr) => {
        impl $trait<$right> for $left {
            type Output = ShardTensor;

            /// # Panics
            /// Where the methods it stands for return an error, with its message.
            #[track_caller]
            fn $method(self, other: $right) -> ShardTensor {
                let compute: fn(&$left, &$right) -> crate::Result<ShardTensor> = $compute;
                compute(&self, &other).unwrap_or_else(|e| panic!("{e}"))
            }
        }
    };
}

between_tensors!(Add add, Sub sub, Mul mul, Div div);
with_numbers! {
    Add add |x, a| x.add_scalar(*a), |a, x| x.add_scalar(*a);
    Sub sub |x, a| x.add_scalar(-*a), |a, x| x.neg()?.add_scalar(*a);
    Mul mul |x, a| x.mul_scalar(*a), |a, x| x.mul_scalar(*a);
    Div div |x, a| x.div_scalar(*a), |a, x| ShardTensor::div(&x.number(*a)?, x);
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
