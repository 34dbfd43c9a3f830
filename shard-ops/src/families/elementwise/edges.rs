//! Ops for numbers at the edges: NaN, infinities, zeros with a sign, and numbers that are equal but for rounding.

use super::number::{number, rounded};
use super::{
    add_scalar, cast, copysign, eq, gt, isnan, le, logical_and, logical_or, lt, masked_fill,
    maximum, minimum, mul_scalar, ne, sub, unary, where_,
};
use crate::families::full::{rounded_once, sums};
use crate::host::is_whole;
use crate::{Exec, OpError, Result, Value};
use shard_comm::DType;
use shard_kernels::unary::Unary;

/// `x`, but `nan` for NaN, and `posinf` and `neginf` for the infinities: without them the largest and the least number of the type.
/// Integers stay as they are. Only numbers that stay have a gradient.
///
/// # Collective
/// All members of the mesh. No communication; a partial operand is reduced first.
///
/// # Errors
/// What the communicator or the device reports.
pub fn nan_to_num(
    exec: &dyn Exec,
    x: &Value,
    nan: f64,
    posinf: Option<f64>,
    neginf: Option<f64>,
) -> Result<Value> {
    if is_whole(x.dtype()) {
        return Ok(x.clone());
    }
    let op = "nan_to_num";
    let most = match x.dtype() {
        DType::F16 => 65504.0,
        // The largest `f32` with 8 bits.
        DType::BF16 => f64::from(f32::from_bits(0x7f7f_0000)),
        DType::F32 => f64::from(f32::MAX),
        _ => f64::MAX,
    };
    let [x] = sums(exec, [x])?;
    let known = x.detach();
    let mut y = masked_fill(exec, &x, &isnan(exec, &known)?, nan)?;
    for (infinity, given) in [
        (f64::INFINITY, posinf.unwrap_or(most)),
        (f64::NEG_INFINITY, neginf.unwrap_or(-most)),
    ] {
        let hit = eq(exec, &known, &rounded(op, &known, infinity)?)?;
        y = masked_fill(exec, &y, &hit, given)?;
    }
    Ok(y)
}

/// Whether `|a - b| <= atol + rtol |b|`, as `bool`. Equal infinities are close; NaN is close to NaN alone, if `equal_nan`.
///
/// Shapes broadcast as in NumPy. Integers are compared in `f64`, and floats of 16 bits in `f32`.
///
/// # Collective
/// All members of the mesh; communicates only to align operands whose boundaries differ, and to reduce partial ones.
///
/// # Errors
/// Shapes that do not broadcast; types that differ; a tolerance below 0 or NaN.
pub fn isclose(
    exec: &dyn Exec,
    a: &Value,
    b: &Value,
    rtol: f64,
    atol: f64,
    equal_nan: bool,
) -> Result<Value> {
    if let Some(tolerance) = [rtol, atol].into_iter().find(|t| t.is_nan() || *t < 0.0) {
        return Err(OpError::Shape {
            op: "isclose",
            problem: format!("a tolerance of {tolerance}"),
            shapes: vec![a.shape().to_vec(), b.shape().to_vec()],
            fix: "give tolerances of 0 or more",
        });
    }
    let [a, b] = sums(exec, [&a.detach(), &b.detach()])?;
    let mut close = eq(exec, &a, &b)?;
    if equal_nan {
        let both = logical_and(exec, &isnan(exec, &a)?, &isnan(exec, &b)?)?;
        close = logical_or(exec, &close, &both)?;
    }
    let full = match a.dtype() {
        dtype if is_whole(dtype) => DType::F64,
        dtype if dtype.is_half() => DType::F32,
        dtype => dtype,
    };
    let (a, b) = (cast(exec, &a, full)?, cast(exec, &b, full)?);
    let gap = unary(exec, &sub(exec, &a, &b)?, Unary::Abs)?;
    let share = unary(exec, &mul_scalar(exec, &b, rtol)?, Unary::Abs)?;
    let near = le(exec, &gap, &add_scalar(exec, &share, atol)?)?;
    // An infinite number allows for any gap, and is close to itself alone.
    let infinite = rounded("isclose", &gap, f64::INFINITY)?;
    let near = logical_and(exec, &near, &lt(exec, &gap, &infinite)?)?;
    logical_or(exec, &close, &near)
}

