//! Products of matrices of integers. They wrap, so they are exact in whatever order terms are added.

use super::{Mat, MatMut, check_operands, check_results};
use crate::compiled::compiled;
use crate::pointwise::vectorized;
use crate::whole::Whole;
use num_traits::{PrimInt, WrappingAdd, WrappingMul};
use pulp::{Simd, WithSimd};

/// Rows, columns and terms of a tile: what is held of `b` and of the sums fits into a cache.
const TILE: [usize; 3] = [32, 128, 64];

/// A type of integers.
pub trait Integer: Whole + PrimInt + WrappingAdd + WrappingMul + Compiled<Self> {}

impl Integer for i64 {}
impl Integer for i32 {}
impl Integer for u8 {}

compiled! { trait Compiled for Integer: i64 i32 u8; {
    /// As [`gemm`](super::gemm) of integers, whose products and sums wrap.
    ///
    /// ```
    /// use shard_kernels::gemm::{gemm_whole, Mat, MatMut};
    /// let (a, b) = ([1u8, 2, 3, 100], [2u8, 3]);
    /// let mut c = [0; 2];
    /// gemm_whole(2, 1, 2, Mat::row_major(&a, 2), Mat::row_major(&b, 1), MatMut::row_major(&mut c, 1), false);
    /// assert_eq!(c, [8, 50]); // 306 is 50 more than 256
    /// ```
    ///
    /// # Panics
    /// As [`gemm`](super::gemm).
    pub fn gemm_whole<T>(
        m: usize,
        n: usize,
        k: usize,
        a: Mat<'_, T>,
        b: Mat<'_, T>,
        c: MatMut<'_, T>,
        accumulate: bool,
    ) = gemm_whole_here;
} }

fn gemm_whole_here<T: Integer>(
    m: usize,
    n: usize,
    k: usize,
    a: Mat<'_, T>,
    b: Mat<'_, T>,
    c: MatMut<'_, T>,
    accumulate: bool,
) {
    if m == 0 || n == 0 {
        return;
    }
    check_results([m, n], &c);
    if k > 0 {
        check_operands([m, n, k], &a, &b);
    }
    // Loops go along rows, so the longer side is that of the columns.
    let (m, n, a, b, mut c) = match n < m {
        true => (n, m, b.transposed(), a.transposed(), c.transposed()),
        false => (m, n, a, b, c),
    };
    let [rows, columns, _] = TILE;
    let mut tile = Tile::new();
    for j in (0..n).step_by(columns) {
        for i in (0..m).step_by(rows) {
            let extent = [rows.min(m - i), columns.min(n - j), k];
            tile.sum(extent, a.part(i, 0), b.part(0, j));
            tile.write(extent, i, j, &mut c, accumulate);
        }
    }
}

/// The sums of a tile of the result, and the part of `b` that is multiplied, row by row.
struct Tile<T> {
    sums: Vec<T>,
    right: Vec<T>,
}

impl<T: Integer> Tile<T> {
    fn new() -> Self {
        let [rows, columns, terms] = TILE;
        Self {
            sums: vec![T::zero(); rows * columns],
            right: vec![T::zero(); terms * columns],
        }
    }

    /// `a b`, of these extents.
    fn sum(&mut self, [m, n, k]: [usize; 3], a: Mat<'_, T>, b: Mat<'_, T>) {
        self.sums.fill(T::zero());
        for first in (0..k).step_by(TILE[2]) {
            let terms = TILE[2].min(k - first);
            let (a, b) = (a.part(0, first), b.part(first, 0));
            for (t, row) in self.right.chunks_exact_mut(n).take(terms).enumerate() {
                for (j, to) in row.iter_mut().enumerate() {
                    *to = b.at(t, j);
                }
            }
            for (i, sums) in self.sums.chunks_exact_mut(n).take(m).enumerate() {
                let mut left = [T::zero(); TILE[2]];
                for (t, to) in left[..terms].iter_mut().enumerate() {
                    *to = a.at(i, t);
                }
                vectorized(Row {
                    sums,
                    left: &left[..terms],
                    right: &self.right,
                });
            }
        }
    }

    /// Writes the sums where they belong, or adds them.
    fn write(
        &self,
        [m, n, _]: [usize; 3],
        row: usize,
        column: usize,
        c: &mut MatMut<'_, T>,
        accumulate: bool,
    ) {
        for (i, sums) in self.sums.chunks_exact(n).take(m).enumerate() {
            for (j, &sum) in sums.iter().enumerate() {
                let step = (row + i) as isize * c.row_step + (column + j) as isize * c.col_step;
                let to = &mut c.data[c.offset.wrapping_add_signed(step)];
                *to = if accumulate {
                    to.wrapping_add(&sum)
                } else {
                    sum
                };
            }
        }
    }
}

/// A row of sums, to which the rows of the right side are added, each times a number.
struct Row<'a, T> {
    sums: &'a mut [T],
    left: &'a [T],
    right: &'a [T],
}

impl<T: Integer> WithSimd for Row<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (&x, right) in self
            .left
            .iter()
            .zip(self.right.chunks_exact(self.sums.len()))
        {
            for (sum, y) in self.sums.iter_mut().zip(right) {
                *sum = sum.wrapping_add(&x.wrapping_mul(y));
            }
        }
    }
}
