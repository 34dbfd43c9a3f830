//! Rows grouped by segment: sums, means, largest, smallest and softmax over the rows of each.

use super::fold::FoldRows;
use super::rows::{ABSENT, Picked};
use super::scatter::counts;
use super::{index_select, pick};
use crate::elementwise::{
    cast, div, eq, ge, isnan, logical_or, masked_fill, maximum, number, sub, unary, where_,
};
use crate::error::InOp;
use crate::families::decided;
use crate::families::full::{rounded_once, sums};
use crate::families::shape::reshape;
use crate::families::types::{floats, integers};
use crate::host::is_whole;
use crate::{Exec, OpError, Result, Value};
use shard_comm::DType;
use shard_kernels::unary::Unary;
use shard_redistribute::Array;
use shard_spec::{DimSharding, Layout, Partition, ReduceOp};
use std::sync::Arc;

/// The sum of the rows of each of `count` segments: row `i` of `x` is of segment `ids[i]`. Ids need not be sorted. A segment
/// without rows has zeros.
///
/// Segments are divided evenly over the mesh axes that divide the ids, the other dims of rows as they are. 16-bit floats are summed as
/// `f32`, and rounded once.
///
/// # Collective
/// As [`index_add`](super::index_add) into a table that is divided so.
///
/// # Errors
/// As [`index_add`](super::index_add); ids of more or fewer than one dim.
pub fn segment_sum(exec: &dyn Exec, x: &Value, ids: &Value, count: usize) -> Result<Value> {
    folded(exec, "segment_sum", x, ids, count, ReduceOp::Sum)
}

/// The mean of the rows of each segment; zeros for those without rows. See [`segment_sum`].
///
/// # Collective
/// As [`segment_sum`], of rows and of a number each.
///
/// # Errors
/// As [`segment_sum`]; types other than floats.
pub fn segment_mean(exec: &dyn Exec, x: &Value, ids: &Value, count: usize) -> Result<Value> {
    floats("segment_mean", 0, x)?;
    rounded_once(exec, [x], |[x]| {
        let total = folded(exec, "segment_mean", x, ids, count, ReduceOp::Sum)?;
        let like = segments("segment_mean", &column(x, ids)?, ids, count)?;
        let sizes = counts(exec, &like, ids, &Picked::rows(0, 1))?;
        // Sums of nothing are zero, whatever they are divided by.
        let sizes = maximum(exec, &sizes, &number("segment_mean", &sizes, 1.0)?)?;
        div(exec, &total, &as_column(exec, &sizes, x.ndim())?)
    })
}

/// The largest of the rows of each segment, element by element; -∞, or the least whole number, for those without rows. Gradients are
/// shared evenly between ties, and NaN where the largest is. See [`segment_sum`].
///
/// # Collective
/// As [`segment_sum`].
///
/// # Errors
/// As [`segment_sum`].
pub fn segment_max(exec: &dyn Exec, x: &Value, ids: &Value, count: usize) -> Result<Value> {
    folded(exec, "segment_max", x, ids, count, ReduceOp::Max)
}

/// The smallest of the rows of each segment, as [`segment_max`].
///
/// # Collective
/// As [`segment_sum`].
///
/// # Errors
/// As [`segment_sum`].
pub fn segment_min(exec: &dyn Exec, x: &Value, ids: &Value, count: usize) -> Result<Value> {
    folded(exec, "segment_min", x, ids, count, ReduceOp::Min)
}

/// [`segment_max`], and of each element the row that it is from, `i64`: of equal ones, or several NaN, the first; -1 where a segment has no
/// rows. The gradient goes to that element alone.
///
/// # Collective
/// Twice [`segment_sum`] and once [`index_select`] of its result, all by one route; where gradients are wanted, also what
/// [`gather`](super::gather) of an element per cell takes.
///
/// # Errors
/// As [`segment_max`].
pub fn segment_max_with_indices(
    exec: &dyn Exec,
    x: &Value,
    ids: &Value,
    count: usize,
) -> Result<(Value, Value)> {
    let op = "segment_max_with_indices";
    winners(exec, op, x, ids, count, ReduceOp::Max)
}

