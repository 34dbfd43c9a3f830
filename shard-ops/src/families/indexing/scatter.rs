//! Elements and rows put, or folded, into places that an index names.

use super::fold::FoldRows;
use super::places::{Places, misfit};
use super::rows::Picked;
use super::shortened;
use super::take::Take;
use crate::elementwise::{add_scalar, cast, div, floor_div, ge, gt, maximum, number, where_};
use crate::error::InOp;
use crate::families::broadcast::expand;
use crate::families::full::{alike, rounded_once};
use crate::families::index;
use crate::families::shape::{extent, reshape};
use crate::{Exec, OpError, Result, RouteBy, Value, key_of};
use shard_comm::DType;
use shard_redistribute::Array;
use shard_spec::ReduceOp;
use std::rc::Rc;
use std::sync::Arc;

/// How [`scatter_reduce`] combines elements that meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScatterReduce {
    /// Sums.
    Sum,
    /// Means; of whole numbers rounded down.
    Mean,
    /// Products.
    Prod,
    /// The largest, NaN if there is one. Gradients are shared evenly between ties, and NaN where it is.
    Max,
    /// The smallest, NaN if there is one. Gradients are shared evenly between ties, and NaN where it is.
    Min,
}

/// `x` with every element of `src` added at the place that `index` names along dim `dim`: where `index` holds `j` at a place, the element
/// of `src` there is added to that of `x` there with `j` for the dim. `index` may be shorter than `src`, and than `x` in other dims.
///
/// Elements that meet are added in the order of the index, on each rank by itself, and these sums by the owner in the order of the
/// ranks, its own one by one when it is its turn.
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
    scatter_reduce(exec, x, dim, index, src, ScatterReduce::Sum, true)
}

/// `x` with the elements of `src` combined at the places that `index` names along dim `dim`, as [`scatter_add`] adds them. With
/// `include_self` the element of `x` is one of them; without, it stays only where nothing is put.
///
/// # Collective
/// As [`scatter_add`]; means, and what leaves out `x`, count elements at the first use of an index.
///
/// # Errors
/// As [`scatter_add`].
pub fn scatter_reduce(
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    index: &Value,
    src: &Value,
    how: ScatterReduce,
    include_self: bool,
) -> Result<Value> {
    let narrow = matches!(x.dtype(), DType::U8 | DType::I32) && src.dtype() == x.dtype();
    if how == ScatterReduce::Mean && narrow {
        // Sums and counts of many would wrap where their quotient does not.
        let [wide, src] = [cast(exec, x, DType::I64)?, cast(exec, src, DType::I64)?];
        let found = scatter_reduce(exec, &wide, dim, index, &src, how, include_self)?;
        return cast(exec, &found, x.dtype());
    }
    let combined = |x: &Value, src: &Value| {
        into_places(
            exec,
            "scatter_reduce",
            x,
            dim,
            index,
            src,
            |x, index, src| {
                let fold = FoldRows {
                    picked: Picked::along(dim, x.ndim()),
                    how: match how {
                        ScatterReduce::Sum | ScatterReduce::Mean => ReduceOp::Sum,
                        ScatterReduce::Prod => ReduceOp::Prod,
                        ScatterReduce::Max => ReduceOp::Max,
                        ScatterReduce::Min => ReduceOp::Min,
                    },
                    has_base: include_self,
                    skips: None,
                };
                let folded = exec.apply1(Arc::new(fold.clone()), &[x, index, src])?;
                if include_self && how != ScatterReduce::Mean {
                    return Ok(folded);
                }
                let counts = counts(exec, x, index, &fold.picked)?;
                let folded = match (how, include_self) {
                    (ScatterReduce::Mean, true) => {
                        mean(exec, &folded, &add_scalar(exec, &counts, 1.0)?)?
                    }
                    (ScatterReduce::Mean, false) => {
                        let one = number("scatter_reduce", &counts, 1.0)?;
                        mean(exec, &folded, &maximum(exec, &counts, &one)?)?
                    }
                    _ => folded,
                };
                if include_self {
                    return Ok(folded);
                }
                let some = gt(exec, &counts, &number("scatter_reduce", &counts, 0.0)?)?;
                where_(exec, &some, &folded, x)
            },
        )
    };
    match (how, include_self) {
        // The op itself rounds sums once.
        (ScatterReduce::Sum, true) => combined(x, src),
        _ => rounded_once(exec, [x, src], |[x, src]| combined(x, src)),
    }
}

