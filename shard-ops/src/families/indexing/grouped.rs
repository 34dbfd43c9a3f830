//! Products of groups of rows, each with a matrix of its own.

use super::ABSENT;
use super::products::{EachOuter, EachProduct};
use crate::error::InOp;
use crate::families::decided;
use crate::families::elementwise::cast;
use crate::families::matmul::matmul;
use crate::families::shape::transpose;
use crate::families::types::integers;
use crate::{Exec, OpError, Result, RouteBy, Value, key_of};
use shard_comm::DType;
use shard_redistribute::Array;
use shard_spec::{ContentHash, Layout};
use std::rc::Rc;

/// `y[i] = x[i] w[index[i]]`, `[rows, out]`, for rows `x` `[rows, in]`, matrices `w` `[matrices, in, out]`, and an index `[rows]`. Rows of a
/// matrix need not stand together, but those that do are multiplied as they lie, and others are copied. The result lies as the rows do.
///
/// # Collective
/// All members of the mesh. Where the matrices' first dim is divided, as [`index_select`](super::index_select) of `w`: each matrix that the
/// rank's part of the index names and others have, once, and in the derivative the sum for it back; nothing where the rows of each matrix lie
/// with it. Nothing either of rows that are copies along the axes that divide the matrices: the result is a sum then. Where `in` is divided in
/// both, the result is a sum, and where `out` is, it is divided so.
///
/// # Errors
/// Shapes that do not belong together; an index that is not i64 or i32; types that differ or are no floats; on all ranks, an index below 0
/// or out of range.
pub fn gather_mm(exec: &dyn Exec, x: &Value, w: &Value, index: &Value) -> Result<Value> {
    gather_mm_by(exec, x, w, index, (false, RouteBy::Auto))
}

/// [`gather_mm`] by matrices that may be `transposed`, `[matrices, out, in]`, saying how they come: with [`Ask`](RouteBy::Ask) they are asked
/// for, whatever it would take to have the rows instead, where the program has laid rows with their matrices.
///
/// # Collective
/// As [`gather_mm`].
///
/// # Errors
/// As [`gather_mm`].
pub fn gather_mm_by(
    exec: &dyn Exec,
    x: &Value,
    w: &Value,
    index: &Value,
    (transposed, by): (bool, RouteBy),
) -> Result<Value> {
    EachProduct { transposed, by }.apply(exec, [w, index, x])
}

const NAME: &str = "grouped_mm";

