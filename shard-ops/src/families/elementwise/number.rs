//! Numbers as operands, and the maps of one integer, which are arithmetic with numbers.

use super::{Arithmetic, maximum, minimum, mul};
use crate::error::InOp;
use crate::{Exec, OpError, Result, Value, holds};
use shard_comm::{Call, DType, Scalar, Strided};
use shard_kernels::pointwise::Binary;
use shard_kernels::unary::Unary;
use shard_redistribute::Array;
use shard_spec::Layout;
use std::sync::Arc;

/// A number as a value without dims, of the type and on the mesh of another: what broadcasts to any operand.
///
/// # Collective
/// All members of the mesh. No communication.
///
/// # Errors
/// A number that the type cannot hold.
pub fn number(op: &'static str, like: &Value, value: f64) -> Result<Value> {
    match holds(like.dtype(), value) {
        true => rounded(op, like, value),
        false => Err(OpError::Value {
            op,
            value,
            dtype: like.dtype(),
        }),
    }
}

/// As [`number`], the nearest one that the type has.
pub(super) fn rounded(op: &'static str, like: &Value, value: f64) -> Result<Value> {
    let (array, dtype) = (like.array(), like.dtype());
    let (cx, device) = (array.cx(), array.cx().device());
    let layout = Layout::replicated(cx.mesh(), &[]);
    let mut local = None;
    if cx.is_member() {
        let mut buffer = device.alloc(dtype, 1).in_op(op)?;
        let one = Strided::contiguous(&[]);
        device
            .fill(&mut buffer, &one, Scalar::F64(value))
            .in_op(op)?;
        local = Some(buffer.freeze());
    }
    // What is computed with it does not show its value: ranks that give other ones are told here.
    let call = Call::new("number").with(value.to_bits().into());
    let known = cx.record(call.constant().of(dtype, &layout));
    let array = Array::from_parts(cx, &layout, local, dtype).in_op(op)?;
    Ok(Value::new(array.with_number(known)))
}

/// A map of one integer.
pub(super) fn map(exec: &dyn Exec, x: &Value, map: Unary) -> Result<Value> {
    let (op, dtype) = (map.name(), x.dtype());
    let refuse = |expected: &str| Err(OpError::dtype(op, 0, expected, dtype));
    let with = |kind, value| {
        let value = number(op, x, value)?;
        exec.apply1(Arc::new(Arithmetic::of(kind)), &[x, &value])
    };
    let signed = dtype != DType::U8;
    let is_bool = dtype == DType::Bool;
    match map {
        Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Round => Ok(x.clone()),
        Unary::AddScalar { value } => with(Binary::Add, value),
        Unary::MulScalar { value } => with(Binary::Mul, value),
        _ if is_bool => refuse("f32, f64 or an integer"),
        // Of bytes, as -1 wraps.
        Unary::Neg => with(Binary::Mul, if signed { -1.0 } else { 255.0 }),
        Unary::Abs | Unary::Relu if !signed => Ok(x.clone()),
        Unary::Abs => maximum(exec, x, &super::neg(exec, x)?),
        Unary::Relu => with(Binary::Maximum, 0.0),
        Unary::Square => mul(exec, x, x),
        Unary::PowScalar { exponent } => with(Binary::Pow, exponent),
        Unary::Sign => {
            let low = if signed { -1.0 } else { 0.0 };
            clamp(exec, op, x, [low, 1.0])
        }
        Unary::Clamp { min, max } => clamp(exec, op, x, [min, max]),
        Unary::Relu6 => clamp(exec, op, x, [0.0, 6.0]),
        _ => refuse("f32 or f64"),
    }
}

/// Between two numbers; those beyond every integer bound nothing.
fn clamp(exec: &dyn Exec, op: &'static str, x: &Value, [low, high]: [f64; 2]) -> Result<Value> {
    let [least, most] = match x.dtype() {
        DType::U8 => [0.0, 255.0],
        DType::I32 => [f64::from(i32::MIN), f64::from(i32::MAX)],
        _ => [i64::MIN as f64, i64::MAX as f64],
    };
    let mut y = x.clone();
    if low > least || low.is_nan() {
        y = maximum(exec, &y, &number(op, x, low)?)?;
    }
    if high < most || high.is_nan() {
        y = minimum(exec, &y, &number(op, x, high)?)?;
    }
    Ok(y)
}
