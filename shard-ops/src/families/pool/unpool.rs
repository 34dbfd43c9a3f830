//! The way back from a max pool: every value to the place that its index names.

use super::{Geometry, PoolOptions};
use crate::elementwise::{cast, mul_scalar};
use crate::families::indexing::scatter;
use crate::families::resample::{ResampleTo, interpolate};
use crate::families::shape::reshape;
use crate::{Exec, OpError, Result, Value};
use shard_comm::DType;
use shard_spec::ResampleMode;

/// Puts every value at its flat index in a plane of extents `output`, and zeros elsewhere: the partial inverse of
/// [`max_pool`](super::max_pool). Without extents they are those that windows as in `options`, laid side by side, would cover. Of several
/// values with one index the last stays.
///
/// # Collective
/// All members of the mesh. Where spatial dims are sharded, the values whose places are on other ranks and, at the first use of
/// indices, a request for each.
///
/// # Errors
/// Shapes or options that do not fit; on all ranks, an index beyond the plane on any.
pub fn max_unpool(
    exec: &dyn Exec,
    x: &Value,
    indices: &Value,
    options: &PoolOptions,
    output: Option<&[usize]>,
) -> Result<Value> {
    let op = "max_unpool";
    let g = Geometry::new(op, x, options)?;
    let misfit = |problem: String| OpError::Shape {
        op,
        problem,
        shapes: vec![x.shape().to_vec(), indices.shape().to_vec()],
        fix: "give the values and indices of one pool, with its options or the extents of its input",
    };
    if x.shape() != indices.shape() {
        return Err(misfit("values and indices differ in shape".into()));
    }
    let covered = |d: usize| {
        let last = (g.input[d].max(1) - 1).checked_mul(g.stride[d])?;
        let end = last.checked_add(g.kernel[d])?;
        end.checked_sub(g.padding[d].checked_mul(2)?)
    };
    let plane: Option<Vec<usize>> = match output {
        Some(extents) => Some(extents.to_vec()),
        None => (0..g.input.len()).map(covered).collect(),
    };
    let plane = plane
        .filter(|p| p.len() == g.input.len() && !p.contains(&0) && !g.input.contains(&0))
        .ok_or_else(|| misfit(format!("a plane of {output:?}")))?;
    // Zeros, with boundaries where those of the values are.
    let like = interpolate(
        exec,
        &x.detach(),
        &ResampleTo::Size(plane.clone()),
        ResampleMode::Nearest,
    )?;
    let zeros = cast(exec, &cast(exec, &like, DType::Bool)?, x.dtype())?;
    let zeros = mul_scalar(exec, &zeros, 0.0)?;
    let flat = |v: &Value| {
        let shape = v.shape();
        let flat = [shape[0], shape[1], shape[2..].iter().product()];
        reshape(exec, v, &flat)
    };
    let put = scatter(exec, &flat(&zeros)?, 2, &flat(indices)?, &flat(x)?)?;
    let shape: Vec<usize> = x.shape()[..2].iter().copied().chain(plane).collect();
    reshape(exec, &put, &shape)
}
