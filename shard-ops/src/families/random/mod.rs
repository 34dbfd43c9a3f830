//! Arrays of random numbers, the same under any layout, drawn on the device that holds them.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;

use crate::Result;
use crate::error::InOp;
use crate::rng::Stream;
use shard_comm::half::{bf16, f16};
use shard_comm::{Bool, DType, Element};
use shard_redistribute::{Array, MeshComm};
use shard_spec::{Layout, row_major_strides};
use std::rc::Rc;

/// How random numbers are distributed.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum Distribution {
    /// Uniform in `[0, 1)`, with as many bits as the element type holds.
    Unit,
    /// `start + width u`, with `u` uniform in `[0, 1)` with 53 bits; integers are truncated towards zero.
    Uniform {
        /// The lower bound.
        start: f64,
        /// The distance from the lower bound to the upper one.
        width: f64,
    },
    /// Normal, with mean 0 and variance 1.
    Normal,
}

const OP: &str = "random";

/// An array of the numbers of a stream: the element at each global position is the stream's number there, whatever the layout
/// and the number of ranks. Nothing is communicated.
///
/// On a GPU the numbers are drawn there: uniform ones and integers with the host's bits, normal ones as accurately as the GPU's
/// logarithm and cosine are.
///
/// ```
/// use shard_comm::{DType, local};
/// use shard_ops::{random::{Distribution, random}, rng::Stream};
/// use shard_redistribute::MeshComm;
/// use shard_spec::{DeviceMesh, Layout};
/// use std::rc::Rc;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pieces = local::run(2, |comm| {
///     let mesh = DeviceMesh::new(&[2])?;
///     let cx = MeshComm::new(&(Rc::new(comm) as Rc<dyn shard_comm::Communicator>), &mesh)?;
///     let layout = Layout::parse(&mesh, &[5], "S(0)")?;
///     let x = random(&cx, &layout, DType::F64, &Stream::new(7, 0), Distribution::Normal)?;
///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(x.to_vec::<f64>()?)
/// })?;
/// let pieces: Vec<Vec<f64>> = pieces.into_iter().collect::<Result<_, _>>().map_err(|e| e.to_string())?;
/// assert_eq!(pieces.concat()[4], Stream::new(7, 0).normal(4));
/// # Ok(()) }
/// ```
///
/// # Errors
/// Errors of the device.
pub fn random(
    cx: &Rc<MeshComm>,
    layout: &Layout,
    dtype: DType,
    stream: &Stream,
    how: Distribution,
) -> Result<Array> {
    #[cfg(feature = "cuda")]
    if let Some(array) = on_gpu(cx, layout, dtype, stream, how)? {
        return Ok(array);
    }
    let strides = row_major_strides(layout.shape());
    let at = |index: &[usize]| -> u64 {
        let terms = index
            .iter()
            .zip(&strides)
            .map(|(&i, &s)| i as u64 * s as u64);
        terms.sum()
    };
    let number = |index: &[usize]| {
        let at = at(index);
        match how {
            Distribution::Unit => unit(dtype, stream, at),
            Distribution::Uniform { start, width } => start + width * stream.uniform_f64(at),
            Distribution::Normal => stream.normal(at),
        }
    };
    match dtype {
        DType::F64 => Array::from_fn(cx, layout, number),
        DType::F32 => Array::from_fn(cx, layout, |i| f32::from_f64(number(i))),
        DType::F16 => Array::from_fn(cx, layout, |i| <f16 as Element>::from_f64(number(i))),
        DType::BF16 => Array::from_fn(cx, layout, |i| <bf16 as Element>::from_f64(number(i))),
        DType::I64 => Array::from_fn(cx, layout, |i| i64::from_f64(number(i))),
        DType::I32 => Array::from_fn(cx, layout, |i| i32::from_f64(number(i))),
        DType::U8 => Array::from_fn(cx, layout, |i| u8::from_f64(number(i))),
        DType::Bool => Array::from_fn(cx, layout, |i| Bool::from_f64(number(i))),
    }
    .in_op(OP)
}

/// A number in `[0, 1)`, truncated to as many bits as the type holds: if it were rounded, the greatest would become 1.
fn unit(dtype: DType, stream: &Stream, at: u64) -> f64 {
    let cut = |bits: i32| {
        let scale = f64::from(1 << bits);
        (f64::from(stream.uniform_f32(at)) * scale).floor() / scale
    };
    match dtype {
        DType::F64 => stream.uniform_f64(at),
        DType::F16 => cut(11),
        DType::BF16 => cut(8),
        _ => f64::from(stream.uniform_f32(at)),
    }
}

/// The same, drawn by a GPU; `None` unless this rank has a GPU and a piece, and the array is not partial (then only some ranks
/// hold the numbers).
#[cfg(feature = "cuda")]
fn on_gpu(
    cx: &Rc<MeshComm>,
    layout: &Layout,
    dtype: DType,
    stream: &Stream,
    how: Distribution,
) -> Result<Option<Array>> {
    let Some(gpu) = shard_comm::cuda::Cuda::of(&**cx.device()) else {
        return Ok(None);
    };
    let (false, Some(parts)) = (layout.is_partial(), layout.local_parts(cx.rank())) else {
        return Ok(None);
    };
    let drawn = cuda::draw(gpu, OP, dtype, layout.shape(), &parts, stream, how)?;
    let array = drawn.map(|buffer| Array::from_parts(cx, layout, Some(buffer), dtype));
    array.transpose().in_op(OP)
}
