//! Ops whose operands name rows of others: select, gather, embedding, and what folds rows into those that are named.
//!
//! All are two ops: `Take`, which picks rows, and `FoldRows`, which folds rows into those of a table; each
//! is the other's derivative. Where several rows of a place are summed with weights, that is one op with two for its derivative
//! (`weighted.rs`), on devices that have kernels for them; and where the rows are matrices that others are multiplied with, `products.rs`. Rows of other ranks come, or go, as [`RouteBy`](crate::RouteBy) says. Who asks whom is found out at the
//! first use of an index, and kept as long as that value lives.

mod bags;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod fill;
mod fold;
mod grouped;
mod places;
mod products;
#[cfg(feature = "cuda")]
pub(crate) mod products_cuda;
mod repeats;
pub(crate) mod resolve;
mod rows;
mod scatter;
mod segments;
mod take;
mod weighted;

pub use self::bags::{BagReduce, Bags, embedding_bag};
pub use self::fill::{index_fill, scatter_value};
use self::fold::FoldRows;
pub use self::grouped::{gather_mm, gather_mm_by, grouped_mm};
pub use self::places::index;
pub(super) use self::repeats::numbered;
pub use self::repeats::repeat_interleave_each;
pub(crate) use self::resolve::Resolve;
pub(super) use self::rows::ABSENT;
use self::rows::Picked;
pub(crate) use self::rows::with_foldable;
pub(crate) use self::rows::{Pack, Settle};
pub use self::scatter::{
    ScatterReduce, index_copy, index_put, scatter, scatter_add, scatter_reduce,
};
pub(super) use self::segments::bincount_of_some;
pub use self::segments::{
    bincount, bincount_within, segment_max, segment_max_with_indices, segment_mean, segment_min,
    segment_min_with_indices, segment_softmax, segment_sum,
};
use self::take::Take;
use super::broadcast::expand;
use super::index;
use super::shape::{extent, reshape};
use crate::elementwise::mul_scalar;
use crate::families::full::rounded_once;
use crate::{Exec, OpError, Result, RouteBy, Value};
use shard_spec::{ReduceOp, numel};
use std::sync::Arc;

/// The indices `index` of dim `dim`, in its order: whole rows, columns, and so on. The dims of an index of several take that
/// dim's place. Negative indices count from the end.
///
/// # Collective
/// All members of the mesh. Where the dim is sharded, the rows that this rank's part of the index names and others have, each
/// once; and at the first use of an index a round of a number per rank and a request of at most eight bytes per such row. An index
/// that was used before, here or in a derivative, asks for nothing.
///
/// # Errors
/// A dim out of range; an index that is not i64 or i32; on all ranks, and before a row moves, an index out of range on any.
pub fn index_select(exec: &dyn Exec, x: &Value, dim: usize, index: &Value) -> Result<Value> {
    index_select_by(exec, x, dim, index, RouteBy::Auto)
}

/// [`index_select`], saying how rows come.
///
/// # Collective
/// As [`index_select`].
///
/// # Errors
/// As [`index_select`].
pub fn index_select_by(
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    index: &Value,
    by: RouteBy,
) -> Result<Value> {
    extent("index_select", x, dim)?;
    let take = Take {
        picked: Picked::rows(dim, index.ndim()),
        skips: None,
        padding: None,
        by,
    };
    exec.apply1(Arc::new(take), &[x, &index.detach()])
}

/// The sums of the rows of `dy` that [`index_select`] picked from the same row along dim `dim`, in the layout of `x`, which is not read: its
/// adjoint.
pub(super) fn unselect(
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    index: &Value,
    dy: &Value,
) -> Result<Value> {
    put_back(exec, x, Picked::rows(dim, index.ndim()), index, dy)
}

/// The elements that an index of any shape names of all of `x`, counted row-major, in the shape of the index. Negative indices count from
/// the end.
///
/// # Collective
/// As [`reshape`](fn@crate::shape::reshape) of `x` to a list, which moves nothing where its first dim alone is sharded, and
/// [`index_select`].
///
/// # Errors
/// As [`index_select`].
pub fn take(exec: &dyn Exec, x: &Value, index: &Value) -> Result<Value> {
    index_select(exec, &reshape(exec, x, &[numel(x.shape())])?, 0, index)
}

