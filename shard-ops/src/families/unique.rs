//! Each of the values once: sorted, the first of each run of equal ones is picked, and the runs are counted.

use super::elementwise::{cast, logical_or, ne, sub_scalar};
use super::index::roll;
use super::indexing::bincount_within;
use super::scan::cumsum;
use super::select::masked_select;
use super::shape::reshape;
use super::sort::sort;
use crate::error::InOp;
use crate::{Exec, Result, Value};
use shard_comm::{Bool, DType};
use shard_redistribute::Array;
use shard_spec::numel;

/// What is found of a value's different elements.
#[derive(Clone, Debug)]
pub struct Unique {
    /// Each once, `[found]`.
    pub values: Value,
    /// For every element the index of its value, `i64`, in the shape of the elements.
    pub inverse: Value,
    /// How many elements have each value, `[found]`, `i64`.
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
    let runs = Runs::of(exec, &sorted)?;
    let inverse = bincount_within(exec, &places, Some(&runs.numbers), numel(x.shape()))?;
    Ok(Unique {
        values: as_before(exec, &runs.values, x.dtype())?,
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
    let runs = Runs::of(exec, &reshape(exec, &x.detach(), &[numel(x.shape())])?)?;
    Ok(Unique {
        values: runs.values,
        inverse: reshape(exec, &runs.numbers, x.shape())?,
        counts: runs.counts,
    })
}

/// Runs of equal elements of a list.
struct Runs {
    /// The first of each.
    values: Value,
    /// For every element the number of its run.
    numbers: Value,
    /// How long each is.
    counts: Value,
}

impl Runs {
    fn of(exec: &dyn Exec, list: &Value) -> Result<Self> {
        let firsts = firsts(exec, list)?;
        let values = masked_select(exec, list, &firsts)?.detach();
        let numbers = sub_scalar(exec, &cumsum(exec, &firsts, 0)?, 1.0)?;
        let counts = bincount_within(exec, &numbers, None, values.shape()[0])?;
        Ok(Self {
            values,
            numbers: numbers.detach(),
            counts: counts.detach(),
        })
    }
}

/// All elements in ascending order, of a type that can be sorted, and the places they had.
fn in_order(exec: &dyn Exec, x: &Value) -> Result<(Value, Value)> {
    let list = reshape(exec, &x.detach(), &[numel(x.shape())])?;
    let list = match x.dtype() {
        DType::Bool => cast(exec, &list, DType::U8)?,
        DType::F16 | DType::BF16 => cast(exec, &list, DType::F32)?,
        _ => list,
    };
    sort(exec, &list, 0, false)
}

fn as_before(exec: &dyn Exec, values: &Value, dtype: DType) -> Result<Value> {
    match values.dtype() == dtype {
        true => Ok(values.detach()),
        false => Ok(cast(exec, values, dtype)?.detach()),
    }
}

/// Where a list has another element than before.
fn firsts(exec: &dyn Exec, list: &Value) -> Result<Value> {
    let differs = ne(exec, list, &roll(exec, list, 0, 1)?)?;
    let first = Array::from_fn(list.array().cx(), differs.layout(), |i| {
        Bool::from(i[0] == 0)
    });
    logical_or(exec, &differs, &Value::new(first.in_op("unique")?))
}
