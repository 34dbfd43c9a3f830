//! Cells of numbers of 16 bits, such as rows: some at a time are widened to where the nearest cache holds them, and what is made of them is
//! rounded from there.

use crate::attention::Stored;
use crate::reduce::{BLOCK, Half};
use crate::scratch::Scratch;
use std::ops::Range;

/// Numbers of the cells that are widened together: so few that a processor sees those coming that follow, in each operand.
const TOGETHER: usize = 1024;
/// Columns that are widened together.
const STRIP: usize = 256;

/// Calls `f` for some cells of `cell` numbers at a time, with how many came before, the operands and the place of the result, in `f32`. The
/// result is stored in 16 bits too, or as it is made.
///
/// ```
/// use half::bf16;
/// use shard_kernels::{softmax::softmax_rows, together::by_cells};
/// let (x, mut y) = ([0.0, 0.0, 7.0, -1000.0].map(bf16::from_f32), [bf16::ZERO; 4]);
/// by_cells(2, [&x], &mut y, |_, [x], y| softmax_rows(false, x, 2, y));
/// assert_eq!(y.map(f32::from), [0.5, 0.5, 1.0, 0.0]);
/// ```
///
/// # Panics
/// When an operand has another length than the result.
pub fn by_cells<T: Half, U: Stored<Acc = f32>, const N: usize>(
    cell: usize,
    from: [&[T]; N],
    to: &mut [U],
    mut f: impl FnMut(usize, [&[f32]; N], &mut [f32]),
) {
    let lens = from.map(<[T]>::len);
    assert!(
        lens == [to.len(); N],
        "cells: {lens:?} numbers into {}",
        to.len()
    );
    if to.is_empty() {
        return;
    }
    let count = (TOGETHER / cell.max(1)).max(1) * cell.max(1);
    Scratch::with((N + 1) * count, |mut room| {
        let mut wide = [(); N].map(|()| room.take(count));
        let made = room.take(count);
        for (group, to) in to.chunks_mut(count).enumerate() {
            for (wide, from) in wide.iter_mut().zip(from) {
                let from = &from[group * count..][..to.len()];
                T::widen_slice(from, &mut wide[..to.len()]);
            }
            let of = wide.each_ref().map(|wide| &wide[..to.len()]);
            let before = group * count / cell.max(1);
            if let Some(to) = U::as_acc_mut(to) {
                f(before, of, to);
                continue;
            }
            let made = &mut made[..to.len()];
            f(before, of, made);
            U::narrow_slice(made, to);
        }
    });
}

/// The same of runs of `run` numbers each, one by one, and of long ones some numbers at a time: with the run's number, and how many of its numbers
/// came before.
///
/// # Panics
/// As [`by_cells`].
pub fn by_runs<T: Half, U: Stored<Acc = f32>, const N: usize>(
    run: usize,
    from: [&[T]; N],
    to: &mut [U],
    mut f: impl FnMut([usize; 2], [&[f32]; N], &mut [f32]),
) {
    if run > TOGETHER {
        for (number, to) in to.chunks_mut(run).enumerate() {
            let from = from.map(|from| &from[number * run..][..to.len()]);
            by_cells(1, from, to, |before, of, to| f([number, before], of, to));
        }
        return;
    }
    by_cells(run, from, to, |before, of, to| {
        for (i, to) in to.chunks_mut(run.max(1)).enumerate() {
            let of = of.map(|of| &of[i * run..][..to.len()]);
            f([before + i, 0], of, to);
        }
    });
}

/// Calls `f` for so many rows of some columns at a time, in `f32`, with which columns they are: the first rows of those, then the next ones, of which
/// the last may be fewer. Rows are `width` numbers each.
///
/// ```
/// use half::bf16;
/// use shard_kernels::together::by_columns;
/// let x = [1.0, 10.0, 2.0, 20.0, 3.0, 30.0].map(bf16::from_f32);
/// let mut sums = [0.0; 2];
/// by_columns(2, 2, [&x], |columns, [x]| {
///     for row in x.chunks(columns.len()) {
///         sums[columns.clone()].iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
///     }
/// });
/// assert_eq!(sums, [6.0, 60.0]);
/// ```
///
/// # Panics
/// When operands have different lengths, or not whole rows.
pub fn by_columns<T: Half, const N: usize>(
    together: usize,
    width: usize,
    from: [&[T]; N],
    mut f: impl FnMut(Range<usize>, [&[f32]; N]),
) {
    let lens = from.map(<[T]>::len);
    let rows = lens[0] / width.max(1);
    assert!(
        lens == [rows * width; N],
        "columns: {lens:?} numbers in rows of {width}"
    );
    Scratch::with(N * together * STRIP, |mut room| {
        let mut wide = [(); N].map(|()| room.take(together * STRIP));
        for first in (0..width).step_by(STRIP) {
            let len = STRIP.min(width - first);
            for row in (0..rows).step_by(together) {
                let count = together.min(rows - row);
                for (wide, from) in wide.iter_mut().zip(from) {
                    let from = from[row * width..].chunks(width).take(count);
                    for (wide, from) in wide.chunks_mut(len).zip(from) {
                        T::widen_slice(&from[first..][..len], wide);
                    }
                }
                let of = wide.each_ref().map(|wide| &wide[..count * len]);
                f(first..first + len, of);
            }
        }
    });
}

/// Calls `f` for some numbers of operands at a time, in `f32`: all but the last ones as many as there are in a block of sums.
///
/// # Panics
/// When operands have different lengths.
pub fn by_blocks<T: Half, const N: usize>(from: [&[T]; N], mut f: impl FnMut([&[f32]; N])) {
    by_some(BLOCK, from, |_, of| f(of));
}

/// Calls `f` for so many numbers of operands at a time, in `f32`, with how many came before. The last ones may be fewer.
///
/// # Panics
/// When operands have different lengths, or no numbers are taken at a time.
pub fn by_some<T: Half, const N: usize>(
    some: usize,
    from: [&[T]; N],
    mut f: impl FnMut(usize, [&[f32]; N]),
) {
    let lens = from.map(<[T]>::len);
    assert!(lens == [lens[0]; N], "blocks: {lens:?} numbers");
    Scratch::with(N * some, |mut room| {
        let mut wide = [(); N].map(|()| room.take(some));
        for first in (0..lens[0]).step_by(some) {
            let len = some.min(lens[0] - first);
            for (wide, from) in wide.iter_mut().zip(from) {
                T::widen_slice(&from[first..][..len], &mut wide[..len]);
            }
            f(first, wide.each_ref().map(|wide| &wide[..len]));
        }
    });
}
