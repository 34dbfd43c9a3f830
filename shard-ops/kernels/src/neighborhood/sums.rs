//! Weighted sums of rows, element by element of a head.

use super::block::Terms;
use super::lanes::Rows;
use crate::Real;
use crate::pointwise::vectorized;
use core::ops::Range;
use pulp::{Simd, WithSimd};

/// Rows to write: as [`Rows`].
#[derive(Debug)]
pub(super) struct RowsMut<'a, A> {
    pub(super) data: &'a mut [A],
    pub(super) at: [usize; 2],
    pub(super) dim: usize,
}

/// Elements of a row that are summed together.
const PANEL: usize = 32;

/// What rows are summed of: for each of some lines, where its weights and its panels lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines<'a, A> {
    pub(super) lines: &'a [[usize; 2]],
    pub(super) weights: &'a [A],
    /// `[panel][row][PANEL]` of each line: see [`panels`].
    pub(super) data: &'a [A],
    /// Rows of a line.
    pub(super) rows: usize,
}

/// Writes some rows, their elements in panels: `[panel][row][PANEL]`, the last one filled up with zeros.
pub(super) fn panels<A: Real>(rows: Rows<'_, A>, count: usize, to: &mut [A]) {
    vectorized(Panels { rows, count, to });
}

struct Panels<'a, A> {
    rows: Rows<'a, A>,
    count: usize,
    to: &'a mut [A],
}

impl<A: Real> WithSimd for Panels<'_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (rows, firsts) = (self.rows, (0..self.rows.dim).step_by(PANEL));
        for (to, first) in self.to.chunks_exact_mut(self.count * PANEL).zip(firsts) {
            let live = PANEL.min(rows.dim - first);
            for (number, to) in to.chunks_exact_mut(PANEL).enumerate() {
                let row = &rows.row(number)[first..first + live];
                copy(row, &mut to[..live]);
                to[live..].fill(A::zero());
            }
        }
    }
}

/// How many numbers [`panels`] writes.
pub(super) fn panelled(dim: usize, count: usize) -> usize {
    dim.next_multiple_of(PANEL) * count
}

/// `to[row] = Σ weight · line[term]`, in the order of the lines, and for each in that of the terms. With `more` it is added to
/// what is there.
pub(super) fn sum_rows<A: Real>(terms: &Terms, from: Lines<'_, A>, to: RowsMut<'_, A>, more: bool) {
    vectorized(Sums {
        terms,
        from,
        to,
        more,
    });
}

/// The sum of products of each row of `a` with that of `b`; both have `dim` elements.
pub(super) fn products_of_rows<A: Real>(a: &[A], b: &[A], dim: usize, out: &mut [A]) {
    vectorized(Dots { a, b, dim, out });
}

struct Dots<'a, A> {
    a: &'a [A],
    b: &'a [A],
    dim: usize,
    out: &'a mut [A],
}

impl<A: Real> WithSimd for Dots<'_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if self.dim == 0 {
            return;
        }
        let rows = self
            .a
            .chunks_exact(self.dim)
            .zip(self.b.chunks_exact(self.dim));
        for (out, (a, b)) in self.out.iter_mut().zip(rows) {
            let (x, y) = (A::vectors::<S>(a), A::vectors::<S>(b));
            let mut sums = A::splat(simd, A::zero());
            for (x, y) in x.iter().zip(y) {
                sums = A::mul_add_vec(simd, *x, *y, sums);
            }
            *out = A::sum_vec(simd, sums);
            let ends = a.iter().zip(b).skip(x.len() * A::lanes::<S>());
            for (a, b) in ends {
                *out += *a * *b;
            }
        }
    }
}

struct Sums<'a, A> {
    terms: &'a Terms,
    from: Lines<'a, A>,
    to: RowsMut<'a, A>,
    more: bool,
}

impl<A: Real> WithSimd for Sums<'_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        // Rows that are summed together where their terms lie side by side: as many sums as registers hold.
        let together = if S::F32_LANES >= 16 { 4 } else { 2 };
        let rows = &self.terms.rows;
        let only = |row: usize| match rows[row] {
            [_, begin, end] if end == begin + 1 => Some(self.terms.runs[begin]),
            _ => None,
        };
        let beside = |first: usize, k: usize| match (only(first), only(first + k)) {
            (Some([weight, row, count]), Some(other)) => other == [weight + k, row + k, count],
            _ => false,
        };
        let mut row = 0;
        while row < rows.len() {
            if row + together <= rows.len() && (1..together).all(|k| beside(row, k)) {
                if const { S::F32_LANES >= 16 } {
                    self.rows::<S, 4>(simd, row);
                } else {
                    self.rows::<S, 2>(simd, row);
                }
                row += together;
            } else {
                self.rows::<S, 1>(simd, row);
                row += 1;
            }
        }
    }
}

