//! Sparse linear maps along one dim: interpolation in every mode, its adjoint, and anything else that is a table of
//! `(index, weight)` pairs per output.
//!
//! The caller computes the tables from global geometry; the kernel knows no modes. A separable map over several dims is one
//! pass per dim, and the adjoint is the same kernel with transposed tables.

use super::pointwise::vectorized;
use super::view::for_each_row;
use super::{Real, View, ViewMut};
use crate::compiled::compiled;
use crate::scratch::{Room, Scratch};
use crate::turn::{SIDE, turned};
use pulp::{Simd, WithSimd};

/// A sparse matrix by rows: row `r` holds the pairs `(column, weight)` that sum to output `r`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Row `r` owns the pairs `starts[r] .. starts[r + 1]`.
    starts: Vec<usize>,
    index: Vec<usize>,
    weight: Vec<f64>,
}

impl Table {
    /// A table from its rows. Pairs are summed in the order given.
    ///
    /// ```
    /// use shard_kernels::resample::Table;
    /// let halves = Table::from_rows([vec![(0, 1.0)], vec![(0, 0.5), (1, 0.5)]]);
    /// assert_eq!((halves.rows(), halves.columns()), (2, 2));
    /// ```
    pub fn from_rows<R: IntoIterator<Item = (usize, f64)>>(
        rows: impl IntoIterator<Item = R>,
    ) -> Self {
        let mut table = Self {
            starts: vec![0],
            ..Self::default()
        };
        for row in rows {
            for (index, weight) in row {
                table.index.push(index);
                table.weight.push(weight);
            }
            table.starts.push(table.index.len());
        }
        table
    }

    /// Number of outputs.
    pub fn rows(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// One more than the largest input used; inputs behind it have no pair.
    pub fn columns(&self) -> usize {
        self.index.iter().max().map_or(0, |last| last + 1)
    }

    /// The pairs of row `r`; none when there is no such row.
    pub fn row(&self, r: usize) -> impl Iterator<Item = (usize, f64)> + '_ {
        let range = match self.starts.get(r..r + 2) {
            Some(&[from, to]) => from..to,
            _ => 0..0,
        };
        self.index[range.clone()]
            .iter()
            .copied()
            .zip(self.weight[range].iter().copied())
    }

    /// The transposed table with `columns` rows, pairs in increasing order of the old row.
    ///
    /// # Panics
    /// When a pair names a column at or beyond `columns`.
    #[must_use]
    pub fn transposed(&self, columns: usize) -> Self {
        assert!(
            self.columns() <= columns,
            "table: column {} of {columns}",
            self.columns()
        );
        let mut starts = vec![0; columns + 1];
        for &c in &self.index {
            starts[c + 1] += 1;
        }
        for c in 0..columns {
            starts[c + 1] += starts[c];
        }
        let mut next = starts.clone();
        let (mut index, mut weight) = (vec![0; self.index.len()], vec![0.0; self.index.len()]);
        for r in 0..self.rows() {
            for (c, w) in self.row(r) {
                (index[next[c]], weight[next[c]]) = (r, w);
                next[c] += 1;
            }
        }
        Self {
            starts,
            index,
            weight,
        }
    }
}

/// `out[.., r, ..] = Σ weight · x[.., index, ..]` along `dim`, over the pairs of row `r`.
///
/// ```
/// use shard_kernels::{resample::{apply_along, Table}, View, ViewMut};
/// let between = Table::from_rows([[(0, 0.5), (1, 0.5)], [(1, 0.5), (2, 0.5)]]);
/// let mut out = [0.0f32; 2];
/// apply_along(&View::contiguous(&[1.0, 3.0, 7.0], &[3]), 0, &between, &mut ViewMut::contiguous(&mut out, &[2]));
/// assert_eq!(out, [2.0, 5.0]);
/// ```
///
/// # Panics
/// When the shapes differ elsewhere than in `dim`, `out` does not have one index per row there, or the table names an index
/// that `x` lacks.
pub fn apply_along<T: Real>(x: &View<'_, T>, dim: usize, table: &Table, out: &mut ViewMut<'_, T>) {
    let same =
        x.ndim() == out.ndim() && (0..x.ndim()).all(|d| d == dim || x.shape()[d] == out.shape()[d]);
    assert!(
        same && dim < x.ndim(),
        "resample: {:?} into {:?} along dim {dim}",
        x.shape(),
        out.shape()
    );
    assert!(
        out.shape()[dim] == table.rows(),
        "resample: {} rows into extent {}",
        table.rows(),
        out.shape()[dim]
    );
    assert!(
        table.columns() <= x.shape()[dim],
        "resample: column {} of extent {}",
        table.columns(),
        x.shape()[dim]
    );

    let weight: Vec<T> = table.weight.iter().map(|w| T::of(*w)).collect();
    let last = x.ndim() - 1;
    let side_by_side = [x.strides()[last], out.strides()[last]] == [1, 1] && out.shape()[last] > 1;
    let lines = || (0..x.ndim()).filter(|d| *d != dim).map(|d| x.shape()[d]);
    if dim < last && side_by_side {
        along_rows(x, dim, table, &weight, out);
    } else if lines().product::<usize>() < SIDE {
        along_lines::<T, 1>(x, dim, table, &weight, out);
    } else {
        along_lines::<T, LINES>(x, dim, table, &weight, out);
    }
}

