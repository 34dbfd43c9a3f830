//! Convolution of channels that do not mix, whose rows are short or stepped over: a plane with zeros around is one line, and so is what comes
//! of it.
//!
//! Rows of a line are as wide as those that windows reach, so that each tap lies equally far from every output. What a line has behind the outputs of
//! a row is of windows that reach around its end, and is left out. For example, 14 columns of 7 taps lie in rows of 20: 30 of 100 results are
//! left out, but 14 rows are 17 vectors of 16, where each row by itself is less than one.
//!
//! Where outputs are `stride` inputs apart, each phase of the stride is such a plane: the tap at `k` reads its shift `k / stride` of phase
//! `k % stride`.

use super::lift::{Geometry, Slab, SlabMut};
use super::lone::columns;
use crate::Real;
use crate::pointwise::vectorized;
use crate::scratch::Room;
use core::ops::Range;
use pulp::{Simd, WithSimd};

/// Rows as long as this fill vectors by themselves.
const LONG: usize = 96;

/// Rows shorter than this fill no vector.
const SHORT: usize = 16;

/// Elements of inputs that are one line at most, but for those of one row: a part of a second-level cache.
const BUDGET: usize = 16 * 1024;

/// The most elements of all phases: long steps and windows that reach far would take more memory than the plane.
const MOST: usize = 1 << 20;

/// Taps whose sums are formed at once.
const AT_ONCE: usize = 8;

/// How rows of channels are lines.
pub(super) struct Line<'a> {
    g: &'a Geometry,
    /// Rows of outputs that are one line.
    rows: usize,
    /// Elements from a row to the next.
    width: usize,
    /// Elements of a phase's plane, and as many behind it as taps of outputs reach that are left out.
    plane: usize,
    /// Where the taps lie, from an output's first element on, in the planes of all phases.
    taps: Vec<usize>,
}

impl<'a> Line<'a> {
    /// If channels do not mix, and this is faster than row by row.
    pub(super) fn of(g: &'a Geometry, outputs: [usize; 3]) -> Option<Self> {
        let [_, rows, columns] = outputs;
        if [g.cin, g.cout, g.kernel[0]] != [1; 3] {
            return None;
        }
        let shift = |d: usize, k: usize| k * g.dilation[d] / g.stride[d];
        let phase = |d: usize, k: usize| k * g.dilation[d] % g.stride[d];
        let reach = |d: usize| shift(d, g.kernel[d] - 1);
        let width = columns + reach(2);
        let pays = columns < SHORT
            || width <= 2 * columns && (columns < LONG || g.stride[1] > 1 || g.stride[2] > 1);
        if !pays {
            return None;
        }
        let phases = g.stride[1].saturating_mul(g.stride[2]);
        let rows = rows.min(BUDGET / width.saturating_mul(phases)).max(1);
        let plane = (rows + reach(1) + 1).saturating_mul(width);
        if plane.saturating_mul(phases) > MOST {
            return None;
        }
        let taps = (0..g.kernel[1]).flat_map(|h| (0..g.kernel[2]).map(move |w| (h, w)));
        let taps = taps.map(|(h, w)| {
            let of_phase = phase(1, h) * g.stride[2] + phase(2, w);
            of_phase * plane + shift(1, h) * width + shift(2, w)
        });
        Some(Self {
            g,
            rows,
            width,
            plane,
            taps: taps.collect(),
        })
    }

    /// Elements of the planes of all phases.
    fn inputs(&self) -> usize {
        self.plane * self.g.stride[1] * self.g.stride[2]
    }

