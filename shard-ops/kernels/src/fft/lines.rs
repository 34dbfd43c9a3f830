//! The lines of a view along a dim, and how they are brought side by side and back.

use crate::arrays::numbered;
use crate::turn::{SIDE, Turn};
use bytemuck::Pod;
use core::ops::Range;
use pulp::{Simd, WithSimd};
use smallvec::SmallVec;

/// How many lines are taken at a time, so that neighbours in memory are read together where the dim is not the last: those that a
/// cache line has of pairs of `f32`.
pub(super) const LINES: usize = 8;

/// Where some lines begin.
pub(super) type Places = SmallVec<[usize; LINES]>;

/// The lines of a view along a dim.
pub(super) struct Lines {
    /// Extents of the other dims, but that of complex numbers.
    pub(super) others: Vec<usize>,
    steps: Vec<isize>,
    offset: usize,
    /// Elements of a line, and from one to the next.
    pub(super) extent: usize,
    pub(super) step: isize,
    complex: bool,
    /// From a real part to its imaginary part.
    pub(super) imaginary: isize,
}

impl Lines {
    pub(super) fn of(
        shape: &[usize],
        strides: &[isize],
        offset: usize,
        dim: usize,
        complex: bool,
    ) -> Self {
        let last = shape.len() - usize::from(complex);
        assert!(
            dim < last && (!complex || shape[last] == 2),
            "fft: dim {dim} of {shape:?}"
        );
        let others = (0..last).filter(|&d| d != dim);
        Self {
            others: others.clone().map(|d| shape[d]).collect(),
            steps: others.map(|d| strides[d]).collect(),
            offset,
            extent: shape[dim],
            step: strides[dim],
            complex,
            imaginary: if complex { strides[last] } else { 0 },
        }
    }

    /// How many rows of lines there are, and how many lines of a row, which are equally far apart.
    pub(super) fn rows(&self) -> (usize, usize) {
        match self.others.split_last() {
            None => (1, 1),
            Some((&beside, rows)) => (rows.iter().product(), beside),
        }
    }

    /// The place of the first element of a row.
    pub(super) fn row(&self, mut row: usize) -> usize {
        let mut at = self.offset;
        for (&n, &step) in self.others.iter().zip(&self.steps).rev().skip(1) {
            at = at.wrapping_add_signed((row % n) as isize * step);
            row /= n;
        }
        at
    }

    /// The places of the first elements of some lines of the row that begins at `row`.
    pub(super) fn places(&self, row: usize, lines: Range<usize>) -> Places {
        let step = self.steps.last().copied().unwrap_or(0);
        lines
            .map(|line| row.wrapping_add_signed(line as isize * step))
            .collect()
    }

    /// Whether a line is a run of memory.
    pub(super) fn are_runs(&self) -> bool {
        match self.complex {
            true => self.imaginary == 1 && self.step == 2,
            false => self.step == 1,
        }
    }

    /// The lines that start at these places as lines of pairs, and those places; `None` where a real part and its imaginary part are
    /// not neighbours, or pairs not a whole number of pairs apart.
    pub(super) fn in_pairs(&self, starts: &[usize]) -> Option<(isize, Places)> {
        let odd = |start: &usize| start % 2 == 1;
        let whole = self.imaginary == 1 && self.step % 2 == 0 && !starts.iter().any(odd);
        whole.then(|| {
            (
                self.step / 2,
                starts.iter().map(|start| start / 2).collect(),
            )
        })
    }

    /// Visits the first `count` elements of the lines that start at these places: where one is among lines of `width` elements, and
    /// where in memory.
    pub(super) fn each(
        &self,
        width: usize,
        count: usize,
        starts: &[usize],
        mut visit: impl FnMut(usize, usize),
    ) {
        for (line, &start) in starts.iter().enumerate() {
            for j in 0..count {
                visit(
                    line * width + j,
                    start.wrapping_add_signed(j as isize * self.step),
                );
            }
        }
    }

    /// Sets the elements behind the first `count` to zero.
    pub(super) fn clear<T: Pod>(&self, count: usize, starts: &[usize], data: &mut [T]) {
        for &start in starts {
            for j in count..self.extent {
                let at = start.wrapping_add_signed(j as isize * self.step);
                data[at] = T::zeroed();
                if self.complex {
                    data[at.wrapping_add_signed(self.imaginary)] = T::zeroed();
                }
            }
        }
    }
}

/// Makes one dim of two other dims that follow each other in both views, so that rows are long.
pub(super) fn join_dims(a: &mut Lines, b: &mut Lines) {
    let mut d = 1;
    while d < a.others.len() {
        let n = a.others[d];
        let follows = |lines: &Lines| lines.steps[d - 1] == n as isize * lines.steps[d];
        if a.others[d - 1] == 1 || (follows(a) && follows(b)) {
            for lines in [&mut *a, &mut *b] {
                lines.others[d - 1] *= n;
                lines.others.remove(d);
                lines.steps.remove(d - 1);
            }
        } else {
            d += 1;
        }
    }
}

