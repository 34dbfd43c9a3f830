//! Random numbers, drawn on the GPU that needs them.

use super::Distribution;
use crate::Result;
use crate::cuda::kept::{Lists, Positions};
use crate::cuda::source::{PHILOX, POSITIONS};
use crate::cuda::{AXES, launch_own};
use crate::cuda_source;
use crate::error::InOp;
use crate::rng::{Stream, least_kept};
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::{Cuda, KernelSource};
use shard_comm::{Buffer, DType, Device, Strided};
use shard_spec::{DimPart, row_major_strides};

/// Products and sums are rounded one by one, so that the bits are the host's.
const SOURCE: KernelSource = KernelSource {
    exact: true,
    ..cuda_source!("random", POSITIONS, PHILOX, include_str!("random.cu"))
};
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[
    (SOURCE, "#define T f32\n#define NORMAL\n"),
    (SOURCE, "#define T f32\n#define KEPT\n"),
];

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Draw {
    to: u64,
    count: i64,
    ndim: i64,
    shape: [i64; AXES],
    strides: [i64; AXES],
    at: [Positions; AXES],
    stream: [u32; 4],
    start: f64,
    width: f64,
    most: f64,
}

/// The elements of a box of a random array of a type: the stream's numbers at these positions of the whole array. `None` if
/// there are more dims than a kernel supports.
pub(super) fn draw(
    gpu: &Cuda,
    op: &'static str,
    dtype: DType,
    whole: &[usize],
    parts: &[DimPart],
    stream: &Stream,
    how: Distribution,
) -> Result<Option<Buffer>> {
    if whole.len() > AXES {
        return Ok(None);
    }
    // For types that are neither f32 nor f64, numbers are drawn in the type that the host rounds or truncates from.
    let drawn = match (dtype, how) {
        (DType::F32 | DType::F64, _) => dtype,
        (_, Distribution::Unit) => DType::F32,
        _ => DType::F64,
    };
    let count = parts.iter().map(DimPart::len).product();
    let mut numbers = gpu.alloc(drawn, count).in_op(op)?;
    let mut lists = Lists::default();
    let mut params = Draw {
        to: gpu.address_mut(&mut numbers).in_op(op)?,
        count: count as i64,
        ndim: whole.len() as i64,
        stream: stream.numbers(),
        ..Draw::zeroed()
    };
    let strides = row_major_strides(whole);
    for (d, (part, &stride)) in parts.iter().zip(&strides).enumerate() {
        params.shape[d] = part.len() as i64;
        params.strides[d] = stride as i64;
        params.at[d] = lists.positions_on(gpu, op, part)?;
    }
    let kind = match how {
        Distribution::Unit if dtype == DType::F64 => "UNIT",
        Distribution::Unit => "UNITS",
        Distribution::Uniform { start, width } => {
            (params.start, params.width) = (start, width);
            params.most = super::most(how, dtype);
            match dtype.is_float() {
                true => "RANGE",
                false => "WHOLE",
            }
        }
        Distribution::Normal => "NORMAL",
        Distribution::Kept { rate } => {
            (params.start, params.width) = ((1.0 - rate).recip(), least_kept(rate).into());
            "KEPT"
        }
    };
    let bits = match dtype {
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => 24,
    };
    let defines = format!(
        "#define T {}\n#define {kind}\n#define BITS {bits}\n",
        drawn.name()
    );
    launch_own(gpu, op, &SOURCE, &defines, "draw", count, &params, &[])?;
    let numbers = numbers.freeze();
    if drawn == dtype {
        return Ok(Some(numbers));
    }
    let all = Strided::contiguous(&[count]);
    let mut converted = gpu.alloc(dtype, count).in_op(op)?;
    (gpu.copy(&numbers, &all, &mut converted, &all)).in_op(op)?;
    Ok(Some(converted.freeze()))
}
