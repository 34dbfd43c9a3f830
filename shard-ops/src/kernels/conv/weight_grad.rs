//! The gradient by the weight: the same packed input, summed over outputs instead of taps.
//!
//! With enough output channels to fill a vector, the output gradient is turned channels-last and one input broadcast meets a
//! vector of channels; otherwise each channel's rows meet the taps' rows lane by lane. Sums over at most [`FLUSH`]
//! outputs are kept in the element type and join totals in f64.

use super::direct::{dot_tile, weight_tile};
use super::lift::{Geometry, Slab};
use super::pack::{Block, Packing};
use crate::kernels::pointwise::vectorized;
use crate::kernels::{Real, View, ViewMut, copy::copy};
use pulp::{Simd, WithSimd};

/// Outputs summed in the element type.
const FLUSH: usize = 2048;

pub(super) fn weight_grad<T: Real>(
    x: &Slab<'_, T>,
    dy: &Slab<'_, T>,
    dw: &mut ViewMut<'_, T>,
    g: &Geometry,
) {
    let mut totals = vec![0.0; g.groups * g.cout * g.taps()];
    if !totals.is_empty() && !dy.extent.contains(&0) {
        vectorized(Sums {
            x,
            dy,
            totals: &mut totals,
            g,
        });
    }
    let values: Vec<T> = totals.into_iter().map(T::of).collect();
    let shape = dw.shape().to_vec();
    copy(&View::contiguous(&values, &shape), dw);
}

struct Sums<'a, 'b, T> {
    x: &'a Slab<'b, T>,
    dy: &'a Slab<'b, T>,
    /// `[groups * Cout/g, taps]`
    totals: &'a mut [f64],
    g: &'a Geometry,
}

impl<T: Real> WithSimd for Sums<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let lanes = T::lanes::<S>();
        let Self { x, dy, totals, g } = self;
        let packing = Packing::new(g, dy.extent, lanes);
        let (mut packed, mut turned) = (Vec::new(), Vec::new());
        for group in 0..g.groups {
            let size = g.cout * g.taps();
            let totals = &mut totals[group * size..][..size];
            for n in 0..dy.batch {
                for block in packing.blocks(dy.extent) {
                    packing.pack(x, n, group * g.cin, &block, &mut packed);
                    let job = BlockJob {
                        packing: &packing,
                        packed: &packed,
                        dy,
                        n,
                        channel: group * g.cout,
                        block: &block,
                        g,
                    };
                    if 2 * g.cout <= lanes {
                        job.by_columns(simd, &mut turned, totals);
                    } else if g.cout <= lanes {
                        job.by_channels::<S, 1>(simd, &mut turned, totals);
                    } else {
                        job.by_channels::<S, 2>(simd, &mut turned, totals);
                    }
                }
            }
        }
    }
}

/// Taps per tile: with two vectors of channels, 12 x 2 accumulators.
const TAPS: usize = 12;

struct BlockJob<'a, 'b, T> {
    packing: &'a Packing,
    packed: &'a [T],
    dy: &'a Slab<'b, T>,
    n: usize,
    channel: usize,
    block: &'a Block,
    g: &'a Geometry,
}

impl<T: Real> BlockJob<'_, '_, T> {
    /// Position of the block's first output of row `row` of channel `co` in `dy`.
    fn line(&self, co: usize, row: usize) -> usize {
        let step = &self.dy.step;
        let within = self.block.plane as isize * step[0]
            + (self.block.rows.start + row) as isize * step[1]
            + self.block.cols.start as isize * step[2];
        self.dy
            .start(self.n, self.channel + co)
            .wrapping_add_signed(within)
    }

