//! Ops that are a few maps in a row.

use super::number::rounded;
use super::{Arithmetic, add, eq, lt, mul, mul_scalar, ne, number, sub, unary};
use crate::families::full::{all_rounded_once, rounded_once};
use crate::families::fused::Fused;
use crate::families::index::roll;
use crate::families::shape::reshape;
use crate::host::is_whole;
use crate::{Exec, OpError, Result, Value};
use half::{bf16, f16};
use shard_comm::DType;
use shard_kernels::pointwise::Binary;
use shard_kernels::unary::Unary;
use std::sync::{Arc, LazyLock};

/// A formula of operands and a number behind them, and the same with the number in three parts, of 16 bits each: their sum in `f32` has
/// all bits that it has there.
macro_rules! numbered {
    ($name:literal, [$($x:ident),*], $value:ident, $y:expr) => {{
        static WHOLE: LazyLock<Arc<Fused>> =
            LazyLock::new(|| Fused::new($name, |[$($x,)* $value]| [$y]));
        static BY_PARTS: LazyLock<Arc<Fused>> = LazyLock::new(|| {
            Fused::new($name, |[$($x,)* most, more, least]| {
                let $value = most + more + least;
                [$y]
            })
        });
        [&*WHOLE, &*BY_PARTS]
    }};
}

/// Whether an element is NaN, as `bool`.
///
/// # Collective
/// All members of the mesh. No communication; a partial operand is reduced first.
///
/// # Errors
/// What the communicator or the device reports.
pub fn isnan(exec: &dyn Exec, x: &Value) -> Result<Value> {
    ne(exec, x, x)
}

/// Whether an element is infinite, as `bool`.
///
/// # Collective
/// As [`isnan`].
///
/// # Errors
/// As [`isnan`].
pub fn isinf(exec: &dyn Exec, x: &Value) -> Result<Value> {
    // No integer is: none differs from itself.
    if is_whole(x.dtype()) {
        return ne(exec, x, x);
    }
    let infinite = rounded("isinf", x, f64::INFINITY)?;
    eq(exec, &unary(exec, &x.detach(), Unary::Abs)?, &infinite)
}

/// Whether an element is neither infinite nor NaN, as `bool`.
///
/// # Collective
/// As [`isnan`].
///
/// # Errors
/// As [`isnan`].
pub fn isfinite(exec: &dyn Exec, x: &Value) -> Result<Value> {
    if is_whole(x.dtype()) {
        return eq(exec, x, x);
    }
    let infinite = rounded("isfinite", x, f64::INFINITY)?;
    lt(exec, &unary(exec, &x.detach(), Unary::Abs)?, &infinite)
}

/// `a + weight * (b - a)`, computed as `b - (1 - weight) * (b - a)` for weights of 0.5 and above, so that it ends at `b`; shapes broadcast.
///
/// # Collective
/// As [`add`].
///
/// # Errors
/// As [`add`].
pub fn lerp(exec: &dyn Exec, a: &Value, b: &Value, weight: &Value) -> Result<Value> {
    static LERP: LazyLock<Arc<Fused>> = LazyLock::new(|| {
        Fused::new("lerp", |[a, b, weight]| {
            let part = weight.below(0.5, weight, weight - 1.0);
            [weight.below(0.5, a, b) + part * (b - a)]
        })
    });
    LERP.apply1(exec, &[a, b, weight])
}

/// [`lerp`] by one weight.
///
/// # Collective
/// As [`add`].
///
/// # Errors
/// As [`add`]; for a weight that the type does not hold.
pub fn lerp_by(exec: &dyn Exec, a: &Value, b: &Value, weight: f64) -> Result<Value> {
    // Of the two parts of `lerp` the one that would be chosen everywhere.
    let formulas = match weight < 0.5 {
        true => numbered!("lerp", [a, b], weight, a + weight * (b - a)),
        false => numbered!("lerp", [a, b], weight, b + (weight - 1.0) * (b - a)),
    };
    with_number(exec, "lerp", formulas, &[a, b], weight)
}

/// `x + alpha * y`; shapes broadcast.
///
/// # Collective
/// As [`add`]; a partial operand passes if both are.
///
/// # Errors
/// As [`add`]; a number that the type cannot hold.
pub fn add_scaled(exec: &dyn Exec, x: &Value, y: &Value, alpha: f64) -> Result<Value> {
    let formulas = numbered!("add_scaled", [x, y], alpha, x + alpha * y);
    let are_terms = x.layout().is_partial() && y.layout().is_partial();
    match alpha == 1.0 || are_terms || is_whole(x.dtype()) {
        // One pass more, of sums that need not be taken, and of numbers that formulas do not know.
        true => rounded_once(exec, [x, y], |[x, y]| {
            add(exec, x, &scaled(exec, y, alpha)?)
        }),
        false => with_number(exec, "add_scaled", formulas, &[x, y], alpha),
    }
}

