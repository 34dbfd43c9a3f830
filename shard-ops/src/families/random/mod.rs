//! Arrays of random numbers, the same under any layout, drawn on the device that holds them.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;

use crate::Result;
use crate::error::InOp;
use crate::rng::{Stream, least_kept};
use shard_comm::half::{bf16, f16};
use shard_comm::{Bool, DType, Element};
use shard_redistribute::{Array, MeshComm};
use shard_spec::{Dims, Layout, row_major_strides};
use std::rc::Rc;

/// How random numbers are distributed.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum Distribution {
    /// Uniform in `[0, 1)`, with as many bits as the element type holds.
    Unit,
    /// `start + width u`, with `u` uniform in `[0, 1)` with 53 bits, and what would be rounded to the upper bound is the number before it. Of
    /// integers `start` and the whole part of `width u`, so that each is as likely on either side of zero.
    Uniform {
        /// The lower bound.
        start: f64,
        /// The distance from the lower bound to the upper one.
        width: f64,
    },
    /// Normal, with mean 0 and variance 1.
    Normal,
    /// 0 for a share of `rate`, below 1, and `1 / (1 - rate)` for what is kept, as attention drops probabilities: a place takes one word of the
    /// stream, not four.
    Kept {
        /// The share of zeros.
        rate: f64,
    },
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
    let draw = |index: &[usize], along: usize, numbers: &mut [f64]| {
        let terms = index.iter().zip(&strides);
        let first = terms.map(|(&i, &s)| i as u64 * s as u64).sum();
        let step = strides.get(along).map_or(1, |&s| s as u64);
        draw_run(stream, first, step, dtype, how, numbers);
    };
    match dtype {
        DType::F64 => Array::from_runs(cx, layout, draw),
        DType::F32 => Array::from_runs(cx, layout, converted::<f32>(draw)),
        DType::F16 => Array::from_runs(cx, layout, converted::<f16>(draw)),
        DType::BF16 => Array::from_runs(cx, layout, converted::<bf16>(draw)),
        DType::I64 => Array::from_runs(cx, layout, converted::<i64>(draw)),
        DType::I32 => Array::from_runs(cx, layout, converted::<i32>(draw)),
        DType::U8 => Array::from_runs(cx, layout, converted::<u8>(draw)),
        DType::Bool => Array::from_runs(cx, layout, converted::<Bool>(draw)),
    }
    .in_op(OP)
}

/// Draws a run of numbers of a type, of which the first has this place in the whole array.
fn draw_run(
    stream: &Stream,
    first: u64,
    step: u64,
    dtype: DType,
    how: Distribution,
    numbers: &mut [f64],
) {
    // Truncated to as many bits as the type holds: if it were rounded, the greatest would become 1.
    let cut = |bits: i32| {
        let scale = f64::from(1 << bits);
        move |words| (f64::from(Stream::single_of(words)) * scale).floor() / scale
    };
    let most = most(how, dtype);
    match (how, dtype) {
        (Distribution::Normal, _) => stream.fill(first, step, numbers, Stream::normal_of),
        (Distribution::Kept { rate }, _) => {
            let (least, kept, mut drawn) = (least_kept(rate), (1.0 - rate).recip(), stream.drawn());
            for (number, i) in numbers.iter_mut().zip(0..) {
                let is_kept = drawn.word(first + i * step) >= least;
                *number = if is_kept { kept } else { 0.0 };
            }
        }
        (Distribution::Uniform { start, width }, _) => stream.fill(first, step, numbers, |words| {
            let way = width * Stream::wide_of(words);
            // Cut before it is added: towards zero 0 would be there twice, and rounded up the end.
            most.min(start + if dtype.is_float() { way } else { way.floor() })
        }),
        (Distribution::Unit, DType::F64) => stream.fill(first, step, numbers, Stream::wide_of),
        (Distribution::Unit, DType::F16) => stream.fill(first, step, numbers, cut(11)),
        (Distribution::Unit, DType::BF16) => stream.fill(first, step, numbers, cut(8)),
        (Distribution::Unit, _) => stream.fill(first, step, numbers, |words| {
            f64::from(Stream::single_of(words))
        }),
    }
}

/// The greatest that a type has of uniform numbers, or at least their lower bound; integers need none.
fn most(how: Distribution, dtype: DType) -> f64 {
    let Distribution::Uniform { start, width } = how else {
        return f64::INFINITY;
    };
    let end = start + width;
    // The one before, by the bits of a sign and a size.
    let before = |bits: u16| match bits & 0x7fff {
        0 => 0x8001,
        size if size == bits => bits - 1,
        _ => bits + 1,
    };
    let (nearest, before) = match dtype {
        DType::F64 => (end, end.next_down()),
        DType::F32 => (f64::from(end as f32), f64::from((end as f32).next_down())),
        DType::F16 => {
            let nearest = f16::from_f64(end);
            let before = f16::from_bits(before(nearest.to_bits()));
            (nearest.to_f64(), before.to_f64())
        }
        DType::BF16 => {
            let nearest = bf16::from_f64(end);
            let before = bf16::from_bits(before(nearest.to_bits()));
            (nearest.to_f64(), before.to_f64())
        }
        _ => return f64::INFINITY,
    };
    let below = if nearest < end { nearest } else { before };
    below.max(start)
}

/// How many numbers are drawn before they are converted: they stay in the first cache.
const DRAWN: usize = 512;

/// A run of elements from what draws a run of numbers.
fn converted<T: Element>(
    draw: impl Fn(&[usize], usize, &mut [f64]),
) -> impl Fn(&[usize], usize, &mut [T]) {
    move |index, along, run| {
        let mut numbers = [0.0; DRAWN];
        let mut index = Dims::from_slice(index);
        for run in run.chunks_mut(DRAWN) {
            let numbers = &mut numbers[..run.len()];
            draw(&index, along, numbers);
            for (to, &number) in run.iter_mut().zip(&*numbers) {
                *to = T::from_f64(number);
            }
            // Of an array without dims there is one element.
            if let Some(at) = index.get_mut(along) {
                *at += run.len();
            }
        }
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
