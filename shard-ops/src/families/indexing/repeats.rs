//! Indices of a dim that stand several times, each as often as a number says.

use super::index_select;
use crate::error::InOp;
use crate::families::decided;
use crate::families::elementwise::cast;
use crate::families::reduce::sum;
use crate::families::scan::cumsum;
use crate::families::search::searchsorted;
use crate::families::shape::extent;
use crate::families::types::integers;
use crate::{Exec, OpError, Result, Value};
use shard_comm::DType;
use shard_redistribute::Array;
use shard_spec::{Layout, Partition};

const NAME: &str = "repeat_interleave";

/// More copies of an index than this, or of all, are refused: up to here `f64` counts exactly, where integers would wrap.
const MOST: usize = 1 << 52;

/// Every index of dim `dim` as often as `counts` says, `[extent]`, one behind the other; `total` is how many that are in all, if it is
/// known. The dim stays divided over the mesh axes that divide it, evenly.
///
/// # Collective
/// All members of the mesh; without a total, all ranks of the program. Two reductions of a number find out whether the counts are
/// counts, and their sum. Where the dim is sharded, as [`index_select`]; where the counts are, what [`cumsum`] and [`searchsorted`] of as
/// many numbers take.
///
/// # Errors
/// A dim out of range; counts that are no list of integers, one for each index; on all ranks,
/// [`OutOfRange`](OpError::OutOfRange) for a count below 0, or above the total, and another total than the sum.
pub fn repeat_interleave_each(
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    counts: &Value,
    total: Option<usize>,
) -> Result<Value> {
    let n = extent(NAME, x, dim)?;
    let wrong = |problem: String, fix| OpError::Shape {
        op: NAME,
        problem,
        shapes: vec![x.shape().to_vec(), counts.shape().to_vec()],
        fix,
    };
    integers(NAME, 1, counts)?;
    if counts.shape() != [n] {
        let problem = format!("counts are not {n}, one for each index of dim {dim}");
        return Err(wrong(problem, "give a list of counts, as long as the dim"));
    }
    let summed = counts.layout().with_partial_reduced();
    let counts = exec.aligned((NAME, 1), &counts.detach(), &summed)?;
    let counts = cast(exec, &counts, DType::I64)?;
    decided::within(exec, NAME, &counts, total.unwrap_or(MOST).min(MOST) + 1)?;
    let all = sum(exec, &cast(exec, &counts, DType::F64)?, &[0], false)?;
    let found = match total {
        Some(_) => decided::read::<f64>(exec, NAME, &all)?,
        None => Some(decided::told::<f64>(exec, NAME, &all)?),
    };
    let total = match (total, found) {
        (_, Some(found)) if found > MOST as f64 => {
            return Err(wrong(format!("{found} copies"), "ask for fewer"));
        }
        (Some(total), Some(found)) if found as usize != total => {
            let problem = format!("a total of {total} for counts that sum to {found}");
            return Err(wrong(problem, "give the sum of the counts"));
        }
        (Some(total), _) => total,
        (None, found) => found.unwrap_or_default() as usize,
    };
    // What stands at a place is the index whose copies are the first to end behind it.
    let ends = cumsum(exec, &counts, 0)?;
    let from = searchsorted(exec, &ends, &numbered(x, dim, total)?, true)?;
    index_select(exec, x, dim, &from)
}

/// The numbers from 0 to below `total`, divided over the mesh axes that divide a dim of `x`.
pub(in crate::families) fn numbered(x: &Value, dim: usize, total: usize) -> Result<Value> {
    let mut layout = Layout::builder(x.layout().mesh(), &[total]);
    if let Some(own) = x.layout().sharding(dim) {
        let parts = Partition::balanced(total, own.partition.parts());
        layout = layout.shard(0, &own.axes, parts);
    }
    let layout = layout.build().in_op(NAME)?;
    let places = Array::from_fn(x.array().cx(), &layout, |i| i[0] as i64);
    Ok(Value::new(places.in_op(NAME)?))
}