/// Products of groups of matrices whose extents differ in one dim, where they stand side by side: group `g` ends before `offsets[g]`, and begins
/// where the one before ends. As `torch.nn.functional.grouped_mm`, by the dims of the two:
///
/// | `a` | `b` | result | what is divided into groups |
/// |---|---|---|---|
/// | `[rows, in]` | `[groups, in, out]` | `[rows, out]` | rows |
/// | `[groups, rows, in]` | `[in, out]` | `[rows, out]` | columns, `out` |
/// | `[rows, in]` | `[in, out]` | `[groups, rows, out]` | the contraction, `in` |
/// | `[groups, rows, in]` | `[groups, in, out]` | `[groups, rows, out]` | nothing: a batch, without offsets |
///
/// What lies behind the last group belongs to none: it has zeros, and gets no gradient.
///
/// # Collective
/// All ranks of the program, members of the mesh or not: at the first use of offsets they are gathered, if they are divided, and read; then as
/// [`gather_mm`], by the way that takes least for where the groups end. Of groups of the contraction the result is a sum where that is
/// divided, and nothing moves.
///
/// # Errors
/// Shapes that do not belong together; types that differ or are no floats; offsets that are no list of integers, are missing or too many; on all
/// ranks, [`Offsets`](OpError::Offsets) that do not ascend or end behind the dim.
pub fn grouped_mm(exec: &dyn Exec, a: &Value, b: &Value, offsets: Option<&Value>) -> Result<Value> {
    let wrong = |problem: &str, fix: &'static str| OpError::Shape {
        op: NAME,
        problem: problem.to_owned(),
        shapes: ([a, b].into_iter().chain(offsets))
            .map(|v| v.shape().to_vec())
            .collect(),
        fix,
    };
    let (offsets, groups) = match (a.shape(), b.shape(), offsets) {
        ([_, _, _], [_, _, _], None) => return matmul(exec, a, b),
        ([_, _, _], [_, _, _], Some(_)) => {
            return Err(wrong(
                "groups of one extent have no offsets",
                "leave them out, or give a list of rows",
            ));
        }
        (_, _, None) => {
            return Err(wrong(
                "nothing says where groups end",
                "give the cumulative sums of the groups' sizes",
            ));
        }
        ([_, _], &[groups, _, _], Some(at)) | (&[groups, _, _], [_, _], Some(at)) => {
            (at, Some(groups))
        }
        ([_, _], [_, _], Some(at)) => (at, None),
        _ => {
            return Err(wrong(
                "operands have two or three dims",
                "give lists of rows, and matrices of groups",
            ));
        }
    };
    integers(NAME, 2, offsets)?;
    if offsets.ndim() != 1 || groups.is_some_and(|groups| offsets.shape() != [groups]) {
        return Err(wrong(
            "offsets are not a number for each group",
            "give a list of where each group ends",
        ));
    }
    if groups.is_some() && a.shape()[a.ndim() - 1] != b.shape()[b.ndim() - 2] {
        return Err(wrong(
            "the operands do not belong together",
            "give [rows, in] and [groups, in, out], or [groups, rows, in] and [in, columns]",
        ));
    }
    match (a.ndim(), b.ndim()) {
        (2, 3) => rows_of_groups(exec, a, [b, offsets], false),
        (3, _) => {
            let columns = transpose(exec, b, 0, 1)?;
            let y = rows_of_groups(exec, &columns, [a, offsets], true)?;
            transpose(exec, &y, 0, 1)
        }
        _ => sums_of_groups(exec, a, b, offsets),
    }
}

/// The products of groups of rows with a matrix each, which may be transposed.
fn rows_of_groups(
    exec: &dyn Exec,
    x: &Value,
    [w, offsets]: [&Value; 2],
    transposed: bool,
) -> Result<Value> {
    let (index, ends) = groups_of(exec, x, offsets)?;
    let columns = w.shape()[if transposed { 1 } else { 2 }];
    let by = way(&ends, x.layout(), w.layout(), columns);
    EachProduct { transposed, by }.apply(exec, [w, &index, x])
}

/// Whether matrices are to be asked for: where that takes less than to bring all rows to them, which only the ends of groups tell. These are
/// equal on all ranks, and so are the layouts.
fn way(ends: &[i64], rows: &Layout, matrices: &Layout, columns: usize) -> RouteBy {
    let (Some(of_rows), Some(of_groups)) = (rows.sharding(0), matrices.sharding(0)) else {
        return RouteBy::Auto;
    };
    let mesh = rows.mesh();
    let meet = of_rows
        .axes
        .iter()
        .any(|axis| of_groups.axes.contains(axis));
    let (Some(rows), Some(groups)) = (of_rows.partition.offsets(), of_groups.partition.offsets())
    else {
        return RouteBy::Auto;
    };
    let (mut missing, mut least) = (0, usize::MAX);
    for index in 0..mesh.size() {
        let coords = mesh.coords_at(index);
        let [part, own] = [of_rows, of_groups].map(|s| mesh.part_at(&s.axes, &coords));
        let (from, to) = (rows[part], rows[part + 1]);
        // Those from the one that has the first row to the one that has the last.
        let first = ends.partition_point(|&end| end <= from as i64);
        let last = ends.partition_point(|&end| end < to as i64);
        let named = (first..ends.len().min(last + 1))
            .filter(|&g| from < to && ends[g] > if g > 0 { ends[g - 1] } else { 0 });
        let away = named.filter(|g| !(groups[own]..groups[own + 1]).contains(g));
        missing = missing.max(away.count());
        least = least.min(to - from);
    }
    let others = rows.last().copied().unwrap_or_default() - least;
    match missing == 0 || meet && missing.saturating_mul(columns) <= others {
        true => RouteBy::Ask,
        false => RouteBy::Auto,
    }
}

