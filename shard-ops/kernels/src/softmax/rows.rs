//! Softmax of rows that are short enough to stay in a cache from their maximum to their last value: each is read from memory once,
//! and its exponentials are taken once. So is its derivative.

use super::{middling, short};
use crate::Real;
use crate::compiled::compiled;
use crate::exp::exp_in;
use crate::pointwise::vectorized;
use crate::prefetch::{AHEAD, next_rows};
use crate::reduce::{BLOCK, LANES, by_lanes, largest, sum_of_lanes};
use pulp::{Simd, WithSimd};

/// Elements of a row that no vector is left over of.
const UNIT: usize = 32;
/// How far ahead values ask for memory: less far than others, as the next row is read for its largest element already.
const SOON: usize = AHEAD / 2;

compiled! { trait CompiledRows for Real: f32 f64; {
    /// The softmax, or with `log` its logarithm, of every row of `n` elements. A row whose maximum is infinite has none: NaN.
    ///
    /// ```
    /// use shard_kernels::softmax::softmax_rows;
    /// let mut y = [0.0f32; 4];
    /// softmax_rows(false, &[0.0, 0.0, 7.0, -1000.0], 2, &mut y);
    /// assert_eq!(y, [0.5, 0.5, 1.0, 0.0]);
    /// ```
    ///
    /// # Panics
    /// When `x` and `out` are not equally many whole rows.
    pub fn softmax_rows<T>(log: bool, x: &[T], n: usize, out: &mut [T]) = softmax_rows_here;

    /// The derivative of [`softmax_rows`], given its result `y` and the cotangent: `y (dy - Σ y dy)`, or with `log`
    /// `dy - exp(y) Σ dy`, summed over rows of `n` elements.
    ///
    /// # Panics
    /// When the slices are not equally many whole rows.
    pub fn softmax_rows_grad<T>(
        log: bool,
        y: &[T],
        dy: &[T],
        n: usize,
        out: &mut [T],
    ) = softmax_rows_grad_here;
} }

fn softmax_rows_here<T: Real>(log: bool, x: &[T], n: usize, out: &mut [T]) {
    check(&[x.len()], n, out.len());
    if n > 0 {
        vectorized(Values { log, x, n, out });
    }
}

fn softmax_rows_grad_here<T: Real>(log: bool, y: &[T], dy: &[T], n: usize, out: &mut [T]) {
    check(&[y.len(), dy.len()], n, out.len());
    if n > 0 {
        vectorized(Gradients { log, y, dy, n, out });
    }
}

fn check(from: &[usize], n: usize, to: usize) {
    let whole = if n == 0 {
        to == 0
    } else {
        to.is_multiple_of(n)
    };
    assert!(
        whole && from.iter().all(|len| *len == to),
        "softmax: {from:?} elements in rows of {n} into {to}"
    );
}

struct Values<'a, T> {
    log: bool,
    x: &'a [T],
    n: usize,
    out: &'a mut [T],
}

impl<T: Real> WithSimd for Values<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if middling::are_there(self.x.len() / self.n, self.n) {
            middling::values::<T, S>(self.log, self.x, self.n, self.out);
        } else if short::is_short(self.n) {
            short::values::<T, S>(self.log, self.x, self.n, self.out);
        } else {
            self.run(simd);
        }
    }
}

impl<T: Real> Values<'_, T> {
    /// A row waits for its largest element and then for its sum, each the end of a chain of instructions. So the former is found a row
    /// ahead, and what the latter is needed for is done when the next row has begun.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let n = self.n;
        let mut rows = self.x.chunks_exact(n).peekable();
        // It ignores NaN, which the sum keeps. From an infinite one follow differences that are NaN, and so all of the row.
        let mut max = rows.peek().map_or(T::zero(), |x| largest(simd, x));
        let mut before: Option<Begun<'_, T>> = None;
        for out in self.out.chunks_exact_mut(n) {
            let Some(x) = rows.next() else { return };
            if let Some(row) = before.take() {
                row.finish(self.log);
            }
            next_rows(x, SOON, n);
            let total = exponentials::<T, S>(simd, x, max, out);
            next_rows(&*out, SOON, n);
            before = Some(Begun { x, out, max, total });
            if let Some(next) = rows.peek() {
                max = largest(simd, next);
            }
        }
        if let Some(row) = before {
            row.finish(self.log);
        }
    }
}

