//! Matrix products, through one function.
//!
//! They are computed by the crates `gemm`. Where the processor has a unit for products of `bf16`, that computes those of `bf16`: tiles of AMX, or
//! vectors of pairs of AVX-512. Tiles compute large products of single precision too: of numbers that come from 16 bits one each, of others as
//! sums of three of `bf16`, which is as exact and takes six (`gemm/parts.rs`). Products of integers, which these have not, are loops over tiles
//! (`gemm/whole.rs`), and those of a few numbers, or of short rows with a vector, plain loops (`gemm/tiny.rs`). With AVX2 so are those of a matrix
//! and a vector (`gemm/vector.rs`).

#[cfg(amx)]
#[expect(
    unsafe_code,
    reason = "instructions that Rust has no functions for yet"
)]
mod amx;
mod by_unit;
mod few;
mod halves;
mod outer;
mod packed;
#[cfg(pairs)]
#[expect(unsafe_code, reason = "vectors of a processor that may have them")]
mod pairs;
mod parts;
#[expect(unsafe_code, reason = "the call of the crate that multiplies matrices")]
mod product;
mod range;
mod thin;
mod tiles;
mod tiny;
mod unit;
mod vector;
mod whole;

#[doc(hidden)]
pub use self::by_unit::inside;
pub(crate) use self::by_unit::{of_processor, rate};
pub use self::halves::{gemm_halves, multiplies_halves, takes_halves};
pub(crate) use self::packed::{Operand, Packed, are_near, multiply, stay_finite};
pub(crate) use self::parts::{LINES, Lines, Number, Side};
pub use self::product::Product;
pub(crate) use self::range::Range;
pub(crate) use self::thin::product_of_few;
#[doc(hidden)]
pub use self::unit::Emulated;
pub(crate) use self::unit::{Panel, Rows, TILES, Term, Unit};
pub use self::whole::{Integer, gemm_whole};

use super::{Real, View, ViewMut};
use crate::view::for_each_row;

/// A strided matrix to read: element `(i, j)` is `data[offset + i * row_step + j * col_step]`.
#[derive(Clone, Copy, Debug)]
pub struct Mat<'a, T> {
    /// The memory.
    pub data: &'a [T],
    /// Position of element `(0, 0)`.
    pub offset: usize,
    /// Step from a row to the next.
    pub row_step: isize,
    /// Step from a column to the next.
    pub col_step: isize,
}

/// A strided matrix to write.
#[derive(Debug)]
pub struct MatMut<'a, T> {
    /// The memory.
    pub data: &'a mut [T],
    /// Position of element `(0, 0)`.
    pub offset: usize,
    /// Step from a row to the next.
    pub row_step: isize,
    /// Step from a column to the next.
    pub col_step: isize,
}

impl<'a, T> Mat<'a, T> {
    /// The row-major matrix of `cols` columns that `data` starts with.
    pub fn row_major(data: &'a [T], cols: usize) -> Self {
        Self {
            data,
            offset: 0,
            row_step: cols as isize,
            col_step: 1,
        }
    }

    /// From another row and column on.
    fn part(&self, row: usize, col: usize) -> Self {
        let steps = row as isize * self.row_step + col as isize * self.col_step;
        Self {
            offset: self.offset.wrapping_add_signed(steps),
            ..*self
        }
    }

    /// Element `(i, j)`.
    #[inline(always)]
    fn at(&self, i: usize, j: usize) -> T
    where
        T: Copy,
    {
        let step = i as isize * self.row_step + j as isize * self.col_step;
        self.data[self.offset.wrapping_add_signed(step)]
    }

    /// The transpose, without a copy.
    pub fn transposed(self) -> Self {
        Self {
            row_step: self.col_step,
            col_step: self.row_step,
            ..self
        }
    }
}

impl<'a, T> MatMut<'a, T> {
    /// The transpose, without a copy.
    pub(crate) fn transposed(self) -> Self {
        Self {
            row_step: self.col_step,
            col_step: self.row_step,
            ..self
        }
    }

