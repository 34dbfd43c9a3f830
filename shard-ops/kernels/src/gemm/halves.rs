//! Products of operands of `bf16`.

use super::by_unit::{by_unit, of_processor, rate};
use super::{Mat, MatMut, check_operands, check_results, gemm};
use super::{thin, tiles};
use crate::attention::gather;
use crate::scratch::Room;
use half::bf16;

/// Whether this processor multiplies numbers of `bf16` in fewer steps than numbers of single precision, and this crate knows how.
///
/// ```
/// // It may be asked on any processor.
/// let _ = shard_kernels::gemm::multiplies_halves();
/// ```
pub fn multiplies_halves() -> bool {
    rate() > 1
}

/// Whether products of so many rows and columns, sums of `inner` terms, are formed of numbers of `bf16` as they are stored: where the processor
/// [multiplies](multiplies_halves) them and that pays, and of few rows or columns on any, if their sums are long. Those of few or short sums take
/// less time by copies in `f32`.
///
/// ```
/// use shard_kernels::gemm::takes_halves;
/// assert!(takes_halves(1, 4096, 4096));
/// assert!(!takes_halves(100_000, 16, 16));
/// ```
pub fn takes_halves(rows: usize, columns: usize, inner: usize) -> bool {
    let (few, many) = (rows.min(columns), rows.max(columns));
    thin::are_few([few, many, inner]) || tiles::pays_stored([rows, columns, inner], rate())
}

/// As [`gemm`] of operands of `bf16`, whose products are summed in `f32`: of few rows or columns and long sums read as they are stored, others by the processor's unit for
/// them where it [has one](multiplies_halves), and otherwise of copies in `f32`. That unit takes products below 2^-126 for zero.
///
/// ```
/// use half::bf16;
/// use shard_kernels::gemm::{Mat, MatMut, gemm_halves};
/// let (a, b) = ([1.0, 2.0, 3.0, 4.0].map(bf16::from_f32), [bf16::ONE; 2]);
/// let mut c = [0.0; 2];
/// gemm_halves(2, 1, 2, Mat::row_major(&a, 2), Mat::row_major(&b, 1), MatMut::row_major(&mut c, 1), false);
/// assert_eq!(c, [3.0, 7.0]);
/// ```
///
/// # Panics
/// As [`gemm`].
pub fn gemm_halves(
    m: usize,
    n: usize,
    k: usize,
    a: Mat<'_, bf16>,
    b: Mat<'_, bf16>,
    c: MatMut<'_, f32>,
    accumulate: bool,
) {
    let extent = [m, n, k];
    if extent.contains(&0) {
        return widened(extent, a, b, c, accumulate);
    }
    check_operands(extent, &a, &b);
    check_results([m, n], &c);
    let mut to = MatMut {
        data: &mut *c.data,
        ..c
    };
    let (turned, lines) = ([n, m, k], (b.transposed(), a.transposed()));
    if thin::pays(extent, &b) {
        return thin::product(extent, &a, &b, &mut to, accumulate);
    }
    if thin::pays(turned, &lines.1) {
        return thin::product(turned, &lines.0, &lines.1, &mut to.transposed(), accumulate);
    }
    // A unit forms rows without gaps, and takes the product that has columns without as the transposed one.
    let (rows, columns) = if c.row_step == 1 { (n, m) } else { (m, n) };
    if tiles::pays_stored([rows, columns, k], rate())
        && let Some(unit) = of_processor()
    {
        let is_done = if c.row_step == 1 {
            by_unit(&unit, extent, &a, &b, &mut to, accumulate, widened)
        } else {
            let (a, b) = lines;
            let mut to = to.transposed();
            by_unit(&unit, turned, &a, &b, &mut to, accumulate, widened)
        };
        if is_done {
            return;
        }
    }
    widened(extent, a, b, c, accumulate);
}

/// The product of copies in single precision.
fn widened(
    [m, n, k]: [usize; 3],
    a: Mat<'_, bf16>,
    b: Mat<'_, bf16>,
    c: MatMut<'_, f32>,
    accumulate: bool,
) {
    let mut room = Room::new();
    let mut room = room.numbers::<f32>((m + n) * k);
    let a = wide_rows(&a, m, k, room.take(m * k));
    let b = wide_rows(&b.transposed(), n, k, room.take(n * k));
    gemm(m, n, k, a, b.transposed(), c, accumulate);
}

/// A copy of so many rows in single precision, which lies as they do if they lie in columns.
fn wide_rows<'t>(of: &Mat<'_, bf16>, rows: usize, cols: usize, to: &'t mut [f32]) -> Mat<'t, f32> {
    let (outer, inner, turned) = match of.row_step.abs() < of.col_step.abs() {
        false => ((rows, of.row_step), (cols, of.col_step), false),
        true => ((cols, of.col_step), (rows, of.row_step), true),
    };
    // Rows without gaps are one.
    let is_one = inner.1 == 1 && outer.1.cast_unsigned() == inner.0;
    let width = if is_one { rows * cols } else { inner.0 };
    for (i, to) in to.chunks_exact_mut(width.max(1)).enumerate() {
        let at = of.offset.wrapping_add_signed(i as isize * outer.1);
        gather(of.data, at, inner.1, to);
    }
    let copy = Mat::row_major(to, inner.0);
    if turned { copy.transposed() } else { copy }
}