fn mean(exec: &dyn Exec, sums: &Value, counts: &Value) -> Result<Value> {
    match sums.dtype() {
        DType::F32 | DType::F64 => div(exec, sums, counts),
        _ => floor_div(exec, sums, counts),
    }
}

/// `x` with every element of `src` put at the place that `index` names along dim `dim`, as [`scatter_add`] adds it. Of several that are put
/// to one place the last in the order of the index stays, and gets the gradient.
///
/// # Collective
/// As [`scatter_add`]: at the first use of an index the last ones are found out, after which their elements alone move.
///
/// # Errors
/// As [`scatter_add`].
pub fn scatter(
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    index: &Value,
    src: &Value,
) -> Result<Value> {
    into_places(exec, "scatter", x, dim, index, src, |x, index, src| {
        let last = last(exec, x, index, &Picked::along(dim, x.ndim()))?;
        let count = src.shape().iter().product();
        put(exec, x, &last, &reshape(exec, src, &[count])?)
    })
}

/// `x` with rows of `src` in place of those that the list `index` names along dim `dim`; of several the last stays.
///
/// # Collective
/// As [`scatter`], with rows for elements.
///
/// # Errors
/// As [`index_add`](super::index_add); an index of more or fewer than one dim.
pub fn index_copy(
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    index: &Value,
    src: &Value,
) -> Result<Value> {
    let n = extent("index_copy", x, dim)?;
    let fits = |(d, &m): (usize, &usize)| {
        m == if d == dim {
            index.shape()[0]
        } else {
            x.shape()[d]
        }
    };
    if index.ndim() != 1 || src.ndim() != x.ndim() || !src.shape().iter().enumerate().all(fits) {
        return Err(misfit(
            "index_copy",
            &[x, index, src],
            "rows and indices are not as many, or of another shape",
        ));
    }
    let [x, src] = &alike(exec, [x, src])?;
    if x.dtype() != src.dtype() {
        return Err(OpError::dtype(
            "index_copy",
            2,
            x.dtype().to_string(),
            src.dtype(),
        ));
    }
    // The list of rows alone decides who is last.
    let rows = Array::from_parts(
        x.array().cx(),
        &row_layout(x, dim).in_op("index_copy")?,
        None,
        DType::I64,
    );
    let rows = Value::new(rows.in_op("index_copy")?);
    let last = last(exec, &rows, index, &Picked::rows(0, 1))?;
    if index.shape()[0] == 0 {
        return Ok(x.clone());
    }
    let take = Take {
        picked: Picked::rows(dim, 1).with_gaps(),
        skips: None,
        padding: None,
        by: RouteBy::Auto,
    };
    let rows = exec.apply1(Arc::new(take), &[src, &last])?;
    let mut shape = vec![1; x.ndim()];
    shape[dim] = n;
    let named = reshape(exec, &named(exec, &last)?, &shape)?;
    where_(exec, &named, &rows, x)
}

/// `x` with `values` put, or added if `accumulate`, at the places that `indices` name: one tensor for each of the first dims, broadcast to one
/// shape, to which rows of `values` of the other dims belong. Of several values put to one place the last stays. A mask (`bool`) stands for the
/// indices of all its true elements, in row-major order, of as many dims as it has.
///
/// # Collective
/// As [`scatter`], or [`scatter_add`]; with a mask all ranks of the program.
///
/// # Errors
/// More indices than dims, or none; shapes that do not broadcast; a mask of other extents than its dims; what is out of range, as in
/// [`index_select`](super::index_select).
pub fn index_put(
    exec: &dyn Exec,
    x: &Value,
    indices: &[&Value],
    values: &Value,
    accumulate: bool,
) -> Result<Value> {
    const OP: &str = "index_put";
    let named = Places::of(exec, OP, x, 0, indices)?;
    let (leading, row) = x.shape().split_at(named.dims);
    let count = named.shape.iter().product();
    let all = [&named.shape, row].concat();
    let values = match values.shape() == all {
        true => values.clone(),
        false => expand(exec, values, &all)?,
    };
    let values = reshape(exec, &values, &[&[count], row].concat())?;
    let table = [&[leading.iter().product()], row].concat();
    let (flat, number) = (reshape(exec, x, &table)?, &named.numbers);
    let made = match accumulate {
        true => super::index_add(exec, &flat, 0, number, &values, 1.0)?,
        false => index_copy(exec, &flat, 0, number, &values)?,
    };
    reshape(exec, &made, x.shape())
}

