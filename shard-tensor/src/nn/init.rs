//! What parameters begin as, by the names and formulas of `torch.nn.init`.
//!
//! Each replaces the value of a parameter, whatever its layout: what is drawn is the same tensor under any.
//!
//! ```
//! use shard_tensor::nn::{Linear, ModelExt, init};
//! use shard_tensor::launch;
//! let drawn = |ranks: usize| launch(ranks, |ctx| {
//!     let mesh = ctx.mesh([("shard", ranks)])?;
//!     let layer = Linear::new(&mesh, 4, 6)?.fully_sharded("shard")?;
//!     init::xavier_uniform(&layer.weight, 1.0)?;
//!     layer.weight.to_array::<f32>()
//! });
//! assert_eq!(drawn(1)?[0], drawn(3)?[0]);
//! # Ok::<(), shard_tensor::Error>(())
//! ```

use crate::{Result, ShardTensor};

/// Uniform for the given gain, so that variances stay what they are forward and backward (Glorot and Bengio, 2010).
///
/// # Collective
/// All ranks of the program: it draws random numbers.
///
/// # Errors
/// [`Argument`](crate::Error::Argument) for a tensor that is no parameter.
#[track_caller]
pub fn xavier_uniform(parameter: &ShardTensor, gain: f64) -> Result<()> {
    let (inputs, outputs) = fans(parameter.shape());
    uniform(parameter, gain * (6.0 / (inputs + outputs)).sqrt())
}

/// As [`xavier_uniform`], of normal numbers.
///
/// # Collective
/// As [`xavier_uniform`].
///
/// # Errors
/// As [`xavier_uniform`].
#[track_caller]
pub fn xavier_normal(parameter: &ShardTensor, gain: f64) -> Result<()> {
    let (inputs, outputs) = fans(parameter.shape());
    normal(parameter, 0.0, gain * (2.0 / (inputs + outputs)).sqrt())
}

/// Uniform so that variances stay what they are forward through rectifiers (He and others, 2015). `slope` is that of the
/// negative side, 0 for a plain rectifier.
///
/// # Collective
/// As [`xavier_uniform`].
///
/// # Errors
/// As [`xavier_uniform`].
#[track_caller]
pub fn kaiming_uniform(parameter: &ShardTensor, slope: f64) -> Result<()> {
    let inputs = fans(parameter.shape()).0;
    uniform(parameter, (6.0 / ((1.0 + slope * slope) * inputs)).sqrt())
}

/// As [`kaiming_uniform`], of normal numbers.
///
/// # Collective
/// As [`xavier_uniform`].
///
/// # Errors
/// As [`xavier_uniform`].
#[track_caller]
pub fn kaiming_normal(parameter: &ShardTensor, slope: f64) -> Result<()> {
    let inputs = fans(parameter.shape()).0;
    normal(
        parameter,
        0.0,
        (2.0 / ((1.0 + slope * slope) * inputs)).sqrt(),
    )
}

/// Uniform between the bound's two signs.
///
/// # Collective
/// As [`xavier_uniform`].
///
/// # Errors
/// As [`xavier_uniform`].
#[track_caller]
pub fn uniform(parameter: &ShardTensor, bound: f64) -> Result<()> {
    let (mesh, layout) = (parameter.mesh(), parameter.layout());
    parameter.set(&mesh.uniform(parameter.shape(), -bound..bound, layout)?)
}

/// Normal numbers.
///
/// # Collective
/// As [`xavier_uniform`].
///
/// # Errors
/// As [`xavier_uniform`].
#[track_caller]
pub fn normal(parameter: &ShardTensor, mean: f64, deviation: f64) -> Result<()> {
    let drawn = parameter
        .mesh()
        .randn(parameter.shape(), parameter.layout())?;
    parameter.set(&drawn.mul_scalar(deviation)?.add_scalar(mean)?)
}

/// Normal numbers within two of the given bounds, as `torch.nn.init.trunc_normal_` with mean 0 and bounds -2 and 2.
///
/// # Collective
/// As [`xavier_uniform`].
///
/// # Errors
/// As [`xavier_uniform`].
#[track_caller]
pub fn trunc_normal(parameter: &ShardTensor, deviation: f64) -> Result<()> {
    let (mesh, layout) = (parameter.mesh(), parameter.layout());
    parameter.set(&mesh.trunc_normal(parameter.shape(), 0.0, deviation, -2.0..2.0, layout)?)
}

/// A matrix with orthonormal rows or columns, the fewer of the two, times a gain; of more dims, all but the first are one.
///
/// # Collective
/// As [`xavier_uniform`]; the matrix is made on every rank.
///
/// # Errors
/// As [`xavier_uniform`].
#[cfg(feature = "linalg")]
#[track_caller]
pub fn orthogonal(parameter: &ShardTensor, gain: f64) -> Result<()> {
    let shape = parameter.shape();
    let rows = shape.first().copied().unwrap_or(1);
    let columns = parameter.numel() / rows.max(1);
    let [tall, short] = [rows.max(columns), rows.min(columns)];
    let drawn = parameter
        .mesh()
        .randn([tall, short], crate::Placements::replicated())?;
    let (q, r) = drawn.qr()?;
    // With the signs of the diagonal it is uniform among all such matrices.
    let signs = r.mul(
        &parameter
            .mesh()
            .eye([short, short], crate::Placements::replicated())?,
    )?;
    let q = q.mul(&signs.sum([0], false)?.sign()?)?.mul_scalar(gain)?;
    let q = if rows < columns {
        q.transpose(0, 1)?
    } else {
        q
    };
    parameter.set(&q.reshape(shape)?.redistribute(parameter.layout())?)
}

/// How many elements an output is the sum of, and how many outputs an input goes to.
fn fans(shape: &[usize]) -> (f64, f64) {
    let window: usize = shape.iter().skip(2).product();
    let of = |dim: usize| (shape.get(dim).copied().unwrap_or(1) * window).max(1) as f64;
    (of(1), of(0))
}