/// [`segment_min`], and of each element the row that it is from, as [`segment_max_with_indices`].
///
/// # Collective
/// As [`segment_max_with_indices`].
///
/// # Errors
/// As [`segment_min`].
pub fn segment_min_with_indices(
    exec: &dyn Exec,
    x: &Value,
    ids: &Value,
    count: usize,
) -> Result<(Value, Value)> {
    let op = "segment_min_with_indices";
    winners(exec, op, x, ids, count, ReduceOp::Min)
}

/// Extremes of segments, and the first rows that have them.
fn winners(
    exec: &dyn Exec,
    op: &'static str,
    x: &Value,
    ids: &Value,
    count: usize,
    how: ReduceOp,
) -> Result<(Value, Value)> {
    let layout = x.layout().with_partial_reduced();
    let x = &exec.aligned((op, 0), x, &layout)?;
    let own = &x.detach();
    let best = folded(exec, op, own, ids, count, how)?;
    let there = index_select(exec, &best, 0, ids)?;
    // A NaN is its segment's extreme.
    let has_it = logical_or(exec, &eq(exec, own, &there)?, &isnan(exec, own)?)?;
    let rows = Array::from_fn(x.array().cx(), &layout, |i| i[0] as i64);
    let rows = Value::new(rows.in_op(op)?);
    let beyond = number(op, &rows, x.shape()[0] as f64)?;
    let named = where_(exec, &has_it, &rows, &beyond)?;
    let first = folded(exec, op, &named, ids, count, ReduceOp::Min)?;
    let none = ge(exec, &first, &beyond)?;
    let indices = masked_fill(exec, &first, &none, -1.0)?.detach();
    if x.slot().is_none() {
        return Ok((best, indices));
    }
    // On a tape, it is the element of `x` at the index, which has a derivative.
    let place = masked_fill(exec, &first, &none, ABSENT as f64)?;
    let picked = pick(exec, x, 0, &place)?;
    Ok((where_(exec, &none, &best, &picked)?, indices))
}

/// `exp(x)` divided by its sum over the rows of the same segment, element by element: attention over the edges of each node. It has
/// the shape of `x`. See [`segment_sum`].
///
/// # Collective
/// Twice [`segment_sum`], and twice [`index_select`] of its result, all by one route.
///
/// # Errors
/// As [`segment_mean`].
pub fn segment_softmax(exec: &dyn Exec, x: &Value, ids: &Value, count: usize) -> Result<Value> {
    rounded_once(exec, [x], |[x]| {
        let [x] = &sums(exec, [x])?;
        let largest = folded(
            exec,
            "segment_softmax",
            &x.detach(),
            ids,
            count,
            ReduceOp::Max,
        )?;
        let shifted = sub(exec, x, &index_select(exec, &largest, 0, ids)?)?;
        let raised = unary(exec, &shifted, Unary::Exp)?;
        let total = folded(exec, "segment_softmax", &raised, ids, count, ReduceOp::Sum)?;
        div(exec, &raised, &index_select(exec, &total, 0, ids)?)
    })
}

/// How often each number from 0 to the largest of `x` is among its elements, `i64`, or to at least `minlength` of them; or the sums of
/// the `weights` of its elements, which have the shape of `x`. Sums of integers are `i64`.
///
/// # Collective
/// All ranks of the program: one reduction finds the largest number. Then as [`bincount_within`].
///
/// # Errors
/// As [`bincount_within`].
pub fn bincount(
    exec: &dyn Exec,
    x: &Value,
    weights: Option<&Value>,
    minlength: usize,
) -> Result<Value> {
    const OP: &str = "bincount";
    integers(OP, 0, x)?;
    let count = decided::count(exec, OP, x)?.unwrap_or(0);
    let x = match x.dtype() {
        DType::U8 => &cast(exec, x, DType::I64)?,
        _ => x,
    };
    bincount_within(exec, x, weights, count.max(minlength))
}

/// How often each number from 0 to below `bins` is among the elements of `x`, `i64`; or the sums of the `weights` of its elements, which have the
/// shape of `x`. Sums of integers are `i64`.
///
/// # Collective
/// As [`segment_sum`].
///
/// # Errors
/// As [`segment_sum`]; numbers out of range, negative ones too.
pub fn bincount_within(
    exec: &dyn Exec,
    x: &Value,
    weights: Option<&Value>,
    bins: usize,
) -> Result<Value> {
    let named = Picked::rows(0, 1).with_no_negatives();
    counted(exec, x, weights, bins, named)
}

