//! Pools of windows that begin at places drawn by chance (Graham, 2014).

use super::{PoolOptions, max_pool};
use crate::elementwise::{add, cast, eq, masked_fill, mul_scalar, number, sub, unary};
use crate::families::broadcast::expand;
use crate::families::full::sums;
use crate::families::index::slice;
use crate::families::indexing::{gather, numbered};
use crate::families::shape::{check_spatial, per_dim, reshape};
use crate::{Exec, OpError, Result, Value};
use shard_comm::DType;
use shard_kernels::unary::Unary;

const OP: &str = "fractional_max_pool";

/// The largest element of every window, and its flat index in the *global* spatial plane, as [`max_pool`]; how many windows there are is
/// said, and where they begin is given by `samples` (N, C, spatial dims) between 0 and 1: of `n` inputs, `m` windows of extent `k` and a
/// sample `u`, window `i` begins at `⌊(i + u) a⌋ - ⌊u a⌋` with `a = (n - k) / (m - 1)`, and the last one at `n - k`. As
/// `torch.nn.functional.fractional_max_pool2d`, whose first sample is that of columns and the second that of rows, and
/// `fractional_max_pool3d`, whose samples are in the order of the dims.
///
/// A window begins at one of two places that its number gives, so what is pooled is all places, of which windows pick theirs.
///
/// # Collective
/// All members of the mesh; communicates the halos of sharded spatial dims, and along these what windows pick of others' places.
///
/// # Errors
/// Shapes that do not fit; windows that are larger than what there is for so many of them; samples of another shape, or that are no floats.
pub fn fractional_max_pool(
    exec: &dyn Exec,
    x: &Value,
    samples: &Value,
    kernel: &[usize],
    outputs: &[usize],
) -> Result<(Value, Value)> {
    let nd = x.ndim().saturating_sub(2);
    let fix = "give (N, C, spatial...) of one to three spatial dims";
    check_spatial(OP, x, nd, fix)?;
    let kernel = per_dim(OP, "kernel", kernel, nd, &[x])?;
    let outputs = per_dim(OP, "outputs", outputs, nd, &[x])?;
    let spatial = &x.shape()[2..];
    let fits = |d: usize| {
        let least = outputs[d].checked_add(kernel[d])?.checked_sub(1)?;
        (kernel[d] > 0 && outputs[d] > 0 && least <= spatial[d]).then_some(())
    };
    if samples.shape() != [x.shape()[0], x.shape()[1], nd] || !samples.dtype().is_float() {
        return Err(OpError::Shape {
            op: OP,
            problem: format!("samples of {}", samples.dtype()),
            shapes: vec![x.shape().to_vec(), samples.shape().to_vec()],
            fix: "give floats (N, C, spatial dims) from 0 to 1",
        });
    }
    if (0..nd).any(|d| fits(d).is_none()) {
        return Err(OpError::Shape {
            op: OP,
            problem: format!("{outputs:?} windows of {kernel:?}"),
            shapes: vec![x.shape().to_vec()],
            fix: "ask for windows and extents of 1 or more that together are no more than one above the input's",
        });
    }
    let options = PoolOptions {
        stride: vec![1],
        ..PoolOptions::new(kernel.to_vec())
    };
    let (mut values, mut indices) = max_pool(exec, x, &options)?;
    let wide = match samples.dtype() {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let [samples] = &sums(exec, [&cast(exec, &samples.detach(), wide)?])?;
    for d in 0..nd {
        let begins = begins(exec, &values, samples, d, outputs[d])?;
        let mut shape = values.shape().to_vec();
        shape[2 + d] = outputs[d];
        let index = expand(exec, &begins, &shape)?;
        values = gather(exec, &values, 2 + d, &index)?;
        indices = gather(exec, &indices, 2 + d, &index)?;
    }
    Ok((values, indices))
}

/// Where windows begin along spatial dim `d` of the places that there are: (N, C, 1.., windows, 1..).
fn begins(
    exec: &dyn Exec,
    places: &Value,
    samples: &Value,
    d: usize,
    windows: usize,
) -> Result<Value> {
    let nd = places.ndim() - 2;
    let [batch, channels] = [places.shape()[0], places.shape()[1]];
    let last = places.shape()[2 + d] - 1;
    let step = match windows {
        1 => 0.0,
        // In the type of the samples, as PyTorch's.
        _ if samples.dtype() == DType::F64 => last as f64 / (windows - 1) as f64,
        _ => f64::from(last as f32 / (windows - 1) as f32),
    };
    // PyTorch's planes have the sample of their columns first.
    let column = if nd == 2 { 1 - d } else { d };
    let sample = slice(exec, samples, 2, column, 1, 1)?;
    let floor = |x: &Value| unary(exec, &mul_scalar(exec, x, step)?, Unary::Floor);
    let number_of = numbered(places, 2 + d, windows)?;
    let shifted = add(exec, &cast(exec, &number_of, samples.dtype())?, &sample)?;
    let begins = sub(exec, &floor(&shifted)?, &floor(&sample)?)?;
    let clamp = Unary::Clamp {
        min: 0.0,
        max: last as f64,
    };
    let begins = cast(exec, &unary(exec, &begins, clamp)?, DType::I64)?;
    let is_last = eq(
        exec,
        &number_of,
        &number(OP, &number_of, (windows - 1) as f64)?,
    )?;
    let begins = masked_fill(exec, &begins, &is_last, last as f64)?;
    let mut shape = vec![1; 2 + nd];
    shape[..2].copy_from_slice(&[batch, channels]);
    shape[2 + d] = windows;
    reshape(exec, &begins, &shape)
}
