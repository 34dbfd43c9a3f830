//! Derivatives of scans, which are made of scans the other way.

use super::along;
use crate::families::elementwise::{
    add, div, eq, isfinite, le, logical_and, logical_not, masked, masked_fill, mul, neg, number,
    sub, unary,
};
use crate::families::reduce::sum;
use crate::{Exec, Result, Value};
use shard_kernels::scan::Scan;
use shard_kernels::unary::Unary;

/// Of running products `y` of `x`.
///
/// Before the first zero of a line the derivative is the sum of `dy y` from there on, divided by `x`. At it the quotient would
/// be of two zeros: there the products are taken without that factor. Behind it they are all zero, but change with it.
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
    let after = |n| eq(exec, &zeros, &number(name, &zeros, n)?);
    let none = after(0.0)?;
    let first = logical_and(exec, &after(1.0)?, &zero)?;
    let divisor = masked_fill(exec, x, &zero, 1.0)?;
    let usual = masked(
        exec,
        &div(exec, &sums(&mul(exec, dy, y)?)?, &divisor)?,
        &none,
    )?;
    let rest = masked_fill(exec, x, &first, 1.0)?;
    let products = |x: &Value| along(exec, name, Scan::Prod, backwards, x, dim);
    let without = sums(&mul(exec, dy, &products(&rest)?)?)?;
    let lone = masked(exec, &without, &first)?;
    let found = add(exec, &usual, &lone)?;
    if !exec.records() {
        return Ok(found);
    }
    // Behind the first zero up to the second: the first, times products without it and without the element.
    let second = logical_and(exec, &after(2.0)?, &zero)?;
    let behind = logical_and(exec, &after(1.0)?, &logical_not(exec, &first)?)?;
    let rest = masked_fill(exec, &rest, &second, 1.0)?;
    let at_second = masked(exec, &sums(&mul(exec, dy, &products(&rest)?)?)?, &second)?;
    let between = masked(exec, &div(exec, &without, &divisor)?, &behind)?;
    let factor = add(exec, &between, &at_second)?;
    let factor = masked(exec, &factor, &isfinite(exec, &factor.detach())?)?;
    let lead = sum(exec, &masked(exec, x, &first)?, &[dim], true)?;
    add(exec, &found, &mul(exec, &lead, &factor)?)
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