/// The rows of `weight` that `indices` name: `[..indices, ..row]`. The row `padding` gets no gradient. Negative numbers name none, as in
/// PyTorch: they are marks for what is missing, and a row from the end would stand in its place unseen.
///
/// # Collective
/// As [`index_select`]. Where the rows are sharded and the indices are not, each rank may look at its own rows alone, and the result
/// is a sum.
///
/// # Errors
/// As [`index_select`]; negative indices; a padding that is no row.
pub fn embedding(
    exec: &dyn Exec,
    indices: &Value,
    weight: &Value,
    padding: Option<usize>,
) -> Result<Value> {
    let rows = extent("embedding", weight, 0)?;
    if let Some(padding) = padding.filter(|&p| p >= rows) {
        return Err(OpError::Shape {
            op: "embedding",
            problem: format!("row {padding} for padding"),
            shapes: vec![indices.shape().to_vec(), weight.shape().to_vec()],
            fix: "name one of the rows",
        });
    }
    let take = Take {
        picked: Picked::rows(0, indices.ndim()).with_no_negatives(),
        skips: None,
        padding: padding.map(|p| p as i64),
        by: RouteBy::Auto,
    };
    exec.apply1(Arc::new(take), &[weight, &indices.detach()])
}

/// [`gather`] along a dim, or of a vector [`index_select`], by an `i64` index in which [`ABSENT`] stands for 0 and other negative numbers are out
/// of range.
pub(super) fn pick(exec: &dyn Exec, x: &Value, dim: usize, index: &Value) -> Result<Value> {
    let picked = match x.ndim() == index.ndim() && x.ndim() > 1 {
        true => Picked::along(dim, x.ndim()),
        false => Picked::rows(dim, index.ndim()),
    };
    pick_as(exec, x, picked.with_gaps(), index)
}

/// The element of `x` along dim `dim` that `index`, of the other dims, names at each place; 0 where it is `absent`. Negative numbers are out of range
/// otherwise.
pub(super) fn pick_one(
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    index: &Value,
    absent: i64,
) -> Result<Value> {
    let others = (0..x.ndim()).filter(|&d| d != dim);
    let picked = Picked {
        shared: others.map(Some).collect(),
        ..Picked::rows(dim, 0)
    };
    pick_as(exec, x, picked.with_gaps_at(absent), index)
}

/// The element of a vector that `index` names at each place, as [`pick_one`] has it.
pub(super) fn pick_each(exec: &dyn Exec, x: &Value, index: &Value, absent: i64) -> Result<Value> {
    let picked = Picked::rows(0, index.ndim()).with_gaps_at(absent);
    pick_as(exec, x, picked, index)
}

/// Rows of a table (N, rows, ...) that `index`, (N, ...), names in each of N parts, as [`pick`]: (N, ..., ...).
pub(super) fn pick_in_each(exec: &dyn Exec, table: &Value, index: &Value) -> Result<Value> {
    pick_as(exec, table, in_each(index), index)
}

/// The sums of the rows that `index`, (N, ..., taps), names as [`pick_in_each`] has it, each times its weight: (N, ..., ...).
pub(super) fn weigh_in_each(
    exec: &dyn Exec,
    [table, index, weights]: [&Value; 3],
) -> Result<Value> {
    weighted::weighed(exec, &in_each(index), [table, index, weights])
}

/// Rows that an index of this shape names in each of as many parts as its first dim has.
fn in_each(index: &Value) -> Picked {
    let mut picked = Picked::rows(1, index.ndim());
    picked.shared[0] = Some(0);
    picked.with_gaps().with_no_negatives()
}

fn pick_as(exec: &dyn Exec, table: &Value, picked: Picked, index: &Value) -> Result<Value> {
    let take = Take {
        picked: picked.with_no_negatives(),
        skips: None,
        padding: None,
        by: RouteBy::Auto,
    };
    exec.apply1(Arc::new(take), &[table, &index.detach()])
}

/// Elements of `x` along dim `dim`: where `index` holds `j` at a place, the element of `x` at that place with `j` for the dim. In other
/// dims the index may be shorter than `x`.
///
/// # Collective
/// As [`index_select`], with elements for rows.
///
/// # Errors
/// As [`index_select`]; an index of another number of dims, or longer than `x` in another dim.
pub fn gather(exec: &dyn Exec, x: &Value, dim: usize, index: &Value) -> Result<Value> {
    extent("gather", x, dim)?;
    let x = shortened(exec, "gather", x, Some(dim), index)?;
    let take = Take {
        picked: Picked::along(dim, x.ndim()),
        skips: None,
        padding: None,
        by: RouteBy::Auto,
    };
    exec.apply1(Arc::new(take), &[&x, &index.detach()])
}

