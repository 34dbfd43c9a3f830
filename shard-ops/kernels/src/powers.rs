//! Sums of powers, which norms over many arrays are made of.

use super::Real;
use super::pointwise::vectorized;
use crate::compiled::compiled;
use pulp::{Simd, WithSimd};

compiled! { trait Compiled for Real: f32 f64; {
    /// The sum of `|x|^order` in double precision, or for an infinite order the largest `|x|`: NaN if an element is. The order of
    /// the sum depends on the length alone.
    ///
    /// ```
    /// use shard_kernels::powers::sum_of_powers;
    ///
    /// assert_eq!(sum_of_powers(&[3.0f32, -4.0], 2.0), 25.0);
    /// assert_eq!(sum_of_powers(&[3.0f32, -4.0], f64::INFINITY), 4.0);
    /// ```
    pub fn sum_of_powers<T>(x: &[T], order: f64) -> f64 = sum_of_powers_here;
} }

fn sum_of_powers_here<T: Real>(x: &[T], order: f64) -> f64 {
    let size = |x: T| x.wide().abs();
    let add = |a: f64, b: f64| a + b;
    match order {
        2.0 => total(x, |x| x.wide() * x.wide(), add),
        1.0 => total(x, size, add),
        f64::INFINITY => total(x, size, |a, b| if a.is_nan() || a > b { a } else { b }),
        p => total(x, |x| size(x).powf(p), add),
    }
}

/// Independent sums, so that the loop runs on vectors; their order does not depend on the machine.
const LANES: usize = 16;

fn total<T: Real>(x: &[T], term: impl Fn(T) -> f64, join: impl Fn(f64, f64) -> f64) -> f64 {
    let lanes = vectorized(Lanes {
        x,
        term,
        join: &join,
    });
    lanes.into_iter().fold(0.0, join)
}

struct Lanes<'a, T, F, J> {
    x: &'a [T],
    term: F,
    join: &'a J,
}

impl<T: Real, F: Fn(T) -> f64, J: Fn(f64, f64) -> f64> WithSimd for Lanes<'_, T, F, J> {
    type Output = [f64; LANES];

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> [f64; LANES] {
        let mut lanes = [0.0; LANES];
        let (rows, rest) = pulp::as_arrays::<LANES, T>(self.x);
        for (lane, &x) in lanes.iter_mut().zip(rest) {
            *lane = (self.term)(x);
        }
        for row in rows {
            for (lane, &x) in lanes.iter_mut().zip(row) {
                *lane = (self.join)(*lane, (self.term)(x));
            }
        }
        lanes
    }
}