    /// Writes `y = bias + weight * x`; `weight` is `[channels, 1, kernel]`, contiguous, and has no infinity or NaN, which zeros around
    /// a plane would meet.
    pub(super) fn correlate<T: Real>(
        &self,
        x: &Slab<'_, T>,
        weight: &[T],
        bias: Option<&[T]>,
        y: &mut SlabMut<'_, T>,
    ) {
        let most = self.rows * self.width;
        let mut room = Room::new();
        let mut scratch = room.numbers(self.inputs() + most);
        let (line, sums) = (scratch.take(self.inputs()), scratch.take(most));
        line.fill(T::zero());
        let (columns, step) = (y.extent[2], y.step[2]);
        self.for_each_block(y.batch, y.extent, |[n, c, plane], rows| {
            self.read(x, [n, c, plane], rows.start, line);
            let sums = &mut sums[..rows.len() * self.width];
            vectorized(Values {
                line,
                taps: &self.taps,
                weights: &weight[c * self.taps.len()..][..self.taps.len()],
                start: bias.map_or(T::zero(), |bias| bias[c]),
                sums,
            });
            for (row, sums) in rows.zip(sums.chunks_exact(self.width)) {
                let within = y.within([plane, row, 0]);
                let at = y.start(n, c).wrapping_add_signed(within);
                if step == 1 {
                    y.data[at..at + columns].copy_from_slice(&sums[..columns]);
                    continue;
                }
                for (i, sum) in sums[..columns].iter().enumerate() {
                    y.data[at.wrapping_add_signed(i as isize * step)] = *sum;
                }
            }
        });
    }

    /// Adds to `totals`, `[channels, kernel]`, the gradient with respect to the weight; at most `flush` products are summed in the element
    /// type. Neither operand has an infinity or NaN, which zeros between rows of outputs and around a plane would meet.
    pub(super) fn weight_grad<T: Real>(
        &self,
        x: &Slab<'_, T>,
        dy: &Slab<'_, T>,
        totals: &mut [f64],
        flush: usize,
    ) {
        let (most, count) = (self.rows * self.width, self.taps.len());
        let mut room = Room::new();
        let mut scratch = room.numbers(self.inputs() + most);
        let (line, outputs) = (scratch.take(self.inputs()), scratch.take(most));
        line.fill(T::zero());
        outputs.fill(T::zero());
        let columns = dy.extent[2];
        self.for_each_block(dy.batch, dy.extent, |[n, c, plane], rows| {
            self.read(x, [n, c, plane], rows.start, line);
            let outputs = &mut outputs[..rows.len() * self.width];
            for (row, to) in rows.zip(outputs.chunks_exact_mut(self.width)) {
                let within = plane as isize * dy.step[0] + row as isize * dy.step[1];
                let at = dy.start(n, c).wrapping_add_signed(within);
                read_row(dy.data, at, dy.step[2], &mut to[..columns]);
            }
            for first in (0..outputs.len()).step_by(flush) {
                vectorized(Weights {
                    line: &line[first..],
                    outputs: &outputs[first..][..flush.min(outputs.len() - first)],
                    taps: &self.taps,
                    totals: &mut totals[c * count..][..count],
                });
            }
        });
    }

    /// Visits the rows of outputs that are one line, with the number of their sample, channel and plane.
    fn for_each_block(
        &self,
        batch: usize,
        [planes, rows, _]: [usize; 3],
        mut visit: impl FnMut([usize; 3], Range<usize>),
    ) {
        for n in 0..batch {
            for c in 0..self.g.groups {
                for plane in 0..planes {
                    for first in (0..rows).step_by(self.rows) {
                        visit([n, c, plane], first..rows.min(first + self.rows));
                    }
                }
            }
        }
    }

