//! Means of powers over windows: pools by a p-norm, and normalisation by neighbouring channels.

use super::{PoolOptions, avg_pool};
use crate::elementwise::{add_scalar, div, eq, masked_fill, mul_scalar, number, unary};
use crate::families::full::{in_full, sums};
use crate::families::index::pad;
use crate::families::shape::{reshape, unsqueeze};
use crate::{Exec, OpError, Result, Value};
use shard_kernels::unary::Unary;
use shard_spec::EdgeMap;

const fn power(exponent: f64) -> Unary {
    Unary::PowScalar { exponent }
}

/// The p-norm of every window: the `norm`-th root of the sum of `norm`-th powers. Where the sum is zero so is the gradient. Padding,
/// dilation and divisor of the options are not used; a window that overhangs in `ceil_mode` counts as a full one of the same mean.
///
/// # Collective
/// All members of the mesh; communicates the halos of sharded spatial dims.
///
/// # Errors
/// Shapes or options that do not fit; a norm that is not positive and finite.
pub fn lp_pool(exec: &dyn Exec, x: &Value, norm: f64, options: &PoolOptions) -> Result<Value> {
    if !(norm > 0.0 && norm.is_finite()) {
        return Err(OpError::Shape {
            op: "lp_pool",
            problem: format!("a norm of {norm}"),
            shapes: vec![x.shape().to_vec()],
            fix: "give a positive, finite norm",
        });
    }
    let options = PoolOptions {
        kernel: options.kernel.clone(),
        stride: options.stride.clone(),
        ceil_mode: options.ceil_mode,
        ..PoolOptions::new(Vec::new())
    };
    in_full(exec, [x], |[x]| roots(exec, x, norm, &options))
}

fn roots(exec: &dyn Exec, x: &Value, norm: f64, options: &PoolOptions) -> Result<Value> {
    let means = avg_pool(exec, &unary(exec, x, power(norm))?, options)?;
    let nd = x.ndim() - 2;
    let positions: usize = match options.kernel[..] {
        [one] => one.pow(nd as u32),
        ref each => each.iter().product(),
    };
    // The root has no slope at zero, so it is not taken there.
    let nothing = eq(exec, &means, &number("lp_pool", &means, 0.0)?)?;
    let sums = mul_scalar(
        exec,
        &masked_fill(exec, &means, &nothing, 1.0)?,
        positions as f64,
    )?;
    let roots = unary(exec, &sums, power(1.0 / norm))?;
    masked_fill(exec, &roots, &nothing, 0.0)
}

/// Divides every element by a power of what `size` neighbouring channels come to: `x / (k + alpha mean(x²))^beta`, where channels
/// beyond the ends count as zeros. `x` is (N, C, ...).
///
/// # Collective
/// All members of the mesh; communicates the halo of channels if they are sharded.
///
/// # Errors
/// Fewer than two dims; a size of 0.
pub fn local_response_norm(
    exec: &dyn Exec,
    x: &Value,
    size: usize,
    alpha: f64,
    beta: f64,
    k: f64,
) -> Result<Value> {
    if x.ndim() < 2 || size == 0 {
        return Err(OpError::Shape {
            op: "local_response_norm",
            problem: format!("{size} neighbouring channels"),
            shapes: vec![x.shape().to_vec()],
            fix: "give (N, C, ...) and at least one channel",
        });
    }
    in_full(exec, [x], |[x]| {
        let [x] = &sums(exec, [x])?;
        let means = channel_means(exec, &unary(exec, x, Unary::Square)?, size)?;
        let scale = add_scalar(exec, &mul_scalar(exec, &means, alpha)?, k)?;
        div(exec, x, &unary(exec, &scale, power(beta))?)
    })
}

/// The means of `size` neighbouring channels.
fn channel_means(exec: &dyn Exec, x: &Value, size: usize) -> Result<Value> {
    let shape = x.shape().to_vec();
    let mut means = x.clone();
    // Channels are a spatial dim of a pool, beside at most two others.
    if shape.len() > 4 {
        let rest = shape[3..].iter().product();
        means = reshape(exec, &means, &[shape[0], shape[1], shape[2], rest])?;
    }
    let mut means = unsqueeze(exec, &means, 1)?;
    let mut around = vec![(0, 0); means.ndim()];
    around[2] = ((size / 2) as isize, ((size - 1) / 2) as isize);
    means = pad(exec, &means, &around, EdgeMap::Zeros, 0.0)?;
    let mut kernel = vec![1; means.ndim() - 2];
    kernel[0] = size;
    let options = PoolOptions {
        stride: vec![1],
        ..PoolOptions::new(kernel)
    };
    reshape(exec, &avg_pool(exec, &means, &options)?, &shape)
}
