//! Products of a column and a row: nothing is summed, so what prepares a sum would take longer than to write them.

use super::{Mat, MatMut};
use crate::Real;
use crate::pointwise::vectorized;
use pulp::{Simd, WithSimd};

/// Rows from which on a column of results is written as a whole.
const ROWS: usize = 16;

/// Whether a product is one, whose columns lie side by side as the left operand does.
#[inline]
pub(super) fn pays<T>([m, _, k]: [usize; 3], a: &Mat<'_, T>, c: &MatMut<'_, T>) -> bool {
    k == 1 && m >= ROWS && [a.row_step, c.row_step] == [1, 1]
}

/// As [`gemm`](super::gemm), where it [pays]; operands have been checked.
pub(super) fn product<T: Real>(
    [m, n]: [usize; 2],
    a: &Mat<'_, T>,
    b: &Mat<'_, T>,
    c: &mut MatMut<'_, T>,
    accumulate: bool,
) {
    vectorized(Outer {
        n,
        column: &a.data[a.offset..][..m],
        b,
        c,
        accumulate,
    });
}

struct Outer<'a, 'b, 'c, T> {
    n: usize,
    column: &'a [T],
    b: &'a Mat<'b, T>,
    c: &'a mut MatMut<'c, T>,
    accumulate: bool,
}

impl<T: Real> WithSimd for Outer<'_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (column, c) = (self.column, self.c);
        for j in 0..self.n {
            let times = self.b.at(0, j);
            let at = c.offset.wrapping_add_signed(j as isize * c.col_step);
            let to = c.data[at..][..column.len()].iter_mut().zip(column);
            match self.accumulate {
                true => to.for_each(|(to, x)| *to += *x * times),
                false => to.for_each(|(to, x)| *to = *x * times),
            }
        }
    }
}
