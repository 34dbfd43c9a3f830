//! Packs the input a block of outputs needs, so that every tap of a window is a contiguous run.
//!
//! A block is one output plane index, some output rows and some output columns. Its packed input holds, per channel and kernel
//! plane, all input rows from the first to the last needed, each split into its stride phases. Tap `(ci, kd, kh, kw)` of the
//! outputs of row `r` then lies at one fixed offset plus `r` row steps, with a unit step along columns, whatever the stride,
//! dilation or padding. Indexes outside the input are packed as zeros. Columns past the block may hold anything, even NaN, and
//! feed only lanes that are dropped.

use super::lift::{Geometry, Slab};
use crate::Real;
use crate::prefetch::prefetch;
use core::ops::Range;

/// Packed elements per block: half of a 1 MiB second-level cache in f64, a quarter in f32.
const BUDGET: usize = 64 * 1024;

/// Most columns per block.
const COLUMNS: usize = 512;

/// What it takes to begin a run of columns, in elements.
const START: usize = 64;

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
    /// Columns that a window reaches beyond its first, in a phase.
    reach: usize,
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
    /// Plans blocks of the outputs `extent`, of whole tiles of `tile` columns but for the last; loops may read `overread` columns
    /// past a block's last column. Taps are in the order of the kernel's elements; for a [turned](Geometry::turned) geometry this
    /// is their order before it was turned.
    pub(super) fn new(
        g: &Geometry,
        extent: [usize; 3],
        tile: usize,
        overread: usize,
        turned: bool,
    ) -> Self {
        let [kd, kh, kw] = g.kernel;
        let mut phases: Vec<usize> = (0..kw).map(|k| k * g.dilation[2] % g.stride[2]).collect();
        phases.sort_unstable();
        phases.dedup();
        let reach = kw.saturating_sub(1) * g.dilation[2] / g.stride[2];
        let pitch_of = |cols: usize| odd_lines(cols + overread + reach);
        let span_of =
            |rows: usize| (rows - 1) * g.stride[1] + kh.saturating_sub(1) * g.dilation[1] + 1;
        let [_, height, width] = extent.map(|n| n.max(1));
        let rows_of = |cols: usize| {
            let per_row = (g.cin * kd * phases.len() * pitch_of(cols)).max(1);
            let mut rows = 1;
            while rows < height && span_of(rows + 1) * per_row <= BUDGET {
                rows += 1;
            }
            // Blocks are even: the last one is not a small remainder.
            height.div_ceil(height.div_ceil(rows))
        };
        // What neighbouring blocks share is packed for each: the shape is that of which least is.
        let copied = |cols: usize| {
            let rows = rows_of(cols);
            let lines = height.div_ceil(rows) * span_of(rows);
            lines * (width + width.div_ceil(cols) * (reach + START))
        };
        let widths = (1..=(COLUMNS / tile).max(1)).map(|tiles| (tiles * tile).min(width));
        let cols = widths.min_by_key(|cols| copied(*cols)).unwrap_or(width);
        let (pitch, rows) = (pitch_of(cols), rows_of(cols));
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
            reach,
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
                        let target = &mut out[at..at + block.cols.len() + self.reach];
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

/// The input of a block that is packed after the one at hand: its lines are asked for while that is computed, some at a time.
pub(super) struct Ahead<'a, 'b, T> {
    packing: &'a Packing,
    x: &'a Slab<'b, T>,
    n: usize,
    first_channel: usize,
    block: Option<Block>,
    /// Lines that were asked for, and how many are each step, of so many.
    done: usize,
    step: usize,
    steps: usize,
}

impl<'a, 'b, T> Ahead<'a, 'b, T> {
    /// The input of a block, if there is one, that is asked for in so many steps.
    pub(super) fn new(
        packing: &'a Packing,
        x: &'a Slab<'b, T>,
        [n, first_channel]: [usize; 2],
        block: Option<Block>,
        steps: usize,
    ) -> Self {
        // Where columns do not lie side by side, each is in a line of its own.
        let block = block.filter(|_| x.step[2] == 1);
        Self {
            packing,
            x,
            n,
            first_channel,
            block,
            done: 0,
            step: 0,
            steps: steps.max(1),
        }
    }

    /// Asks for some lines.
    #[inline(always)]
    pub(super) fn some(&mut self) {
        let Some(block) = &self.block else { return };
        let (g, x, span) = (&self.packing.geometry, self.x, self.packing.span);
        let lines = g.cin * g.kernel[0] * span;
        let first = g.input(2, block.cols.start, 0);
        let count = block.cols.len() * g.stride[2] + self.packing.reach * g.stride[2];
        self.step += 1;
        let until = lines.min(lines * self.step / self.steps);
        for line in self.done..until {
            let (channel, depth, row) = (
                line / span / g.kernel[0],
                line / span % g.kernel[0],
                line % span,
            );
            let within = g.input(0, block.plane, depth) * x.step[0]
                + (g.input(1, block.rows.start, 0) + row as isize) * x.step[1]
                + first;
            let at = x.start(self.n, self.first_channel + channel);
            prefetch(x.data, at.wrapping_add_signed(within), count);
        }
        self.done = until;
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
