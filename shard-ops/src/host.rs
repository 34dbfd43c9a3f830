//! Tools that host kernels of several families use: the element type of a call, and the positions of its boxes.

use crate::OperandBox;
use shard_comm::{DType, Element};
use shard_kernels::{Positions, View};
use std::borrow::Cow;

/// Runs an expression with `$T` bound to the float type that `$dtype` names. The rule has checked the type.
macro_rules! with_float {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            shard_comm::DType::F32 => {
                type $T = f32;
                $body
            }
            shard_comm::DType::F64 => {
                type $T = f64;
                $body
            }
            other => unreachable!("the rule let {other} through to a float kernel"),
        }
    };
}

/// Runs an expression with `$T` bound to the float type that `$dtype` names, for kernels that widen what they read.
macro_rules! with_stored {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            shard_comm::DType::F16 => {
                type $T = half::f16;
                $body
            }
            shard_comm::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            other => $crate::host::with_float!(other, $T => $body),
        }
    };
}

/// Runs an expression where the first operand of a call is stored in 16 bits: with `$T` bound to its type, and `$U` to that of the first result,
/// which may be `f32`.
macro_rules! with_half {
    ($call:ident, $T:ident, $U:ident => $body:expr) => {
        match $call.inputs[0].dtype() {
            shard_comm::DType::F16 => {
                $crate::host::with_half!(half::f16, $call, $T, $U => $body);
            }
            shard_comm::DType::BF16 => {
                $crate::host::with_half!(half::bf16, $call, $T, $U => $body);
            }
            _ => {}
        }
    };
    ($half:ty, $call:ident, $T:ident, $U:ident => $body:expr) => {
        type $T = $half;
        match $call.dtype() {
            shard_comm::DType::F32 => {
                type $U = f32;
                $body
            }
            _ => {
                type $U = $half;
                $body
            }
        }
    };
}

/// Runs an expression with `$T` bound to the integer type that `$dtype` names.
macro_rules! with_integer {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            shard_comm::DType::I64 => {
                type $T = i64;
                $body
            }
            shard_comm::DType::I32 => {
                type $T = i32;
                $body
            }
            shard_comm::DType::U8 => {
                type $T = u8;
                $body
            }
            other => unreachable!("the rule let {other} through to a kernel of integers"),
        }
    };
}

/// Runs an expression with `$T` bound to the integer type that `$dtype` names, or to that of truth values.
macro_rules! with_whole {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            shard_comm::DType::Bool => {
                type $T = shard_comm::Bool;
                $body
            }
            other => $crate::host::with_integer!(other, $T => $body),
        }
    };
}

/// Runs an expression with `$T` bound to the type that `$dtype` names, 16-bit floats excepted, for kernels that compare.
macro_rules! with_number {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            shard_comm::DType::F32 | shard_comm::DType::F64 => {
                $crate::host::with_float!($dtype, $T => $body)
            }
            other => $crate::host::with_whole!(other, $T => $body),
        }
    };
}

/// Runs an expression with `$T` bound to the type that `$dtype` names, for kernels that only move elements.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            shard_comm::DType::F64 => {
                type $T = f64;
                $body
            }
            shard_comm::DType::F32 => {
                type $T = f32;
                $body
            }
            shard_comm::DType::F16 => {
                type $T = half::f16;
                $body
            }
            shard_comm::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            shard_comm::DType::I64 => {
                type $T = i64;
                $body
            }
            shard_comm::DType::I32 => {
                type $T = i32;
                $body
            }
            shard_comm::DType::U8 => {
                type $T = u8;
                $body
            }
            shard_comm::DType::Bool => {
                type $T = shard_comm::Bool;
                $body
            }
        }
    };
}

pub(crate) use {
    with_element, with_float, with_half, with_integer, with_number, with_stored, with_whole,
};

/// All elements of a view without gaps.
pub(crate) fn flat<'a, T: Element>(view: &View<'a, T>) -> Cow<'a, [T]> {
    match view.as_slice() {
        Some(all) => all.into(),
        None => view.to_vec().into(),
    }
}

/// The type in which partial results of an output are held: 16-bit floats have too few bits for sums.
pub(crate) fn partial_type(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// Whether kernels compute in this type, as real numbers.
pub(crate) fn computes(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64)
}

/// Whether this is a type of integers, or of truth values.
pub(crate) fn is_whole(dtype: DType) -> bool {
    !dtype.is_float()
}

/// The global positions of a dim of a box.
pub(crate) enum Held {
    From(i64),
    List(Vec<i64>),
}

impl Held {
    pub(crate) fn get(&self) -> Positions<'_> {
        match self {
            Self::From(start) => Positions::from(*start),
            Self::List(list) => Positions::List(list),
        }
    }
}

/// The global positions of dim `dim` of a box.
pub(crate) fn positions(operand: &OperandBox, dim: usize) -> Held {
    let part = &operand.held[dim];
    match part.interval() {
        Some(interval) => Held::From(interval.start as i64),
        None => Held::List(part.indices().map(|i| i as i64).collect()),
    }
}
