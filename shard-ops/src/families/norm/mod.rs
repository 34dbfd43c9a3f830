//! Group, instance, layer, batch and RMS normalisation by (count, mean, M2): exact for any sharding, stable for any offset.
//!
//! The moments of the ranks' parts are merged by Chan's formula, in double precision, so the statistics are
//! the global ones, with the same bits on every rank. This takes one small all-reduce forward and one backward.
//! Of cells that lie whole on ranks, and are short, one op finds the statistics and normalises, cell by cell.

mod batch;
mod cells;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod grad;
mod halves;
mod normalise;

pub use batch::{Running, batch_norm, instance_norm_running};
pub use cells::Cells;
pub use normalise::{Normalise, Statistics};

use self::normalise::MomentsOp;
use crate::families::full::sums;
use crate::{Exec, OpError, Result, Value};
use shard_comm::DType;
use std::sync::Arc;

/// Normalises each group of channels of each sample: `x` is (N, C, spatial...), `weight` and `bias` are (C).
///
/// # Collective
/// All members of the mesh. Communicates three numbers per group and sample if spatial dims are sharded.
///
/// # Errors
/// A number of channels that is not a multiple of the groups; a weight or bias of another shape.
pub fn group_norm(
    exec: &dyn Exec,
    x: &Value,
    groups: usize,
    weight: Option<&Value>,
    bias: Option<&Value>,
    eps: f64,
) -> Result<Value> {
    let fits = x.ndim() >= 2 && groups > 0 && x.shape()[1].is_multiple_of(groups);
    if !fits {
        return Err(OpError::Shape {
            op: "group_norm",
            problem: format!("{groups} groups do not divide the channels"),
            shapes: vec![x.shape().to_vec()],
            fix: "give (N, C, ...) with groups dividing C",
        });
    }
    let cells = Cells::Groups(groups);
    cells.check("group_norm", x, weight, bias)?;
    normalise(exec, x, cells, Statistics::Moments, weight, bias, eps)
}

/// Normalises each channel of each sample: [`group_norm`] with as many groups as channels.
///
/// # Collective
/// As [`group_norm`].
///
/// # Errors
/// As [`group_norm`].
pub fn instance_norm(
    exec: &dyn Exec,
    x: &Value,
    weight: Option<&Value>,
    bias: Option<&Value>,
    eps: f64,
) -> Result<Value> {
    group_norm(
        exec,
        x,
        x.shape().get(1).copied().unwrap_or(0).max(1),
        weight,
        bias,
        eps,
    )
}

/// Normalises over the last `dims` dims: `weight` and `bias` have their shape.
///
/// Where squares of deviations are beyond `f64`, the variance is infinite and what is divided by its root is 0, in all normalisations; in
/// PyTorch some have NaN there.
///
/// # Collective
/// All members of the mesh. Communicates three numbers per row if normalised dims are sharded.
///
/// # Errors
/// No dims, or more than there are; a weight or bias of another shape.
pub fn layer_norm(
    exec: &dyn Exec,
    x: &Value,
    dims: usize,
    weight: Option<&Value>,
    bias: Option<&Value>,
    eps: f64,
) -> Result<Value> {
    if dims == 0 || dims > x.ndim() {
        return Err(OpError::Shape {
            op: "layer_norm",
            problem: format!("cannot normalise over the last {dims} dims"),
            shapes: vec![x.shape().to_vec()],
            fix: "normalise over at least one and at most all dims",
        });
    }
    let cells = Cells::Last(dims);
    cells.check("layer_norm", x, weight, bias)?;
    normalise(exec, x, cells, Statistics::Moments, weight, bias, eps)
}

/// Divides by the root of the mean square over the last `dims` dims, and multiplies by `weight`, which has their shape. `eps` is added to
/// the mean square; without one it is the distance from 1 to the next number of the type that the op
/// computes in, which is `f32` for 16-bit types.
///
/// # Collective
/// As [`layer_norm`].
///
/// # Errors
/// As [`layer_norm`].
pub fn rms_norm(
    exec: &dyn Exec,
    x: &Value,
    dims: usize,
    weight: Option<&Value>,
    eps: Option<f64>,
) -> Result<Value> {
    if dims == 0 || dims > x.ndim() {
        return Err(OpError::Shape {
            op: "rms_norm",
            problem: format!("cannot normalise over the last {dims} dims"),
            shapes: vec![x.shape().to_vec()],
            fix: "normalise over at least one and at most all dims",
        });
    }
    let least = match x.dtype() {
        DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    };
    let (cells, eps) = (Cells::Last(dims), eps.unwrap_or(least));
    cells.check("rms_norm", x, weight, None)?;
    normalise(exec, x, cells, Statistics::Squares, weight, None, eps)
}

fn normalise(
    exec: &dyn Exec,
    x: &Value,
    cells: Cells,
    by: Statistics,
    weight: Option<&Value>,
    bias: Option<&Value>,
    eps: f64,
) -> Result<Value> {
    let by = (cells, by);
    if cells.lie_whole(x) {
        return normalise_by(exec, x, None, by, [weight, bias], eps);
    }
    let [x] = &sums(exec, [x])?;
    let stats = statistics(exec, x, cells, by.1)?;
    normalise_by(exec, x, Some(&stats), by, [weight, bias], eps)
}

/// The statistics of every cell. The derivative through them is part of the normalisation's vjp.
fn statistics(exec: &dyn Exec, x: &Value, cells: Cells, by: Statistics) -> Result<Value> {
    let squares = by == Statistics::Squares;
    let stats = exec.apply1(Arc::new(MomentsOp { cells, squares }), &[&x.detach()])?;
    Ok(stats.detach())
}

/// Normalises `x` by statistics, or without these by its own.
fn normalise_by(
    exec: &dyn Exec,
    x: &Value,
    stats: Option<&Value>,
    (cells, by): (Cells, Statistics),
    [weight, bias]: [Option<&Value>; 2],
    eps: f64,
) -> Result<Value> {
    let op = Normalise {
        cells,
        by,
        eps: eps.to_bits(),
        finds: stats.is_none(),
        weight: weight.is_some(),
        bias: bias.is_some(),
    };
    let operands: Vec<&Value> = [Some(x), stats, weight, bias]
        .into_iter()
        .flatten()
        .collect();
    let mut outputs = exec.apply(Arc::new(op), &operands)?;
    Ok(outputs.swap_remove(0))
}
