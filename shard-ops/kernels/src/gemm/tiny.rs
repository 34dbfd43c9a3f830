//! Products of a few numbers, such as rotations: to prepare a product of tiles takes longer than they.

use super::{Mat, MatMut};
use crate::Real;
use crate::exp::fused;
use crate::pointwise::vectorized;
use pulp::{Simd, WithSimd};

/// The most numbers that are multiplied.
const PRODUCTS: usize = 64;

/// Terms of a sum: fewer are added to what is there one by one.
const TERMS: core::ops::RangeInclusive<usize> = 3..=16;

/// Whether a product of these extents is computed here. Those with vectors, and of rows with columns that both lie side by side, are sums in
/// an order of their own: here terms are added one after the other, as in a tile.
#[inline]
pub(super) fn pays<T>([m, n, k]: [usize; 3], a: &Mat<'_, T>, b: &Mat<'_, T>) -> bool {
    let by_lanes = a.col_step == 1 && b.row_step == 1;
    m.min(n) > 1
        && !by_lanes
        && TERMS.contains(&k)
        && m.saturating_mul(n).saturating_mul(k) <= PRODUCTS
}

/// As [`gemm`](super::gemm).
pub(super) fn product<T: Real>(
    extent: [usize; 3],
    a: &Mat<'_, T>,
    b: &Mat<'_, T>,
    c: &mut MatMut<'_, T>,
    accumulate: bool,
) {
    vectorized(Tiny {
        extent,
        a,
        b,
        c,
        accumulate,
    });
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
        let at = |offset: usize, i: usize, rows: isize, j: usize, cols: isize| {
            offset.wrapping_add_signed(i as isize * rows + j as isize * cols)
        };
        for i in 0..m {
            for j in 0..n {
                let mut sum = T::zero();
                for l in 0..k {
                    let x = a.data[at(a.offset, i, a.row_step, l, a.col_step)];
                    let y = b.data[at(b.offset, l, b.row_step, j, b.col_step)];
                    sum = if const { fused::<S>() } {
                        x.mul_add(y, sum)
                    } else {
                        x * y + sum
                    };
                }
                let to = &mut c.data[at(c.offset, i, c.row_step, j, c.col_step)];
                *to = if self.accumulate { *to + sum } else { sum };
            }
        }
    }
}
