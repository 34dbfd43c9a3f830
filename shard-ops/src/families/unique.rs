//! Each of the values once: sorted, the first of each run of equal ones is picked, and the runs are counted. Values are elements, or all
//! that a tensor has at an index of a dim.

use super::elementwise::{cast, logical_or, ne, sub_scalar};
use super::full::sums;
use super::index::{roll, slice};
use super::indexing::{bincount_within, index_select};
use super::reduce::any;
use super::scan::cumsum;
use super::select::masked_select;
use super::shape::{extent, permute, reshape};
use super::sort::sort;
use crate::error::InOp;
use crate::{Exec, OpError, Result, Value};
use shard_comm::{Bool, DType};
use shard_redistribute::Array;
use shard_spec::{Layout, Partition, numel};

/// What is found of a value's different elements, or of what it has at the indices of a dim.
#[derive(Clone, Debug)]
pub struct Unique {
    /// Each once, `[found]`; of a dim, in the shape of the value, `found` for its extent.
    pub values: Value,
    /// For every element the index of its value, `i64`, in the shape of the elements; of a dim, for every index of it.
    pub inverse: Value,
    /// How many elements, or indices, have each value, `[found]`, `i64`.
    pub counts: Value,
}

/// The different elements of `x`, ascending. NaN differs from itself, as in PyTorch.
///
/// # Collective
/// All ranks of the program, members of the mesh or not: [`sort`], [`cumsum`] and [`masked_select`].
///
/// # Errors
/// What the communicator reports.
pub fn unique(exec: &dyn Exec, x: &Value) -> Result<Value> {
    let (sorted, _) = in_order(exec, x)?;
    let firsts = firsts(exec, &sorted)?;
    as_before(exec, &masked_select(exec, &sorted, &firsts)?, x.dtype())
}

/// [`unique`], with which of them each element is, and how many are each.
///
/// # Collective
/// As [`unique`]; counts and inverse are [`bincount_within`], by two routes.
///
/// # Errors
/// As [`unique`].
pub fn unique_all(exec: &dyn Exec, x: &Value) -> Result<Unique> {
    let (sorted, places) = in_order(exec, x)?;
    let firsts = firsts(exec, &sorted)?;
    let values = masked_select(exec, &sorted, &firsts)?;
    let runs = Runs::of(exec, &firsts, values.shape()[0])?;
    let inverse = bincount_within(exec, &places, Some(&runs.numbers), numel(x.shape()))?;
    Ok(Unique {
        values: as_before(exec, &values, x.dtype())?,
        inverse: reshape(exec, &inverse, x.shape())?.detach(),
        counts: runs.counts,
    })
}

/// The elements of `x`, in row-major order, without those that equal the one before.
///
/// # Collective
/// All ranks of the program, members of the mesh or not: one element from the part before, [`cumsum`] and [`masked_select`].
///
/// # Errors
/// What the communicator reports.
pub fn unique_consecutive(exec: &dyn Exec, x: &Value) -> Result<Unique> {
    let [x] = &sums(exec, [&x.detach()])?;
    let list = reshape(exec, x, &[numel(x.shape())])?;
    let firsts = firsts(exec, &list)?;
    let values = masked_select(exec, &list, &firsts)?.detach();
    let runs = Runs::of(exec, &firsts, values.shape()[0])?;
    Ok(Unique {
        values,
        inverse: reshape(exec, &runs.numbers, x.shape())?,
        counts: runs.counts,
    })
}

/// What `x` has at the indices of dim `dim`, each once: in ascending order, in which what differs at an earlier place, in row-major order,
/// counts more. NaN differs from itself.
///
/// # Collective
/// All ranks of the program, members of the mesh or not: for every place beside the dim a [`sort`] of as many elements as the dim has, and
/// an [`index_select`] in front of it; then as [`unique_all`], of whole rows.
///
/// # Errors
/// A dim out of range; no places beside the dim; what the communicator reports.
pub fn unique_dim(exec: &dyn Exec, x: &Value, dim: usize) -> Result<Unique> {
    let rows = Rows::along(exec, "unique_dim", x, dim)?;
    let (n, width) = (rows.list.shape()[0], rows.list.shape()[1]);
    // Stable sorts by the last place, the one before, and so on leave the first to decide most.
    let mut order: Option<Value> = None;
    for place in (0..width).rev() {
        let column = slice(exec, &rows.list, 1, place, 1, 1)?;
        let column = sortable(exec, &reshape(exec, &column, &[n])?)?;
        order = Some(match order {
            None => sort(exec, &column, 0, false)?.1,
            Some(before) => {
                let column = index_select(exec, &column, 0, &before)?;
                index_select(exec, &before, 0, &sort(exec, &column, 0, false)?.1)?
            }
        });
    }
    let Some(order) = order else {
        return Err(without_places("unique_dim", x));
    };
    let sorted = index_select(exec, &rows.list, 0, &order)?;
    let firsts = firsts(exec, &sorted)?;
    let chosen = masked_select(exec, &order, &firsts)?;
    let runs = Runs::of(exec, &firsts, chosen.shape()[0])?;
    let inverse = bincount_within(exec, &order, Some(&runs.numbers), n)?;
    rows.found(exec, &chosen, &inverse, runs)
}

