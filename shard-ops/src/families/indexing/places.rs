//! Places that several indices name together, one for each of consecutive dims.

use super::Resolve;
use crate::elementwise::{add, broadcast_shape, mul_scalar};
use crate::families::broadcast::expand;
use crate::families::index::unbind;
use crate::families::select::nonzero;
use crate::families::shape::{extent, reshape};
use crate::{Exec, OpError, Result, Value};
use shard_comm::DType;

/// Rows of `x` at the places that `indices` name: one for each of the dims from `dim` on, broadcast to one shape, which takes the place of these
/// dims. A mask (`bool`) stands for the indices of all its true elements, in row-major order, of as many dims as it has.
///
/// # Collective
/// As [`index_select`](super::index_select), of rows of the dims that are named, which are made one; and with a mask all ranks of the program, as
/// [`nonzero`]. Routes are not kept: the places are worked out anew.
///
/// # Errors
/// No indices, or more than dims from `dim` on; shapes that do not broadcast; a mask of other extents than its dims; what is out of range, as in
/// [`index_select`](super::index_select).
pub fn index(exec: &dyn Exec, x: &Value, dim: usize, indices: &[&Value]) -> Result<Value> {
    const OP: &str = "index";
    extent(OP, x, dim)?;
    let named = Places::of(exec, OP, x, dim, indices)?;
    let (before, after) = (&x.shape()[..dim], &x.shape()[dim + named.dims..]);
    let joined = |at: &[usize]| [before, at, after].concat();
    let rows = x.shape()[dim..dim + named.dims].iter().product();
    let table = reshape(exec, x, &joined(&[rows]))?;
    let picked = super::index_select(exec, &table, dim, &named.numbers)?;
    reshape(exec, &picked, &joined(&named.shape))
}

/// Places as numbers of rows.
pub(super) struct Places {
    /// How many dims they are of.
    pub(super) dims: usize,
    /// The shape that the indices broadcast to.
    pub(super) shape: Vec<usize>,
    /// For each place the number of its row, in row-major order of the dims: a list.
    pub(super) numbers: Value,
}

impl Places {
    /// Those that `indices` name in dims of `x` from `dim` on.
    pub(super) fn of(
        exec: &dyn Exec,
        op: &'static str,
        x: &Value,
        dim: usize,
        indices: &[&Value],
    ) -> Result<Self> {
        let extents = &x.shape()[dim..];
        let each = unmasked(exec, op, x, dim, indices)?;
        if each.is_empty() || each.len() > extents.len() {
            let problem = "there are no indices, or more than dims";
            return Err(misfit(op, &[&[x], indices].concat(), problem));
        }
        let each: Vec<&Value> = each.iter().collect();
        let shape = broadcast_shape(op, &each)?;
        let mut numbers: Option<Value> = None;
        for (&index, &n) in each.iter().zip(extents) {
            let index = match index.shape() == shape {
                true => index.detach(),
                false => expand(exec, &index.detach(), &shape)?,
            };
            let at = Resolve::apply(exec, op, &index, n)?;
            numbers = Some(match numbers {
                None => at,
                Some(before) => add(exec, &mul_scalar(exec, &before, n as f64)?, &at)?,
            });
        }
        let Some(numbers) = numbers else {
            unreachable!("there is an index")
        };
        Ok(Self {
            dims: each.len(),
            numbers: reshape(exec, &numbers, &[shape.iter().product()])?,
            shape: shape.to_vec(),
        })
    }
}

/// The indices, with those of its true elements in place of each mask.
fn unmasked(
    exec: &dyn Exec,
    op: &'static str,
    x: &Value,
    dim: usize,
    indices: &[&Value],
) -> Result<Vec<Value>> {
    let mut each = Vec::with_capacity(indices.len());
    for &index in indices {
        if index.dtype() != DType::Bool {
            each.push(index.clone());
            continue;
        }
        let from = dim + each.len();
        if index.ndim() == 0 || x.shape().get(from..from + index.ndim()) != Some(index.shape()) {
            let problem = format!("a mask has other extents than the dims from {from} on");
            return Err(misfit(op, &[x, index], &problem));
        }
        each.extend(unbind(exec, &nonzero(exec, index)?, 1)?);
    }
    Ok(each)
}

pub(super) fn misfit(op: &'static str, values: &[&Value], problem: &str) -> OpError {
    OpError::Shape {
        op,
        problem: problem.into(),
        shapes: values.iter().map(|v| v.shape().to_vec()).collect(),
        fix: "give operands whose shapes belong together",
    }
}