/// As [`bincount_within`], of elements of which [`ABSENT`] ones are not counted.
pub(in crate::families) fn bincount_of_some(
    exec: &dyn Exec,
    x: &Value,
    bins: usize,
) -> Result<Value> {
    let named = Picked::rows(0, 1).with_no_negatives().with_gaps();
    counted(exec, x, None, bins, named)
}

fn counted(
    exec: &dyn Exec,
    x: &Value,
    weights: Option<&Value>,
    bins: usize,
    picked: Picked,
) -> Result<Value> {
    const OP: &str = "bincount";
    let count = x.shape().iter().product();
    let list = |v: &Value| match v.ndim() {
        1 => Ok(v.clone()),
        _ => reshape(exec, v, &[count]),
    };
    let ids = list(&x.detach())?;
    let terms = match weights {
        Some(weights) if weights.shape() == x.shape() => match is_whole(weights.dtype()) {
            true => list(&cast(exec, weights, DType::I64)?)?,
            false => list(weights)?,
        },
        Some(weights) => {
            return Err(OpError::Shape {
                op: OP,
                problem: "weights are not as many".into(),
                shapes: vec![x.shape().to_vec(), weights.shape().to_vec()],
                fix: "give a weight for each element",
            });
        }
        None => {
            let layout = ids.layout().with_partial_reduced();
            let ones = Array::from_runs(ids.array().cx(), &layout, |_, _, run| run.fill(1_i64));
            Value::new(ones.in_op(OP)?)
        }
    };
    let fold = FoldRows {
        picked,
        how: ReduceOp::Sum,
        has_base: false,
        skips: None,
    };
    let like = segments(OP, &terms, &ids, bins)?;
    exec.apply1(Arc::new(fold), &[&like, &ids, &terms])
}

fn folded(
    exec: &dyn Exec,
    op: &'static str,
    x: &Value,
    ids: &Value,
    count: usize,
    how: ReduceOp,
) -> Result<Value> {
    if ids.ndim() != 1 || x.ndim() == 0 {
        return Err(OpError::Shape {
            op,
            problem: "rows need one id each".into(),
            shapes: vec![x.shape().to_vec(), ids.shape().to_vec()],
            fix: "give ids of one dim, as long as the rows' first",
        });
    }
    let fold = FoldRows {
        picked: Picked::rows(0, 1),
        how,
        has_base: false,
        skips: None,
    };
    let folded = |x: &Value| {
        let like = segments(op, x, ids, count)?;
        exec.apply1(Arc::new(fold), &[&like, &ids.detach(), x])
    };
    match how {
        // The op itself rounds sums once.
        ReduceOp::Sum => folded(x),
        _ => rounded_once(exec, [x], |[x]| folded(x)),
    }
}

/// A layout for segments: divided as their ids are, rows as the rows are.
fn segments(op: &'static str, x: &Value, ids: &Value, count: usize) -> Result<Value> {
    let cx = x.array().cx();
    let own = ids.layout().sharding(0).map(|s| DimSharding {
        axes: s.axes.clone(),
        partition: Partition::balanced(count, s.partition.parts()),
    });
    let taken = |s: &&DimSharding| {
        let own = own.as_ref().map_or(&[][..], |o| &o.axes);
        !s.axes.iter().any(|a| own.contains(a))
    };
    let rows = x.layout().shardings().iter().skip(1);
    let rows = rows.map(|s| s.as_ref().filter(taken).cloned());
    let dims = std::iter::once(own.clone()).chain(rows);
    let mut shape = x.shape().to_vec();
    shape[0] = count;
    let layout = Layout::from_dims(cx.mesh(), &shape, dims, None).in_op(op)?;
    Ok(Value::new(
        Array::from_parts(cx, &layout, None, x.dtype()).in_op(op)?,
    ))
}

/// A number for each id, of the type of `x`, without elements.
fn column(x: &Value, ids: &Value) -> Result<Value> {
    let (cx, layout) = (x.array().cx(), ids.layout().with_partial_reduced());
    let column = Array::from_parts(cx, &layout, None, x.dtype());
    Ok(Value::new(column.in_op("segment_mean")?))
}

/// A list as a table of one column, of so many dims.
fn as_column(exec: &dyn Exec, list: &Value, ndim: usize) -> Result<Value> {
    let mut shape = vec![1; ndim];
    shape[0] = list.shape()[0];
    reshape(exec, list, &shape)
}
