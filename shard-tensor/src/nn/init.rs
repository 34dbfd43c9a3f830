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

use crate::{DType, Error, Result, ShardTensor};

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

/// As [`kaiming_uniform`], so that variances stay what they are backward: `mode="fan_out"` of PyTorch.
///
/// # Collective
/// As [`xavier_uniform`].
///
/// # Errors
/// As [`xavier_uniform`].
#[track_caller]
pub fn kaiming_uniform_fan_out(parameter: &ShardTensor, slope: f64) -> Result<()> {
    let outputs = fans(parameter.shape()).1;
    uniform(parameter, (6.0 / ((1.0 + slope * slope) * outputs)).sqrt())
}

/// As [`kaiming_uniform_fan_out`], of normal numbers: what residual networks begin as.
///
/// ```
/// use shard_tensor::nn::{Conv, init};
/// use shard_tensor::{ConvOptions, launch};
/// let deviation = launch(2, |ctx| {
///     let conv = Conv::new(&ctx.mesh_of(2)?, 3, 64, [7, 7], ConvOptions::new())?;
///     init::kaiming_normal_fan_out(&conv.weight, 0.0)?;
///     conv.weight.flatten()?.std(0, 0.0, false)?.item()
/// })?;
/// assert!((deviation[0] / (2.0 / (64.0 * 49.0_f64)).sqrt() - 1.0).abs() < 0.05);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
///
/// # Collective
/// As [`xavier_uniform`].
///
/// # Errors
/// As [`xavier_uniform`].
#[track_caller]
pub fn kaiming_normal_fan_out(parameter: &ShardTensor, slope: f64) -> Result<()> {
    let outputs = fans(parameter.shape()).1;
    let deviation = (2.0 / ((1.0 + slope * slope) * outputs)).sqrt();
    normal(parameter, 0.0, deviation)
}

/// Kernels `[outputs, inputs, ..]` that leave what they see as it is: in each of so many groups of outputs one is 1 at its middle for the input
/// of its number, as far as there are both.
///
/// ```
/// use shard_tensor::nn::{Conv, Module, init};
/// use shard_tensor::{ConvOptions, launch, shard};
/// launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let conv = Conv::new(&mesh, 3, 3, [5, 5], ConvOptions::new().padding(2))?.without_bias();
///     init::dirac(&conv.weight, 1)?;
///     let x = mesh.randn([2, 3, 6, 7], shard(2))?;
///     assert_eq!(conv.forward(&x)?.to_array::<f32>()?, x.to_array::<f32>()?);
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
///
/// # Collective
/// All members of the mesh. No communication.
///
/// # Errors
/// [`Argument`](Error::Argument) for a tensor that is no parameter, has no inputs and outputs, or has outputs that do not divide by groups.
#[track_caller]
pub fn dirac(parameter: &ShardTensor, groups: usize) -> Result<()> {
    let shape = parameter.shape();
    let Some(&outputs) = shape
        .first()
        .filter(|outputs| shape.len() > 2 && groups > 0 && outputs.is_multiple_of(groups))
    else {
        return Err(Error::argument(
            "dirac",
            "kernels [outputs, inputs, ..], and groups that divide the outputs",
            format!("{shape:?} and {groups} groups"),
            "give the weight of a convolution",
        ));
    };
    let each = outputs / groups;
    let one = |i: &[usize]| {
        let middle = i.iter().zip(shape).skip(2).all(|(&i, &n)| i == n / 2);
        f64::from(u8::from(middle && i[0] % each == i[1]))
    };
    let mesh = parameter.mesh().with_dtype(parameter.dtype());
    parameter.set(&mesh.from_fn(shape, parameter.layout(), one)?)
}

/// A matrix `[outputs, inputs]` of normal numbers of which in each column a share, rounded up, is zero.
///
/// ```
/// use shard_tensor::nn::{Linear, init};
/// use shard_tensor::launch;
/// let zeros = launch(2, |ctx| {
///     let layer = Linear::new(&ctx.mesh_of(2)?, 4, 10)?;
///     init::sparse(&layer.weight, 0.25, 0.01)?;
///     layer.weight.eq_scalar(0.0)?.sum(0, false)?.to_array::<i64>()
/// })?;
/// assert_eq!(zeros[0].as_slice(), Some(&[3; 4][..]));
/// # Ok::<(), shard_tensor::Error>(())
/// ```
///
/// # Collective
/// As [`xavier_uniform`]; the places are sorted by random numbers.
///
/// # Errors
/// [`Argument`](Error::Argument) for a tensor that is no parameter, or no matrix, and for what is no share.
#[track_caller]
pub fn sparse(parameter: &ShardTensor, share: f64, deviation: f64) -> Result<()> {
    let &[rows, _] = parameter.shape() else {
        return Err(Error::argument(
            "sparse",
            "a matrix",
            format!("{:?}", parameter.shape()),
            "give the weight of a linear layer",
        ));
    };
    if !(0.0..=1.0).contains(&share) {
        return Err(Error::argument(
            "sparse",
            "a share from 0 to 1",
            share.to_string(),
            "say how much of each column is zero",
        ));
    }
    normal(parameter, 0.0, deviation)?;
    let value = parameter.detach();
    // The rank of each place among random numbers of its column.
    let mesh = parameter.mesh().with_dtype(DType::F64);
    let drawn = mesh.rand(parameter.shape(), parameter.layout())?;
    let rank = drawn.argsort(0, false)?.argsort(0, false)?;
    let zeros = (share * rows as f64).ceil();
    let sparse = value.masked_fill(&rank.lt_scalar(zeros)?, 0.0)?;
    parameter.set(&sparse.redistribute(parameter.layout())?)
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
