//! Reductions in whole numbers: sums, products and extremes of integers and truth values, and how many elements of any type
//! are not zero.
//!
//! Everything is reduced as `i64`, which holds every such number, so the loops are the same for all types: rows are converted
//! chunk by chunk.

use super::View;
use super::reduce::{COLUMNS, Split};
use super::view::for_each_row;
use super::whole::{CHUNK, Number, Whole};
use crate::compiled::compiled;
use shard_device::Bool;

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
    fn fold(self, numbers: &[i64]) -> i64 {
        let numbers = numbers.iter().copied();
        match self {
            Self::Sum => numbers.fold(0, i64::wrapping_add),
            Self::Prod => numbers.fold(1, i64::wrapping_mul),
            Self::Max => numbers.fold(i64::MIN, i64::max),
            Self::Min => numbers.fold(i64::MAX, i64::min),
        }
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
    let mut chunk = [0; CHUNK];
    split.for_each_cell(x.offset(), COLUMNS, |cell, at, width, cell_step| {
        let mut totals = [op.identity(); COLUMNS];
        let totals = &mut totals[..width];
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
                    let folded = op.fold(&chunk[..len]);
                    op.join(totals, &[folded]);
                }
            },
        );
        for (j, &total) in totals.iter().enumerate() {
            put(cell.wrapping_add_signed(j as isize * cell_step), total);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Rng, naive_index};
    use shard_device::Bool;

    const ALL: [Tally; 4] = [Tally::Sum, Tally::Prod, Tally::Max, Tally::Min];

    fn cells<T: Copy>(x: &View<'_, T>, dims: &[usize], of: impl Fn(Vec<T>) -> i64) -> Vec<i64> {
        let kept: Vec<usize> = (0..x.ndim()).filter(|d| !dims.contains(d)).collect();
        let extents: Vec<usize> = kept.iter().map(|&d| x.shape()[d]).collect();
        let all = naive_index(x.shape());
        let of_cell = |cell: &Vec<usize>| {
            let members = all
                .iter()
                .filter(|at| kept.iter().zip(cell).all(|(&d, &c)| at[d] == c));
            of(members.map(|at| x.get(at)).collect())
        };
        naive_index(&extents).iter().map(of_cell).collect()
    }

    fn exact(op: Tally, numbers: &[i64]) -> i64 {
        let mut total = op.identity();
        for &x in numbers {
            total = match op {
                Tally::Sum => total.wrapping_add(x),
                Tally::Prod => total.wrapping_mul(x),
                Tally::Max => total.max(x),
                Tally::Min => total.min(x),
            };
        }
        total
    }

    #[test]
    fn every_reduction_over_every_choice_of_dims() {
        let mut rng = Rng::new(4);
        for round in 0..120 {
            let nd = rng.within(0, 4);
            let wide = if round % 8 == 0 { 700 } else { 9 };
            let shape: Vec<usize> = (0..nd)
                .map(|d| rng.within(0, if d == 0 { wide } else { 5 }))
                .collect();
            let count = shape.iter().product();
            let bytes: Vec<u8> = (0..count).map(|_| rng.within(0, 255) as u8).collect();
            let long: Vec<i64> = bytes
                .iter()
                .map(|&b| (i64::from(b) - 128).wrapping_mul(i64::MAX / 200))
                .collect();
            let mut order: Vec<usize> = (0..nd).collect();
            for i in (1..nd).rev() {
                order.swap(i, rng.within(0, i));
            }
            let dims: Vec<usize> = (0..nd).filter(|_| rng.within(0, 1) == 1).collect();
            let bytes = View::contiguous(&bytes, &shape).permute(&order);
            let long = View::contiguous(&long, &shape).permute(&order);
            for op in ALL {
                let wide = |v: Vec<u8>| -> Vec<i64> { v.into_iter().map(i64::from).collect() };
                let expected = cells(&bytes, &dims, |v| exact(op, &wide(v)));
                let mut found = vec![77; expected.len()];
                of_whole(op, &bytes, &dims, &mut |cell, x| found[cell] = x);
                assert_eq!(found, expected, "{op:?} of bytes");
                let expected = cells(&long, &dims, |v| exact(op, &v));
                of_whole(op, &long, &dims, &mut |cell, x| found[cell] = x);
                assert_eq!(found, expected, "{op:?} of longs");
                let truths =
                    |v: Vec<u8>| -> Vec<i64> { v.into_iter().map(|x| i64::from(x != 0)).collect() };
                let expected = cells(&bytes, &dims, |v| exact(op, &truths(v)));
                of_truths(op, &bytes, &dims, &mut |cell, x| found[cell] = x);
                assert_eq!(found, expected, "{op:?} of truths");
            }
        }
    }

    #[test]
    fn what_is_not_zero_is_true() {
        let x = [0.0_f32, -0.0, f32::NAN, 1e-45];
        let mut count = 0;
        of_truths(
            Tally::Sum,
            &View::contiguous(&x, &[4]),
            &[0],
            &mut |_, n| count = n,
        );
        assert_eq!(count, 2);
        let odd: &[Bool] = bytemuck::cast_slice(&[0_u8, 2, 3]);
        of_whole(
            Tally::Sum,
            &View::contiguous(odd, &[3]),
            &[0],
            &mut |_, n| count = n,
        );
        assert_eq!(count, 2);
        of_truths(
            Tally::Min,
            &View::contiguous(&x[..0], &[0]),
            &[0],
            &mut |_, n| count = n,
        );
        assert!(count > 0);
    }
}