/// The sums of the elements of `dy` at the places along dim `dim` where they were gathered from, in the layout of `x`, which is not
/// read: the adjoint of [`gather`].
pub(super) fn ungather(
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    index: &Value,
    dy: &Value,
) -> Result<Value> {
    put_back(exec, x, Picked::along(dim, x.ndim()), index, dy)
}

/// The sums of what was picked from the same place, in the layout of `x`, which is not read.
fn put_back(
    exec: &dyn Exec,
    x: &Value,
    picked: Picked,
    index: &Value,
    dy: &Value,
) -> Result<Value> {
    let fold = FoldRows {
        picked,
        how: ReduceOp::Sum,
        has_base: false,
        skips: None,
    };
    exec.apply1(Arc::new(fold), &[&x.detach(), &index.detach(), dy])
}

/// [`gather`] with the other dims of both broadcast, as NumPy's `take_along_axis`.
///
/// # Collective
/// As [`gather`].
///
/// # Errors
/// As [`gather`]; shapes that do not broadcast outside of the dim.
pub fn take_along_dim(exec: &dyn Exec, x: &Value, index: &Value, dim: usize) -> Result<Value> {
    let n = extent("take_along_dim", x, dim)?;
    let others = |v: &Value| {
        let mut shape = v.shape().to_vec();
        shape[dim] = 1;
        shape
    };
    if index.ndim() != x.ndim() {
        return shortened(exec, "take_along_dim", x, Some(dim), index);
    }
    let (mut own, mut named) = (others(x), others(index));
    for (a, b) in own.iter_mut().zip(&mut named) {
        match (*a, *b) {
            (1, n) => *a = n,
            (n, 1) => *b = n,
            _ => {}
        }
    }
    (own[dim], named[dim]) = (n, index.shape()[dim]);
    let to = |v: &Value, shape: &[usize]| match v.shape() == shape {
        true => Ok(v.clone()),
        false => expand(exec, v, shape),
    };
    // Other extents than 1 that differ are told apart there.
    let (x, index) = (to(x, &own)?, to(index, &named)?);
    if (0..x.ndim()).any(|d| d != dim && x.shape()[d] != index.shape()[d]) {
        return Err(OpError::Shape {
            op: "take_along_dim",
            problem: "dims other than the one that is indexed do not broadcast".into(),
            shapes: vec![x.shape().to_vec(), index.shape().to_vec()],
            fix: "give operands whose other extents are equal, or 1",
        });
    }
    gather(exec, &x, dim, &index)
}

/// `x + alpha` times the rows of `src`, each added to the row that `index` names along dim `dim`.
///
/// Rows that meet are added in the order of the index, on each rank by itself, and these sums by the owner of the row in the order of
/// the ranks, its own one by one when it is its turn. So the bits are fixed for a layout. 16-bit floats are added as `f32`, and
/// rounded once.
///
/// # Collective
/// As [`index_select`], of sums that go the other way.
///
/// # Errors
/// As [`index_select`]; rows that are not as many as indices, or of another shape or type than those of `x`.
pub fn index_add(
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    index: &Value,
    src: &Value,
    alpha: f64,
) -> Result<Value> {
    extent("index_add", x, dim)?;
    let added = |x: &Value, src: &Value| {
        let fold = FoldRows {
            picked: Picked::rows(dim, index.ndim()),
            how: ReduceOp::Sum,
            has_base: true,
            skips: None,
        };
        exec.apply1(Arc::new(fold), &[x, &index.detach(), src])
    };
    if alpha == 1.0 {
        return added(x, src);
    }
    rounded_once(exec, [x, src], |[x, src]| {
        added(x, &mul_scalar(exec, src, alpha)?)
    })
}

/// The part of `x` that is as long as `index` in all dims, but for dim `except`.
fn shortened(
    exec: &dyn Exec,
    op: &'static str,
    x: &Value,
    except: Option<usize>,
    index: &Value,
) -> Result<Value> {
    let others = || (0..x.ndim()).filter(|&d| Some(d) != except);
    if x.ndim() != index.ndim() || others().any(|d| index.shape()[d] > x.shape()[d]) {
        return Err(OpError::Shape {
            op,
            problem: "the index does not fit".into(),
            shapes: vec![x.shape().to_vec(), index.shape().to_vec()],
            fix: "give an index of as many dims, and in other dims no longer",
        });
    }
    let mut part = x.clone();
    for d in others().filter(|&d| index.shape()[d] < x.shape()[d]) {
        part = index::slice(exec, &part, d, 0, 1, index.shape()[d])?;
    }
    Ok(part)
}