/// Sums of rows of the last dim, whose elements are side by side.
fn along_rows<T: Real>(
    x: &View<'_, T>,
    dim: usize,
    table: &Table,
    weight: &[T],
    out: &mut ViewMut<'_, T>,
) {
    for_each_line(x, dim, out, |input, output, [from, to], n| {
        for r in 0..table.rows() {
            let (to, pairs) = (to.at(0, r), table.starts[r]..table.starts[r + 1]);
            vectorized(Rows {
                input,
                from: from.first,
                step: from.step,
                index: &table.index[pairs.clone()],
                weight: &weight[pairs],
                out: &mut output[to..to + n],
            });
        }
    });
}

/// Lines of the dim, of which `L` at a time are brought side by side.
fn along_lines<T: Real, const L: usize>(
    x: &View<'_, T>,
    dim: usize,
    table: &Table,
    weight: &[T],
    out: &mut ViewMut<'_, T>,
) {
    let (columns, rows) = (x.shape()[dim], table.rows());
    let mut room = Room::new();
    let mut room = room.numbers((columns + rows) * L);
    let (from_panel, to_panel) = (room.take(columns * L), room.take(rows * L));
    for_each_line(x, dim, out, |input, output, [from, to], n| {
        let mut lines = Lines::<T, L> {
            table,
            weight,
            input,
            from,
            from_panel,
            output,
            to,
            to_panel,
            count: L,
        };
        for first in (0..n).step_by(L) {
            lines.count = L.min(n - first);
            vectorized(&mut lines);
            lines.from.skip(L);
            lines.to.skip(L);
        }
    });
}

/// Visits runs of lines along a dim: both operands, where the lines of each lie, and how many there are.
fn for_each_line<T>(
    x: &View<'_, T>,
    dim: usize,
    out: &mut ViewMut<'_, T>,
    mut visit: impl FnMut(&[T], &mut [T], [Place; 2], usize),
) {
    let (mut shape, strides, offset) = out.geometry();
    shape[dim] = 1;
    let of_line = [x.strides()[dim], strides[dim]];
    let output = out.data_mut();
    for_each_row(
        &shape,
        [x.strides(), &strides],
        [x.offset(), offset],
        |starts, n, steps| {
            let places = core::array::from_fn(|k| Place {
                first: starts[k],
                line: steps[k],
                step: of_line[k],
            });
            visit(x.data(), output, places, n);
        },
    );
}

compiled! { trait Compiled for Real: f32 f64; {
    /// Applies one table per dim, in the order given, through scratch memory between passes.
    ///
    /// With no table it is a copy.
    ///
    /// # Panics
    /// As [`apply_along`], per pass.
    pub fn resample<T>(
        x: &View<'_, T>,
        tables: &[(usize, &Table)],
        out: &mut ViewMut<'_, T>,
    ) = resample_here;
} }

fn resample_here<T: Real>(x: &View<'_, T>, tables: &[(usize, &Table)], out: &mut ViewMut<'_, T>) {
    let Some((&(dim, table), rest)) = tables.split_first() else {
        super::copy::copy(x, out);
        return;
    };
    if rest.is_empty() {
        apply_along(x, dim, table, out);
        return;
    }
    let mut shape = x.shape().to_vec();
    shape[dim] = table.rows();
    let all = shape.iter().product();
    Scratch::with(all, |mut room| {
        let scratch = room.take(all);
        apply_along(x, dim, table, &mut ViewMut::contiguous(scratch, &shape));
        resample(&View::contiguous(scratch, &shape), rest, out);
    });
}

/// One output row as a weighted sum of contiguous input rows.
struct Rows<'a, T> {
    input: &'a [T],
    from: usize,
    step: isize,
    index: &'a [usize],
    weight: &'a [T],
    out: &'a mut [T],
}