/// Sets the first `count` elements of lines side by side, `width` elements each, to those of lines in memory, which start at these
/// places and step by `step`.
pub(super) struct Gather<'a, S> {
    pub(super) from: &'a [S],
    pub(super) starts: &'a [usize],
    pub(super) step: isize,
    pub(super) to: &'a mut [S],
    pub(super) width: usize,
    pub(super) count: usize,
}

impl<S: Pod> WithSimd for Gather<'_, S> {
    type Output = ();

    #[inline(always)]
    fn with_simd<V: Simd>(self, _: V) {
        let (width, count) = (self.width, self.count);
        // Lines without elements may begin behind the end.
        if count == 0 {
            return;
        }
        if self.step == 1 {
            for (line, &start) in self.to.chunks_exact_mut(width).zip(self.starts) {
                line[..count].copy_from_slice(&self.from[start..start + count]);
            }
            return;
        }
        let mut lines = self.to;
        for run in neighbours(self.starts) {
            let (here, rest) = lines.split_at_mut(run.len() * width);
            let row = |j: usize| run[0].wrapping_add_signed(j as isize * self.step);
            exchange::<V, S>(
                (self.from, row, count),
                (here, |line| line * width, run.len()),
            );
            lines = rest;
        }
    }
}

/// Sets the first `count` elements of lines in memory to those of lines side by side, as [`Gather`] in the other direction.
pub(super) struct Scatter<'a, S> {
    pub(super) from: &'a [S],
    pub(super) width: usize,
    pub(super) count: usize,
    pub(super) to: &'a mut [S],
    pub(super) starts: &'a [usize],
    pub(super) step: isize,
}

impl<S: Pod> WithSimd for Scatter<'_, S> {
    type Output = ();

    #[inline(always)]
    fn with_simd<V: Simd>(self, _: V) {
        let (width, count) = (self.width, self.count);
        // Lines without elements may begin behind the end.
        if count == 0 {
            return;
        }
        if self.step == 1 {
            for (line, &start) in self.from.chunks_exact(width).zip(self.starts) {
                self.to[start..start + count].copy_from_slice(&line[..count]);
            }
            return;
        }
        let mut lines = self.from;
        for run in neighbours(self.starts) {
            let (here, rest) = lines.split_at(run.len() * width);
            let row = |j: usize| run[0].wrapping_add_signed(j as isize * self.step);
            exchange::<V, S>(
                (here, |line| line * width, run.len()),
                (self.to, row, count),
            );
            lines = rest;
        }
    }
}

/// Starts of lines in runs of those that are neighbours in memory.
fn neighbours(starts: &[usize]) -> impl Iterator<Item = &[usize]> {
    starts.chunk_by(|a, b| *b == a + 1)
}

/// Rows and columns of a tile that are exchanged at once.
const TILE: usize = 2 * SIDE;

/// Exchanges rows and columns: `to[to_row(k) + i] = from[from_row(i) + k]`, for `i < n` and `k < m`. It goes by tiles, so that each
/// cache line is read and written once.
#[inline(always)]
fn exchange<V: Simd, S: Pod>(
    (from, from_row, n): (&[S], impl Fn(usize) -> usize, usize),
    (to, to_row, m): (&mut [S], impl Fn(usize) -> usize, usize),
) {
    let turn = Turn::new::<V>();
    for i in (0..n).step_by(TILE) {
        for k in (0..m).step_by(TILE) {
            if i + TILE <= n && k + TILE <= m {
                let rows: [&[[S; SIDE]; 2]; TILE] = numbered(
                    #[inline(always)]
                    |a| &from[from_row(i + a) + k..].as_chunks().0.as_chunks().0[0],
                );
                for half in 0..2 {
                    let part = |first: usize| {
                        numbered(
                            #[inline(always)]
                            |a| rows[first + a][half],
                        )
                    };
                    let columns = [turn.turned(part(0)), turn.turned(part(SIDE))];
                    for b in 0..SIDE {
                        let row = &mut to[to_row(k + half * SIDE + b) + i..];
                        let row: &mut [[S; SIDE]; 2] =
                            &mut row.as_chunks_mut().0.as_chunks_mut().0[0];
                        *row = [columns[0][b], columns[1][b]];
                    }
                }
            } else {
                for b in k..m.min(k + TILE) {
                    for a in i..n.min(i + TILE) {
                        to[to_row(b) + a] = from[from_row(a) + b];
                    }
                }
            }
        }
    }
}
