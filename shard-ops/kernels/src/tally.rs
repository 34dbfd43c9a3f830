//! Reductions in whole numbers: sums, products and extremes of integers and truth values, and how many elements of any type
//! are not zero.
//!
//! Everything is reduced as `i64`, which holds every such number, so the loops are the same for all types: rows are converted
//! chunk by chunk.

use super::View;
use super::pointwise::vectorized;
use super::reduce::{COLUMNS, Split};
use super::view::for_each_row;
use super::whole::{CHUNK, Number, Whole};
use crate::compiled::compiled;
use pulp::{Simd, WithSimd};
use shard_device::Bool;

/// Independent totals of numbers that lie side by side.
const LANES: usize = 32;

/// What to reduce with. Empty sets give the identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tally {
    /// Sum, wrapping; 0 when empty.
    Sum,
    /// Product, wrapping; 1 when empty.
    Prod,
    /// Largest.
    Max,
    /// Smallest.
    Min,
}

impl Tally {
    /// What changes nothing.
    pub const fn identity(self) -> i64 {
        match self {
            Self::Sum => 0,
            Self::Prod => 1,
            Self::Max => i64::MIN,
            Self::Min => i64::MAX,
        }
    }

    /// Joins each number to its total.
    fn join(self, totals: &mut [i64], numbers: &[i64]) {
        match self {
            Self::Sum => each(totals, numbers, i64::wrapping_add),
            Self::Prod => each(totals, numbers, i64::wrapping_mul),
            Self::Max => each(totals, numbers, i64::max),
            Self::Min => each(totals, numbers, i64::min),
        }
    }

    /// All numbers as one.
    #[inline]
    fn fold(self, numbers: impl Iterator<Item = i64>) -> i64 {
        match self {
            Self::Sum => numbers.fold(0, i64::wrapping_add),
            Self::Prod => numbers.fold(1, i64::wrapping_mul),
            Self::Max => numbers.fold(i64::MIN, i64::max),
            Self::Min => numbers.fold(i64::MAX, i64::min),
        }
    }
}

/// Numbers that lie side by side, as one.
struct Chunk<'a>(Tally, &'a [i64]);

impl WithSimd for Chunk<'_> {
    type Output = i64;

    /// By lanes: whole numbers come to the same in any order.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> i64 {
        let Self(op, numbers) = self;
        let (whole, rest) = numbers.as_chunks::<LANES>();
        let mut lanes = [op.identity(); LANES];
        match op {
            Tally::Sum => whole
                .iter()
                .for_each(|x| each(&mut lanes, x, i64::wrapping_add)),
            Tally::Prod => whole
                .iter()
                .for_each(|x| each(&mut lanes, x, i64::wrapping_mul)),
            Tally::Max => whole.iter().for_each(|x| each(&mut lanes, x, i64::max)),
            Tally::Min => whole.iter().for_each(|x| each(&mut lanes, x, i64::min)),
        }
        op.fold(lanes.iter().chain(rest).copied())
    }
}

#[inline(always)]
fn each(totals: &mut [i64], numbers: &[i64], f: impl Fn(i64, i64) -> i64) {
    for (total, &number) in totals.iter_mut().zip(numbers) {
        *total = f(*total, number);
    }
}

/// Reduces the integers or truth values of `x` over `dims`; `put` gets each cell, row-major over the remaining dims, and its
/// value.
///
/// ```
/// use shard_kernels::{tally::{of_whole, Tally}, View};
/// let x = [200u8, 100, 7, 3, 2, 1];
/// let mut out = [0; 3];
/// of_whole(Tally::Sum, &View::contiguous(&x, &[2, 3]), &[0], &mut |cell, sum| out[cell] = sum);
/// assert_eq!(out, [203, 102, 8]);
/// ```
///
/// # Panics
/// When a dim is out of range or named twice.
pub fn of_whole<T: Whole>(
    op: Tally,
    x: &View<'_, T>,
    dims: &[usize],
    put: &mut dyn FnMut(usize, i64),
) {
    reduce(op, x, dims, T::wide, put);
}

compiled! { trait Compiled for Number: f32 f64 i64 i32 u8 Bool; {
    /// Reduces whether the elements of `x` are [true](Number::is_true), 0 or 1, as [`of_whole`] does numbers: a sum counts them, the
    /// largest says whether any is, the smallest whether all are (and of none, more than 0).
    ///
    /// # Panics
    /// As [`of_whole`].
    pub fn of_truths<T>(
        op: Tally,
        x: &View<'_, T>,
        dims: &[usize],
        put: &mut dyn FnMut(usize, i64),
    ) = of_truths_here;
} }

fn of_truths_here<T: Number>(
    op: Tally,
    x: &View<'_, T>,
    dims: &[usize],
    put: &mut dyn FnMut(usize, i64),
) {
    reduce(op, x, dims, |x| i64::from(x.is_true()), put);
}

fn reduce<T: Copy>(
    op: Tally,
    x: &View<'_, T>,
    dims: &[usize],
    number: impl Fn(T) -> i64,
    put: &mut dyn FnMut(usize, i64),
) {
    let split = Split::new(x.shape(), x.strides(), dims);
    let data = x.data();
    if let Some(n) = split.short_rows() {
        let rows = data[x.offset()..][..split.cells() * n].chunks_exact(n);
        return rows
            .enumerate()
            .for_each(|(cell, row)| put(cell, op.fold(row.iter().map(|x| number(*x)))));
    }
    // Made once: to make them takes longer than to look at a short row.
    let (mut chunk, mut totals) = ([0; CHUNK], [0; COLUMNS]);
    split.for_each_cell(x.offset(), COLUMNS, |cell, at, width, cell_step| {
        let totals = &mut totals[..width];
        totals.fill(op.identity());
        for_each_row(
            &split.reduced,
            [&split.reduced_steps],
            [at],
            |[at], n, [step]| {
                if width > 1 {
                    for i in 0..n as isize {
                        let from = at.wrapping_add_signed(i * step);
                        for (to, x) in chunk.iter_mut().zip(&data[from..from + width]) {
                            *to = number(*x);
                        }
                        op.join(totals, &chunk[..width]);
                    }
                    return;
                }
                for first in (0..n).step_by(CHUNK) {
                    let len = CHUNK.min(n - first);
                    let at = at.wrapping_add_signed(first as isize * step);
                    if step == 1 {
                        for (to, x) in chunk.iter_mut().zip(&data[at..at + len]) {
                            *to = number(*x);
                        }
                    } else {
                        for (i, to) in chunk[..len].iter_mut().enumerate() {
                            *to = number(data[at.wrapping_add_signed(i as isize * step)]);
                        }
                    }
                    let folded = vectorized(Chunk(op, &chunk[..len]));
                    op.join(totals, &[folded]);
                }
            },
        );
        for (j, &total) in totals.iter().enumerate() {
            put(cell.wrapping_add_signed(j as isize * cell_step), total);
        }
    });
}
