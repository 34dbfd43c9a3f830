//! Slopes of maps of two numbers that take several steps.

use super::{
    add, add_scalar, eq, flag, ge, logical_and, lt, masked, masked_fill, mul, mul_scalar, neg,
    number, pow, sub, unary, xlogy,
};
use crate::families::fused::Fused;
use crate::{Exec, Result, Value};
use shard_kernels::unary::Unary;
use std::sync::{Arc, LazyLock};

/// The slope of a quotient in its divisor, times `dy`.
pub(super) static QUOTIENT: LazyLock<Arc<Fused>> =
    LazyLock::new(|| Fused::new("quotient_slope", |[a, b, dy]| [-(dy * (a / b / b))]));

/// The slope of a power in its base or its exponent, times `dy`.
pub(super) fn power_slope(
    exec: &dyn Exec,
    [a, b]: [&Value; 2],
    dy: &Value,
    operand: usize,
) -> Result<Value> {
    let slope = match operand {
        // To the power 0 everything is 1: the exponent is raised there, so that 0 does not meet an infinity.
        0 => {
            let zero = flag(exec, &is_zero(exec, b)?, b)?;
            let less = add(exec, &add_scalar(exec, b, -1.0)?, &zero)?;
            mul(exec, b, &pow(exec, a, &less)?)?
        }
        // Powers of 0 are 0 for exponents above 0: the logarithm is taken of 1 there, for the same reason.
        _ => {
            let up = ge(exec, &b.detach(), &neg(exec, &b.detach())?)?;
            let flat = flag(exec, &logical_and(exec, &is_zero(exec, a)?, &up)?, a)?;
            let log = unary(exec, &add(exec, a, &flat)?, Unary::Log)?;
            mul(exec, &pow(exec, a, b)?, &log)?
        }
    };
    mul(exec, dy, &slope)
}

/// The density of a gamma distribution of concentration `a` and rate 1 at `x`, times `dy`.
pub(super) fn gamma_density(exec: &dyn Exec, a: &Value, x: &Value, dy: &Value) -> Result<Value> {
    let power = xlogy(exec, &add_scalar(exec, a, -1.0)?, x)?;
    let whole = unary(exec, a, Unary::Lgamma)?;
    let log = sub(exec, &sub(exec, &power, x)?, &whole)?;
    let slope = mul(exec, dy, &unary(exec, &log, Unary::Exp)?)?;
    // The logarithm of such a number may not have been taken.
    let beyond = lt(exec, &x.detach(), &number::rounded("igamma", x, 0.0)?)?;
    masked_fill(exec, &slope, &beyond, f64::NAN)
}

/// Where an element is 0.
pub(super) fn is_zero(exec: &dyn Exec, x: &Value) -> Result<Value> {
    let x = x.detach();
    eq(exec, &x, &neg(exec, &x)?)
}

/// `dy` unless `a` loses, half of it where they tie. Nobody loses to NaN.
pub(super) fn shared(
    exec: &dyn Exec,
    dy: &Value,
    a: &Value,
    b: &Value,
    loses: fn(&dyn Exec, &Value, &Value) -> Result<Value>,
) -> Result<Value> {
    let (a, b) = (a.detach(), b.detach());
    let kept = masked_fill(exec, dy, &loses(exec, &a, &b)?, 0.0)?;
    let tied = masked(exec, dy, &eq(exec, &a, &b)?)?;
    sub(exec, &kept, &mul_scalar(exec, &tied, 0.5)?)
}
