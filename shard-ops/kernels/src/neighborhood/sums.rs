//! Weighted sums of rows, element by element of a head.

use super::block::Terms;
use super::lanes::Rows;
use crate::Real;
use crate::arrays::{each, numbered};
use crate::pointwise::vectorized;
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
    if count > 0 {
        vectorized(Panels { rows, count, to });
    }
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
        // Rows that are summed together: as many sums as registers hold.
        let together = if S::F32_LANES >= 16 { 4 } else { 2 };
        let (runs, others) = (&self.terms.runs, &self.terms.others);
        let beside = |first: usize, k: usize| {
            let (row, [weight, term, count]) = runs[first];
            runs[first + k] == (row + k, [weight + k, term + k, count])
        };
        let mut i = 0;
        while i < runs.len() {
            let (to, run) = runs[i];
            if i + together <= runs.len() && (1..together).all(|k| beside(i, k)) {
                if const { S::F32_LANES >= 16 } {
                    self.rows::<S, 4>(simd, numbered(|k| to + k), Of::Run(run));
                } else {
                    self.rows::<S, 2>(simd, numbered(|k| to + k), Of::Run(run));
                }
                i += together;
            } else {
                self.rows::<S, 1>(simd, [to], Of::Run(run));
                i += 1;
            }
        }
        let mut i = 0;
        while i < others.len() {
            let alike = |k: &[usize; 3]| k[2] == others[i][2];
            if i + together <= others.len() && others[i..i + together].iter().all(alike) {
                if const { S::F32_LANES >= 16 } {
                    self.others::<S, 4>(simd, i);
                } else {
                    self.others::<S, 2>(simd, i);
                }
                i += together;
            } else {
                self.others::<S, 1>(simd, i);
                i += 1;
            }
        }
    }
}

/// The terms of some rows.
#[derive(Clone, Copy)]
enum Of<'a, const N: usize> {
    /// Those of the first, beside which those of the others lie.
    Run([usize; 3]),
    /// A list for each, all of one length.
    Lists([&'a [[usize; 2]]; N]),
}

impl<A: Real> Sums<'_, A> {
    /// `N` rows that are not of runs, of equally many terms.
    #[inline(always)]
    fn others<S: Simd, const N: usize>(&mut self, simd: S, first: usize) {
        let terms = self.terms;
        let rows: [[usize; 3]; N] = numbered(|k| terms.others[first + k]);
        let lists = each(rows, |[_, begin, count]| &terms.list[begin..begin + count]);
        self.rows::<S, N>(simd, each(rows, |[row, ..]| row), Of::Lists(lists));
    }

    #[inline(always)]
    fn rows<S: Simd, const N: usize>(&mut self, simd: S, rows: [usize; N], of: Of<'_, N>) {
        match PANEL / A::lanes::<S>() {
            2 => self.panels::<S, N, 2>(simd, rows, of),
            4 => self.panels::<S, N, 4>(simd, rows, of),
            8 => self.panels::<S, N, 8>(simd, rows, of),
            _ => self.panels::<S, N, PANEL>(simd, rows, of),
        }
    }

    /// Their panels, each of `NV` vectors. From a whole panel to registers and back there is no memory between.
    #[inline(always)]
    fn panels<S: Simd, const N: usize, const NV: usize>(
        &mut self,
        simd: S,
        rows: [usize; N],
        of: Of<'_, N>,
    ) {
        let dim = self.to.dim;
        let to = each(rows, |row| self.to.at[0] + row * self.to.at[1]);
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
            self.panel(simd, of, panel, &mut sums);
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

    /// Adds the terms to a panel of `N` rows.
    #[inline(always)]
    fn panel<S: Simd, const N: usize, const NV: usize>(
        &self,
        simd: S,
        of: Of<'_, N>,
        panel: usize,
        sums: &mut [[A::Vec<S>; NV]; N],
    ) {
        let (from, [weight_step, row_step]) = (self.from, self.terms.steps);
        let mut add = |k: usize, weight: A, x: &[A::Vec<S>; NV]| {
            let weight = A::splat(simd, weight);
            for v in 0..NV {
                sums[k][v] = A::mul_add_vec(simd, weight, x[v], sums[k][v]);
            }
        };
        for &[weights, first] in from.lines {
            let data = &from.data[first + panel * from.rows * PANEL..][..from.rows * PANEL];
            let (data, _) = pulp::as_arrays::<NV, A::Vec<S>>(A::vectors::<S>(data));
            match of {
                // Rows that the next terms read too stay in registers.
                Of::Run([weight, row, count])
                    if const { N > 1 && S::F32_LANES >= 16 } && row_step == 1 && count > 0 =>
                {
                    let mut weight = weights + weight;
                    let (first, rest) = data[row..][..count + N - 1].split_at(N - 1);
                    let mut x: [[A::Vec<S>; NV]; N] = numbered(|k| first[k.min(N - 2)]);
                    for next in rest {
                        x[N - 1] = *next;
                        let weights = &from.weights[weight..][..N];
                        for k in 0..N {
                            add(k, weights[k], &x[k]);
                        }
                        for k in 1..N {
                            x[k - 1] = x[k];
                        }
                        weight = weight.wrapping_add(weight_step);
                    }
                }
                Of::Run([weight, mut row, count]) => {
                    let mut weight = weights + weight;
                    for _ in 0..count {
                        let (weights, x) = (&from.weights[weight..][..N], &data[row..][..N]);
                        for k in 0..N {
                            add(k, weights[k], &x[k]);
                        }
                        weight = weight.wrapping_add(weight_step);
                        row = row.wrapping_add(row_step);
                    }
                }
                Of::Lists(lists) => {
                    for term in 0..lists[0].len() {
                        for (k, list) in lists.iter().enumerate() {
                            let [weight, row] = list[term];
                            add(k, from.weights[weights + weight], &data[row]);
                        }
                    }
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
