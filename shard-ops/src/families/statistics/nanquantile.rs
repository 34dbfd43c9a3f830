//! Quantiles of what is a number.

use super::quantile::{Interpolation, check, joined};
use crate::families::elementwise::{
    add, cast, eq, mul, mul_scalar, ne, rsub_scalar, sub, unary, where_,
};
use crate::families::full::in_full;
use crate::families::indexing::gather;
use crate::families::reduce::sum;
use crate::families::shape::extent;
use crate::families::sort::sort;
use crate::{Exec, Result, Value};
use shard_comm::DType;
use shard_kernels::unary::Unary;

/// [`quantile`](fn@super::quantile) of what is not NaN: NaN where nothing is.
///
/// # Collective
/// As [`sort`](fn@sort) of the dim, and [`gather`](fn@gather) of one or two elements per cell and quantile, as they are at other places in
/// every cell.
///
/// # Errors
/// As [`quantile`](fn@super::quantile).
pub fn nanquantile(
    exec: &dyn Exec,
    x: &Value,
    q: &[f64],
    dim: usize,
    interpolation: Interpolation,
) -> Result<Value> {
    const NAME: &str = "nanquantile";
    let x = &exec.in_full(x)?;
    let n = extent(NAME, x, dim)?;
    check(NAME, x, q, n)?;
    // NaN stands behind all numbers.
    let (sorted, _) = sort(exec, x, dim, false)?;
    let nan = ne(exec, &sorted.detach(), &sorted.detach())?;
    let lost = cast(exec, &sum(exec, &nan, &[dim], true)?, DType::F64)?;
    let last = unary(
        exec,
        &rsub_scalar(exec, &lost, n as f64 - 1.0)?,
        Unary::Clamp {
            min: 0.0,
            max: f64::INFINITY,
        },
    )?;
    let at = |place: &Value| gather(exec, &sorted, dim, &cast(exec, place, DType::I64)?);
    let found = q.iter().map(|&q| {
        let place = mul_scalar(exec, &last, q)?;
        let round = |how| at(&unary(exec, &place, how)?);
        match interpolation {
            Interpolation::Lower => round(Unary::Floor),
            Interpolation::Higher => round(Unary::Ceil),
            Interpolation::Nearest => round(Unary::Round),
            Interpolation::Linear | Interpolation::Midpoint => {
                let (low, high) = (round(Unary::Floor)?, round(Unary::Ceil)?);
                let part = unary(exec, &place, Unary::Frac)?;
                let part = match interpolation {
                    // Of one place both are the same.
                    Interpolation::Midpoint => {
                        mul_scalar(exec, &unary(exec, &part, Unary::Ceil)?, 0.5)?
                    }
                    _ => part,
                };
                let part = cast(
                    exec,
                    &part,
                    match x.dtype() {
                        DType::F64 => DType::F64,
                        _ => DType::F32,
                    },
                )?;
                in_full(exec, [&low, &high], |[low, high]| {
                    between(exec, low, high, &part)
                })
            }
        }
    });
    joined(exec, &sorted, dim, found)
}

/// What lies between two elements, `part` of the way from the lower to the higher. Between an infinity and a number it is the infinity.
fn between(exec: &dyn Exec, low: &Value, high: &Value, part: &Value) -> Result<Value> {
    let way = mul(exec, &sub(exec, high, low)?, part)?;
    let found = add(exec, low, &way)?;
    let rest = rsub_scalar(exec, part, 1.0)?;
    let shares = add(exec, &mul(exec, low, &rest)?, &mul(exec, high, part)?)?;
    let lost = ne(exec, &found.detach(), &found.detach())?;
    let found = where_(exec, &lost, &shares, &found)?;
    let same = eq(exec, &low.detach(), &high.detach())?;
    where_(exec, &same, low, &found)
}
