//! Rows of numbers that are stored in 16 bits: each is widened to where the cache nearest to a core holds it, and reduced there.
//!
//! What comes out is what comes out of the same numbers in `f32`, bit by bit: rows of any length are cut where those are.

use super::{BLOCK, Fold, MIDDLING, Max, Min, Prod, ReduceKind, Run, Squares, Sum};
use crate::View;
use crate::attention::{Stored, gather};
use crate::compiled::compiled;
use crate::pointwise::vectorized;
use crate::scratch::Room;
use crate::view::{for_each_row, is_row_major};
use core::marker::PhantomData;
use half::{bf16, f16};

/// A float of 16 bits.
pub trait Half: Stored<Acc = f32> + CompiledRows<Self> + crate::rows::CompiledFold<Self> {
    /// Whether any vectors can widen it. Of other types many at a time are widened, by what the processor has for that.
    const IN_REGISTERS: bool;
}

impl Half for f16 {
    const IN_REGISTERS: bool = false;
}

impl Half for bf16 {
    const IN_REGISTERS: bool = true;
}

compiled! { trait CompiledRows for Half: f16 bf16; {
    /// [`reduce`](super::reduce) over all dims but the first `kept` of them, of numbers that are widened row by row, as if all of them were.
    ///
    /// ```
    /// use half::bf16;
    /// use shard_kernels::{reduce::{reduce_rows, ReduceKind}, View};
    /// let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(bf16::from_f32);
    /// let mut out = [0.0f32; 2];
    /// reduce_rows(ReduceKind::Sum, &View::contiguous(&x, &[2, 3]), 1, &mut out);
    /// assert_eq!(out, [6.0, 15.0]);
    /// ```
    ///
    /// # Panics
    /// When there are not so many dims, or `out` has another number of elements than they.
    pub fn reduce_rows<T>(op: ReduceKind, x: &View<'_, T>, kept: usize, out: &mut [f32]) = rows_here;
} }

fn rows_here<T: Half>(op: ReduceKind, x: &View<'_, T>, kept: usize, out: &mut [f32]) {
    match op {
        ReduceKind::Sum => fold::<T, Sum>(x, kept, out),
        ReduceKind::SquareSum => fold::<T, Squares>(x, kept, out),
        ReduceKind::Prod => fold::<T, Prod>(x, kept, out),
        ReduceKind::Max => fold::<T, Max>(x, kept, out),
        ReduceKind::Min => fold::<T, Min>(x, kept, out),
    }
}

/// Numbers of short rows that are widened together.
const TOGETHER: usize = 4 * BLOCK;

fn fold<T: Half, F: Fold>(x: &View<'_, T>, kept: usize, out: &mut [f32]) {
    let (cells, row) = x.shape().split_at(kept);
    let (rows, n) = (
        cells.iter().product::<usize>(),
        row.iter().product::<usize>(),
    );
    assert!(
        out.len() == rows,
        "reduce: {rows} cells into {} elements",
        out.len()
    );
    let mut memory = Room::new();
    let room: &mut [f32] = memory.numbers(TOGETHER).take(TOGETHER);
    match n {
        1..=MIDDLING => short::<T, F>(x, kept, n, room, out),
        _ => each_row(x, kept, |i, at| {
            out[i] = long::<T, F>(x, kept, at, room) as f32;
        }),
    }
}

/// Visits rows: their numbers, and where they begin.
fn each_row<T>(x: &View<'_, T>, kept: usize, mut visit: impl FnMut(usize, usize)) {
    let (cells, steps) = (&x.shape()[..kept], &x.strides()[..kept]);
    let mut number = 0;
    for_each_row(cells, [steps], [x.offset()], |[at], n, [step]| {
        for i in 0..n as isize {
            visit(number, at.wrapping_add_signed(i * step));
            number += 1;
        }
    });
}

/// Rows of few numbers, as many at a time as there is room for.
fn short<T: Half, F: Fold>(
    x: &View<'_, T>,
    kept: usize,
    n: usize,
    room: &mut [f32],
    out: &mut [f32],
) {
    let together = TOGETHER / n;
    let reduce = |wide: &[f32], out: &mut [f32]| {
        super::fold::<f32, F>(&View::contiguous(wide, &[out.len(), n]), &[1], out);
    };
    if is_row_major(x.shape(), x.strides()) {
        let all = &x.data()[x.offset()..][..out.len() * n];
        for (rows, out) in all.chunks(together * n).zip(out.chunks_mut(together)) {
            let wide = &mut room[..rows.len()];
            T::widen_slice(rows, wide);
            reduce(wide, out);
        }
        return;
    }
    let mut filled = 0;
    each_row(x, kept, |i, at| {
        let mut row = room[filled * n..][..n].iter_mut();
        runs(x, kept, at, |at, len, step| {
            let to = row.by_ref().take(len).enumerate();
            for (k, to) in to {
                *to = x.data()[at.wrapping_add_signed(k as isize * step)].widen();
            }
        });
        filled += 1;
        if filled == together || i + 1 == out.len() {
            let first = i + 1 - filled;
            reduce(&room[..filled * n], &mut out[first..=i]);
            filled = 0;
        }
    });
}

/// The row that begins at `at`, block by block.
fn long<T: Half, F: Fold>(x: &View<'_, T>, kept: usize, at: usize, room: &mut [f32]) -> f64 {
    let (mut total, mut filled): (f64, usize) = (F::start(), 0);
    let mut join = |block: &[f32]| {
        let block = Run::<f32, F>(block, PhantomData);
        total = F::join(total, f64::from(vectorized(block)));
    };
    runs(x, kept, at, |at, n, step| {
        let mut first = 0;
        while first < n {
            let len = (n - first).min(BLOCK - filled);
            let from = at.wrapping_add_signed(first as isize * step);
            gather(x.data(), from, step, &mut room[filled..][..len]);
            (first, filled) = (first + len, filled + len);
            if filled == BLOCK {
                join(&room[..BLOCK]);
                filled = 0;
            }
        }
    });
    if filled > 0 {
        join(&room[..filled]);
    }
    total
}

/// Visits `(position, elements, step)` for the runs of the row that begins at `at`.
fn runs<T>(x: &View<'_, T>, kept: usize, at: usize, mut visit: impl FnMut(usize, usize, isize)) {
    let (shape, steps) = (&x.shape()[kept..], &x.strides()[kept..]);
    for_each_row(shape, [steps], [at], |[at], n, [step]| visit(at, n, step));
}
