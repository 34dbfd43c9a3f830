//! Elements folded into places along a dim.

use super::fold::FoldRows;
use super::rows::Picked;
use super::shortened;
use crate::families::index;
use crate::families::shape::extent;
use crate::{Exec, Result, Value};
use shard_spec::ReduceOp;
use std::sync::Arc;

/// `x` with every element of `src` added at the place that `index` names along dim `dim`: where `index` holds `j` at a place, the element
/// of `src` there is added to that of `x` there with `j` for the dim. `index` may be shorter than `src`, and than `x` in other dims.
///
/// Elements that meet are added in the order of the index, on each rank by itself, and these sums by the owner: its own first, then by
/// rank.
///
/// # Collective
/// As [`index_select`](super::index_select), of sums that go the other way.
///
/// # Errors
/// As [`gather`](super::gather); a source shorter than the index, or of another type than `x`.
pub fn scatter_add(
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    index: &Value,
    src: &Value,
) -> Result<Value> {
    into_places(exec, "scatter_add", x, dim, index, src, |x, index, src| {
        along(dim, x, ReduceOp::Sum, true, exec, index, src)
    })
}

/// Folds elements of one reduction: what [`FoldRows`] does where the index has all dims.
pub(super) fn along(
    dim: usize,
    x: &Value,
    how: ReduceOp,
    has_base: bool,
    exec: &dyn Exec,
    index: &Value,
    src: &Value,
) -> Result<Value> {
    let fold = FoldRows {
        picked: Picked::along(dim, x.ndim()),
        how,
        has_base,
        skips: None,
    };
    exec.apply1(Arc::new(fold), &[x, index, src])
}

/// Applies `f` to the part of `x` that is as long as the index in other dims, and to as much of `src`; the rest of `x` stays.
pub(super) fn into_places(
    exec: &dyn Exec,
    op: &'static str,
    x: &Value,
    dim: usize,
    index: &Value,
    src: &Value,
    f: impl FnOnce(&Value, &Value, &Value) -> Result<Value>,
) -> Result<Value> {
    extent(op, x, dim)?;
    let part = shortened(exec, op, x, Some(dim), index)?;
    let src = shortened(exec, op, src, None, index)?;
    let mut whole = f(&part, &index.detach(), &src)?;
    // The rest, dim by dim: what is beyond in this one, and in those before as long as `x`.
    for d in (0..x.ndim()).filter(|&d| d != dim) {
        let (had, all) = (index.shape()[d], x.shape()[d]);
        if had == all {
            continue;
        }
        let mut rest = index::slice(exec, x, d, had, 1, all - had)?;
        for later in (d + 1..x.ndim()).filter(|&l| l != dim && index.shape()[l] < x.shape()[l]) {
            rest = index::slice(exec, &rest, later, 0, 1, index.shape()[later])?;
        }
        whole = index::cat(exec, &[&whole, &rest], d)?;
    }
    Ok(whole)
}
