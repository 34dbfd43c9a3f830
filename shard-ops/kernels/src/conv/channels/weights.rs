//! The gradient by the weight of channels side by side: a lane sums over the outputs of a channel.

use super::places::beside;
use super::{Beside, Channels, SIDE, groups};
use crate::Real;
use crate::arrays::numbered;
use crate::conv::lift::{Geometry, Slab};
use pulp::{Simd, WithSimd};

/// Taps whose sums are in registers at a time.
const TAPS: usize = 9;

/// The sums over outputs, block by block.
pub(super) struct Weights<'a, 'x, T> {
    pub(super) how: &'a Channels,
    pub(super) g: &'a Geometry,
    pub(super) x: &'a Slab<'x, T>,
    pub(super) dy: &'a Slab<'x, T>,
    /// Rows of outputs of a block.
    pub(super) rows: usize,
    /// Where the taps lie, from an output's first on.
    pub(super) taps: &'a [usize],
    /// Inputs and outputs of a block.
    pub(super) inputs: &'a mut [Beside<T>],
    pub(super) outputs: &'a mut [Beside<T>],
    pub(super) totals: &'a mut [f64],
}

impl<T: Real> WithSimd for Weights<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { how, g, x, dy, .. } = self;
        self.inputs.fill([T::zero(); SIDE]);
        self.outputs.fill([T::zero(); SIDE]);
        let [columns, all] = [how.columns.outputs.len(), how.rows.len()];
        let count = self.taps.len();
        for channels in groups(g.groups) {
            let totals = &mut self.totals[channels.start * count..channels.end * count];
            for n in 0..x.batch {
                for (plane, from) in how.planes.iter().enumerate() {
                    let Some(from) = *from else {
                        continue;
                    };
                    for first in (0..all).step_by(self.rows) {
                        let rows = self.rows.min(all - first);
                        let top = g.input(1, first, 0);
                        let bottom = g.input(1, first + rows - 1, g.kernel[1] - 1) + 1;
                        how.bring(x, n, &channels, from, top..bottom, self.inputs);
                        for (row, to) in self.outputs.chunks_exact_mut(columns).enumerate() {
                            let row = (first + row).min(all - 1) as isize;
                            let within = plane as isize * dy.step[0] + row * dy.step[1];
                            let from = |lane: usize| {
                                let start = dy.start(n, channels.start + lane);
                                start.wrapping_add_signed(within)
                            };
                            beside(
                                dy.data,
                                from,
                                dy.step[2],
                                channels.len(),
                                &how.columns.outputs,
                                to,
                            );
                        }
                        let outputs = &self.outputs[..rows * columns];
                        let down = g.stride[1] * how.columns.width;
                        add::<T, S>(simd, self.inputs, down, self.taps, outputs, columns, totals);
                    }
                }
            }
        }
    }
}

/// Adds the products of a block to the totals of some channels.
#[inline(always)]
fn add<T: Real, S: Simd>(
    simd: S,
    inputs: &[Beside<T>],
    down: usize,
    all: &[usize],
    outputs: &[Beside<T>],
    columns: usize,
    totals: &mut [f64],
) {
    for (number, taps) in all.chunks(TAPS).enumerate() {
        // A short last chunk repeats its last tap and drops the copies.
        let at: [usize; TAPS] = numbered(
            #[inline(always)]
            |t| taps[t.min(taps.len() - 1)],
        );
        for v in 0..SIDE / T::lanes::<S>() {
            let mut sums = [T::splat(simd, T::zero()); TAPS];
            for (row, outputs) in outputs.chunks_exact(columns).enumerate() {
                let inputs: [&[Beside<T>]; TAPS] = numbered(
                    #[inline(always)]
                    |t| &inputs[row * down + at[t]..][..columns],
                );
                for (column, dy) in outputs.iter().enumerate() {
                    let dy = T::vectors::<S>(dy)[v];
                    for t in 0..TAPS {
                        let x = T::vectors::<S>(&inputs[t][column])[v];
                        sums[t] = T::mul_add_vec(simd, x, dy, sums[t]);
                    }
                }
            }
            let mut of_taps = [[T::zero(); SIDE]; TAPS];
            for t in 0..TAPS {
                T::vectors_mut::<S>(&mut of_taps[t])[0] = sums[t];
            }
            let lanes = T::lanes::<S>();
            for (lane, totals) in totals
                .chunks_exact_mut(all.len())
                .skip(v * lanes)
                .take(lanes)
                .enumerate()
            {
                let totals = &mut totals[number * TAPS..][..taps.len()];
                for (total, sums) in totals.iter_mut().zip(&of_taps) {
                    *total += sums[lane].wide();
                }
            }
        }
    }
}
