//! Statistics over dims that take more than one number per cell on the way: variances, logarithms of sums of exponentials, the
//! places of extremes; and norms and quantiles, which are made of other ops.
//!
//! A rank finds the state of its part of every cell, (count, mean, M2), (maximum, sum of exponentials) or (value, index), in double
//! precision, and states are merged at once: one reduction of a few numbers per cell, whatever the sharding.

mod covariance;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod extreme;
mod moments;
mod nanquantile;
mod norms;
mod quantile;
mod states;

pub use self::covariance::{corrcoef, cov, renorm};
pub use self::extreme::{argmax, argmin, max, min};
pub use self::moments::{std, std_mean, var, var_mean};
pub use self::nanquantile::nanquantile;
pub(super) use self::norms::power;
pub use self::norms::{NormOrder, cosine_similarity, norm, normalize};
pub use self::quantile::{Interpolation, quantile};
pub(super) use self::states::states;

use self::states::part;
use super::elementwise::{add, cast, eq, masked_fill, number, unary};
use crate::{Exec, OpError, Result, Value};
use shard_comm::Monoid;
use shard_kernels::unary::Unary;

/// The logarithm of the sum of exponentials over dims, without overflow; -∞ over nothing.
///
/// Reduced dims disappear, or stay with extent 1 if `keepdim`. No dims means no reduction.
///
/// # Collective
/// All members of the mesh. Communicates two numbers per cell if reduced dims are sharded.
///
/// # Errors
/// A dim out of range or named twice; an operand of integers or truth values.
pub fn logsumexp(exec: &dyn Exec, x: &Value, dims: &[usize], keepdim: bool) -> Result<Value> {
    let x = &exec.in_full(x)?;
    let pairs = states(exec, "logsumexp", Monoid::MaxSumExp, x, dims)?;
    let shape = cells("logsumexp", x, dims, keepdim)?;
    // The derivative passes through the sum: it is the same whatever the maximum is taken to be.
    let max = part(exec, &pairs, 0, &shape)?.detach();
    let mut sums = part(exec, &pairs, 1, &shape)?;
    if dims.iter().any(|&d| x.shape()[d] == 0) {
        // Nothing sums to 0, where the logarithm has no slope.
        let zero = eq(exec, &sums.detach(), &number("logsumexp", &sums, 0.0)?)?;
        sums = masked_fill(exec, &sums, &zero, 1.0)?;
    }
    let log = unary(exec, &sums, Unary::Log)?;
    cast(exec, &add(exec, &max, &log)?, x.dtype())
}

/// The shape of a reduction of `x` over dims.
fn cells(op: &'static str, x: &Value, dims: &[usize], keepdim: bool) -> Result<Vec<usize>> {
    check_dims(op, x, dims)?;
    let extents = x.shape().iter().enumerate();
    Ok(match keepdim {
        true => extents
            .map(|(d, &n)| if dims.contains(&d) { 1 } else { n })
            .collect(),
        false => extents
            .filter(|(d, _)| !dims.contains(d))
            .map(|(_, &n)| n)
            .collect(),
    })
}

/// Dims of the operand, each named once.
pub(super) fn check_dims(op: &'static str, x: &Value, dims: &[usize]) -> Result<()> {
    let twice = (1..dims.len()).any(|k| dims[..k].contains(&dims[k]));
    match twice || dims.iter().any(|&d| d >= x.ndim()) {
        false => Ok(()),
        true => Err(OpError::Shape {
            op,
            problem: format!("dims {dims:?} are not distinct dims of the operand"),
            shapes: vec![x.shape().to_vec()],
            fix: "name each dim once, counting from 0",
        }),
    }
}

/// Whether ranks hold all of dims of `x`, so that its cells, which have so many elements, lie whole on them, and are so short that
/// they stay in a cache while a kernel goes over each more than once: then one op finds the statistics and what is made with them.
/// Otherwise these are two, and ranks merge the statistics between.
pub(super) fn lie_whole(x: &Value, dims: &[usize], cell: usize) -> bool {
    const IN_CACHE: usize = 1 << 16;
    cell <= IN_CACHE && dims.iter().all(|&d| x.layout().sharding(d).is_none())
}

/// The square root, with no gradient where it is 0.
pub(super) fn square_root(exec: &dyn Exec, x: &Value) -> Result<Value> {
    // What no tape records has no gradient anywhere.
    if x.slot().is_none() {
        return unary(exec, x, Unary::Sqrt);
    }
    let zero = eq(exec, &x.detach(), &number("sqrt", x, 0.0)?)?;
    let root = unary(exec, &masked_fill(exec, x, &zero, 1.0)?, Unary::Sqrt)?;
    masked_fill(exec, &root, &zero, 0.0)
}