/// The layout of a list with an entry for each row of `x` along a dim.
pub(super) fn row_layout(x: &Value, dim: usize) -> shard_spec::Result<shard_spec::Layout> {
    let own = x.layout().sharding(dim).cloned();
    shard_spec::Layout::from_dims(x.layout().mesh(), &[x.shape()[dim]], [own], None)
}

/// Where an element says whose turn is the last, the element of that number; where none was put, that of `x`.
fn put(exec: &dyn Exec, x: &Value, last: &Value, src: &Value) -> Result<Value> {
    if src.shape()[0] == 0 {
        return Ok(x.clone());
    }
    let take = Take {
        picked: Picked::rows(0, last.ndim()).with_gaps(),
        skips: None,
        padding: None,
        by: RouteBy::Auto,
    };
    let rows = exec.apply1(Arc::new(take), &[src, last])?;
    where_(exec, &named(exec, last)?, &rows, x)
}

/// Where something was put.
pub(super) fn named(exec: &dyn Exec, last: &Value) -> Result<Value> {
    ge(exec, last, &number("scatter", last, 0.0)?)
}

/// Per place of a table that lies as `x` the number, in row-major order, of the last element of `index` that names it, or the least number.
pub(super) fn last(exec: &dyn Exec, x: &Value, index: &Value, picked: &Picked) -> Result<Value> {
    kept(exec, "last", x, index, DType::I64, picked, |layout| {
        let shape: Vec<usize> = layout.shape().to_vec();
        let number =
            move |at: &[usize]| at.iter().zip(&shape).fold(0, |all, (&i, &n)| all * n + i) as i64;
        let numbers = Array::from_fn(index.array().cx(), layout, number).in_op("scatter")?;
        Ok((Value::new(numbers), ReduceOp::Max))
    })
}

/// How many elements of `index` name each place of `x`: in its type, or for integers in the widest, since counts may be larger than they.
pub(super) fn counts(exec: &dyn Exec, x: &Value, index: &Value, picked: &Picked) -> Result<Value> {
    let dtype = match x.dtype() {
        DType::F32 => DType::F32,
        dtype if dtype.is_float() => DType::F64,
        _ => DType::I64,
    };
    kept(exec, "counts", x, index, dtype, picked, |layout| {
        let cx = x.array().cx();
        let ones = match dtype {
            DType::F32 => Array::from_fn(cx, layout, |_| 1.0_f32),
            DType::I64 => Array::from_fn(cx, layout, |_| 1_i64),
            _ => Array::from_fn(cx, layout, |_| 1.0_f64),
        };
        Ok((Value::new(ones.in_op("counts")?), ReduceOp::Sum))
    })
}

/// What is folded of numbers that the layout of an index alone makes: kept with the index, since nothing else goes into it.
fn kept(
    exec: &dyn Exec,
    what: &str,
    x: &Value,
    index: &Value,
    dtype: DType,
    picked: &Picked,
    made: impl FnOnce(&shard_spec::Layout) -> Result<(Value, ReduceOp)>,
) -> Result<Value> {
    let key = key_of(what, &(picked, x.layout().hash128(), dtype));
    if let Some(known) = index.array().kept::<Value>(key) {
        return Ok((*known).clone());
    }
    let (src, how) = made(&index.layout().with_partial_reduced())?;
    let fold = FoldRows {
        picked: picked.clone(),
        how,
        has_base: false,
        skips: None,
    };
    let found = exec.apply1(Arc::new(fold), &[&x.detach(), &index.detach(), &src])?;
    let found = exec
        .redistribute(&found, &found.layout().with_partial_reduced())?
        .detach();
    index.array().keep(key, Rc::new(found.clone()));
    Ok(found)
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
    let [x, src] = &alike(exec, [x, src])?;
    if src.dtype() != x.dtype() {
        return Err(OpError::dtype(op, 2, x.dtype().to_string(), src.dtype()));
    }
    let src = shortened(exec, op, src, None, index)?;
    in_part(exec, op, x, dim, index, |part, index| f(part, index, &src))
}

/// Applies `f` to the part of `x` that is as long as the index in other dims; the rest of `x` stays.
pub(super) fn in_part(
    exec: &dyn Exec,
    op: &'static str,
    x: &Value,
    dim: usize,
    index: &Value,
    f: impl FnOnce(&Value, &Value) -> Result<Value>,
) -> Result<Value> {
    let part = shortened(exec, op, x, Some(dim), index)?;
    let mut whole = f(&part, &index.detach())?;
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
