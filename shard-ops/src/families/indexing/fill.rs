//! A number put into places that an index names.

use super::rows::Picked;
use super::scatter::{in_part, last, named, row_layout};
use crate::error::InOp;
use crate::families::elementwise::masked_fill;
use crate::families::shape::{extent, reshape};
use crate::{Exec, OpError, Result, Value};
use shard_comm::DType;
use shard_redistribute::Array;

/// `x` with `value` in the rows that the list `index`, or a number, names along dim `dim`.
///
/// # Collective
/// As [`index_select`](super::index_select) of a number for each row; no row moves.
///
/// # Errors
/// As [`index_select`](super::index_select); an index of more than one dim, and a value that the type cannot hold.
pub fn index_fill(
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    index: &Value,
    value: f64,
) -> Result<Value> {
    const OP: &str = "index_fill";
    let n = extent(OP, x, dim)?;
    let listed;
    let index = match index.ndim() {
        0 => {
            listed = reshape(exec, &index.detach(), &[1])?;
            &listed
        }
        1 => index,
        _ => {
            return Err(OpError::Shape {
                op: OP,
                problem: "the index is no list".into(),
                shapes: vec![x.shape().to_vec(), index.shape().to_vec()],
                fix: "give an index of one dim",
            });
        }
    };
    let layout = row_layout(x, dim).in_op(OP)?;
    let rows = Array::from_parts(x.array().cx(), &layout, None, DType::I64).in_op(OP)?;
    let last = last(exec, &Value::new(rows), index, &Picked::rows(0, 1))?;
    let mut shape = vec![1; x.ndim()];
    shape[dim] = n;
    let named = reshape(exec, &named(exec, &last)?, &shape)?;
    masked_fill(exec, x, &named, value)
}

/// `x` with `value` at the places that `index` names along dim `dim`: where it holds `j` at a place, at that place with `j` for the dim.
///
/// # Collective
/// As [`scatter`](fn@super::scatter) of which no elements move.
///
/// # Errors
/// As [`gather`](super::gather); a value that the type cannot hold.
pub fn scatter_value(
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    index: &Value,
    value: f64,
) -> Result<Value> {
    extent("scatter_value", x, dim)?;
    in_part(exec, "scatter_value", x, dim, index, |part, index| {
        let last = last(exec, part, index, &Picked::along(dim, part.ndim()))?;
        masked_fill(exec, part, &named(exec, &last)?, value)
    })
}