/// A row whose exponentials are written.
struct Begun<'a, T> {
    x: &'a [T],
    out: &'a mut [T],
    max: T,
    total: f64,
}

impl<T: Real> Begun<'_, T> {
    #[inline(always)]
    fn finish(self, log: bool) {
        if log {
            let log = T::of(self.total.ln());
            for (out, x) in self.out.iter_mut().zip(self.x) {
                *out = (*x - self.max) - log;
            }
        } else {
            let scale = T::of(1.0 / self.total);
            for out in self.out {
                *out *= scale;
            }
        }
    }
}

/// Writes exponentials of a row's elements less their maximum, and returns the sum: of what was written, so that neither loop
/// needs more registers than there are.
#[inline(always)]
fn exponentials<T: Real, S: Simd>(simd: S, x: &[T], max: T, out: &mut [T]) -> f64 {
    let mut total = 0.0;
    for (x, out) in x.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
        let whole = x.len() / UNIT * UNIT;
        for (x, out) in x[..whole].iter().zip(&mut out[..whole]) {
            *out = exp_in::<S, T>(*x - max);
        }
        if whole < x.len() {
            let tail = x.len() - whole;
            let mut last = [T::neg_infinity(); UNIT];
            last[..tail].copy_from_slice(&x[whole..]);
            last = last.map(|x| exp_in::<S, T>(x - max));
            out[whole..].copy_from_slice(&last[..tail]);
        }
        let mut sums = [T::zero(); LANES];
        by_lanes(out, T::zero(), |out: &[T; LANES]| {
            for (sum, e) in sums.iter_mut().zip(out) {
                *sum += *e;
            }
        });
        total += sum_of_lanes(simd, &sums).wide();
    }
    total
}

struct Gradients<'a, T> {
    log: bool,
    y: &'a [T],
    dy: &'a [T],
    n: usize,
    out: &'a mut [T],
}

impl<T: Real> WithSimd for Gradients<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if middling::are_there(self.y.len() / self.n, self.n) {
            middling::gradients::<T, S>(self.log, self.y, self.dy, self.n, self.out);
        } else if short::is_short(self.n) {
            short::gradients::<T, S>(self.log, self.y, self.dy, self.n, self.out);
        } else {
            self.run(simd);
        }
    }
}

impl<T: Real> Gradients<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let n = self.n;
        let rows = self.y.chunks_exact(n).zip(self.dy.chunks_exact(n));
        for ((y, dy), out) in rows.zip(self.out.chunks_exact_mut(n)) {
            next_rows(y, AHEAD, n);
            let total = T::of(cell_sum(simd, self.log, y, dy));
            for array in [dy, &*out] {
                next_rows(array, AHEAD, n);
            }
            let of = out.iter_mut().zip(y.iter().zip(dy));
            if self.log {
                for (out, (y, dy)) in of {
                    *out = *dy - exp_in::<S, T>(*y) * total;
                }
            } else {
                for (out, (y, dy)) in of {
                    *out = *y * (*dy - total);
                }
            }
        }
    }
}

/// The sum of `y dy` over a row, or with `log` of `dy`.
#[inline(always)]
fn cell_sum<T: Real, S: Simd>(simd: S, log: bool, y: &[T], dy: &[T]) -> f64 {
    let mut total = 0.0;
    for (y, dy) in y.chunks(BLOCK).zip(dy.chunks(BLOCK)) {
        let mut sums = [T::zero(); LANES];
        if log {
            by_lanes(dy, T::zero(), |dy: &[T; LANES]| {
                for (sum, dy) in sums.iter_mut().zip(dy) {
                    *sum += *dy;
                }
            });
        } else {
            products(y, dy, &mut sums);
        }
        total += sum_of_lanes(simd, &sums).wide();
    }
    total
}

/// Adds the products of two blocks of equal length to lanes.
#[inline(always)]
fn products<T: Real>(a: &[T], b: &[T], sums: &mut [T; LANES]) {
    let [(a, a_tail), (b, b_tail)] = [a, b].map(pulp::as_arrays::<LANES, T>);
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += *a * *b;
        }
    }
    for ((sum, a), b) in sums.iter_mut().zip(a_tail).zip(b_tail) {
        *sum += *a * *b;
    }
}
