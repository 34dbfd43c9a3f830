//! Fills, copies and conversions of strided views.

use super::arithmetic::Widen;
use super::convert;
use super::nest::{Block, Kernel, Nest};
use super::row;
use super::stream;
use super::turn;
use crate::{Bool, DType, Element, Scalar, Strided, dispatch_dtype};
use half::{bf16, f16};

/// Writes a scalar to a checked view.
pub fn fill(dtype: DType, dst: &mut [u8], view: &Strided, value: Scalar) {
    let Some(nest) = Nest::new(view, view) else {
        return;
    };
    // Only the bits of the value and its size matter.
    let (size, mut bits) = (dtype.size(), [0u8; 8]);
    dispatch_dtype!(dtype, T => {
        bits[..size].copy_from_slice(bytemuck::bytes_of(&T::from_scalar(value)));
    });
    match size {
        8 => fill_bits::<u64>(&nest, dst, &bits[..8]),
        4 => fill_bits::<u32>(&nest, dst, &bits[..4]),
        2 => fill_bits::<u16>(&nest, dst, &bits[..2]),
        _ => fill_bits::<u8>(&nest, dst, &bits[..1]),
    }
}

fn fill_bits<T: bytemuck::Pod>(nest: &Nest, dst: &mut [u8], bits: &[u8]) {
    let value: T = bytemuck::pod_read_unaligned(bits);
    let dst: &mut [T] = bytemuck::cast_slice_mut(dst);
    nest.blocks(&mut |block| {
        let (n, step) = (block.inner.extent, block.inner.dst);
        block.starts(|_, mut d| {
            if step == 1 {
                dst[d as usize..][..n].fill(value);
            } else {
                for _ in 0..n {
                    dst[d as usize] = value;
                    d += step;
                }
            }
        });
    });
}

/// Copies bytes that lie side by side, to a part of a destination of `all` bytes.
#[inline]
pub fn copy_run(all: usize, dst: &mut [u8], src: &[u8]) {
    if stream::pays(all, src.len(), src.len()) {
        stream::copy(dst, src);
        stream::settle();
    } else {
        dst.copy_from_slice(src);
    }
}

/// Copies a checked view onto another, converting if the types differ.
pub fn copy(from: DType, src: &[u8], sv: &Strided, to: DType, dst: &mut [u8], dv: &Strided) {
    copy_nest(Nest::new(sv, dv), copier(from, to), src, dst);
}

/// As [`copy`], of elements that lie side by side in both views, the first of which are these.
pub fn convert_run(
    (from, src): (DType, &[u8]),
    (to, dst): (DType, &mut [u8]),
    [first_src, first_dst]: [usize; 2],
    len: usize,
) {
    // What kernels that compute in `f32` ask for in small parts has no nest.
    match (from, to) {
        (DType::F16, DType::F32) => line(dst, src, [first_src, first_dst], len, f16::widen),
        (DType::BF16, DType::F32) => line(dst, src, [first_src, first_dst], len, bf16::widen),
        (DType::F32, DType::F16) => line(dst, src, [first_src, first_dst], len, f16::narrow),
        (DType::F32, DType::BF16) => line(dst, src, [first_src, first_dst], len, bf16::narrow),
        _ => copy_nest(
            Nest::run(first_src, first_dst, len),
            copier(from, to),
            src,
            dst,
        ),
    }
}

/// Converts elements that lie side by side.
fn line<S: Element, D: Element>(
    dst: &mut [u8],
    src: &[u8],
    [first_src, first_dst]: [usize; 2],
    len: usize,
    f: impl Fn(S) -> D,
) {
    let (src, dst): (&[S], &mut [D]) = (bytemuck::cast_slice(src), bytemuck::cast_slice_mut(dst));
    convert::rows(&mut dst[first_dst..][..len], &src[first_src..][..len], f);
}

fn copy_nest(nest: Option<Nest>, kernel: Kernel, src: &[u8], dst: &mut [u8]) {
    if let Some(nest) = nest {
        nest.blocks(&mut |block| kernel(dst, src, block));
    }
}

/// The kernel that copies a block of one type to another.
pub(super) fn copier(from: DType, to: DType) -> Kernel {
    match (from, to) {
        _ if from == to => match from.size() {
            8 => move_bits::<u64>,
            4 => move_bits::<u32>,
            2 => move_bits::<u16>,
            _ => move_bits::<u8>,
        },
        // Kernels that compute in f32 wait for these.
        (DType::F16, DType::F32) => widen::<f16>,
        (DType::BF16, DType::F32) => widen::<bf16>,
        (DType::F32, DType::F16) => narrow::<f16>,
        (DType::F32, DType::BF16) => narrow::<bf16>,
        (DType::F16, DType::F64) => converted_by_vectors::<f16, f64>,
        (DType::BF16, DType::F64) => converted_by_vectors::<bf16, f64>,
        (DType::F64, DType::F16) => converted_by_vectors::<f64, f16>,
        (DType::F64, DType::BF16) => converted_by_vectors::<f64, bf16>,
        (DType::F16, DType::Bool) => converted_by_vectors::<f16, Bool>,
        (DType::BF16, DType::Bool) => converted_by_vectors::<bf16, Bool>,
        // Masks become numbers.
        (DType::Bool, DType::F32) => converted_by_vectors::<Bool, f32>,
        (DType::Bool, DType::F64) => converted_by_vectors::<Bool, f64>,
        (DType::Bool, DType::I64) => converted_by_vectors::<Bool, i64>,
        _ => dispatch_dtype!(from, S => dispatch_dtype!(to, D => converted::<S, D>)),
    }
}

