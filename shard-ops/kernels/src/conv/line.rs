//! Convolution of channels that do not mix, whose rows are short: a plane with zeros around is one line, and so is what comes of it.
//!
//! Rows of a line are as wide as those that windows reach, so that each tap lies equally far from every output. What a line has behind the outputs of
//! a row is of windows that reach around its end, and is left out. For example, 14 columns of 7 taps lie in rows of 20: 30 of 100 results are
//! left out, but 14 rows are 17 vectors of 16, where each row by itself is less than one.

use super::lift::{Geometry, Slab, SlabMut};
use super::lone::columns;
use crate::Real;
use crate::pointwise::vectorized;
use crate::scratch::Room;
use crate::view::for_each_row;
use core::ops::Range;
use pulp::{Simd, WithSimd};

/// Rows as long as this fill vectors by themselves.
const LONG: usize = 96;

/// Rows shorter than this fill no vector.
const SHORT: usize = 16;

/// Taps whose sums are formed at once.
const AT_ONCE: usize = 8;

/// How the planes of channels are lines.
pub(super) struct Line<'a> {
    g: &'a Geometry,
    outputs: [usize; 3],
    /// Elements from a row to the next.
    width: usize,
    /// Rows that windows reach.
    height: usize,
}

impl<'a> Line<'a> {
    /// For channels that do not mix, with rows that lie side by side, if that is faster than row by row.
    pub(super) fn of(g: &'a Geometry, outputs: [usize; 3]) -> Option<Self> {
        let [_, rows, columns] = outputs;
        let reach = |d: usize| (g.kernel[d] - 1) * g.dilation[d];
        let (width, height) = (columns + reach(2), rows + reach(1));
        let pays = columns < SHORT || columns < LONG && width <= 2 * columns;
        (pays && g.kernel[0] == 1 && g.stride[1] == 1).then_some(Self {
            g,
            outputs,
            width,
            height,
        })
    }

    /// Where the taps lie, from an output's first one on.
    fn taps(&self) -> Vec<usize> {
        let [_, rows, columns] = self.g.kernel;
        let [_, down, along] = self.g.dilation;
        (0..rows * columns)
            .map(|k| k / columns * down * self.width + k % columns * along)
            .collect()
    }

    /// Elements of the line of outputs.
    fn len(&self) -> usize {
        self.outputs[1] * self.width
    }

    /// Elements of the line of inputs, with as many behind it as taps of outputs reach that are left out.
    fn inputs(&self) -> usize {
        (self.height + 1) * self.width
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
        let taps = self.taps();
        let mut room = Room::new();
        let mut scratch = room.numbers(self.inputs() + self.len());
        let (line, sums) = (scratch.take(self.inputs()), scratch.take(self.len()));
        line.fill(T::zero());
        let [planes, rows, columns] = y.extent;
        for n in 0..y.batch {
            for c in 0..self.g.groups {
                for plane in 0..planes {
                    self.read(x, [n, c, plane], line);
                    vectorized(Values {
                        line,
                        taps: &taps,
                        weights: &weight[c * taps.len()..][..taps.len()],
                        start: bias.map_or(T::zero(), |bias| bias[c]),
                        sums,
                    });
                    for row in 0..rows {
                        let at = y.start(n, c).wrapping_add_signed(y.within([plane, row, 0]));
                        y.data[at..at + columns]
                            .copy_from_slice(&sums[row * self.width..][..columns]);
                    }
                }
            }
        }
    }

    /// Adds to `totals`, `[channels, kernel]`, the gradient with respect to the weight; at most `flush` products are summed in the element
    /// type. `x` has no infinity or NaN, which zeros between rows of outputs would meet.
    pub(super) fn weight_grad<T: Real>(
        &self,
        x: &Slab<'_, T>,
        dy: &Slab<'_, T>,
        totals: &mut [f64],
        flush: usize,
    ) {
        let taps = self.taps();
        let mut room = Room::new();
        let mut scratch = room.numbers(self.inputs() + self.len());
        let (line, outputs) = (scratch.take(self.inputs()), scratch.take(self.len()));
        line.fill(T::zero());
        outputs.fill(T::zero());
        let [planes, rows, columns] = dy.extent;
        for n in 0..dy.batch {
            for c in 0..self.g.groups {
                for plane in 0..planes {
                    self.read(x, [n, c, plane], line);
                    for row in 0..rows {
                        let within = plane as isize * dy.step[0] + row as isize * dy.step[1];
                        let at = dy.start(n, c).wrapping_add_signed(within);
                        outputs[row * self.width..][..columns]
                            .copy_from_slice(&dy.data[at..at + columns]);
                    }
                    for first in (0..outputs.len()).step_by(flush) {
                        vectorized(Weights {
                            line: &line[first..],
                            outputs: &outputs[first..][..flush.min(outputs.len() - first)],
                            taps: &taps,
                            totals: &mut totals[c * taps.len()..][..taps.len()],
                        });
                    }
                }
            }
        }
    }

    /// Whether there is no infinity or NaN in what it reads.
    pub(super) fn reads_finite<T: Real>(&self, x: &Slab<'_, T>) -> bool {
        let shape = [x.batch, self.g.groups, x.extent[0], x.extent[1]];
        let steps = [x.outer[0], x.outer[1], x.step[0], x.step[1]];
        let mut are_finite = true;
        for_each_row(&shape, [&steps], [x.offset], |[at], rows, [down]| {
            for row in 0..rows as isize {
                let at = at.wrapping_add_signed(row * down);
                let row = x.data[at..at + x.extent[2]].iter();
                are_finite &= row.fold(true, |all, x| all & x.is_finite());
            }
        });
        are_finite
    }

    /// Writes what windows of a plane's outputs reach to a line, whose zeros around it are there already.
    fn read<T: Real>(&self, x: &Slab<'_, T>, [n, c, plane]: [usize; 3], line: &mut [T]) {
        let plane = self.g.input(0, plane, 0);
        let is_there = (0..x.extent[0] as isize).contains(&plane);
        let columns = inside(self.g.origin[2], self.width, x.extent[2]);
        if columns.is_empty() {
            return;
        }
        for row in inside(self.g.origin[1], self.height, x.extent[1]) {
            let to = &mut line[row * self.width..][columns.clone()];
            if !is_there {
                to.fill(T::zero());
                continue;
            }
            let [row, column] = [(1, row), (2, columns.start)]
                .map(|(d, at)| (at as isize + self.g.origin[d]) * x.step[d]);
            let within = plane * x.step[0] + row + column;
            let from = x.start(n, c).wrapping_add_signed(within);
            to.copy_from_slice(&x.data[from..from + columns.len()]);
        }
    }
}

/// Which of the `reached` indices that begin at `origin` are among `extent`.
fn inside(origin: isize, reached: usize, extent: usize) -> Range<usize> {
    let end = reached as isize;
    let low = (-origin).clamp(0, end);
    let high = (extent as isize - origin).clamp(low, end);
    low as usize..high as usize
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
