//! Products of a few numbers, such as rotations, and of a vector with short rows: to prepare a product of tiles takes longer than they.

use super::{Mat, MatMut};
use crate::Real;
use crate::arrays::{each, numbered};
use crate::exp::fused;
use crate::pointwise::vectorized;
use crate::reduce::LANES;
use pulp::{Simd, WithSimd};

/// The most numbers that are multiplied.
const PRODUCTS: usize = 64;

/// Terms of a sum: fewer are added to what is there one by one.
const TERMS: core::ops::RangeInclusive<usize> = 3..=16;

/// The most terms of a product of rows with columns that all lie side by side. More of them may be more than a vector has lanes.
const IN_LANES: usize = 4;

/// The fewest rows that are multiplied with a vector many at a time.
const MANY: usize = 16;

/// Whether a product of these extents is computed here, with terms added as the crate adds them, so that the order of a sum does not depend on
/// how many there are.
///
/// Of rows and columns that [lie side by side](by_lanes) the crate adds up lanes, unless there are many of both; otherwise it adds terms one
/// after the other, to what is there if there is but one row or column.
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
    let is_small = m.saturating_mul(n).saturating_mul(k) <= PRODUCTS;
    match m.min(n) {
        _ if by_lanes(a, b) => k <= IN_LANES && (is_small || n == 1),
        1 => is_small && !accumulate && a.col_step != 1 && b.row_step != 1,
        _ => is_small,
    }
}

/// Whether the numbers of rows on the left, and those of columns on the right, lie side by side.
#[inline]
fn by_lanes<T>(a: &Mat<'_, T>, b: &Mat<'_, T>) -> bool {
    a.col_step == 1 && b.row_step == 1
}

/// As [`gemm`](super::gemm). Matrices are looked at with bounds checked.
pub(super) fn product<T: Real>(
    [m, n, k]: [usize; 3],
    a: &Mat<'_, T>,
    b: &Mat<'_, T>,
    c: &mut MatMut<'_, T>,
    accumulate: bool,
) {
    let in_lanes = by_lanes(a, b);
    if in_lanes && n == 1 && m >= MANY {
        return vectorized(Rows {
            extent: [m, k],
            a,
            b,
            c,
            accumulate,
        });
    }
    vectorized(Tiny {
        extent: [m, n, k],
        a,
        b,
        c,
        accumulate,
        in_lanes,
    });
}

/// The sum of lanes, of which the last ones may be zeros, in halves.
#[inline(always)]
fn halved<T: Real>([a, b, c, d]: [T; IN_LANES]) -> T {
    (a + c) + (b + d)
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
    in_lanes: bool,
}

impl<T: Real> WithSimd for Tiny<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (a, b, c) = (self.a, self.b, self.c);
        let [m, n, k] = self.extent;
        for i in 0..m {
            for j in 0..n {
                let sum = if self.in_lanes {
                    let mut lanes = [T::zero(); IN_LANES];
                    for (l, lane) in lanes.iter_mut().enumerate().take(k) {
                        *lane = a.at(i, l) * b.at(l, j);
                    }
                    halved(lanes)
                } else {
                    (0..k).fold(T::zero(), |sum, l| {
                        added::<S, T>(a.at(i, l), b.at(l, j), sum)
                    })
                };
                let step = i as isize * c.row_step + j as isize * c.col_step;
                let to = &mut c.data[c.offset.wrapping_add_signed(step)];
                *to = if self.accumulate { *to + sum } else { sum };
            }
        }
    }
}

/// Rows of a matrix, whose numbers lie side by side, times a column.
struct Rows<'a, 'c, T> {
    extent: [usize; 2],
    a: &'a Mat<'a, T>,
    b: &'a Mat<'a, T>,
    c: &'a mut MatMut<'c, T>,
    accumulate: bool,
}

impl<T: Real> WithSimd for Rows<'_, '_, T> {
    type Output = ();

    /// Many rows side by side: vectors are of the numbers that one column has in each.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let ([rows, k], c) = (self.extent, self.c);
        for first in (0..rows).step_by(LANES) {
            let count = LANES.min(rows - first);
            let mut columns = [[T::zero(); LANES]; IN_LANES];
            for (l, column) in columns.iter_mut().enumerate().take(k) {
                let factor = self.b.at(l, 0);
                for (i, x) in column[..count].iter_mut().enumerate() {
                    *x = self.a.at(first + i, l) * factor;
                }
            }
            let sums: [T; LANES] = numbered(|i| halved(each(columns, |column| column[i])));
            for (i, sum) in sums[..count].iter().enumerate() {
                let step = (first + i) as isize * c.row_step;
                let to = &mut c.data[c.offset.wrapping_add_signed(step)];
                *to = if self.accumulate { *to + *sum } else { *sum };
            }
        }
    }
}