fn widen<S: Widen<Wide = f32>>(dst: &mut [u8], src: &[u8], block: &Block<'_>) {
    convert_rows::<S, f32>(dst, src, block, S::widen);
}

fn narrow<D: Widen<Wide = f32>>(dst: &mut [u8], src: &[u8], block: &Block<'_>) {
    convert_rows::<f32, D>(dst, src, block, D::narrow);
}

/// Converts the elements of a block, whole rows at a time where they lie side by side in both views.
#[inline(always)]
fn convert_rows<S: Element, D: Element>(
    dst: &mut [u8],
    src: &[u8],
    block: &Block<'_>,
    f: impl Fn(S) -> D,
) {
    let (src, dst): (&[S], &mut [D]) = (bytemuck::cast_slice(src), bytemuck::cast_slice_mut(dst));
    if block.is_dense() {
        block.dense_rows(|s, d, n| convert::rows(&mut dst[d..d + n], &src[s..s + n], &f));
    } else {
        block.sweep(src, dst, |_, value| f(value));
    }
}

/// As [`converted`], for types with which the processor's plain instructions take long.
fn converted_by_vectors<S: Element, D: Element>(dst: &mut [u8], src: &[u8], block: &Block<'_>) {
    convert_rows::<S, D>(dst, src, block, |value| D::from_scalar(value.to_scalar()));
}

fn converted<S: Element, D: Element>(dst: &mut [u8], src: &[u8], block: &Block<'_>) {
    let (src, dst): (&[S], &mut [D]) = (bytemuck::cast_slice(src), bytemuck::cast_slice_mut(dst));
    block.sweep(src, dst, |_, value| D::from_scalar(value.to_scalar()));
}

/// Copies elements, of which only the size matters.
fn move_bits<T: bytemuck::Pod>(dst: &mut [u8], src: &[u8], block: &Block<'_>) {
    if block.is_dense() {
        return move_rows(dst, src, block, size_of::<T>());
    }
    let (src, dst): (&[T], &mut [T]) = (bytemuck::cast_slice(src), bytemuck::cast_slice_mut(dst));
    if (block.inner.src, block.inner.dst) == (-1, 1) {
        turn_rows(dst, src, block);
    } else if let Some(turned) = block.turned() {
        turn::tile(dst, src, block, &turned);
    } else {
        block.sweep(src, dst, |_, value| value);
    }
}

/// Copies rows from their last element to their first. A loop over slices becomes one over vectors, which one over steps does not.
fn turn_rows<T: Copy>(dst: &mut [T], src: &[T], block: &Block<'_>) {
    let n = block.inner.extent;
    block.starts(|last, to| {
        let end = last as usize + 1;
        let (from, to) = (&src[end - n..end], &mut dst[to as usize..][..n]);
        for (to, &value) in to.iter_mut().zip(from.iter().rev()) {
            *to = value;
        }
    });
}

/// Copies dense rows of elements of `size` bytes. Short rows are one or two moves of a length known to the compiler,
/// because there a call to `memcpy` would cost more than the bytes.
fn move_rows(dst: &mut [u8], src: &[u8], block: &Block<'_>, size: usize) {
    macro_rules! rows {
        ($($whole:literal)*; $($odd:pat => $half:literal,)*) => {
            match block.inner.extent * size {
                $($whole => move_whole::<$whole>(dst, src, block, size),)*
                $($odd => move_ends::<$half>(dst, src, block, size),)*
                bytes => move_long(dst, src, block, size, bytes),
            }
        };
    }
    rows!(1 2 4 6 8 10 12 14 16 20 24 28 32 36 40 44 48 52 56 60 64;
        3 => 2, 5..8 => 4, 9..16 => 8, 17..32 => 16, 33..64 => 32,);
}

/// Copies rows of `bytes` bytes.
fn move_long(dst: &mut [u8], src: &[u8], block: &Block<'_>, size: usize, bytes: usize) {
    let streams = stream::pays(dst.len(), block.numel() * size, bytes);
    let steps = [block.rows.src, block.rows.dst].map(|step| step.unsigned_abs() * size);
    let in_parts = row::pays(bytes, steps);
    block.starts(|s, d| {
        let (s, d) = (s as usize * size, d as usize * size);
        let (from, to) = (&src[s..s + bytes], &mut dst[d..d + bytes]);
        match (streams, in_parts) {
            (true, _) => stream::copy(to, from),
            (_, true) => row::copy(to, from),
            _ => to.copy_from_slice(from),
        }
    });
    if streams {
        stream::settle();
    }
}

/// Copies rows of `N` bytes.
fn move_whole<const N: usize>(dst: &mut [u8], src: &[u8], block: &Block<'_>, size: usize) {
    block.starts(|s, d| {
        let (s, d) = (s as usize * size, d as usize * size);
        dst[d..d + N].copy_from_slice(&src[s..s + N]);
    });
}

/// Copies rows of more than `N` bytes and at most twice as many: the first `N` of each, and the last `N`.
fn move_ends<const N: usize>(dst: &mut [u8], src: &[u8], block: &Block<'_>, size: usize) {
    let bytes = block.inner.extent * size;
    block.starts(|s, d| {
        let (s, d) = (s as usize * size, d as usize * size);
        let (from, to) = (&src[s..s + bytes], &mut dst[d..d + bytes]);
        to[..N].copy_from_slice(&from[..N]);
        to[bytes - N..].copy_from_slice(&from[bytes - N..]);
    });
}