/// What `x` has at the indices of dim `dim`, in their order, without what equals that at the index before.
///
/// # Collective
/// All ranks of the program, members of the mesh or not: one row from the part before, [`cumsum`], [`masked_select`] and an
/// [`index_select`].
///
/// # Errors
/// As [`unique_dim`].
pub fn unique_consecutive_dim(exec: &dyn Exec, x: &Value, dim: usize) -> Result<Unique> {
    let rows = Rows::along(exec, "unique_consecutive_dim", x, dim)?;
    if rows.list.shape()[1] == 0 {
        return Err(without_places("unique_consecutive_dim", x));
    }
    let firsts = firsts(exec, &rows.list)?;
    let order = Array::from_fn(firsts.array().cx(), firsts.layout(), |i| i[0] as i64);
    let order = Value::new(order.in_op("unique_consecutive_dim")?);
    let chosen = masked_select(exec, &order, &firsts)?;
    let runs = Runs::of(exec, &firsts, chosen.shape()[0])?;
    let inverse = runs.numbers.clone();
    rows.found(exec, &chosen, &inverse, runs)
}

/// What a value has at the indices of a dim, as rows.
struct Rows<'a> {
    x: &'a Value,
    dim: usize,
    /// `[indices, places]`, whole rows.
    list: Value,
}

impl<'a> Rows<'a> {
    fn along(exec: &dyn Exec, op: &'static str, x: &'a Value, dim: usize) -> Result<Self> {
        let n = extent(op, x, dim)?;
        let first: Vec<usize> = std::iter::once(dim)
            .chain((0..x.ndim()).filter(|&d| d != dim))
            .collect();
        let width = numel(x.shape()) / n.max(1);
        let width = if n == 0 {
            numel(&without(x.shape(), dim))
        } else {
            width
        };
        let list = permute(exec, &x.detach(), &first)?;
        let list = reshape(exec, &list, &[n, width])?;
        let whole = whole_rows(list.layout()).in_op(op)?;
        let list = exec.aligned((op, 0), &list, &whole)?.detach();
        Ok(Self { x, dim, list })
    }

    /// What was chosen of the rows, as the value has them.
    fn found(
        &self,
        exec: &dyn Exec,
        chosen: &Value,
        inverse: &Value,
        runs: Runs,
    ) -> Result<Unique> {
        let rows = index_select(exec, &self.list, 0, &chosen.detach())?;
        let mut shape = without(self.x.shape(), self.dim);
        shape.insert(0, rows.shape()[0]);
        let values = reshape(exec, &rows, &shape)?;
        let mut back: Vec<usize> = (1..self.x.ndim()).collect();
        back.insert(self.dim, 0);
        Ok(Unique {
            values: permute(exec, &values, &back)?.detach(),
            inverse: inverse.detach(),
            counts: runs.counts,
        })
    }
}

fn without(shape: &[usize], dim: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    shape.remove(dim);
    shape
}

/// The layout of rows that lie whole on each rank: what divided their places divides the rows.
fn whole_rows(layout: &Layout) -> shard_spec::Result<Layout> {
    let layout = layout.with_partial_reduced();
    let Some(places) = layout.sharding(1) else {
        return Ok(layout);
    };
    let mut axes: Vec<usize> = layout
        .sharding(0)
        .map_or_else(Vec::new, |s| s.axes.to_vec());
    axes.extend(&places.axes);
    let (mesh, shape) = (layout.mesh(), layout.shape());
    let parts = mesh.part_count(&axes);
    Layout::builder(mesh, shape)
        .shard(0, &axes, Partition::balanced(shape[0], parts))
        .build()
}

fn without_places(op: &'static str, x: &Value) -> OpError {
    OpError::Shape {
        op,
        problem: "there is nothing at the indices of the dim".into(),
        shapes: vec![x.shape().to_vec()],
        fix: "give other dims with elements",
    }
}

/// Runs of equal values of a list.
struct Runs {
    /// For every one the number of its run.
    numbers: Value,
    /// How long each is.
    counts: Value,
}

impl Runs {
    /// So many runs, which begin where `firsts` is true.
    fn of(exec: &dyn Exec, firsts: &Value, count: usize) -> Result<Self> {
        let numbers = sub_scalar(exec, &cumsum(exec, firsts, 0)?, 1.0)?;
        let counts = bincount_within(exec, &numbers, None, count)?;
        Ok(Self {
            numbers: numbers.detach(),
            counts: counts.detach(),
        })
    }
}

/// All elements in ascending order, of a type that can be sorted, and the places they had.
fn in_order(exec: &dyn Exec, x: &Value) -> Result<(Value, Value)> {
    let list = reshape(exec, &x.detach(), &[numel(x.shape())])?;
    sort(exec, &sortable(exec, &list)?, 0, false)
}

/// The elements in a type that can be sorted.
fn sortable(exec: &dyn Exec, list: &Value) -> Result<Value> {
    match list.dtype() {
        DType::Bool => cast(exec, list, DType::U8),
        DType::F16 | DType::BF16 => cast(exec, list, DType::F32),
        _ => Ok(list.clone()),
    }
}

fn as_before(exec: &dyn Exec, values: &Value, dtype: DType) -> Result<Value> {
    match values.dtype() == dtype {
        true => Ok(values.detach()),
        false => Ok(cast(exec, values, dtype)?.detach()),
    }
}

/// Where a list has another element than before, or another row.
fn firsts(exec: &dyn Exec, list: &Value) -> Result<Value> {
    // What can be sorted can be compared, other than 16-bit floats.
    let list = &sortable(exec, list)?;
    let differs = ne(exec, list, &roll(exec, list, 0, 1)?)?;
    let differs = match differs.ndim() {
        1 => differs,
        _ => any(exec, &differs, &[1], false)?,
    };
    let first = Array::from_fn(list.array().cx(), differs.layout(), |i| {
        Bool::from(i[0] == 0)
    });
    logical_or(exec, &differs, &Value::new(first.in_op("unique")?))
}
