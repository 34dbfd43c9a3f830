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
use smallvec::SmallVec;
use std::borrow::Cow;
use std::ops::Range;

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

    /// As [`lower`], where point `i` is of cloud `clouds[i]`, whose sample is row `clouds[i]` of `samples` `[clouds, dim]`. Clouds may be
    /// in any order; consecutive points of one cloud are lowered together.
    ///
    /// # Panics
    /// When points, distances and clouds are not as many; when a cloud has no sample.
    pub fn lower_by_cloud<T>(
        points: &View<'_, T>,
        samples: &[T],
        clouds: &[i64],
        nearest: &mut [T],
    ) = lower_by_cloud_here;

    /// The largest distance and its global index, the lowest of equal ones. `None` without points.
    pub fn farthest<T>(nearest: &[T], index: Positions<'_>) -> Option<(T, i64)> = farthest_here;

    /// [`farthest`] of each of so many clouds, where point `i` is of cloud `of[i]`. Clouds may be in any order.
    ///
    /// # Panics
    /// When distances and clouds are not as many; when there is no such cloud.
    pub fn farthest_by_cloud<T>(
        nearest: &[T],
        index: Positions<'_>,
        of: &[i64],
        clouds: usize,
    ) -> Vec<Option<(T, i64)>> = farthest_by_cloud_here;
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
        samples: sample,
        clouds: None,
        nearest,
    });
}

fn lower_by_cloud_here<T: Real>(
    points: &View<'_, T>,
    samples: &[T],
    clouds: &[i64],
    nearest: &mut [T],
) {
    let rows = Rows::new(points);
    assert!(
        rows.count == nearest.len() && rows.count == clouds.len(),
        "farthest points: {} distances and {} clouds for points of shape {:?}",
        nearest.len(),
        clouds.len(),
        points.shape()
    );
    vectorized(Lower {
        rows: &rows,
        samples,
        clouds: Some(clouds),
        nearest,
    });
}

fn farthest_here<T: Real>(nearest: &[T], index: Positions<'_>) -> Option<(T, i64)> {
    farthest_of(nearest, |i| index.at(i))
}

fn farthest_by_cloud_here<T: Real>(
    nearest: &[T],
    index: Positions<'_>,
    of: &[i64],
    clouds: usize,
) -> Vec<Option<(T, i64)>> {
    assert!(
        nearest.len() == of.len(),
        "farthest points: {} distances and {} clouds",
        nearest.len(),
        of.len()
    );
    let mut best: Vec<Option<(T, i64)>> = vec![None; clouds];
    for (cloud, run) in runs(of) {
        let at = |i| index.at(run.start + i);
        let distances = &nearest[run.clone()];
        let found = match distances {
            &[distance] => Some((distance, at(0))),
            _ => farthest_of(distances, at),
        };
        let better = |(d, i): (T, i64), (held, j)| d > held || (d == held && i < j);
        best[cloud] = match (best[cloud], found) {
            (Some(held), Some(new)) if !better(new, held) => Some(held),
            (_, new) => new,
        };
    }
    best
}

/// The largest of these distances and the lowest index of those as large, where distance `i` is that of point `index(i)`.
#[inline(always)]
fn farthest_of<T: Real>(nearest: &[T], index: impl Fn(usize) -> i64) -> Option<(T, i64)> {
    // Distances whose largest is kept, so that those are looked at again that have the largest of all.
    const SPAN: usize = 16 * WIDTH;
    let spans: SmallVec<[T; 8]> =
        (nearest.chunks(SPAN).map(|span| vectorized(Largest(span)))).collect();
    let largest =
        (spans.iter().copied()).reduce(|most, span| if span > most { span } else { most })?;
    let mut lowest: Option<i64> = None;
    for (span, distances) in nearest.chunks(SPAN).enumerate() {
        if spans[span] == largest {
            let hits = (distances.iter().enumerate()).filter(|(_, d)| **d == largest);
            let found = hits.map(|(i, _)| index(span * SPAN + i)).min();
            lowest = lowest.into_iter().chain(found).min();
        }
    }
    lowest.map(|index| (largest, index))
}

/// The clouds of points, and which consecutive points are of them.
fn runs(of: &[i64]) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut end = 0;
    of.chunk_by(|a, b| a == b).map(move |run| {
        end += run.len();
        (run[0] as usize, end - run.len()..end)
    })
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

/// Lowers every point's distance to its distance from its cloud's sample, where that is less.
struct Lower<'a, T: Real> {
    rows: &'a Rows<'a, T>,
    /// A sample after the other.
    samples: &'a [T],
    /// The cloud of each point. Without, all are of the one there is.
    clouds: Option<&'a [i64]>,
    nearest: &'a mut [T],
}

impl<T: Real> WithSimd for Lower<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Some(clouds) = self.clouds else {
            return lower_run(self.rows, 0, self.samples, self.nearest);
        };
        let dim = self.rows.dim;
        for (cloud, run) in runs(clouds) {
            let sample = &self.samples[cloud * dim..][..dim];
            lower_run(self.rows, run.start, sample, &mut self.nearest[run]);
        }
    }
}

/// Lowers the distances of consecutive points from the `first` on.
#[inline(always)]
fn lower_run<T: Real>(rows: &Rows<'_, T>, first: usize, sample: &[T], nearest: &mut [T]) {
    let data = &rows.data[first.min(rows.data.len())..];
    let (units, tail) = pulp::as_arrays_mut::<UNIT, T>(nearest);
    let whole = units.len() * UNIT;
    // The sum runs in the order of the dims, and each operation is rounded, so the bits are the same however the points are
    // divided.
    for (unit, nearest) in units.iter_mut().enumerate() {
        let mut sums = [T::zero(); UNIT];
        for (row, &x) in data.chunks(rows.count).zip(sample) {
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
        for (row, &x) in data.chunks(rows.count).zip(sample) {
            let apart = row[whole + i] - x;
            sum += apart * apart;
        }
        *near = if sum < *near { sum } else { *near };
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