    /// Vectors of `NV * lanes` output channels against broadcast inputs.
    #[inline(always)]
    fn by_channels<S: Simd, const NV: usize>(
        &self,
        simd: S,
        turned: &mut Vec<T>,
        totals: &mut [f64],
    ) {
        let width = NV * T::lanes::<S>();
        let (rows, cols) = (self.block.rows.len(), self.block.cols.len());
        let taps = &self.packing.taps;
        turned.clear();
        turned.resize(rows * cols * width, T::zero());
        for first in (0..self.g.cout).step_by(width) {
            let count = width.min(self.g.cout - first);
            for co in 0..count {
                for row in 0..rows {
                    let from = self.line(first + co, row);
                    for col in 0..cols {
                        let value =
                            self.dy.data[from.wrapping_add_signed(col as isize * self.dy.step[2])];
                        turned[(row * cols + col) * width + co] = value;
                    }
                }
            }
            if count < width {
                for lane in turned.chunks_exact_mut(width) {
                    lane[count..].fill(T::zero());
                }
            }
            let together = (FLUSH / cols).max(1);
            for chunk in (0..taps.len()).step_by(TAPS) {
                let live = TAPS.min(taps.len() - chunk);
                // A short last chunk repeats its last tap and drops the copies.
                let offset: [usize; TAPS] = core::array::from_fn(|t| taps[chunk + t.min(live - 1)]);
                for from in (0..rows).step_by(together) {
                    let mut acc = [[T::splat(simd, T::zero()); NV]; TAPS];
                    for row in from..(from + together).min(rows) {
                        let packed = &self.packed[row * self.packing.row_step..];
                        let x = offset.map(|o| &packed[o..]);
                        let dy = &turned[row * cols * width..][..cols * width];
                        weight_tile::<T, S, TAPS, NV>(simd, x, dy, &mut acc);
                    }
                    for (t, sums) in acc.iter().enumerate().take(live) {
                        let mut buffer = [T::zero(); 64];
                        T::vectors_mut::<S>(&mut buffer[..width]).copy_from_slice(sums);
                        for (co, v) in buffer[..count].iter().enumerate() {
                            totals[(first + co) * taps.len() + chunk + t] += v.wide();
                        }
                    }
                }
            }
        }
    }

    /// Rows of one output channel against rows of inputs, for few channels.
    #[inline(always)]
    fn by_columns<S: Simd>(&self, simd: S, row_buffer: &mut Vec<T>, totals: &mut [f64]) {
        const AT_ONCE: usize = 8;
        let lanes = T::lanes::<S>();
        let (rows, cols) = (self.block.rows.len(), self.block.cols.len());
        let taps = &self.packing.taps;
        let together = (FLUSH / cols).max(1);
        for co in 0..self.g.cout {
            row_buffer.clear();
            row_buffer.resize(rows * cols, T::zero());
            for row in 0..rows {
                let from = self.line(co, row);
                for col in 0..cols {
                    row_buffer[row * cols + col] =
                        self.dy.data[from.wrapping_add_signed(col as isize * self.dy.step[2])];
                }
            }
            // Columns past the last whole vector go one by one: what is packed behind them may be NaN.
            let full = cols / lanes * lanes;
            for chunk in (0..taps.len()).step_by(AT_ONCE) {
                let live = AT_ONCE.min(taps.len() - chunk);
                let offset: [usize; AT_ONCE] =
                    core::array::from_fn(|t| taps[chunk + t.min(live - 1)]);
                for from in (0..rows).step_by(together) {
                    let mut acc = [T::splat(simd, T::zero()); AT_ONCE];
                    let mut tail = [T::zero(); AT_ONCE];
                    for row in from..(from + together).min(rows) {
                        let packed = &self.packed[row * self.packing.row_step..];
                        let dy = &row_buffer[row * cols..][..cols];
                        dot_tile::<T, S, AT_ONCE>(
                            simd,
                            offset.map(|o| &packed[o..]),
                            &dy[..full],
                            &mut acc,
                        );
                        for (t, sum) in tail.iter_mut().enumerate() {
                            for col in full..cols {
                                *sum += packed[offset[t] + col] * dy[col];
                            }
                        }
                    }
                    for t in 0..live {
                        let mut buffer = [T::zero(); 64];
                        T::vectors_mut::<S>(&mut buffer[..lanes])[0] = acc[t];
                        let sum: f64 = buffer[..lanes].iter().map(|v| v.wide()).sum();
                        totals[co * taps.len() + chunk + t] += sum + tail[t].wide();
                    }
                }
            }
        }
    }
}