    /// Writes what windows of the rows of outputs from `first` on reach. Beside it lines have zeros.
    fn read<T: Real>(
        &self,
        x: &Slab<'_, T>,
        [n, c, plane]: [usize; 3],
        first: usize,
        line: &mut [T],
    ) {
        let g = self.g;
        let depth = g.input(0, plane, 0);
        let is_there = (0..x.extent[0] as isize).contains(&depth);
        let start = x.start(n, c).wrapping_add_signed(depth * x.step[0]);
        let phases = (0..g.stride[1]).flat_map(|h| (0..g.stride[2]).map(move |w| (h, w)));
        for ((h, w), line) in phases.zip(line.chunks_exact_mut(self.plane)) {
            // Inputs of this phase, from the first row and column that a window reads.
            let (top, left) = (h as isize + g.input(1, first, 0), w as isize + g.origin[2]);
            let inside = inside(left, self.width, g.stride[2], x.extent[2]);
            if inside.is_empty() {
                continue;
            }
            let column = left + (inside.start * g.stride[2]) as isize;
            let step = g.stride[2] as isize * x.step[2];
            // The last row is behind what windows reach.
            let rows = self.plane / self.width - 1;
            for (row, to) in line.chunks_exact_mut(self.width).take(rows).enumerate() {
                let to = &mut to[inside.clone()];
                let row = top + (row * g.stride[1]) as isize;
                if !is_there || !(0..x.extent[1] as isize).contains(&row) {
                    to.fill(T::zero());
                    continue;
                }
                let within = row * x.step[1] + column * x.step[2];
                read_row(x.data, start.wrapping_add_signed(within), step, to);
            }
        }
    }
}

/// Which of `count` indices, `step` apart from `origin` on, are among `extent`.
fn inside(origin: isize, count: usize, step: usize, extent: usize) -> Range<usize> {
    let before = |end: isize| (end - origin).max(0).cast_unsigned().div_ceil(step);
    let high = before(extent as isize).min(count);
    before(0).min(high)..high
}

/// Reads elements so far apart.
fn read_row<T: Copy>(data: &[T], at: usize, step: isize, to: &mut [T]) {
    match step {
        1 => to.copy_from_slice(&data[at..at + to.len()]),
        // Of pairs the compiler makes vectors.
        2 => {
            let Some((last, to)) = to.split_last_mut() else {
                return;
            };
            *last = data[at + 2 * to.len()];
            for (to, [from, _]) in to.iter_mut().zip(pulp::as_arrays::<2, T>(&data[at..]).0) {
                *to = *from;
            }
        }
        3.. => {
            let from = data[at..].iter().step_by(step.cast_unsigned());
            for (to, from) in to.iter_mut().zip(from) {
                *to = *from;
            }
        }
        _ => {
            for (i, to) in to.iter_mut().enumerate() {
                *to = data[at.wrapping_add_signed(i as isize * step)];
            }
        }
    }
}

/// The outputs of a line.
struct Values<'a, T> {
    line: &'a [T],
    taps: &'a [usize],
    weights: &'a [T],
    start: T,
    sums: &'a mut [T],
}

impl<T: Real> WithSimd for Values<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self {
            line,
            taps,
            weights,
            ..
        } = self;
        columns::<T, S>(simd, line, taps, weights, self.start, self.sums);
    }
}

/// The sums of a line's outputs times what their taps read.
struct Weights<'a, T> {
    line: &'a [T],
    outputs: &'a [T],
    taps: &'a [usize],
    totals: &'a mut [f64],
}

impl<T: Real> WithSimd for Weights<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let len = self.outputs.len();
        let vectors = T::vectors::<S>(self.outputs);
        let whole = vectors.len() * T::lanes::<S>();
        for (taps, totals) in self
            .taps
            .chunks(AT_ONCE)
            .zip(self.totals.chunks_mut(AT_ONCE))
        {
            // A short last chunk repeats its last tap and drops the copies.
            let lines: [&[T]; AT_ONCE] =
                core::array::from_fn(|t| &self.line[taps[t.min(taps.len() - 1)]..][..len]);
            let mut sums = [T::splat(simd, T::zero()); AT_ONCE];
            for (o, dy) in vectors.iter().enumerate() {
                for t in 0..AT_ONCE {
                    let x = T::vectors::<S>(lines[t])[o];
                    sums[t] = T::mul_add_vec(simd, x, *dy, sums[t]);
                }
            }
            for (t, total) in totals.iter_mut().enumerate() {
                let ends = self.outputs[whole..].iter().zip(&lines[t][whole..]);
                let end: T = ends.fold(T::zero(), |sum, (dy, x)| sum + *dy * *x);
                *total += T::sum_vec(simd, sums[t]).wide() + end.wide();
            }
        }
    }
}
