//! Cells of numbers of 16 bits, such as rows: some at a time are widened to where the nearest cache holds them, and what is made of them is
//! rounded from there.

use crate::attention::Stored;
use crate::reduce::{BLOCK, Half};
use crate::scratch::Scratch;

/// Numbers of the cells that are widened together: so few that a processor sees those coming that follow, in each operand.
const TOGETHER: usize = 1024;

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

/// Calls `f` for some numbers of operands at a time, in `f32`: all but the last ones as many as there are in a block of sums.
///
/// # Panics
/// When operands have different lengths.
pub fn by_blocks<T: Half, const N: usize>(from: [&[T]; N], mut f: impl FnMut([&[f32]; N])) {
    let lens = from.map(<[T]>::len);
    assert!(lens == [lens[0]; N], "blocks: {lens:?} numbers");
    Scratch::with(N * BLOCK, |mut room| {
        let mut wide = [(); N].map(|()| room.take(BLOCK));
        for first in (0..lens[0]).step_by(BLOCK) {
            let len = BLOCK.min(lens[0] - first);
            for (wide, from) in wide.iter_mut().zip(from) {
                T::widen_slice(&from[first..][..len], &mut wide[..len]);
            }
            f(wide.each_ref().map(|wide| &wide[..len]));
        }
    });
}
