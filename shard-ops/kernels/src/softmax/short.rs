//! Softmax of rows of few elements, many rows at a time: a row to a lane. To find the largest element of one row by itself, or its sum,
//! takes longer than its exponentials.

use super::{above, below, pair};
use crate::Real;
use crate::arrays::{self, numbered};
use crate::exp::exp_in;
use crate::turn::{SIDE, turned};
use pulp::Simd;

/// Rows of as many elements and more are not short: of 64 a row by itself takes as long.
const LONG: usize = 64;
/// How many rows go together.
pub(crate) const ROWS: usize = 16;

/// Whether rows of so many elements are short.
pub(super) fn is_short(n: usize) -> bool {
    n < LONG
}

/// Elements of rows, those of a column side by side.
type Columns<T> = [[T; ROWS]; LONG];

/// Writes the softmax of short rows, or its logarithm.
#[inline(always)]
pub(super) fn values<T: Real, S: Simd>(log: bool, x: &[T], n: usize, out: &mut [T]) {
    let mut columns: Columns<T> = [[T::zero(); ROWS]; LONG];
    let columns = &mut columns[..n];
    for (x, out) in x.chunks(ROWS * n).zip(out.chunks_mut(ROWS * n)) {
        load(x, n, columns);
        let mut max = [T::neg_infinity(); ROWS];
        for column in &*columns {
            for (max, x) in max.iter_mut().zip(column) {
                // NaN is passed over here, and kept by the sum.
                *max = if *x > *max { *x } else { *max };
            }
        }
        let mut total = [T::zero(); ROWS];
        for column in &mut *columns {
            for ((x, max), total) in column.iter_mut().zip(&max).zip(&mut total) {
                let below = *x - *max;
                let e = exp_in::<S, T>(below);
                *total += e;
                *x = if log { below } else { e };
            }
        }
        if log {
            let total = arrays::each(total, |total| T::of(total.wide().ln()));
            each(columns, |x, row| x - total[row]);
        } else {
            let scale = arrays::each(total, |total| T::of(1.0 / total.wide()));
            each(columns, |x, row| x * scale[row]);
        }
        store(columns, n, out);
    }
}

/// Writes the maximum of each short row and the sum of exponentials below it.
#[inline(always)]
pub(super) fn pairs<T: Real, S: Simd>(x: &[T], n: usize, pairs: &mut [f64]) {
    let mut columns: Columns<T> = [[T::zero(); ROWS]; LONG];
    let columns = &mut columns[..n];
    for (x, pairs) in x.chunks(ROWS * n).zip(pairs.chunks_mut(2 * ROWS)) {
        load(x, n, columns);
        let mut max = [T::neg_infinity(); ROWS];
        for column in &*columns {
            for (max, x) in max.iter_mut().zip(column) {
                *max = above(*max, *x);
            }
        }
        let mut total = [0.0; ROWS];
        for column in &*columns {
            for ((x, max), total) in column.iter().zip(&max).zip(&mut total) {
                *total += exp_in::<S, T>(below(*x, *max)).wide();
            }
        }
        for ((to, max), total) in pairs.as_chunks_mut().0.iter_mut().zip(max).zip(total) {
            *to = pair(max, total);
        }
    }
}

/// Writes the derivative of [`values`], given the result and its cotangent.
#[inline(always)]
pub(super) fn gradients<T: Real, S: Simd>(log: bool, y: &[T], dy: &[T], n: usize, out: &mut [T]) {
    let mut both: [Columns<T>; 2] = [[[T::zero(); ROWS]; LONG]; 2];
    let [columns, cotangents] = &mut both;
    let (columns, cotangents) = (&mut columns[..n], &mut cotangents[..n]);
    let rows = y.chunks(ROWS * n).zip(dy.chunks(ROWS * n));
    for ((y, dy), out) in rows.zip(out.chunks_mut(ROWS * n)) {
        load(y, n, columns);
        load(dy, n, cotangents);
        let mut total = [T::zero(); ROWS];
        for (y, dy) in columns.iter().zip(&*cotangents) {
            for ((y, dy), total) in y.iter().zip(dy).zip(&mut total) {
                *total += if log { *dy } else { *y * *dy };
            }
        }
        for (y, dy) in columns.iter_mut().zip(&*cotangents) {
            for ((y, dy), total) in y.iter_mut().zip(dy).zip(&total) {
                *y = if log {
                    *dy - exp_in::<S, T>(*y) * *total
                } else {
                    *y * (*dy - *total)
                };
            }
        }
        store(columns, n, out);
    }
}

#[inline(always)]
fn each<T: Copy>(columns: &mut [[T; ROWS]], f: impl Fn(T, usize) -> T) {
    for column in columns {
        for (row, x) in column.iter_mut().enumerate() {
            *x = f(*x, row);
        }
    }
}

/// Reads rows, at most so many as columns have room for; of others there are zeros.
#[inline(always)]
pub(crate) fn load<T: Real>(x: &[T], n: usize, columns: &mut [[T; ROWS]]) {
    if x.len() < ROWS * n {
        columns.fill([T::zero(); ROWS]);
    }
    let rows = x.len() / n;
    let whole = [rows / SIDE * SIDE, n / SIDE * SIDE];
    for row in (0..whole[0]).step_by(SIDE) {
        let lines: [&[T]; SIDE] = numbered(|i| &x[(row + i) * n..][..n]);
        for (c, to) in (0..whole[1])
            .step_by(SIDE)
            .zip(columns.chunks_exact_mut(SIDE))
        {
            let block = arrays::each(lines, |line| four(line, c));
            for (to, turned) in to.iter_mut().zip(turned(block)) {
                to[row..row + SIDE].copy_from_slice(&turned);
            }
        }
        for (c, to) in columns.iter_mut().enumerate().skip(whole[1]) {
            for (to, line) in to[row..row + SIDE].iter_mut().zip(lines) {
                *to = line[c];
            }
        }
    }
    for row in whole[0]..rows {
        for (to, x) in columns.iter_mut().zip(&x[row * n..][..n]) {
            to[row] = *x;
        }
    }
}

/// Writes rows, those that columns have room for at most.
#[inline(always)]
pub(crate) fn store<T: Real>(columns: &[[T; ROWS]], n: usize, out: &mut [T]) {
    let rows = out.len() / n;
    let whole = rows / SIDE * SIDE;
    for (row, lines) in (0..whole).step_by(SIDE).zip(out.chunks_exact_mut(SIDE * n)) {
        let (from, rest) = columns.as_chunks::<SIDE>();
        for (c, from) in (0..n).step_by(SIDE).zip(from) {
            let block = numbered(|i| four(&from[i], row));
            for (i, turned) in turned(block).iter().enumerate() {
                lines[i * n + c..][..SIDE].copy_from_slice(turned);
            }
        }
        for (c, from) in (n - rest.len()..n).zip(rest) {
            for i in 0..SIDE {
                lines[i * n + c] = from[row + i];
            }
        }
    }
    for (row, line) in (whole..rows).zip(out[whole * n..].chunks_exact_mut(n)) {
        for (to, from) in line.iter_mut().zip(columns) {
            *to = from[row];
        }
    }
}

/// The elements of a block's row, of those from `at` on.
#[inline(always)]
fn four<T: Copy>(of: &[T], at: usize) -> [T; SIDE] {
    let of = &of[at..at + SIDE];
    [of[0], of[1], of[2], of[3]]
}
