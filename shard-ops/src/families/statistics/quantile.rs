//! Quantiles along a dim.

use crate::families::elementwise::{add, mul_scalar, ne, sub, where_};
use crate::families::full::in_full;
use crate::families::index::{cat, slice};
use crate::families::shape::extent;
use crate::families::sort::sort;
use crate::families::types::floats;
use crate::{Exec, OpError, Result, Value};

/// What a quantile between two elements is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Interpolation {
    /// On the line between them; between an infinity and a number the infinity.
    #[default]
    Linear,
    /// The lower one.
    Lower,
    /// The higher one.
    Higher,
    /// The nearer one; of two that are equally near, that with an even place.
    Nearest,
    /// Halfway between them.
    Midpoint,
}

/// The quantiles `q` (from 0 to 1) of dim `dim`, as its indices: as many as there are `q`. Of a line with NaN they are NaN.
///
/// # Collective
/// As [`sort`](fn@sort) of the dim.
///
/// # Errors
/// A dim out of range or without elements; a `q` that is not between 0 and 1; an operand of integers or truth values.
pub fn quantile(
    exec: &dyn Exec,
    x: &Value,
    q: &[f64],
    dim: usize,
    interpolation: Interpolation,
) -> Result<Value> {
    let x = &exec.in_full(x)?;
    let n = extent(NAME, x, dim)?;
    check(NAME, x, q, n)?;
    let (sorted, _) = sort(exec, x, dim, false)?;
    let at = |place: usize| slice(exec, &sorted, dim, place, 1, 1);
    // NaN stands behind all numbers.
    let last = at(n - 1)?;
    let is_nan = ne(exec, &last.detach(), &last.detach())?;
    let found = q.iter().map(|q| {
        let rank = q * (n - 1) as f64;
        let (low, high) = (rank.floor() as usize, rank.ceil() as usize);
        let value = match interpolation {
            Interpolation::Lower => at(low)?,
            Interpolation::Higher => at(high)?,
            Interpolation::Nearest => at(rank.round_ties_even() as usize)?,
            _ if low == high => at(low)?,
            _ => {
                let weight = match interpolation {
                    Interpolation::Midpoint => 0.5,
                    _ => rank.fract(),
                };
                in_full(exec, [&at(low)?, &at(high)?], |[low, high]| {
                    between(exec, low, high, weight)
                })?
            }
        };
        where_(exec, &is_nan, &last, &value)
    });
    joined(exec, &sorted, dim, found)
}

/// What was found one behind another along a dim of what was sorted.
pub(super) fn joined(
    exec: &dyn Exec,
    sorted: &Value,
    dim: usize,
    found: impl Iterator<Item = Result<Value>>,
) -> Result<Value> {
    let found = found.collect::<Result<Vec<_>>>()?;
    match &found[..] {
        [] => slice(exec, sorted, dim, 0, 1, 0),
        [one] => Ok(one.clone()),
        many => cat(exec, &many.iter().collect::<Vec<_>>(), dim),
    }
}

/// What lies between two elements, computed from the nearer one. Between an infinity and a number it is the infinity.
fn between(exec: &dyn Exec, low: &Value, high: &Value, weight: f64) -> Result<Value> {
    let way = sub(exec, high, low)?;
    let (from, part) = match weight < 0.5 {
        true => (low, weight),
        false => (high, weight - 1.0),
    };
    let found = add(exec, from, &mul_scalar(exec, &way, part)?)?;
    let shares = add(
        exec,
        &mul_scalar(exec, low, 1.0 - weight)?,
        &mul_scalar(exec, high, weight)?,
    )?;
    let lost = ne(exec, &found.detach(), &found.detach())?;
    where_(exec, &lost, &shares, &found)
}

const NAME: &str = "quantile";

/// Refuses what has no quantiles.
pub(super) fn check(op: &'static str, x: &Value, q: &[f64], n: usize) -> Result<()> {
    floats(op, 0, x)?;
    let (problem, fix) = match q.iter().find(|q| !(0.0..=1.0).contains(*q)) {
        Some(q) => (format!("a quantile of {q}"), "give numbers from 0 to 1"),
        None if n == 0 => (
            "there is no quantile of nothing".into(),
            "give a dim with elements",
        ),
        None => return Ok(()),
    };
    Err(OpError::Shape {
        op,
        problem,
        shapes: vec![x.shape().to_vec()],
        fix,
    })
}