/// The products of groups of columns of `a` with those of rows of `b`.
fn sums_of_groups(exec: &dyn Exec, a: &Value, b: &Value, offsets: &Value) -> Result<Value> {
    if a.shape()[1] != b.shape()[0] {
        return Err(OpError::Shape {
            op: NAME,
            problem: "the contractions differ".into(),
            shapes: vec![a.shape().to_vec(), b.shape().to_vec()],
            fix: "give operands whose inner dims agree",
        });
    }
    let (index, _) = groups_of(exec, b, offsets)?;
    let cx = b.array().cx();
    let shape = [offsets.shape()[0], a.shape()[0], b.shape()[1]];
    let layout = Layout::replicated(cx.mesh(), &shape);
    let like = Value::new(Array::from_parts(cx, &layout, None, b.dtype()).in_op(NAME)?);
    let outer = EachOuter { by: RouteBy::Auto };
    outer.apply(exec, [&like, &index, &transpose(exec, a, 0, 1)?, b])
}

/// Which group each row of `x` is in, which lies as the rows do, and where groups end. Both are kept with the offsets.
fn groups_of(exec: &dyn Exec, x: &Value, offsets: &Value) -> Result<(Value, Rc<Vec<i64>>)> {
    let cx = x.array().cx();
    if offsets.layout().mesh() != cx.mesh() {
        return Err(OpError::Meshes {
            op: NAME,
            operand: 2,
        });
    }
    let rows = x.shape()[0];
    let ends = ends_of(exec, offsets, rows)?;
    check(&ends, rows)?;
    let own = x.layout().sharding(0).cloned();
    let layout = Layout::from_dims(cx.mesh(), &[rows], [own], None).in_op(NAME)?;
    let key = key_of("groups", &layout.content_hash());
    if let Some(known) = offsets.array().kept::<Value>(key) {
        return Ok(((*known).clone(), ends));
    }
    let group = |i: usize| match ends.partition_point(|&end| end <= i as i64) {
        group if group < ends.len() => group as i64,
        _ => ABSENT,
    };
    let index = Value::new(Array::from_fn(cx, &layout, |i| group(i[0])).in_op(NAME)?);
    offsets.array().keep(key, Rc::new(index.clone()));
    Ok((index, ends))
}

/// Where groups end, on all ranks of the program.
fn ends_of(exec: &dyn Exec, offsets: &Value, rows: usize) -> Result<Rc<Vec<i64>>> {
    let key = key_of("ends of groups", &rows);
    if let Some(known) = offsets.array().kept::<Vec<i64>>(key) {
        return Ok(known);
    }
    let groups = offsets.shape()[0];
    let whole = Layout::replicated(offsets.layout().mesh(), &[groups]);
    let at = exec.aligned((NAME, 2), &offsets.detach(), &whole)?;
    let told = decided::told_all::<i64>((NAME, 2), &cast(exec, &at, DType::I64)?)?;
    // Where nobody knows, as if all were as large.
    let even = || (1..=groups).map(|g| (rows * g / groups) as i64).collect();
    let ends = Rc::new(told.unwrap_or_else(even));
    offsets.array().keep(key, ends.clone());
    Ok(ends)
}

/// Refuses ends that do not ascend from 0 to at most `rows`.
fn check(ends: &[i64], rows: usize) -> Result<()> {
    let mut before = 0;
    for (group, &end) in ends.iter().enumerate() {
        if end < before || end > rows as i64 {
            return Err(OpError::Offsets {
                op: NAME,
                group,
                before,
                end,
                rows,
            });
        }
        before = end;
    }
    Ok(())
}
