//! Derivatives of scans, which are made of scans the other way.

use super::along;
use crate::families::elementwise::{
    add, div, eq, le, logical_and, masked, masked_fill, mul, neg, number, sub, unary,
};
use crate::{Exec, Result, Value};
use shard_kernels::scan::Scan;
use shard_kernels::unary::Unary;

/// Of running products `y` of `x`.
///
/// Before the first zero of a line the derivative is the sum of `dy y` from there on, divided by `x`. At it the quotient would
/// be of two zeros: there the products are taken without that factor. Behind it they are all zero.
pub(super) fn of_products(
    exec: &dyn Exec,
    x: &Value,
    y: &Value,
    dy: &Value,
    dim: usize,
    backwards: bool,
) -> Result<Value> {
    let name = "cumprod";
    let sums = |x: &Value| along(exec, "cumsum", Scan::Sum, !backwards, x, dim);
    let still = x.detach();
    let zero = eq(exec, &still, &number(name, x, 0.0)?)?;
    let zeros = along(exec, "cumsum", Scan::Sum, backwards, &zero, dim)?;
    let none = eq(exec, &zeros, &number(name, &zeros, 0.0)?)?;
    let first = eq(exec, &zeros, &number(name, &zeros, 1.0)?)?;
    let first = logical_and(exec, &first, &zero)?;
    let divisor = masked_fill(exec, x, &zero, 1.0)?;
    let usual = masked(
        exec,
        &div(exec, &sums(&mul(exec, dy, y)?)?, &divisor)?,
        &none,
    )?;
    let rest = masked_fill(exec, x, &first, 1.0)?;
    let rest = along(exec, "cumprod", Scan::Prod, backwards, &rest, dim)?;
    let lone = masked(exec, &sums(&mul(exec, dy, &rest)?)?, &first)?;
    add(exec, &usual, &lone)
}

/// Of running logarithms `y` of sums of exponentials of `x`: the sum of `dy e^(x - y)` from each element on, its terms of
/// either sign summed as logarithms, so that nothing overflows. `back` scans the other way.
pub(super) fn of_exponentials(
    exec: &dyn Exec,
    x: &Value,
    y: &Value,
    dy: &Value,
    back: &dyn Fn(Scan, &Value) -> Result<Value>,
) -> Result<Value> {
    let of_sign = |dy: &Value| -> Result<Value> {
        let log = log_of_positive(exec, dy)?;
        let sums = back(Scan::LogSumExp, &sub(exec, &log, y)?)?;
        unary(exec, &add(exec, &sums, x)?, Unary::Exp)
    };
    let all = sub(exec, &of_sign(dy)?, &of_sign(&neg(exec, dy)?)?)?;
    // Where the exponential is 0 it does not change.
    let least = number("logcumsumexp", x, f64::NEG_INFINITY)?;
    let nothing = eq(exec, &x.detach(), &least)?;
    masked_fill(exec, &all, &nothing, 0.0)
}

/// The logarithm of what is above 0, and of the rest that of 0, with no slope.
fn log_of_positive(exec: &dyn Exec, x: &Value) -> Result<Value> {
    // What no tape records has no slope anywhere.
    if x.slot().is_none() {
        return unary(exec, &unary(exec, x, Unary::Relu)?, Unary::Log);
    }
    let rest = le(exec, &x.detach(), &number("logcumsumexp", x, 0.0)?)?;
    let log = unary(exec, &masked_fill(exec, x, &rest, 1.0)?, Unary::Log)?;
    masked_fill(exec, &log, &rest, f64::NEG_INFINITY)
}
