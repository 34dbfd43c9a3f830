//! One rank's part of farthest point sampling.
//!
//! Sampling repeatedly takes the point whose distance to all samples is largest, and among equal ones the one of lowest global
//! index. Each rank keeps the squared distances of its own points to the nearest sample; the best of the ranks' answers is the
//! next sample.

use super::scan::WIDTH;
use crate::compiled::compiled;
use crate::pointwise::vectorized;
use crate::reduce::largest;
use crate::{Positions, Real, View};
use pulp::{Simd, WithSimd};
use std::borrow::Cow;

compiled! { trait CompiledFarthest for Real: f32 f64; {
    /// Squared distances of points `[dim, points]` to the nearest sample before there is one: infinite, and -1 for points with a
    /// coordinate that is not finite, which come after all others. The caller sets the distance of a point that was taken to -inf.
    ///
    /// # Panics
    /// When `points` does not have two dims.
    pub fn unsampled<T>(points: &View<'_, T>) -> Vec<T> = unsampled_here;

    /// Lowers the points' squared distances to their distance from a sample where that is nearer. Distances below 0 stay.
    ///
    /// ```
    /// use shard_kernels::{neighbors::{farthest, lower, unsampled}, Positions, View};
    /// let line = [0.0f32, 1.0, 4.0, 10.0];
    /// let points = View::contiguous(&line, &[1, 4]);
    /// let mut nearest = unsampled(&points);
    /// lower(&points, &[0.0], &mut nearest);
    /// assert_eq!(farthest(&nearest, Positions::from(0)), Some((100.0, 3)));
    /// lower(&points, &[10.0], &mut nearest);
    /// assert_eq!(farthest(&nearest, Positions::from(0)), Some((16.0, 2)));
    /// ```
    ///
    /// # Panics
    /// When the points are not `[sample.len(), nearest.len()]`.
    pub fn lower<T>(points: &View<'_, T>, sample: &[T], nearest: &mut [T]) = lower_here;

    /// The largest distance and its global index, the lowest of equal ones. `None` without points.
    pub fn farthest<T>(nearest: &[T], index: Positions<'_>) -> Option<(T, i64)> = farthest_here;
} }

fn unsampled_here<T: Real>(points: &View<'_, T>) -> Vec<T> {
    let rows = Rows::new(points);
    let mut nearest = vec![T::infinity(); rows.count];
    for d in 0..rows.dim {
        for (near, x) in nearest.iter_mut().zip(rows.row(d)) {
            if !x.is_finite() {
                *near = -T::one();
            }
        }
    }
    nearest
}

fn lower_here<T: Real>(points: &View<'_, T>, sample: &[T], nearest: &mut [T]) {
    let rows = Rows::new(points);
    assert!(
        (rows.dim, rows.count) == (sample.len(), nearest.len()),
        "farthest points: a sample of {} coordinates and {} distances for points of shape {:?}",
        sample.len(),
        nearest.len(),
        points.shape()
    );
    vectorized(Lower {
        rows: &rows,
        sample,
        nearest,
    });
}

fn farthest_here<T: Real>(nearest: &[T], index: Positions<'_>) -> Option<(T, i64)> {
    // Distances whose largest is kept, so that those are looked at again that have the largest of all.
    const SPAN: usize = 16 * WIDTH;
    let spans: Vec<T> = (nearest.chunks(SPAN).map(|span| vectorized(Largest(span)))).collect();
    let largest =
        (spans.iter().copied()).reduce(|most, span| if span > most { span } else { most })?;
    let mut lowest: Option<i64> = None;
    for (span, distances) in nearest.chunks(SPAN).enumerate() {
        if spans[span] == largest {
            let hits = (distances.iter().enumerate()).filter(|(_, d)| **d == largest);
            let found = hits.map(|(i, _)| index.at(span * SPAN + i)).min();
            lowest = lowest.into_iter().chain(found).min();
        }
    }
    lowest.map(|index| (largest, index))
}

/// Points dim by dim.
struct Rows<'a, T: Real> {
    data: Cow<'a, [T]>,
    dim: usize,
    count: usize,
}

impl<'a, T: Real> Rows<'a, T> {
    fn new(points: &View<'a, T>) -> Self {
        let &[dim, count] = points.shape() else {
            panic!("farthest points: points of shape {:?}", points.shape())
        };
        let data = points
            .as_slice()
            .map_or_else(|| points.to_vec().into(), Cow::Borrowed);
        Self { data, dim, count }
    }

    #[inline(always)]
    fn row(&self, d: usize) -> &[T] {
        &self.data[d * self.count..(d + 1) * self.count]
    }
}

/// Lowers every point's distance to its distance from a sample, where that is less.
struct Lower<'a, T: Real> {
    rows: &'a Rows<'a, T>,
    sample: &'a [T],
    nearest: &'a mut [T],
}

impl<T: Real> WithSimd for Lower<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let count = self.rows.count;
        let (units, tail) = pulp::as_arrays_mut::<UNIT, T>(self.nearest);
        let whole = units.len() * UNIT;
        // The sum runs in the order of the dims, and each operation is rounded, so the bits are the same however the points are
        // divided.
        for (unit, nearest) in units.iter_mut().enumerate() {
            let mut sums = [T::zero(); UNIT];
            for (row, &x) in self.rows.data.chunks_exact(count).zip(self.sample) {
                let row = &row[unit * UNIT..(unit + 1) * UNIT];
                for (sum, &p) in sums.iter_mut().zip(row) {
                    let apart = p - x;
                    *sum += apart * apart;
                }
            }
            for (near, &d) in nearest.iter_mut().zip(&sums) {
                *near = if d < *near { d } else { *near };
            }
        }
        for (i, near) in tail.iter_mut().enumerate() {
            let mut sum = T::zero();
            for (row, &x) in self.rows.data.chunks_exact(count).zip(self.sample) {
                let apart = row[whole + i] - x;
                sum += apart * apart;
            }
            *near = if sum < *near { sum } else { *near };
        }
    }
}

/// Points that are lowered at once, so that their sums stay in registers.
const UNIT: usize = 32;

/// The largest of some distances, none of which is NaN; -inf if there is none.
struct Largest<'a, T>(&'a [T]);

impl<T: Real> WithSimd for Largest<'_, T> {
    type Output = T;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> T {
        largest(simd, self.0)
    }
}