    /// The row-major matrix of `cols` columns that `data` starts with.
    pub fn row_major(data: &'a mut [T], cols: usize) -> Self {
        Self {
            data,
            offset: 0,
            row_step: cols as isize,
            col_step: 1,
        }
    }
}

/// `c = a · b`, or `c += a · b` with `accumulate`; `a` is `m x k`, `b` is `k x n`, with any strides.
///
/// ```
/// use shard_kernels::gemm::{gemm, Mat, MatMut};
/// let (a, b) = ([1.0, 2.0, 3.0, 4.0], [1.0, 1.0]);
/// let mut c = [0.0; 2];
/// gemm(2, 1, 2, Mat::row_major(&a, 2), Mat::row_major(&b, 1), MatMut::row_major(&mut c, 1), false);
/// assert_eq!(c, [3.0, 7.0]);
/// ```
///
/// # Panics
/// When an operand's memory does not hold its matrix, or a step of 0 makes elements of `c` coincide.
pub fn gemm<T: Real>(
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
    let MatMut {
        data: c_data,
        offset: c_offset,
        row_step: c_rows,
        col_step: c_cols,
    } = c;
    if k == 0 {
        if !accumulate {
            for i in 0..m {
                for j in 0..n {
                    c_data[c
                        .offset
                        .wrapping_add_signed(i as isize * c_rows + j as isize * c_cols)] =
                        T::zero();
                }
            }
        }
        return;
    }
    check_operands([m, n, k], &a, &b);
    if tiny::pays([m, n, k], &a, &b, accumulate) {
        let mut c = MatMut {
            data: c_data,
            offset: c_offset,
            row_step: c_rows,
            col_step: c_cols,
        };
        return tiny::product([m, n, k], &a, &b, &mut c, accumulate);
    }
    // Tiles are of columns. Where the rows of c lie closer together, the transposed product is the same and better.
    let (m, n, a, b, c_rows, c_cols) = if c_cols.abs() < c_rows.abs() {
        (n, m, b.transposed(), a.transposed(), c_cols, c_rows)
    } else {
        (m, n, a, b, c_rows, c_cols)
    };
    // The product goes forward in memory, so what is stored backward is indexed from its other end.
    let (mut a, mut b) = (a, b);
    let (mut c_offset, mut c_rows, mut c_cols) = (c_offset, c_rows, c_cols);
    if c_rows < 0 {
        turn(m, &mut c_offset, &mut c_rows);
        turn(m, &mut a.offset, &mut a.row_step);
    }
    if c_cols < 0 {
        turn(n, &mut c_offset, &mut c_cols);
        turn(n, &mut b.offset, &mut b.col_step);
    }
    if a.col_step < 0 {
        turn(k, &mut a.offset, &mut a.col_step);
        turn(k, &mut b.offset, &mut b.row_step);
    }
    let mut c = MatMut {
        data: c_data,
        offset: c_offset,
        row_step: c_rows,
        col_step: c_cols,
    };
    if outer::pays([m, n, k], &a, &c) {
        return outer::product([m, n], &a, &b, &mut c, accumulate);
    }
    let product = T::product();
    if product.in_tiles([m, n, k], &a, &b, &mut c, accumulate) {
        return;
    }
    if vector::product([m, n, k], &a, &b, &mut c, accumulate) {
        return;
    }
    if few::pays([m, n, k], &a) {
        few::product([m, n, k], &a, &b, &mut c, accumulate);
    } else {
        product.forward([m, n, k], &a, &b, &mut c, accumulate);
    }
}

