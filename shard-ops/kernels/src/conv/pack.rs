//! Packs the input a block of outputs needs, so that every tap of a window is a contiguous run.
//!
//! A block is one output plane index, some output rows and some output columns. Its packed input holds, per channel and kernel
//! plane, all input rows from the first to the last needed, each split into its stride phases. Tap `(ci, kd, kh, kw)` of the
//! outputs of row `r` then lies at one fixed offset plus `r` row steps, with a unit step along columns, whatever the stride,
//! dilation or padding. Indexes outside the input are packed as zeros. Columns past the block may hold anything, even NaN, and
//! feed only lanes that are dropped.

use super::lift::{Geometry, Slab};
use crate::Real;
use core::ops::Range;

/// Packed elements per block: half of a 1 MiB second-level cache in f64, a quarter in f32.
const BUDGET: usize = 64 * 1024;

/// Most columns per block.
const COLUMNS: usize = 512;

/// Rows start on cache lines of this many elements (f32), an odd number of lines apart, so that channels spread over the
/// cache.
const LINE: usize = 16;

/// Outputs computed from one packing.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) plane: usize,
    pub(super) rows: Range<usize>,
    pub(super) cols: Range<usize>,
}

/// Where taps lie in a packed block; the same for every block of a convolution.
#[derive(Debug)]
pub(super) struct Packing {
    geometry: Geometry,
    /// Output rows and columns per block.
    rows: usize,
    cols: usize,
    /// Distinct stride phases that the kernel's columns fall into.
    phases: Vec<usize>,
    /// Input rows packed per plane.
    span: usize,
    /// Elements of one packed row.
    pitch: usize,
    /// Elements of one channel.
    channel: usize,
    /// Offset of each tap `(ci, kd, kh, kw)`, row-major.
    pub(super) taps: Vec<usize>,
    /// Step from an output row to the next.
    pub(super) row_step: usize,
}

impl Packing {
    /// Plans blocks of the outputs `extent`; loops may read `overread` columns past a block's last column. Taps are in the
    /// order of the kernel's elements; for a [turned](Geometry::turned) geometry this is their order before it was turned.
    pub(super) fn new(g: &Geometry, extent: [usize; 3], overread: usize, turned: bool) -> Self {
        let [kd, kh, kw] = g.kernel;
        let cols = extent[2].clamp(1, COLUMNS);
        let mut phases: Vec<usize> = (0..kw).map(|k| k * g.dilation[2] % g.stride[2]).collect();
        phases.sort_unstable();
        phases.dedup();
        let reach = kw.saturating_sub(1) * g.dilation[2] / g.stride[2];
        let pitch = odd_lines(cols + overread + reach);
        let span_of =
            |rows: usize| (rows - 1) * g.stride[1] + kh.saturating_sub(1) * g.dilation[1] + 1;
        let per_row = (g.cin * kd * phases.len() * pitch).max(1);
        let mut rows = 1;
        while rows < extent[1] && span_of(rows + 1) * per_row <= BUDGET {
            rows += 1;
        }
        // Blocks are even: the last one is not a small remainder.
        let rows = extent[1].max(1).div_ceil(extent[1].max(1).div_ceil(rows));
        let span = span_of(rows);
        let channel = odd_lines(kd * span * phases.len() * pitch);
        let mut taps = Vec::with_capacity(g.taps());
        for ci in 0..g.cin {
            for d in 0..kd {
                for k in 0..kh * kw {
                    let (h, w) = if turned {
                        (k % kh, k / kh)
                    } else {
                        (k / kw, k % kw)
                    };
                    let column = w * g.dilation[2];
                    let phase = phases
                        .iter()
                        .position(|p| *p == column % g.stride[2])
                        .unwrap_or(0);
                    let row = d * span + h * g.dilation[1];
                    taps.push(
                        ci * channel + (row * phases.len() + phase) * pitch + column / g.stride[2],
                    );
                }
            }
        }
        let row_step = g.stride[1] * phases.len() * pitch;
        Self {
            geometry: *g,
            rows,
            cols,
            phases,
            span,
            pitch,
            channel,
            taps,
            row_step,
        }
    }

    /// The blocks that cover the outputs `extent`.
    pub(super) fn blocks(&self, extent: [usize; 3]) -> impl Iterator<Item = Block> + use<> {
        let (rows, cols) = (self.rows, self.cols);
        (0..extent[0]).flat_map(move |plane| {
            (0..extent[1]).step_by(rows).flat_map(move |r| {
                (0..extent[2]).step_by(cols).map(move |c| Block {
                    plane,
                    rows: r..(r + rows).min(extent[1]),
                    cols: c..(c + cols).min(extent[2]),
                })
            })
        })
    }

    /// Packs `block` of `channels` channels (no more than planned) from `first_channel` on into `out`.
    #[inline(always)]
    pub(super) fn pack<T: Real>(
        &self,
        x: &Slab<'_, T>,
        n: usize,
        first_channel: usize,
        channels: usize,
        block: &Block,
        out: &mut Vec<T>,
    ) {
        let g = &self.geometry;
        out.resize(g.cin * self.channel, T::zero());
        let span = (block.rows.len() - 1) * g.stride[1] + (g.kernel[1] - 1) * g.dilation[1] + 1;
        for ci in 0..channels {
            let start = x.start(n, first_channel + ci);
            for kd in 0..g.kernel[0] {
                let plane = g.input(0, block.plane, kd);
                for row in 0..span {
                    let line = g.input(1, block.rows.start, 0) + row as isize;
                    let inside = (0..x.extent[0] as isize).contains(&plane)
                        && (0..x.extent[1] as isize).contains(&line);
                    let from = start.wrapping_add_signed(plane * x.step[0] + line * x.step[1]);
                    for (p, phase) in self.phases.iter().enumerate() {
                        let at = ci * self.channel
                            + ((kd * self.span + row) * self.phases.len() + p) * self.pitch;
                        let target = &mut out[at..at + self.pitch];
                        if inside {
                            let first = g.input(2, block.cols.start, 0) + *phase as isize;
                            line_of(
                                x.data,
                                from,
                                x.step[2],
                                x.extent[2],
                                first,
                                g.stride[2],
                                target,
                            );
                        } else {
                            target.fill(T::zero());
                        }
                    }
                }
            }
        }
    }
}

/// `target[j] = line[first + j * stride]`, zero outside `0 .. extent`.
#[inline(always)]
fn line_of<T: Real>(
    data: &[T],
    from: usize,
    step: isize,
    extent: usize,
    first: isize,
    stride: usize,
    target: &mut [T],
) {
    let (extent, stride) = (extent as isize, stride as isize);
    let until = |limit: isize| {
        ((limit - first + stride - 1).div_euclid(stride)).clamp(0, target.len() as isize) as usize
    };
    let (low, high) = (until(0), until(extent));
    target[..low].fill(T::zero());
    target[high..].fill(T::zero());
    if low >= high {
        return;
    }
    let start = from.wrapping_add_signed((first + low as isize * stride) * step);
    let jump = stride * step;
    let inside = &mut target[low..high];
    if jump == 1 {
        inside.copy_from_slice(&data[start..start + inside.len()]);
    } else {
        for (j, v) in inside.iter_mut().enumerate() {
            *v = data[start.wrapping_add_signed(j as isize * jump)];
        }
    }
}

/// The size in elements of the least odd number of cache lines that holds `n` elements.
fn odd_lines(n: usize) -> usize {
    (n.div_ceil(LINE) | 1) * LINE
}
