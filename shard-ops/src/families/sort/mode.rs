//! The most frequent elements.

use super::sort;
use crate::families::broadcast::expand_like;
use crate::families::elementwise::{cast, mul, ne, number, sub};
use crate::families::index::{pad, slice};
use crate::families::indexing::gather;
use crate::families::scan::{cummax, cumsum};
use crate::families::shape::squeeze;
use crate::families::statistics::argmax;
use crate::{Exec, OpError, Result, Value};
use shard_comm::DType;
use shard_spec::EdgeMap;

/// The element of dim `dim` that is there most often, of several the smallest, and the last index it has, `i64`; without the dim. Numbers
/// that are NaN are no two the same.
///
/// # Collective
/// As [`sort`]; where the dim is sharded, a number from every part for each line, and what
/// [`gather`](fn@crate::indexing::gather) of one element per line takes.
///
/// # Errors
/// As [`sort`]; a dim without elements.
pub fn mode(exec: &dyn Exec, x: &Value, dim: usize) -> Result<(Value, Value)> {
    let (sorted, places) = sort(exec, &x.detach(), dim, false)?;
    let Some(others) = x.shape()[dim].checked_sub(1) else {
        return Err(OpError::Shape {
            op: "mode",
            problem: format!("dim {dim} has no elements"),
            shapes: vec![x.shape().to_vec()],
            fix: "give elements of which one is the most frequent",
        });
    };
    // Equal elements stand together: a run begins where one differs from that before it.
    let part = |start| slice(exec, &sorted, dim, start, 1, others);
    let begins = cast(exec, &ne(exec, &part(1)?, &part(0)?)?, DType::I64)?;
    let mut pads = vec![(0, 0); x.ndim()];
    pads[dim].0 = 1;
    let begins = pad(exec, &begins, &pads, EdgeMap::Zeros, 1.0)?;
    let ones = expand_like(exec, &number("mode", &places, 1.0)?, &places)?;
    let counted = cumsum(exec, &ones, dim)?;
    let (begun, _) = cummax(exec, &mul(exec, &counted, &begins)?, dim)?;
    // Of runs of one length the first, which is the smallest number's.
    let longest = argmax(exec, &sub(exec, &counted, &begun)?, &[dim], true)?;
    let at = gather(exec, &places, dim, &longest)?;
    let found = gather(exec, x, dim, &at)?;
    Ok((squeeze(exec, &found, dim)?, squeeze(exec, &at, dim)?))
}