/// `x + value * a * b`; shapes broadcast.
///
/// # Collective
/// As [`add`].
///
/// # Errors
/// As [`add`]; a value that the type cannot hold.
pub fn addcmul(exec: &dyn Exec, x: &Value, a: &Value, b: &Value, value: f64) -> Result<Value> {
    let formulas = numbered!("addcmul", [x, a, b], value, x + value * (a * b));
    match is_whole(x.dtype()) {
        true => add(exec, x, &scaled(exec, &mul(exec, a, b)?, value)?),
        false => with_number(exec, "addcmul", formulas, &[x, a, b], value),
    }
}

/// `x + value * a / b`; shapes broadcast.
///
/// # Collective
/// As [`add`].
///
/// # Errors
/// As [`add`]; a type that is not of floats.
pub fn addcdiv(exec: &dyn Exec, x: &Value, a: &Value, b: &Value, value: f64) -> Result<Value> {
    let formulas = numbered!("addcdiv", [x, a, b], value, x + value * (a / b));
    with_number(exec, "addcdiv", formulas, &[x, a, b], value)
}

/// `value - x`
///
/// # Collective
/// As [`add`]; a partial operand is reduced first.
///
/// # Errors
/// As [`add`]; a number that the type cannot hold.
pub fn rsub_scalar(exec: &dyn Exec, x: &Value, value: f64) -> Result<Value> {
    const NAME: &str = "rsub_scalar";
    let formulas = numbered!("rsub_scalar", [x], value, value - x);
    match is_rounded(x.dtype(), value) {
        true => with_number(exec, NAME, formulas, &[x], value),
        false => sub(exec, &number(NAME, x, value)?, x),
    }
}

/// [`floor_div`](super::floor_div) by a number, which is not rounded to 16 bits as elements are.
///
/// # Collective
/// As [`add`]; a partial operand is reduced first.
///
/// # Errors
/// As [`floor_div`](super::floor_div); a number that the type cannot hold.
pub fn floor_div_scalar(exec: &dyn Exec, x: &Value, value: f64) -> Result<Value> {
    by_number(exec, "floor_div_scalar", Binary::FloorDiv, x, value)
}

/// [`remainder`](super::remainder) of the division by a number, which is not rounded to 16 bits as elements are.
///
/// # Collective
/// As [`floor_div_scalar`].
///
/// # Errors
/// As [`floor_div_scalar`].
pub fn remainder_scalar(exec: &dyn Exec, x: &Value, value: f64) -> Result<Value> {
    by_number(exec, "remainder_scalar", Binary::Remainder, x, value)
}

/// A map of an operand and a number; formulas, to which a number may come in parts, do not have it.
fn by_number(
    exec: &dyn Exec,
    name: &'static str,
    kind: Binary,
    x: &Value,
    value: f64,
) -> Result<Value> {
    let apply = |x: &Value| {
        let value = number(name, x, value)?;
        exec.apply1(Arc::new(Arithmetic::of(kind)), &[x, &value])
    };
    match is_rounded(x.dtype(), value) {
        true => rounded_once(exec, [x], |[x]| apply(x)),
        false => apply(x),
    }
}

/// `x / value` by a number that [`is_rounded`].
pub(super) fn divided(exec: &dyn Exec, x: &Value, value: f64) -> Result<Value> {
    let formulas = numbered!("div_scalar", [x], value, x / value);
    with_number(exec, "div_scalar", formulas, &[x], value)
}

/// The nearest number of a type of 16 bits, if it is one.
fn nearest_of_16_bits(dtype: DType) -> Option<fn(f64) -> f64> {
    match dtype {
        DType::BF16 => Some(|x| bf16::from_f64(x).to_f64()),
        DType::F16 => Some(|x| f16::from_f64(x).to_f64()),
        _ => None,
    }
}

/// Whether a type of 16 bits holds another number in place of one that `f32` holds.
pub(super) fn is_rounded(dtype: DType, value: f64) -> bool {
    let value = f64::from(value as f32);
    nearest_of_16_bits(dtype).is_some_and(|nearest| value.is_finite() && nearest(value) != value)
}

/// A formula of operands and a number behind them, which is not rounded to 16 bits as they are: there it comes in parts, if it has to.
fn with_number(
    exec: &dyn Exec,
    name: &'static str,
    [whole, by_parts]: [&Arc<Fused>; 2],
    operands: &[&Value],
    value: f64,
) -> Result<Value> {
    let apply = |formula: &Arc<Fused>, operands: &[&Value], parts: &[f64]| {
        let parts = parts.iter().map(|&part| number(name, operands[0], part));
        let numbers = parts.collect::<Result<Vec<_>>>()?;
        let all: Vec<&Value> = operands.iter().copied().chain(&numbers).collect();
        formula.apply1(exec, &all)
    };
    let Some(round) = nearest_of_16_bits(operands[0].dtype()) else {
        return apply(whole, operands, &[value]);
    };
    let mut left = f64::from(value as f32);
    let parts = [(); 3].map(|()| {
        let part = round(left);
        left -= part;
        part
    });
    match (parts, left == 0.0) {
        (_, true) if parts[1..] == [0.0; 2] => apply(whole, operands, &parts[..1]),
        (_, true) => apply(by_parts, operands, &parts),
        // Too large, or smaller than the type's least number.
        _ => all_rounded_once(exec, operands, |operands| apply(whole, operands, &[value])),
    }
}

