//! Softmax of rows that are short enough to stay in a cache from their maximum to their last value: each is read from memory once,
//! and its exponentials are taken once. So is its derivative.

use super::above;
use crate::Real;
use crate::compiled::compiled;
use crate::exp::exp_in;
use crate::pointwise::vectorized;
use crate::reduce::{BLOCK, LANES, by_lanes, halve, sum_of_lanes};
use pulp::{Simd, WithSimd};

/// Elements of a row that no vector is left over of.
const UNIT: usize = 32;

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
        self.run(simd);
    }
}

impl<T: Real> Values<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let n = self.n;
        for (x, out) in self.x.chunks_exact(n).zip(self.out.chunks_exact_mut(n)) {
            // It ignores NaN, which the sum keeps. From an infinite one follow differences that are NaN, and so all of the row.
            let max = largest(x);
            let total = exponentials::<T, S>(simd, x, max, out);
            if self.log {
                let log = T::of(total.ln());
                for (out, x) in out.iter_mut().zip(x) {
                    *out = (*x - max) - log;
                }
            } else {
                let scale = T::of(1.0 / total);
                for out in out {
                    *out *= scale;
                }
            }
        }
    }
}

/// The largest element of a row, NaN excepted.
#[inline(always)]
fn largest<T: Real>(x: &[T]) -> T {
    let mut most = [T::neg_infinity(); LANES];
    by_lanes(x, T::neg_infinity(), |block| {
        for (most, x) in most.iter_mut().zip(block) {
            *most = above(*most, *x);
        }
    });
    halve(most, above)
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
        by_lanes(out, T::zero(), |out| {
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
        self.run(simd);
    }
}

impl<T: Real> Gradients<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let rows = self
            .y
            .chunks_exact(self.n)
            .zip(self.dy.chunks_exact(self.n));
        for ((y, dy), out) in rows.zip(self.out.chunks_exact_mut(self.n)) {
            let total = T::of(cell_sum(simd, self.log, y, dy));
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
            by_lanes(dy, T::zero(), |dy| {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::softmax::{max_sum_exp, softmax};
    use crate::testing::Rng;
    use crate::{View, ViewMut};

    /// Rows of every kind of length against the way that ranks merge.
    fn agrees<T: Real>(tolerance: f64) {
        let mut rng = Rng::new(5);
        for n in [1, 2, 63, 64, 65, 200, 1024, 1025, 2500] {
            let (rows, shape) = (3, [3, n]);
            let [x, dy] = [0, 1].map(|_| rng.vec::<T>(rows * n));
            let view = View::contiguous(&x, &shape);
            let mut pairs = vec![0.0; 2 * rows];
            max_sum_exp(&view, &[1], &mut pairs);
            for log in [false, true] {
                let (mut y, mut expected) = (vec![T::nan(); rows * n], vec![T::nan(); rows * n]);
                softmax_rows(log, &x, n, &mut y);
                softmax(
                    log,
                    &view,
                    &[1],
                    &pairs,
                    &mut ViewMut::contiguous(&mut expected, &shape),
                );
                let close = |got: T, wanted: f64| {
                    let off = (got.wide() - wanted).abs();
                    assert!(
                        off <= tolerance * wanted.abs().max(1e-3),
                        "{got:?} for {wanted} of {n}"
                    );
                };
                for (y, e) in y.iter().zip(&expected) {
                    close(*y, e.wide());
                }
                let mut dx = vec![T::nan(); rows * n];
                softmax_rows_grad(log, &y, &dy, n, &mut dx);
                for (row, dx) in dx.chunks(n).enumerate() {
                    let [y, dy] = [&y, &dy].map(|v| v[row * n..][..n].iter().map(|v| v.wide()));
                    let pairs: Vec<(f64, f64)> = y.zip(dy).collect();
                    let factor = |y: f64| if log { 1.0 } else { y };
                    let sum: f64 = pairs.iter().map(|(y, dy)| factor(*y) * dy).sum();
                    for (dx, (y, dy)) in dx.iter().zip(&pairs) {
                        let wanted = match log {
                            true => dy - y.exp() * sum,
                            false => y * (dy - sum),
                        };
                        assert!(
                            (dx.wide() - wanted).abs() <= tolerance * 4.0,
                            "{dx:?} for {wanted}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn rows_at_once_are_what_merged_ones_are() {
        agrees::<f32>(2e-6);
        agrees::<f64>(1e-14);
    }

    #[test]
    fn rows_without_a_softmax_are_not_numbers() {
        let inf = f32::INFINITY;
        for row in [[-inf; 3], [1.0, inf, -inf], [0.0, f32::NAN, 1.0]] {
            for log in [false, true] {
                let mut y = [0.0; 6];
                let mut x = [0.0; 6];
                x[..3].copy_from_slice(&row);
                softmax_rows(log, &x, 3, &mut y);
                assert!(y[..3].iter().all(|y| y.is_nan()), "{row:?}: {y:?}");
                assert!(y[3..].iter().all(|y| y.is_finite()), "{row:?}: {y:?}");
            }
        }
        softmax_rows::<f32>(false, &[], 0, &mut []);
        softmax_rows_grad::<f32>(true, &[], &[], 5, &mut []);
    }
}