/// So many products as [`gemm`] computes them, of extents `[m, n, k]`: the matrices of each lie so far behind those of the one before. Those of a
/// few numbers are computed together, with the same bits.
///
/// ```
/// use shard_kernels::gemm::{gemm_many, Mat, MatMut};
/// // Three matrices of 1 x 2 with one column.
/// let (a, b, mut c) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 10.0], [0.0; 3]);
/// let (left, right) = (Mat::row_major(&a, 2), Mat::row_major(&b, 1));
/// gemm_many([1, 1, 2], left, right, MatMut::row_major(&mut c, 1), (3, [2, 0, 1]), false);
/// assert_eq!(c, [21.0, 43.0, 65.0]);
/// ```
///
/// # Panics
/// As [`gemm`], for any of the products.
pub fn gemm_many<T: Real>(
    extent: [usize; 3],
    a: Mat<'_, T>,
    b: Mat<'_, T>,
    mut c: MatMut<'_, T>,
    (count, steps): (usize, [isize; 3]),
    accumulate: bool,
) {
    if tiny::products(extent, [&a, &b], &mut c, (count, steps), accumulate) {
        return;
    }
    let [m, n, k] = extent;
    each_product(a, b, &mut c, (count, steps), |a, b, c| {
        gemm(m, n, k, a, b, c, accumulate);
    });
}