/// A product with a number; nothing is done for 1, which PyTorch's defaults are.
fn scaled(exec: &dyn Exec, x: &Value, by: f64) -> Result<Value> {
    match by == 1.0 {
        true => Ok(x.clone()),
        false => mul_scalar(exec, x, by),
    }
}

/// `x` above 0 and `weight * x` at and below it. The weight is a number for each index of dim 1, or one for all.
///
/// # Collective
/// As [`add`].
///
/// # Errors
/// A weight whose number of elements is neither 1 nor the extent of dim 1; types that differ or are not of floats.
pub fn prelu(exec: &dyn Exec, x: &Value, weight: &Value) -> Result<Value> {
    let count: usize = weight.shape().iter().product();
    let channels = match x.ndim() {
        0 | 1 => 1,
        _ => x.shape()[1],
    };
    if count != 1 && count != channels {
        return Err(OpError::Shape {
            op: "prelu",
            problem: format!("{count} weights for {channels} channels"),
            shapes: vec![x.shape().to_vec(), weight.shape().to_vec()],
            fix: "give one weight, or one for each index of dim 1",
        });
    }
    let mut shape = vec![1; x.ndim()];
    if count != 1 {
        shape[1] = count;
    }
    leaky(exec, x, &reshape(exec, weight, &shape)?)
}

/// `x` above 0 and `slope * x` at and below it; shapes broadcast.
///
/// # Collective
/// As [`add`].
///
/// # Errors
/// Shapes that do not broadcast; types that differ or are not of floats.
pub fn leaky(exec: &dyn Exec, x: &Value, slope: &Value) -> Result<Value> {
    exec.apply1(Arc::new(Arithmetic::of(Binary::Prelu)), &[x, slope])
}

/// The first half of a dim times the sigmoid of the second.
///
/// # Collective
/// All members of the mesh. Where the dim is sharded the halves are brought together, each piece with all of both.
///
/// # Errors
/// A dim that does not exist or has an odd extent; a type that is not of floats.
pub fn glu(exec: &dyn Exec, x: &Value, dim: usize) -> Result<Value> {
    let extent = x.shape().get(dim).copied().unwrap_or(1);
    if extent % 2 != 0 {
        return Err(OpError::Shape {
            op: "glu",
            problem: format!("dim {dim} has no two halves"),
            shapes: vec![x.shape().to_vec()],
            fix: "name a dim of even extent",
        });
    }
    static GLU: LazyLock<Arc<Fused>> =
        LazyLock::new(|| Fused::of_parts("glu", [2], |[x]| [vec![x[0] * x[1].sigmoid()]]));
    let mut halves = x.shape().to_vec();
    halves.splice(dim..=dim, [2, extent / 2]);
    let halves = reshape(exec, x, &halves)?;
    GLU.one_of_parts(exec, &[&halves], x.ndim() - dim)
}

/// The cross products of the vectors of three numbers that lie along dim `dim` of both operands, broadcast.
///
/// # Collective
/// All members of the mesh. Communicates to align misaligned operands, and what vectors whose own dim is sharded lack.
///
/// # Errors
/// A dim that has not three indices in both; shapes that do not broadcast; types that differ.
pub fn cross(exec: &dyn Exec, a: &Value, b: &Value, dim: usize) -> Result<Value> {
    let ndim = a.ndim().max(b.ndim());
    let own = |x: &Value| {
        let own = (dim + x.ndim()).checked_sub(ndim);
        own.filter(|&d| x.shape().get(d) == Some(&3))
    };
    let (Some(of_a), Some(of_b)) = (own(a), own(b)) else {
        return Err(OpError::Shape {
            op: "cross",
            problem: format!("dim {dim} does not hold vectors of three numbers"),
            shapes: vec![a.shape().to_vec(), b.shape().to_vec()],
            fix: "name a dim of extent 3 of both",
        });
    };
    // a[i] b[i + 1] - a[i + 1] b[i] is element i + 2 of the product.
    rounded_once(exec, [a, b], |[a, b]| {
        let (next_a, next_b) = (roll(exec, a, of_a, -1)?, roll(exec, b, of_b, -1)?);
        let product = sub(exec, &mul(exec, a, &next_b)?, &mul(exec, &next_a, b)?)?;
        roll(exec, &product, dim, -1)
    })
}
