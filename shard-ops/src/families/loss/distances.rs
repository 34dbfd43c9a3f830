//! Losses of distances between numbers and what they should be.

use super::{LossReduction, of_total, reduced};
use crate::families::elementwise::{add, mul_scalar, sub, unary};
use crate::families::full::in_full;
use crate::families::reduce::square_sum;
use crate::{Exec, Result, Value};
use shard_kernels::unary::Unary;

/// `|x - target|`
///
/// # Collective
/// All members of the mesh. Communicates to align misaligned operands; a mean or sum is partial over the axes that shard them.
///
/// # Errors
/// Shapes that do not broadcast; types that differ or are no floats.
pub fn l1_loss(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    reduction: LossReduction,
) -> Result<Value> {
    in_full(exec, [x, target], |[x, target]| {
        reduced(exec, distance(exec, x, target)?, None, reduction)
    })
}

/// `(x - target)²`
///
/// # Collective
/// As [`l1_loss`].
///
/// # Errors
/// As [`l1_loss`].
pub fn mse_loss(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    reduction: LossReduction,
) -> Result<Value> {
    in_full(exec, [x, target], |[x, target]| {
        let apart = sub(exec, x, target)?;
        if reduction == LossReduction::None {
            return unary(exec, &apart, Unary::Square);
        }
        let all: Vec<usize> = (0..apart.ndim()).collect();
        let total = square_sum(exec, "mse_loss", &apart, &all, false)?;
        of_total(exec, total, apart.shape(), reduction)
    })
}

/// [`huber_loss`] divided by `beta`, where it bends: near 0 a parabola, beyond a line of slope 1. With a `beta` of 0 it is
/// [`l1_loss`].
///
/// # Collective
/// As [`l1_loss`].
///
/// # Errors
/// As [`l1_loss`].
pub fn smooth_l1_loss(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    beta: f64,
    reduction: LossReduction,
) -> Result<Value> {
    in_full(exec, [x, target], |[x, target]| {
        let distance = distance(exec, x, target)?;
        let errors = match beta == 0.0 {
            true => distance,
            false => bent(exec, &distance, beta, 1.0 / beta)?,
        };
        reduced(exec, errors, None, reduction)
    })
}

/// Half the square of the distance up to `delta`, and a line of slope `delta` beyond.
///
/// # Collective
/// As [`l1_loss`].
///
/// # Errors
/// As [`l1_loss`].
pub fn huber_loss(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    delta: f64,
    reduction: LossReduction,
) -> Result<Value> {
    in_full(exec, [x, target], |[x, target]| {
        let errors = bent(exec, &distance(exec, x, target)?, delta, 1.0)?;
        reduced(exec, errors, None, reduction)
    })
}

fn distance(exec: &dyn Exec, x: &Value, target: &Value) -> Result<Value> {
    unary(exec, &sub(exec, x, target)?, Unary::Abs)
}

/// `scale * (m² / 2 + bend * (d - m))` with `m = min(d, bend)`: a parabola that goes on as a line.
fn bent(exec: &dyn Exec, d: &Value, bend: f64, scale: f64) -> Result<Value> {
    let (min, max) = (f64::NEG_INFINITY, bend);
    let m = unary(exec, d, Unary::Clamp { min, max })?;
    let parabola = mul_scalar(exec, &unary(exec, &m, Unary::Square)?, 0.5 * scale)?;
    let line = mul_scalar(exec, &sub(exec, d, &m)?, bend * scale)?;
    add(exec, &parabola, &line)
}
