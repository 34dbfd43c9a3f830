//! Pools by the number of outputs: output `o` of `m` sees the inputs `floor(o n / m) .. ceil((o + 1) n / m)`.

use super::{Geometry, largest};
use crate::families::full::in_full;
use crate::families::reduce::mean;
use crate::families::resample::{ResampleTo, interpolate};
use crate::{Exec, OpError, Result, Value};
use shard_spec::ResampleMode;

/// The mean of each of this many equal areas. Extents have one entry per spatial dim, or one for all; `None` keeps that of the input.
///
/// # Collective
/// All members of the mesh. Communicates what areas reach of other ranks' inputs; of dims with one output, sums alone.
///
/// # Errors
/// Another number of extents; an extent of 0.
pub fn adaptive_avg_pool(exec: &dyn Exec, x: &Value, outputs: &[Option<usize>]) -> Result<Value> {
    let outputs = extents("adaptive_avg_pool", x, outputs)?;
    // Where one output sees all, its rank need not.
    let all = |&d: &usize| outputs[d] == 1 && x.shape()[2 + d] > 1;
    let whole: Vec<usize> = (0..outputs.len()).filter(all).map(|d| 2 + d).collect();
    let areas = |x: &Value| match x.shape()[2..] == outputs {
        true => Ok(x.clone()),
        false => interpolate(
            exec,
            x,
            &ResampleTo::Size(outputs.clone()),
            ResampleMode::Area,
        ),
    };
    if whole.is_empty() {
        return areas(x);
    }
    // What is left to average over smaller areas was not rounded yet.
    match whole.len() == outputs.len() {
        true => mean(exec, x, &whole, true),
        false => in_full(exec, [x], |[x]| areas(&mean(exec, x, &whole, true)?)),
    }
}

/// The largest element of each of this many equal areas, and its flat index in the *global* spatial plane, as
/// [`max_pool`](super::max_pool). Extents as in [`adaptive_avg_pool`].
///
/// # Collective
/// All members of the mesh. Communicates what areas reach of other ranks' inputs.
///
/// # Errors
/// As [`adaptive_avg_pool`].
pub fn adaptive_max_pool(
    exec: &dyn Exec,
    x: &Value,
    outputs: &[Option<usize>],
) -> Result<(Value, Value)> {
    let outputs = extents("adaptive_max_pool", x, outputs)?;
    largest(exec, x, Geometry::adaptive(x, &outputs))
}

/// The output's spatial extents.
fn extents(op: &'static str, x: &Value, outputs: &[Option<usize>]) -> Result<Vec<usize>> {
    let nd = x.ndim().saturating_sub(2);
    let shape_error = |problem: String, fix| OpError::Shape {
        op,
        problem,
        shapes: vec![x.shape().to_vec()],
        fix,
    };
    if !(1..=3).contains(&nd) || (outputs.len() != 1 && outputs.len() != nd) {
        return Err(shape_error(
            format!("{} extents for {nd} spatial dims", outputs.len()),
            "give (N, C, spatial...) of one to three spatial dims, and one extent or one per dim",
        ));
    }
    if x.shape()[2..].contains(&0) {
        return Err(shape_error(
            "there is nothing to pool".into(),
            "give spatial dims that are not empty",
        ));
    }
    let of = |d: usize| outputs[d.min(outputs.len() - 1)].unwrap_or(x.shape()[2 + d]);
    Ok((0..nd).map(of).collect())
}
