//! The outputs of channels side by side, two rows at a time: what is read once serves the windows of both.

use super::places::{Places, apart, beside};
use super::{Beside, Channels, SIDE, Tap, groups};
use crate::Real;
use crate::conv::lift::{Slab, SlabMut};
use core::ops::Range;
use pulp::{Simd, WithSimd};

/// Rows whose sums are formed at a time.
pub(super) const ROWS: usize = 2;

pub(super) struct Values<'a, 'x, 'y, T> {
    pub(super) how: &'a Channels,
    pub(super) blocks: &'a [[Range<usize>; 2]],
    pub(super) x: &'a Slab<'x, T>,
    pub(super) weight: &'a [T],
    pub(super) bias: Option<&'a [T]>,
    pub(super) y: &'a mut SlabMut<'y, T>,
    /// Inputs of a block, weights, and sums of some rows, of channels side by side.
    pub(super) inputs: &'a mut [Beside<T>],
    pub(super) weights: &'a mut [Beside<T>],
    pub(super) sums: &'a mut [Beside<T>],
}

/// The rows that are computed together, and the first row of inputs that is packed.
struct Rows<'a> {
    taps: [&'a [Tap]; ROWS],
    first: usize,
}

impl<T: Real> WithSimd for Values<'_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (how, count) = (self.how, self.weights.len());
        self.inputs.fill([T::zero(); SIDE]);
        let positions = Places::new(0..count);
        for channels in groups(self.weight.len() / count) {
            let from = |lane: usize| (channels.start + lane) * count;
            let lanes = channels.len();
            beside(self.weight, from, 1, lanes, &positions, self.weights);
            let mut start = [T::zero(); SIDE];
            if let Some(bias) = self.bias {
                start[..lanes].copy_from_slice(&bias[channels.clone()]);
            }
            for n in 0..self.x.batch {
                for (plane, from) in how.planes.iter().enumerate() {
                    for [rows, inputs] in self.blocks {
                        if let Some(from) = from {
                            let inputs = inputs.start as isize..inputs.end as isize;
                            how.bring(self.x, n, &channels, *from, inputs, self.inputs);
                        }
                        for row in rows.clone().step_by(ROWS) {
                            let of = |i: usize| match from {
                                Some(_) if row + i < rows.end => &how.rows[row + i][..],
                                _ => &[],
                            };
                            let both = Rows {
                                taps: [of(0), of(1)],
                                first: inputs.start,
                            };
                            // 32 registers hold 2 x 8 sums and what they are of, 16 half of that.
                            match (S::F32_LANES, how.columns.at_once) {
                                (16.., 7) => self.rows::<S, 7>(simd, &both, &start),
                                (16.., _) => self.rows::<S, 8>(simd, &both, &start),
                                _ => self.rows::<S, 4>(simd, &both, &start),
                            }
                            for i in 0..ROWS.min(rows.end - row) {
                                self.put(n, &channels, [plane, row + i], i);
                            }
                        }
                    }
                }
            }
        }
    }
}

impl<T: Real> Values<'_, '_, '_, T> {
    #[inline(always)]
    fn rows<S: Simd, const N: usize>(&mut self, simd: S, rows: &Rows<'_>, start: &Beside<T>) {
        let how = self.how;
        let (inputs, weights) = (&*self.inputs, &*self.weights);
        let (upper, lower) = self
            .sums
            .split_at_mut(how.columns.taps.len() * how.columns.each);
        let phases = (upper.chunks_exact_mut(how.columns.each))
            .zip(lower.chunks_exact_mut(how.columns.each));
        for (columns, (upper, lower)) in how.columns.taps.iter().zip(phases) {
            for at in (0..how.columns.each).step_by(N) {
                // The last may compute outputs again.
                let at = at.min(how.columns.each - N);
                for v in 0..SIDE / T::lanes::<S>() {
                    let start = T::vectors::<S>(start)[v];
                    let [a, b] =
                        how.sums::<T, S, N>(simd, v, rows, at, columns, start, inputs, weights);
                    let both = upper[at..at + N].iter_mut().zip(&mut lower[at..at + N]);
                    for ((upper, lower), (a, b)) in both.zip(a.into_iter().zip(b)) {
                        T::vectors_mut::<S>(upper)[v] = a;
                        T::vectors_mut::<S>(lower)[v] = b;
                    }
                }
            }
        }
    }

    /// Writes the sums of one of the rows, of some channels.
    #[inline(always)]
    fn put(&mut self, n: usize, channels: &Range<usize>, [plane, row]: [usize; 2], number: usize) {
        let y = &mut *self.y;
        let within = y.within([plane, row, 0]);
        let (offset, outer) = (y.offset, y.outer);
        let to = |lane: usize| {
            let channel = (channels.start + lane) as isize * outer[1];
            offset.wrapping_add_signed(n as isize * outer[0] + channel + within)
        };
        let count = self.how.columns.taps.len() * self.how.columns.each;
        let sums = &self.sums[number * count..][..count];
        let places = &self.how.columns.outputs;
        apart(sums, places, channels.len(), y.data, to, y.step[2]);
    }
}