/// Visits the matrices of so many products, those of each so far behind those of the one before: for kernels that multiply two at a time.
///
/// ```
/// use shard_kernels::gemm::{each_product, gemm_whole, Mat, MatMut};
/// // Two dot products with one vector.
/// let (a, b, mut c) = ([1, 2, 3, 4], [1, 10], [0_i64; 2]);
/// let (left, right) = (Mat::row_major(&a, 2), Mat::row_major(&b, 1));
/// each_product(left, right, &mut MatMut::row_major(&mut c, 1), (2, [2, 0, 1]), |a, b, c| {
///     gemm_whole(1, 1, 2, a, b, c, false);
/// });
/// assert_eq!(c, [21, 43]);
/// ```
pub fn each_product<E: Copy, T>(
    a: Mat<'_, E>,
    b: Mat<'_, E>,
    c: &mut MatMut<'_, T>,
    (count, steps): (usize, [isize; 3]),
    mut visit: impl FnMut(Mat<'_, E>, Mat<'_, E>, MatMut<'_, T>),
) {
    for r in 0..count as isize {
        let at = |offset: usize, step: isize| offset.wrapping_add_signed(r * step);
        let left = Mat {
            offset: at(a.offset, steps[0]),
            ..a
        };
        let right = Mat {
            offset: at(b.offset, steps[1]),
            ..b
        };
        let to = MatMut {
            data: &mut *c.data,
            offset: at(c.offset, steps[2]),
            row_step: c.row_step,
            col_step: c.col_step,
        };
        visit(left, right, to);
    }
}

/// Counts `n` indices from the other end.
fn turn(n: usize, offset: &mut usize, step: &mut isize) {
    *offset = offset.wrapping_add_signed((n as isize - 1) * *step);
    *step = -*step;
}

/// `out[.., i, j] = Σ_k a[.., i, k] b[.., k, j]` over the last two dims; leading dims of `a` and `b` are the batch,
/// already broadcast to those of `out` (strides 0 repeat).
///
/// Transposed operands are views with their last two dims swapped. Consecutive batches that share `b` and continue the rows
/// of `a` and `out` run as one product.
///
/// # Panics
/// When the shapes contradict each other.
pub fn matmul<T: Real>(
    a: &View<'_, T>,
    b: &View<'_, T>,
    out: &mut ViewMut<'_, T>,
    accumulate: bool,
) {
    let nd = out.ndim();
    assert!(
        nd >= 2 && a.ndim() == nd && b.ndim() == nd,
        "matmul: {} and {} dims into {nd}",
        a.ndim(),
        b.ndim()
    );
    let batch = nd - 2;
    let (m, n, k) = (
        out.shape()[batch],
        out.shape()[batch + 1],
        a.shape()[batch + 1],
    );
    let fits = a.shape()[..batch] == out.shape()[..batch]
        && b.shape()[..batch] == out.shape()[..batch]
        && a.shape()[batch] == m
        && b.shape()[batch..] == [k, n];
    assert!(
        fits,
        "matmul: {:?} by {:?} into {:?}",
        a.shape(),
        b.shape(),
        out.shape()
    );

    let [ar, ac] = [a.strides()[batch], a.strides()[batch + 1]];
    let [br, bc] = [b.strides()[batch], b.strides()[batch + 1]];
    let [or, oc] = [out.strides()[batch], out.strides()[batch + 1]];
    let (shape, a_steps) = (out.shape()[..batch].to_vec(), a.strides()[..batch].to_vec());
    let (b_steps, out_steps) = (
        b.strides()[..batch].to_vec(),
        out.strides()[..batch].to_vec(),
    );
    let out_offset = out.offset();
    let data = out.data_mut();
    for_each_row(
        &shape,
        [&a_steps, &b_steps, &out_steps],
        [a.offset(), b.offset(), out_offset],
        |at, count, steps| {
            let rows_continue =
                steps[1] == 0 && steps[0] == ar * m as isize && steps[2] == or * m as isize;
            let (runs, rows) = if rows_continue {
                (1, m * count)
            } else {
                (count, m)
            };
            let extent = [rows, n, k];
            let left = Mat {
                data: a.data(),
                offset: at[0],
                row_step: ar,
                col_step: ac,
            };
            let right = Mat {
                data: b.data(),
                offset: at[1],
                row_step: br,
                col_step: bc,
            };
            let to = MatMut {
                data: &mut *data,
                offset: at[2],
                row_step: or,
                col_step: oc,
            };
            gemm_many(extent, left, right, to, (runs, steps), accumulate);
        },
    );
}

/// Fails unless both operands lie in their memory.
fn check_operands<T, U>([m, n, k]: [usize; 3], a: &Mat<'_, T>, b: &Mat<'_, U>) {
    let (len, rows, cols) = (a.data.len(), (m, a.row_step), (k, a.col_step));
    check("a", len, a.offset, rows, cols);
    let (len, rows, cols) = (b.data.len(), (k, b.row_step), (n, b.col_step));
    check("b", len, b.offset, rows, cols);
}

/// Fails unless the results lie in their memory, each in a place of its own.
fn check_results<T>([m, n]: [usize; 2], c: &MatMut<'_, T>) {
    let (rows, cols) = ((m, c.row_step), (n, c.col_step));
    check("c", c.data.len(), c.offset, rows, cols);
    assert!(
        (m <= 1 || c.row_step != 0) && (n <= 1 || c.col_step != 0),
        "gemm: elements of c coincide"
    );
}

/// Fails unless all elements lie in memory of this length.
#[inline]
fn check(name: &str, len: usize, offset: usize, rows: (usize, isize), cols: (usize, isize)) {
    let fits = || {
        let reach = |(n, step): (usize, isize)| isize::try_from(n - 1).ok()?.checked_mul(step);
        let (r, c) = (reach(rows)?, reach(cols)?);
        let offset = isize::try_from(offset).ok()?;
        let low = offset.checked_add(r.min(0))?.checked_add(c.min(0))?;
        let high = offset.checked_add(r.max(0))?.checked_add(c.max(0))?;
        Some(low >= 0 && (high as usize) < len)
    };
    if fits() != Some(true) {
        outside(name, len, offset, rows, cols);
    }
}

#[cold]
fn outside(name: &str, len: usize, offset: usize, rows: (usize, isize), cols: (usize, isize)) -> ! {
    let reach = |(n, step): (usize, isize)| (n as i128 - 1) * step as i128;
    let (r, c) = (reach(rows), reach(cols));
    let low = offset as i128 + r.min(0) + c.min(0);
    let high = offset as i128 + r.max(0) + c.max(0);
    panic!("gemm: operand {name} reaches {low}..={high} of {len} elements");
}
