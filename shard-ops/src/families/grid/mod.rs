//! Sampling a plane at coordinates that an operand holds.
//!
//! Each place reads a few elements of the plane. Which, and with what weights, one op finds from the coordinates alone; they are rows
//! of a table, which come by a route: where coordinates are displaced little, little more than a halo moves. So gradients go
//! home by the route back, and those of coordinates are those of weights.

mod affine;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod deform;
mod taps;

pub use affine::affine_grid;
pub use deform::deform_conv;
pub use shard_kernels::grid::{SampleEdge, SampleMode, Sampling};

use crate::elementwise::mul;
use crate::families::full::{alike, rounded_once};
use crate::families::indexing::{pick_in_each, weigh_in_each};
use crate::families::reduce::sum;
use crate::families::shape::{permute, reshape, unsqueeze};
use crate::{Exec, OpError, Result, Value};
use std::sync::Arc;
use taps::GridTaps;

/// The elements of `x`, (N, C, spatial...), at the coordinates `grid`, (N, places..., spatial dims): (N, C, places...). Coordinates run
/// from -1 to 1, those of the last dim first. Places have as many dims as the plane.
///
/// # Collective
/// All members of the mesh. Where spatial dims are sharded, the elements that this rank's places read and others have, each once, and a
/// request for each; planes sharded in another dim than their first are redistributed.
///
/// # Errors
/// Shapes or types that do not belong together; more than three spatial dims, or a plane without elements.
pub fn grid_sample(exec: &dyn Exec, x: &Value, grid: &Value, sampling: Sampling) -> Result<Value> {
    let nd = x.ndim().saturating_sub(2);
    let fits = (1..=3).contains(&nd)
        && grid.ndim() == x.ndim()
        && grid.shape()[0] == x.shape()[0]
        && grid.shape()[nd + 1] == nd;
    if !fits || x.shape()[2..].contains(&0) {
        return Err(OpError::Shape {
            op: "grid_sample",
            problem: "a plane and coordinates that do not fit".into(),
            shapes: vec![x.shape().to_vec(), grid.shape().to_vec()],
            fix: "give (N, C, spatial...) of one to three dims that are not empty, and (N, places..., spatial dims) of as many",
        });
    }
    let [x, grid] = &alike(exec, [x, grid])?;
    if x.dtype() != grid.dtype() {
        return Err(OpError::dtype(
            "grid_sample",
            1,
            x.dtype().to_string(),
            grid.dtype(),
        ));
    }
    rounded_once(exec, [x, grid], |[x, grid]| {
        sampled(exec, x, grid, sampling)
    })
}

fn sampled(exec: &dyn Exec, x: &Value, grid: &Value, sampling: Sampling) -> Result<Value> {
    let nd = x.ndim() - 2;
    let taps = GridTaps {
        reading: sampling.into(),
        plane: x.shape()[2..].iter().copied().collect(),
    };
    let [weights, index] = exec.apply_n(Arc::new(taps), &[grid])?;
    // Of the nearest there is one.
    let weights = (sampling.mode != SampleMode::Nearest).then_some(&weights);
    let summed = summed(exec, &table(exec, x)?, &index, weights)?;
    let channels_first: Vec<usize> = [0, nd + 1].into_iter().chain(1..=nd).collect();
    permute(exec, &summed, &channels_first)
}

/// A plane (N, C, spatial...) as (N, positions, C): the channels of one position are a row.
fn table(exec: &dyn Exec, x: &Value) -> Result<Value> {
    let last_channels: Vec<usize> = [0].into_iter().chain(2..x.ndim()).chain([1]).collect();
    let positions = x.shape()[2..].iter().product();
    let table = permute(exec, x, &last_channels)?;
    reshape(exec, &table, &[x.shape()[0], positions, x.shape()[1]])
}

/// The sums (N, places..., C) of the rows of a table that `index`, (N, places..., taps), names, each times its weight, if it has one.
fn summed(exec: &dyn Exec, table: &Value, index: &Value, weights: Option<&Value>) -> Result<Value> {
    if let Some(weights) = weights.filter(|_| table.array().cx().device().runs_host_jobs()) {
        return weigh_in_each(exec, [table, index, weights]);
    }
    // (N, places..., taps, C)
    let (rows, taps_dim) = (pick_in_each(exec, table, index)?, index.ndim() - 1);
    let weighed = match weights {
        None => rows,
        Some(weights) => mul(exec, &rows, &unsqueeze(exec, weights, taps_dim + 1)?)?,
    };
    sum(exec, &weighed, &[taps_dim], false)
}
