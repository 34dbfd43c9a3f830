//! Products of a matrix and a vector: memory gives one run of numbers at half of the rate or less at which it gives several, so rows of the matrix
//! are read side by side, where the crate reads one after the other.
//!
//! It was measured with AVX2 alone, and other processors leave these products to the crate. A number is the same sum however many others stand
//! beside it.

use super::{Mat, MatMut};
use crate::Real;
use crate::arrays::{each, numbered};
use crate::exp::fused;
use crate::pointwise::vectorized;
use pulp::{Simd, WithSimd};

/// Rows that are multiplied with the vector side by side, and vectors of sums of each: with three more of operands they are all registers.
const ROWS: usize = 4;
const SUMS: usize = 3;

/// Rows that are added side by side, each times a number.
const ADDED: usize = 6;

/// Fewer terms are left to the loops of products of a few numbers, and to the crate.
const LEAST: usize = 5;

/// Writes the product, or adds it to `c`, if it is one with a vector that is computed here, and tells whether it was. Operands have been checked.
pub(super) fn product<T: Real>(
    [m, n, k]: [usize; 3],
    a: &Mat<'_, T>,
    b: &Mat<'_, T>,
    c: &mut MatMut<'_, T>,
    accumulate: bool,
) -> bool {
    let (count, matrix, vector, step) = match [m, n] {
        [_, 1] => (m, *a, *b, c.row_step),
        [1, _] => (n, b.transposed(), a.transposed(), c.col_step),
        _ => return false,
    };
    let by_rows = matrix.col_step == 1 && vector.row_step == 1;
    let by_columns = matrix.row_step == 1 && step == 1;
    if k < LEAST || !(by_rows || by_columns) {
        return false;
    }
    vectorized(Times {
        extent: [count, k],
        matrix,
        vector,
        to: &mut *c.data,
        at: c.offset,
        step,
        by_rows,
        accumulate,
    })
}

/// A matrix of so many rows and columns times a column.
struct Times<'a, 'c, T> {
    extent: [usize; 2],
    matrix: Mat<'a, T>,
    vector: Mat<'a, T>,
    to: &'c mut [T],
    at: usize,
    step: isize,
    /// Whether the matrix lies in rows, and not in columns.
    by_rows: bool,
    accumulate: bool,
}

impl<T: Real> WithSimd for Times<'_, '_, T> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> bool {
        let is_here = const { S::F32_LANES == 8 && fused::<S>() };
        if is_here && self.by_rows {
            self.rows(simd);
        } else if is_here {
            self.columns(simd);
        }
        is_here
    }
}

impl<T: Real> Times<'_, '_, T> {
    /// Each number is the sum of the products of a row.
    #[inline(always)]
    fn rows<S: Simd>(mut self, simd: S) {
        let [count, terms] = self.extent;
        let vector = &self.vector.data[self.vector.offset..][..terms];
        let whole = count / ROWS * ROWS;
        for first in (0..whole).step_by(ROWS) {
            let rows = numbered(
                #[inline(always)]
                |i| line(&self.matrix, first + i, terms),
            );
            let sums = sums::<T, S, ROWS>(simd, rows, vector);
            for (i, sum) in sums.iter().enumerate() {
                self.put(first + i, *sum);
            }
        }
        for i in whole..count {
            let rows = [line(&self.matrix, i, terms)];
            let [sum] = sums::<T, S, 1>(simd, rows, vector);
            self.put(i, sum);
        }
    }

    #[inline(always)]
    fn put(&mut self, i: usize, sum: T) {
        let to = &mut self.to[self.at.wrapping_add_signed(i as isize * self.step)];
        *to = if self.accumulate { *to + sum } else { sum };
    }

    /// The numbers are a sum of columns, each times a number: of any of them the terms are added in order.
    #[inline(always)]
    fn columns<S: Simd>(self, simd: S) {
        let ([count, terms], columns) = (self.extent, self.matrix.transposed());
        let to = &mut self.to[self.at..][..count];
        if !self.accumulate {
            to.fill(T::zero());
        }
        let whole = terms / ADDED * ADDED;
        for first in (0..whole).step_by(ADDED) {
            let some = numbered(
                #[inline(always)]
                |l| line(&columns, first + l, count),
            );
            let by = numbered(
                #[inline(always)]
                |l| self.vector.at(first + l, 0),
            );
            add::<T, S, ADDED>(simd, some, by, to);
        }
        for l in whole..terms {
            add::<T, S, 1>(simd, [line(&columns, l, count)], [self.vector.at(l, 0)], to);
        }
    }
}

/// A row of so many numbers that lie side by side.
#[inline(always)]
fn line<'a, T>(matrix: &Mat<'a, T>, row: usize, numbers: usize) -> &'a [T] {
    let from = matrix
        .offset
        .wrapping_add_signed(row as isize * matrix.row_step);
    &matrix.data[from..][..numbers]
}

/// The sums of products of rows with a vector of as many numbers.
#[inline(always)]
fn sums<T: Real, S: Simd, const N: usize>(simd: S, rows: [&[T]; N], vector: &[T]) -> [T; N] {
    let terms = vector.len();
    let by = T::vectors::<S>(vector);
    let count = by.len();
    let of = each(
        rows,
        #[inline(always)]
        |row| &T::vectors::<S>(row)[..count],
    );
    let mut sums = [[T::splat(simd, T::zero()); SUMS]; N];
    let mut at = 0;
    while at + SUMS <= count {
        for i in 0..SUMS {
            for r in 0..N {
                sums[r][i] = T::mul_add_vec(simd, of[r][at + i], by[at + i], sums[r][i]);
            }
        }
        at += SUMS;
    }
    while at < count {
        for r in 0..N {
            sums[r][0] = T::mul_add_vec(simd, of[r][at], by[at], sums[r][0]);
        }
        at += 1;
    }
    let mut out = [T::zero(); N];
    for r in 0..N {
        let [a, b, c] = sums[r];
        let sum = T::sum_vec(simd, T::add_vec(simd, T::add_vec(simd, a, b), c));
        out[r] = sum;
        for i in count * T::lanes::<S>()..terms {
            out[r] = rows[r][i].mul_add(vector[i], out[r]);
        }
    }
    out
}

/// Adds rows of as many numbers as there are, each times a number, in order.
#[inline(always)]
fn add<T: Real, S: Simd, const N: usize>(simd: S, rows: [&[T]; N], by: [T; N], to: &mut [T]) {
    let whole = to.len() / T::lanes::<S>() * T::lanes::<S>();
    let factors = each(
        by,
        #[inline(always)]
        |by| T::splat(simd, by),
    );
    let to_vectors = T::vectors_mut::<S>(&mut to[..whole]);
    let count = to_vectors.len();
    let of = each(
        rows,
        #[inline(always)]
        |row| &T::vectors::<S>(row)[..count],
    );
    for (j, to) in to_vectors.iter_mut().enumerate() {
        let mut sum = *to;
        for i in 0..N {
            sum = T::mul_add_vec(simd, of[i][j], factors[i], sum);
        }
        *to = sum;
    }
    for (j, to) in to.iter_mut().enumerate().skip(whole) {
        for i in 0..N {
            *to = rows[i][j].mul_add(by[i], *to);
        }
    }
}
