//! Products of a few numbers, such as rotations, and of a vector with short rows: to prepare a product of tiles takes longer than they.

use super::{Mat, MatMut};
use crate::Real;
use crate::exp::fused;
use crate::pointwise::vectorized;
use crate::reduce::LANES;
use pulp::{Simd, WithSimd};

/// The most numbers that are multiplied.
const PRODUCTS: usize = 64;

/// Terms of a sum: fewer are added to what is there one by one.
const TERMS: core::ops::RangeInclusive<usize> = 3..=16;

/// The most terms of a product of a vector with rows that lie side by side, of which there may be any number.
const IN_ROWS: usize = 8;

/// The fewest results of such a product that are computed many at a time.
const MANY: usize = 16;

/// Whether a product of these extents is computed here, with terms added one after the other.
///
/// The crate does so too, but for products with a vector. Of rows whose numbers lie side by side it adds up lanes: so that the order of a sum
/// does not depend on the number of rows, all of them are computed here that have few terms, and none that have more. Of others it adds terms
/// to what is there, one by one.
#[inline]
pub(super) fn pays<T>(
    [m, n, k]: [usize; 3],
    a: &Mat<'_, T>,
    b: &Mat<'_, T>,
    accumulate: bool,
) -> bool {
    if !TERMS.contains(&k) {
        return false;
    }
    match (m, n) {
        (_, 1) if a.col_step == 1 => k <= IN_ROWS,
        (1, _) if b.row_step == 1 => k <= IN_ROWS,
        (1, _) | (_, 1) if accumulate => false,
        _ => m.saturating_mul(n).saturating_mul(k) <= PRODUCTS,
    }
}

/// As [`gemm`](super::gemm). Matrices are looked at with bounds checked.
pub(super) fn product<T: Real>(
    [m, n, k]: [usize; 3],
    a: &Mat<'_, T>,
    b: &Mat<'_, T>,
    c: &mut MatMut<'_, T>,
    accumulate: bool,
) {
    let vector = match (m, n) {
        (MANY.., 1) if a.col_step == 1 => Some((*a, *b, m, c.row_step)),
        (1, MANY..) if b.row_step == 1 => Some((b.transposed(), a.transposed(), n, c.col_step)),
        _ => None,
    };
    match vector {
        Some((matrix, vector, rows, step)) => vectorized(Rows {
            extent: [rows, k],
            matrix,
            vector,
            c,
            step,
            accumulate,
        }),
        None => vectorized(Tiny {
            extent: [m, n, k],
            a,
            b,
            c,
            accumulate,
        }),
    }
}

/// A sum with a term more.
#[inline(always)]
fn added<S: Simd, T: Real>(x: T, y: T, sum: T) -> T {
    if const { fused::<S>() } {
        x.mul_add(y, sum)
    } else {
        x * y + sum
    }
}

struct Tiny<'a, 'c, T> {
    extent: [usize; 3],
    a: &'a Mat<'a, T>,
    b: &'a Mat<'a, T>,
    c: &'a mut MatMut<'c, T>,
    accumulate: bool,
}

impl<T: Real> WithSimd for Tiny<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (a, b, c) = (self.a, self.b, self.c);
        let [m, n, k] = self.extent;
        for i in 0..m {
            for j in 0..n {
                let sum = (0..k).fold(T::zero(), |sum, l| {
                    added::<S, T>(a.at(i, l), b.at(l, j), sum)
                });
                let step = i as isize * c.row_step + j as isize * c.col_step;
                let to = &mut c.data[c.offset.wrapping_add_signed(step)];
                *to = if self.accumulate { *to + sum } else { sum };
            }
        }
    }
}

/// Rows of a matrix, whose numbers lie side by side, times a column. Results are so far apart.
struct Rows<'a, 'c, T> {
    extent: [usize; 2],
    matrix: Mat<'a, T>,
    vector: Mat<'a, T>,
    c: &'a mut MatMut<'c, T>,
    step: isize,
    accumulate: bool,
}

impl<T: Real> WithSimd for Rows<'_, '_, T> {
    type Output = ();

    /// Many rows side by side: vectors are of the numbers that one column has in each.
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let ([rows, k], c) = (self.extent, self.c);
        let mut factors = [T::zero(); IN_ROWS];
        for (l, factor) in factors[..k].iter_mut().enumerate() {
            *factor = self.vector.at(l, 0);
        }
        for first in (0..rows).step_by(LANES) {
            let count = LANES.min(rows - first);
            let (mut sums, mut column) = ([T::zero(); LANES], [T::zero(); LANES]);
            for (l, &factor) in factors[..k].iter().enumerate() {
                for (i, x) in column[..count].iter_mut().enumerate() {
                    *x = self.matrix.at(first + i, l);
                }
                let factor = T::splat(simd, factor);
                let column = T::vectors::<S>(&column).iter();
                for (sum, x) in T::vectors_mut::<S>(&mut sums).iter_mut().zip(column) {
                    *sum = T::mul_add_vec(simd, *x, factor, *sum);
                }
            }
            for (i, sum) in sums[..count].iter().enumerate() {
                let step = (first + i) as isize * self.step;
                let to = &mut c.data[c.offset.wrapping_add_signed(step)];
                *to = if self.accumulate { *to + *sum } else { *sum };
            }
        }
    }
}