impl Channels {
    /// Sums of some outputs side by side of two rows, whose inputs are packed.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "kept in registers")]
    fn sums<T: Real, S: Simd, const N: usize>(
        &self,
        simd: S,
        v: usize,
        rows: &Rows<'_>,
        column: usize,
        columns: &[Tap],
        start: T::Vec<S>,
        inputs: &[Beside<T>],
        weights: &[Beside<T>],
    ) -> [[T::Vec<S>; N]; ROWS] {
        let mut sums = [[start; N]; ROWS];
        let [mut above, mut below] = rows.taps;
        // Each row of inputs that either reads, in order.
        while let Some(at) = next([above, below]) {
            let inputs = &inputs[(at - rows.first) * self.columns.width + column..];
            let of = |k: usize| &weights[k * self.kernel[1]..][..self.kernel[1]];
            let [up, down] = &mut sums;
            match [taken(&mut above, at), taken(&mut below, at)] {
                [Some(a), Some(b)] => {
                    let (a, b) = (of(a), of(b));
                    for Tap { at, k } in columns {
                        let a = T::vectors::<S>(&a[*k])[v];
                        let b = T::vectors::<S>(&b[*k])[v];
                        let inputs = &inputs[*at..][..N];
                        for i in 0..N {
                            let x = T::vectors::<S>(&inputs[i])[v];
                            up[i] = T::mul_add_vec(simd, a, x, up[i]);
                            down[i] = T::mul_add_vec(simd, b, x, down[i]);
                        }
                    }
                }
                [Some(k), None] => add_row::<T, S, N>(simd, v, of(k), columns, inputs, up),
                [None, Some(k)] => add_row::<T, S, N>(simd, v, of(k), columns, inputs, down),
                [None, None] => break,
            }
        }
        sums
    }
}

/// The next row of inputs that one of them reads.
#[inline(always)]
fn next([a, b]: [&[Tap]; ROWS]) -> Option<usize> {
    match [a.first(), b.first()] {
        [Some(a), Some(b)] => Some(a.at.min(b.at)),
        [one, other] => one.or(other).map(|tap| tap.at),
    }
}

/// The kernel's row by which that row of inputs is read, if it is.
#[inline(always)]
fn taken(taps: &mut &[Tap], at: usize) -> Option<usize> {
    let (tap, rest) = taps.split_first()?;
    if tap.at != at {
        return None;
    }
    *taps = rest;
    Some(tap.k)
}

/// Adds to the sums of a row what a row of inputs gives.
#[inline(always)]
fn add_row<T: Real, S: Simd, const N: usize>(
    simd: S,
    v: usize,
    weights: &[Beside<T>],
    columns: &[Tap],
    inputs: &[Beside<T>],
    sums: &mut [T::Vec<S>; N],
) {
    for Tap { at, k } in columns {
        let weight = T::vectors::<S>(&weights[*k])[v];
        let inputs = &inputs[*at..][..N];
        for i in 0..N {
            sums[i] = T::mul_add_vec(simd, weight, T::vectors::<S>(&inputs[i])[v], sums[i]);
        }
    }
}