impl<T: Real> WithSimd for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let n = self.out.len();
        let row = |i: usize| {
            let at = self.from.wrapping_add_signed(i as isize * self.step);
            &self.input[at..at + n]
        };
        match (self.index, self.weight) {
            (&[a], &[wa]) => {
                for (o, a) in self.out.iter_mut().zip(row(a)) {
                    *o = wa * *a;
                }
            }
            (&[a, b], &[wa, wb]) => {
                for ((o, a), b) in self.out.iter_mut().zip(row(a)).zip(row(b)) {
                    *o = wa * *a + wb * *b;
                }
            }
            (index, weight) => {
                self.out.fill(T::zero());
                for (i, w) in index.iter().zip(weight) {
                    for (o, x) in self.out.iter_mut().zip(row(*i)) {
                        *o += *w * *x;
                    }
                }
            }
        }
    }
}

/// Lines of the resampled dim in a panel.
const LINES: usize = 16;

/// Where lines lie.
#[derive(Clone, Copy)]
struct Place {
    first: usize,
    /// From one line to the next.
    line: isize,
    /// From one element of a line to the next.
    step: isize,
}

impl Place {
    fn at(self, line: usize, element: usize) -> usize {
        let along = line as isize * self.line + element as isize * self.step;
        self.first.wrapping_add_signed(along)
    }

    fn skip(&mut self, lines: usize) {
        self.first = self.at(lines, 0);
    }
}

/// A few lines along the resampled dim, which are computed side by side.
struct Lines<'a, T, const L: usize> {
    table: &'a Table,
    weight: &'a [T],
    input: &'a [T],
    from: Place,
    /// One element of each line, after another.
    from_panel: &'a mut [T],
    output: &'a mut [T],
    to: Place,
    to_panel: &'a mut [T],
    /// How many lines there are, at most `L`.
    count: usize,
}

impl<T: Real, const L: usize> WithSimd for &mut Lines<'_, T, L> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.gather();
        self.sum();
        self.spread();
    }
}

impl<T: Real, const L: usize> Lines<'_, T, L> {
    /// How many elements of each line are moved in blocks, which have a side of their own along lines and along elements.
    fn turns(&self, place: Place, elements: usize) -> usize {
        match place.step {
            1 if self.count == L && L.is_multiple_of(SIDE) => elements / SIDE * SIDE,
            _ => 0,
        }
    }

    #[inline(always)]
    fn gather(&mut self) {
        let whole = self.turns(self.from, self.from_panel.len() / L);
        let (panel, _) = pulp::as_arrays_mut::<L, T>(self.from_panel);
        for c in (0..whole).step_by(SIDE) {
            for line in (0..L).step_by(SIDE) {
                let block = core::array::from_fn(|i| {
                    let at = self.from.at(line + i, c);
                    pulp::as_arrays::<SIDE, T>(&self.input[at..at + SIDE]).0[0]
                });
                for (i, numbers) in turned(block).iter().enumerate() {
                    panel[c + i][line..line + SIDE].copy_from_slice(numbers);
                }
            }
        }
        for (c, lines) in panel.iter_mut().enumerate().skip(whole) {
            for (line, number) in lines[..self.count].iter_mut().enumerate() {
                *number = self.input[self.from.at(line, c)];
            }
        }
    }

    #[inline(always)]
    fn sum(&mut self) {
        let (from, _) = pulp::as_arrays::<L, T>(self.from_panel);
        let (to, _) = pulp::as_arrays_mut::<L, T>(self.to_panel);
        for (r, to) in to.iter_mut().enumerate() {
            let pairs = self.table.starts[r]..self.table.starts[r + 1];
            match (&self.table.index[pairs.clone()], &self.weight[pairs]) {
                (&[a], &[wa]) => *to = from[a].map(|a| wa * a),
                (&[a, b], &[wa, wb]) => {
                    let (a, b) = (&from[a], &from[b]);
                    *to = core::array::from_fn(|i| wa * a[i] + wb * b[i]);
                }
                (index, weight) => {
                    let mut sum = [T::zero(); L];
                    for (i, w) in index.iter().zip(weight) {
                        for (sum, x) in sum.iter_mut().zip(&from[*i]) {
                            *sum += *w * *x;
                        }
                    }
                    *to = sum;
                }
            }
        }
    }

    #[inline(always)]
    fn spread(&mut self) {
        let (panel, _) = pulp::as_arrays::<L, T>(self.to_panel);
        let whole = self.turns(self.to, panel.len());
        for r in (0..whole).step_by(SIDE) {
            for line in (0..L).step_by(SIDE) {
                let block = core::array::from_fn(|i| {
                    pulp::as_arrays::<SIDE, T>(&panel[r + i][line..line + SIDE]).0[0]
                });
                for (i, numbers) in turned(block).iter().enumerate() {
                    let at = self.to.at(line + i, r);
                    self.output[at..at + SIDE].copy_from_slice(numbers);
                }
            }
        }
        for (r, lines) in panel.iter().enumerate().skip(whole) {
            for (line, number) in lines[..self.count].iter().enumerate() {
                self.output[self.to.at(line, r)] = *number;
            }
        }
    }
}
