//! Integrals along a dim of what is known at some places, by the trapezoidal rule.

use super::elementwise::{add, diff, mul, mul_scalar};
use super::full::in_full;
use super::index::slice;
use super::reduce::sum;
use super::scan::cumsum;
use super::shape::{extent, reshape};
use super::types::floats;
use crate::{Exec, OpError, Result, Value};

/// How far apart the places along a dim are.
#[derive(Clone, Copy, Debug)]
pub enum Spacing<'a> {
    /// All by this much.
    Even(f64),
    /// They are at these places: a list of them, or a value that broadcasts to the other one's shape.
    At(&'a Value),
}

/// The integral along dim `dim`, which disappears: 0 of one place, or of none.
///
/// # Collective
/// All members of the mesh. Where the dim is sharded, ranks get what of neighbouring parts belongs to theirs, and the result is partial;
/// communicates to align misaligned operands.
///
/// # Errors
/// A dim out of range; places that do not broadcast to the dim's; types that differ; integers and truth values.
pub fn trapezoid(exec: &dyn Exec, y: &Value, spacing: Spacing<'_>, dim: usize) -> Result<Value> {
    integral("trapezoid", exec, y, spacing, dim, |areas| {
        sum(exec, areas, &[dim], false)
    })
}

/// The integrals along dim `dim` up to each place but the first: a dim that is shorter by one, or empty.
///
/// # Collective
/// As [`trapezoid`], and [`cumsum`](fn@cumsum).
///
/// # Errors
/// As [`trapezoid`].
pub fn cumulative_trapezoid(
    exec: &dyn Exec,
    y: &Value,
    spacing: Spacing<'_>,
    dim: usize,
) -> Result<Value> {
    integral("cumulative_trapezoid", exec, y, spacing, dim, |areas| {
        cumsum(exec, areas, dim)
    })
}

/// What `f` makes of the areas between neighbouring places.
fn integral(
    op: &'static str,
    exec: &dyn Exec,
    y: &Value,
    spacing: Spacing<'_>,
    dim: usize,
    f: impl Fn(&Value) -> Result<Value>,
) -> Result<Value> {
    let n = extent(op, y, dim)?;
    floats(op, 0, y)?;
    let rest = n.saturating_sub(1);
    let both = |y: &Value| {
        let [before, after] = [0, n - rest].map(|from| slice(exec, y, dim, from, 1, rest));
        add(exec, &before?, &after?)
    };
    match spacing {
        Spacing::Even(step) => in_full(exec, [y], |[y]| {
            f(&mul_scalar(exec, &both(y)?, 0.5 * step)?)
        }),
        Spacing::At(places) => in_full(exec, [y, places], |[y, places]| {
            let (places, along) = beside(exec, op, y, places, dim)?;
            let widths = diff(exec, &places, 1, along)?;
            f(&mul_scalar(exec, &mul(exec, &both(y)?, &widths)?, 0.5)?)
        }),
    }
}

/// Places in a shape that broadcasts to that of `y`, and which of their dims is its dim `dim`.
fn beside(
    exec: &dyn Exec,
    op: &'static str,
    y: &Value,
    places: &Value,
    dim: usize,
) -> Result<(Value, usize)> {
    let n = y.shape()[dim];
    if places.shape() == [n] {
        let mut shape = vec![1; y.ndim() - dim];
        shape[0] = n;
        return Ok((reshape(exec, places, &shape)?, 0));
    }
    let along = (dim + places.ndim()).checked_sub(y.ndim());
    match along.filter(|&along| places.shape()[along] == n) {
        Some(along) => Ok((places.clone(), along)),
        None => Err(OpError::Shape {
            op,
            problem: format!("places that are not the {n} of dim {dim}"),
            shapes: vec![y.shape().to_vec(), places.shape().to_vec()],
            fix: "give a list of them, or a tensor that broadcasts",
        }),
    }
}
