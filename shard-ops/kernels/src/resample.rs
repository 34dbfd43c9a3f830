//! Sparse linear maps along one dim: interpolation in every mode, its adjoint, and anything else that is a table of
//! `(index, weight)` pairs per output.
//!
//! The caller computes the tables from global geometry; the kernel knows no modes. A separable map over several dims is one
//! pass per dim, and the adjoint is the same kernel with transposed tables.

use super::pointwise::vectorized;
use super::view::for_each_row;
use super::{Real, View, ViewMut};
use crate::compiled::compiled;
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

    /// The number of pairs that every row has, if it is the same for all.
    fn uniform(&self) -> Option<usize> {
        let count = self.starts.get(1)? - self.starts.first()?;
        self.starts
            .windows(2)
            .all(|w| w[1] - w[0] == count)
            .then_some(count)
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
    let (from_step, to_step) = (x.strides()[dim], out.strides()[dim]);
    let (mut outer, strides, offset) = (out.shape().to_vec(), out.strides().to_vec(), out.offset());
    outer[dim] = 1;
    let (input, output) = (x.data(), out.data_mut());
    for_each_row(
        &outer,
        [x.strides(), &strides],
        [x.offset(), offset],
        |[from, to], n, steps| {
            if steps == [1, 1] && n > 1 {
                for r in 0..table.rows() {
                    let to = to.wrapping_add_signed(r as isize * to_step);
                    let pairs = table.starts[r]..table.starts[r + 1];
                    let job = Rows {
                        input,
                        from,
                        step: from_step,
                        index: &table.index[pairs.clone()],
                        weight: &weight[pairs],
                        out: &mut output[to..to + n],
                    };
                    vectorized(job);
                }
                return;
            }
            for i in 0..n as isize {
                let line = Line {
                    input,
                    from: from.wrapping_add_signed(i * steps[0]),
                    step: from_step,
                    table,
                    weight: &weight,
                };
                let to = to.wrapping_add_signed(i * steps[1]);
                match table.uniform() {
                    Some(1) => line.uniform::<1>(output, to, to_step),
                    Some(2) => line.uniform::<2>(output, to, to_step),
                    _ => line.ragged(output, to, to_step),
                }
            }
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
    let mut scratch = vec![T::zero(); shape.iter().product()];
    apply_along(
        x,
        dim,
        table,
        &mut ViewMut::contiguous(&mut scratch, &shape),
    );
    resample(&View::contiguous(&scratch, &shape), rest, out);
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

/// A line along the resampled dim.
struct Line<'a, T> {
    input: &'a [T],
    from: usize,
    step: isize,
    table: &'a Table,
    weight: &'a [T],
}

impl<T: Real> Line<'_, T> {
    #[inline(always)]
    fn at(&self, index: usize) -> T {
        self.input[self.from.wrapping_add_signed(index as isize * self.step)]
    }

    fn uniform<const N: usize>(&self, output: &mut [T], to: usize, to_step: isize) {
        let (index, _) = pulp::as_arrays::<N, usize>(&self.table.index);
        let (weight, _) = pulp::as_arrays::<N, T>(self.weight);
        for (r, (index, weight)) in index.iter().zip(weight).enumerate() {
            let mut sum = weight[0] * self.at(index[0]);
            for e in 1..N {
                sum += weight[e] * self.at(index[e]);
            }
            output[to.wrapping_add_signed(r as isize * to_step)] = sum;
        }
    }

    fn ragged(&self, output: &mut [T], to: usize, to_step: isize) {
        for r in 0..self.table.rows() {
            let mut sum = T::zero();
            for e in self.table.starts[r]..self.table.starts[r + 1] {
                sum += self.weight[e] * self.at(self.table.index[e]);
            }
            output[to.wrapping_add_signed(r as isize * to_step)] = sum;
        }
    }
}