/// The larger of the two; the other one where one is NaN. Gradients are shared evenly between ties.
///
/// Shapes broadcast as in NumPy.
///
/// # Collective
/// All members of the mesh; communicates only to align operands whose boundaries differ, and to reduce partial ones.
///
/// # Errors
/// Shapes that do not broadcast; types that differ.
pub fn fmax(exec: &dyn Exec, a: &Value, b: &Value) -> Result<Value> {
    without_nan(exec, a, b, maximum)
}

/// The smaller of the two; the other one where one is NaN. Gradients are shared evenly between ties.
///
/// Shapes broadcast as in NumPy.
///
/// # Collective
/// As [`fmax`].
///
/// # Errors
/// As [`fmax`].
pub fn fmin(exec: &dyn Exec, a: &Value, b: &Value) -> Result<Value> {
    without_nan(exec, a, b, minimum)
}

/// A map of two numbers, which of NaN and a number is given the number twice.
fn without_nan(
    exec: &dyn Exec,
    a: &Value,
    b: &Value,
    map: fn(&dyn Exec, &Value, &Value) -> Result<Value>,
) -> Result<Value> {
    if is_whole(a.dtype()) {
        return map(exec, a, b);
    }
    let [a, b] = sums(exec, [a, b])?;
    let left = where_(exec, &isnan(exec, &a.detach())?, &b, &a)?;
    let right = where_(exec, &isnan(exec, &b.detach())?, &a, &b)?;
    map(exec, &left, &right)
}

/// Whether the sign of a number is set, as `bool`: of numbers below 0, of -0, and of NaN if it has one.
///
/// # Collective
/// All members of the mesh. No communication; a partial operand is reduced first.
///
/// # Errors
/// What the communicator or the device reports.
pub fn signbit(exec: &dyn Exec, x: &Value) -> Result<Value> {
    let op = "signbit";
    match x.dtype() {
        // None of these is below 0.
        DType::Bool | DType::U8 => return ne(exec, x, x),
        _ if is_whole(x.dtype()) => return lt(exec, x, &number(op, x, 0.0)?),
        _ => {}
    }
    let x = x.detach();
    let signs = copysign(exec, &number(op, &x, 1.0)?, &x)?;
    lt(exec, &signs, &number(op, &x, 0.0)?)
}

/// 0 below 0 and for NaN, 1 above 0, and `values` at 0. Only `values` has a gradient.
///
/// Shapes broadcast as in NumPy.
///
/// # Collective
/// As [`fmax`].
///
/// # Errors
/// As [`fmax`].
pub fn heaviside(exec: &dyn Exec, x: &Value, values: &Value) -> Result<Value> {
    let [x] = sums(exec, [&x.detach()])?;
    let zero = number("heaviside", &x, 0.0)?;
    let step = cast(exec, &gt(exec, &x, &zero)?, x.dtype())?;
    where_(exec, &eq(exec, &x, &zero)?, values, &step)
}

/// `x`, but `min` where it is below that, and then `max` where it is above that: `max` where `min` is above it. NaN if any is. Ties share
/// the gradient evenly.
///
/// Shapes broadcast as in NumPy.
///
/// # Collective
/// As [`fmax`].
///
/// # Errors
/// As [`fmax`]; if neither is given.
pub fn clamp_by(
    exec: &dyn Exec,
    x: &Value,
    min: Option<&Value>,
    max: Option<&Value>,
) -> Result<Value> {
    match (min, max) {
        (None, None) => Err(OpError::arity("clamp_by", "`min`, `max` or both", 0)),
        (Some(min), None) => maximum(exec, x, min),
        (None, Some(max)) => minimum(exec, x, max),
        (Some(min), Some(max)) => rounded_once(exec, [x, min, max], |[x, min, max]| {
            minimum(exec, &maximum(exec, x, min)?, max)
        }),
    }
}
