//! Variance and standard deviation by (count, mean, M2): exact for any sharding, stable for any offset.

use super::states::{part, states};
use super::{cells, square_root};
use crate::families::elementwise::{cast, div_scalar};
use crate::{Exec, Result, Value};
use shard_comm::Monoid;

/// The variance over dims: squared deviations from the mean, divided by the number of elements less `correction` (1 for the
/// unbiased estimate, 0 for that of all there is), or by 0 if that is less.
///
/// Reduced dims disappear, or stay with extent 1 if `keepdim`. No dims means no reduction.
///
/// # Collective
/// All members of the mesh. Communicates three numbers per cell if reduced dims are sharded.
///
/// # Errors
/// A dim out of range or named twice; an operand of integers or truth values.
pub fn var(
    exec: &dyn Exec,
    x: &Value,
    dims: &[usize],
    correction: f64,
    keepdim: bool,
) -> Result<Value> {
    let x = &exec.in_full(x)?;
    let found = Found::of("var", exec, x, dims, keepdim)?;
    cast(exec, &found.variance(exec, correction)?, x.dtype())
}

/// The square root of the [variance](var). Where that is 0 it has no gradient.
///
/// # Collective
/// As [`var`].
///
/// # Errors
/// As [`var`].
pub fn std(
    exec: &dyn Exec,
    x: &Value,
    dims: &[usize],
    correction: f64,
    keepdim: bool,
) -> Result<Value> {
    let x = &exec.in_full(x)?;
    let found = Found::of("std", exec, x, dims, keepdim)?;
    let root = square_root(exec, &found.variance(exec, correction)?)?;
    cast(exec, &root, x.dtype())
}

/// The [variance](var) and the mean, of one reduction. With an infinite element the variance is NaN and the mean is that infinity,
/// wherever it stands; PyTorch's mean is NaN if numbers follow it.
///
/// # Collective
/// As [`var`].
///
/// # Errors
/// As [`var`].
pub fn var_mean(
    exec: &dyn Exec,
    x: &Value,
    dims: &[usize],
    correction: f64,
    keepdim: bool,
) -> Result<(Value, Value)> {
    let x = &exec.in_full(x)?;
    let found = Found::of("var_mean", exec, x, dims, keepdim)?;
    let var = cast(exec, &found.variance(exec, correction)?, x.dtype())?;
    Ok((var, cast(exec, &found.mean(exec)?, x.dtype())?))
}

/// The [standard deviation](fn@std) and the mean, of one reduction.
///
/// # Collective
/// As [`var`].
///
/// # Errors
/// As [`var`].
pub fn std_mean(
    exec: &dyn Exec,
    x: &Value,
    dims: &[usize],
    correction: f64,
    keepdim: bool,
) -> Result<(Value, Value)> {
    let x = &exec.in_full(x)?;
    let found = Found::of("std_mean", exec, x, dims, keepdim)?;
    let root = square_root(exec, &found.variance(exec, correction)?)?;
    let std = cast(exec, &root, x.dtype())?;
    Ok((std, cast(exec, &found.mean(exec)?, x.dtype())?))
}

/// The moments of every cell.
struct Found {
    moments: Value,
    /// The shape of a number per cell.
    cells: Vec<usize>,
    /// Elements per cell.
    count: usize,
}

impl Found {
    fn of(
        op: &'static str,
        exec: &dyn Exec,
        x: &Value,
        dims: &[usize],
        keepdim: bool,
    ) -> Result<Self> {
        Ok(Self {
            moments: states(exec, op, Monoid::Moments, x, dims)?,
            cells: cells(op, x, dims, keepdim)?,
            count: dims.iter().map(|&d| x.shape()[d]).product(),
        })
    }

    fn variance(&self, exec: &dyn Exec, correction: f64) -> Result<Value> {
        let squares = part(exec, &self.moments, 2, &self.cells)?;
        div_scalar(exec, &squares, (self.count as f64 - correction).max(0.0))
    }

    /// The mean; NaN over nothing.
    fn mean(&self, exec: &dyn Exec) -> Result<Value> {
        let mean = part(exec, &self.moments, 1, &self.cells)?;
        match self.count {
            0 => div_scalar(exec, &mean, 0.0),
            _ => Ok(mean),
        }
    }
}