impl<A: Real> Sums<'_, A> {
    /// `N` rows, of which those after the first have terms beside those of the first.
    #[inline(always)]
    fn rows<S: Simd, const N: usize>(&mut self, simd: S, first: usize) {
        match PANEL / A::lanes::<S>() {
            2 => self.panels::<S, N, 2>(simd, first),
            4 => self.panels::<S, N, 4>(simd, first),
            8 => self.panels::<S, N, 8>(simd, first),
            _ => self.panels::<S, N, PANEL>(simd, first),
        }
    }

    /// Their panels, each of `NV` vectors. From a whole panel to registers and back there is no memory between.
    #[inline(always)]
    fn panels<S: Simd, const N: usize, const NV: usize>(&mut self, simd: S, first: usize) {
        let dim = self.to.dim;
        let [row, begin, end] = self.terms.rows[first];
        let to: [usize; N] = core::array::from_fn(|k| self.to.at[0] + (row + k) * self.to.at[1]);
        for (panel, at) in (0..dim).step_by(PANEL).enumerate() {
            let live = PANEL.min(dim - at);
            let mut sums = [[A::splat(simd, A::zero()); NV]; N];
            if self.more {
                for (sums, to) in sums.iter_mut().zip(to) {
                    let there = &self.to.data[to + at..][..live];
                    if live == PANEL {
                        sums.copy_from_slice(A::vectors::<S>(there));
                    } else {
                        let mut unit = [A::zero(); PANEL];
                        unit[..live].copy_from_slice(there);
                        sums.copy_from_slice(A::vectors::<S>(&unit));
                    }
                }
            }
            self.panel(simd, begin..end, panel, &mut sums);
            for (sums, to) in sums.iter().zip(to) {
                let there = &mut self.to.data[to + at..][..live];
                if live == PANEL {
                    A::vectors_mut::<S>(there).copy_from_slice(sums);
                } else {
                    let mut unit = [A::zero(); PANEL];
                    A::vectors_mut::<S>(&mut unit).copy_from_slice(sums);
                    there.copy_from_slice(&unit[..live]);
                }
            }
        }
    }

    /// Adds the terms of some runs to a panel of `N` rows.
    #[inline(always)]
    fn panel<S: Simd, const N: usize, const NV: usize>(
        &self,
        simd: S,
        runs: Range<usize>,
        panel: usize,
        sums: &mut [[A::Vec<S>; NV]; N],
    ) {
        let (from, [weight_step, row_step]) = (self.from, self.terms.steps);
        let runs = &self.terms.runs[runs];
        for &[weights, first] in from.lines {
            let data = &from.data[first + panel * from.rows * PANEL..][..from.rows * PANEL];
            let (data, _) = pulp::as_arrays::<NV, A::Vec<S>>(A::vectors::<S>(data));
            for &[weight, row, count] in runs {
                let (mut weight, mut row) = (weights + weight, row);
                if const { N > 1 && S::F32_LANES >= 16 } && row_step == 1 && count > 0 {
                    // Rows that the next terms read too stay in registers.
                    let (first, rest) = data[row..][..count + N - 1].split_at(N - 1);
                    let mut x: [[A::Vec<S>; NV]; N] = core::array::from_fn(|k| first[k.min(N - 2)]);
                    for next in rest {
                        x[N - 1] = *next;
                        let weights = &from.weights[weight..][..N];
                        for k in 0..N {
                            let weight = A::splat(simd, weights[k]);
                            for v in 0..NV {
                                sums[k][v] = A::mul_add_vec(simd, weight, x[k][v], sums[k][v]);
                            }
                        }
                        for k in 1..N {
                            x[k - 1] = x[k];
                        }
                        weight = weight.wrapping_add(weight_step);
                    }
                    continue;
                }
                for _ in 0..count {
                    let weights = &from.weights[weight..][..N];
                    let x = &data[row..][..N];
                    for k in 0..N {
                        let weight = A::splat(simd, weights[k]);
                        for v in 0..NV {
                            sums[k][v] = A::mul_add_vec(simd, weight, x[k][v], sums[k][v]);
                        }
                    }
                    weight = weight.wrapping_add(weight_step);
                    row = row.wrapping_add(row_step);
                }
            }
        }
    }
}

/// Copies numbers of a panel, without a call where they are a whole one.
#[inline(always)]
fn copy<A: Real>(from: &[A], to: &mut [A]) {
    let (from_whole, _) = pulp::as_arrays::<PANEL, A>(from);
    match (from_whole, pulp::as_arrays_mut::<PANEL, A>(to).0) {
        ([from], [to]) => *to = *from,
        _ => to.copy_from_slice(from),
    }
}
