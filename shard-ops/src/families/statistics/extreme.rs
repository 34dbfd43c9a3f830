//! The largest and smallest elements with their places.

use super::states::{part, states};
use super::{cells, check_dims};
use crate::families::elementwise::cast;
use crate::families::full::sums;
use crate::families::indexing::gather;
use crate::families::shape::reshape;
use crate::{Exec, OpError, Result, Value};
use shard_comm::{DType, Monoid};

/// The index of the largest element over dims, as `i64`: the first of equal ones, and NaN before all numbers. Of several dims it is
/// the row-major index among their elements.
///
/// Reduced dims disappear, or stay with extent 1 if `keepdim`. No dims means no reduction.
///
/// # Collective
/// All members of the mesh. Communicates an element and an index per cell if reduced dims are sharded.
///
/// # Errors
/// A dim out of range or named twice; dims without elements.
pub fn argmax(exec: &dyn Exec, x: &Value, dims: &[usize], keepdim: bool) -> Result<Value> {
    index_of("argmax", Monoid::ArgMax, exec, x, dims, keepdim)
}

/// The index of the smallest element over dims: as [`argmax`].
///
/// # Collective
/// As [`argmax`].
///
/// # Errors
/// As [`argmax`].
pub fn argmin(exec: &dyn Exec, x: &Value, dims: &[usize], keepdim: bool) -> Result<Value> {
    index_of("argmin", Monoid::ArgMin, exec, x, dims, keepdim)
}

/// The largest element of dim `dim` and its index, as [`argmax`]; the gradient goes to that element.
///
/// # Collective
/// As [`argmax`]; on a tape, also what [`gather`](fn@gather) of one element per cell takes.
///
/// # Errors
/// As [`argmax`].
pub fn max(exec: &dyn Exec, x: &Value, dim: usize, keepdim: bool) -> Result<(Value, Value)> {
    extreme("max", Monoid::ArgMax, exec, x, dim, keepdim)
}

/// The smallest element of dim `dim` and its index: as [`max`].
///
/// # Collective
/// As [`max`].
///
/// # Errors
/// As [`argmax`].
pub fn min(exec: &dyn Exec, x: &Value, dim: usize, keepdim: bool) -> Result<(Value, Value)> {
    extreme("min", Monoid::ArgMin, exec, x, dim, keepdim)
}

/// The places of extremes, with the shape of a number per cell. There is one if any element is there.
fn places(
    op: &'static str,
    monoid: Monoid,
    exec: &dyn Exec,
    x: &Value,
    dims: &[usize],
) -> Result<Value> {
    check_dims(op, x, dims)?;
    if dims.iter().any(|&d| x.shape()[d] == 0) {
        return Err(OpError::Shape {
            op,
            problem: format!("there is no extreme of the nothing in dims {dims:?}"),
            shapes: vec![x.shape().to_vec()],
            fix: "give dims with elements",
        });
    }
    Ok(states(exec, op, monoid, &x.detach(), dims)?.detach())
}

fn index_of(
    op: &'static str,
    monoid: Monoid,
    exec: &dyn Exec,
    x: &Value,
    dims: &[usize],
    keepdim: bool,
) -> Result<Value> {
    let found = places(op, monoid, exec, x, dims)?;
    let shape = cells(op, x, dims, keepdim)?;
    Ok(cast(exec, &part(exec, &found, 1, &shape)?, DType::I64)?.detach())
}

fn extreme(
    op: &'static str,
    monoid: Monoid,
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    keepdim: bool,
) -> Result<(Value, Value)> {
    let [x] = &sums(exec, [x])?;
    let found = places(op, monoid, exec, x, &[dim])?;
    let shape = cells(op, x, &[dim], keepdim)?;
    let index = cast(exec, &part(exec, &found, 1, &shape)?, DType::I64)?.detach();
    let value = match x.slot() {
        // On a tape, it is the element of `x` at the index, which has a derivative, and lies as the index does.
        Some(_) => {
            let mut one_each = x.shape().to_vec();
            one_each[dim] = 1;
            let place = reshape(exec, &index, &one_each)?;
            let value = reshape(exec, &gather(exec, x, dim, &place)?, &shape)?;
            exec.redistribute(&value, index.layout())?
        }
        None => cast(exec, &part(exec, &found, 0, &shape)?, x.dtype())?,
    };
    Ok((value, index))
}
