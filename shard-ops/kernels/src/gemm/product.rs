//! The functions of the crates `gemm`, behind one unsafe call.

use super::{Mat, MatMut, by_unit, check_operands, check_results};
use crate::Real;
use gemm_common::Parallelism;

/// The functions that multiply matrices of `T`, for the processor that this is.
///
/// The functions of the crate `gemm` are named one by one: `gemm` itself compiles as many again for complex numbers.
#[derive(Clone, Copy, Debug)]
pub struct Product<T> {
    multiply: Multiply<T>,
    by_unit: ByUnit<T>,
}

/// Computes a product of these extents if it is one for tiles, and tells whether it was.
type ByUnit<T> = fn([usize; 3], &Mat<'_, T>, &Mat<'_, T>, &mut MatMut<'_, T>, bool) -> bool;

/// `dst = alpha dst + beta lhs rhs`. The arguments are the extents; memory and steps between columns and rows of `dst`, and
/// whether it is read; memory and steps of `lhs` and of `rhs`; `alpha` and `beta`; what is conjugated; and threads.
type Multiply<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    Parallelism,
);

impl Product<f32> {
    /// The functions for single precision.
    #[inline]
    pub(crate) fn single() -> Self {
        #[cfg(miri)]
        let multiply = interpreted;
        #[cfg(not(miri))]
        let multiply = gemm_f32::gemm::f32::get_gemm_fn();
        Self {
            multiply,
            by_unit: by_unit::single,
        }
    }
}

impl Product<f64> {
    /// The functions for double precision.
    #[inline]
    pub(crate) fn double() -> Self {
        #[cfg(miri)]
        let multiply = interpreted;
        #[cfg(not(miri))]
        let multiply = gemm_f64::gemm::f64::get_gemm_fn();
        Self {
            multiply,
            by_unit: |_, _, _, _, _| false,
        }
    }
}

impl<T: Real> Product<T> {
    /// Computes the product if it is one for tiles, and tells whether it was.
    pub(super) fn in_tiles(
        self,
        extent: [usize; 3],
        a: &Mat<'_, T>,
        b: &Mat<'_, T>,
        c: &mut MatMut<'_, T>,
        accumulate: bool,
    ) -> bool {
        (self.by_unit)(extent, a, b, c, accumulate)
    }

    /// The product by the crate, of matrices whose steps are not negative, but those between rows of `a` and between columns of `b`, which may be.
    pub(super) fn forward(
        self,
        [m, n, k]: [usize; 3],
        a: &Mat<'_, T>,
        b: &Mat<'_, T>,
        c: &mut MatMut<'_, T>,
        accumulate: bool,
    ) {
        check_operands([m, n, k], a, b);
        check_results([m, n], c);
        let alpha = if accumulate { T::one() } else { T::zero() };
        // SAFETY: every (row, column) of each operand was just shown to lie inside its slice, and `c` is borrowed mutably so that it
        // overlaps neither input.
        unsafe {
            (self.multiply)(
                m,
                n,
                k,
                c.data.as_mut_ptr().add(c.offset),
                c.col_step,
                c.row_step,
                accumulate,
                a.data.as_ptr().add(a.offset),
                a.col_step,
                a.row_step,
                b.data.as_ptr().add(b.offset),
                b.col_step,
                b.row_step,
                alpha,
                T::one(),
                false,
                false,
                false,
                Parallelism::None,
            );
        }
    }
}

/// Stands in for those functions under miri, which cannot run them. It touches the same elements through the same pointers.
///
/// # Safety
/// Each matrix lies in its memory, and the memory of `dst` overlaps no other.
#[cfg(miri)]
#[expect(clippy::too_many_arguments, reason = "those of the call it stands for")]
unsafe fn interpreted<T: Real>(
    m: usize,
    n: usize,
    k: usize,
    dst: *mut T,
    dst_cols: isize,
    dst_rows: isize,
    read_dst: bool,
    lhs: *const T,
    lhs_cols: isize,
    lhs_rows: isize,
    rhs: *const T,
    rhs_cols: isize,
    rhs_rows: isize,
    alpha: T,
    beta: T,
    _conj_dst: bool,
    _conj_lhs: bool,
    _conj_rhs: bool,
    _parallelism: Parallelism,
) {
    let at = |i: usize, rows: isize, j: usize, cols: isize| i as isize * rows + j as isize * cols;
    for i in 0..m {
        for j in 0..n {
            // SAFETY: the caller's promise, which is what miri checks here.
            unsafe {
                let out = dst.offset(at(i, dst_rows, j, dst_cols));
                let mut sum = if read_dst { alpha * *out } else { T::zero() };
                for q in 0..k {
                    let a = *lhs.offset(at(i, lhs_rows, q, lhs_cols));
                    sum = sum + beta * a * *rhs.offset(at(q, rhs_rows, j, rhs_cols));
                }
                *out = sum;
            }
        }
    }
}
