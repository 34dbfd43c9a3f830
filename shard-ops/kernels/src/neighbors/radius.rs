//! All points within a radius of every query.

use super::nearest::{Nearest, compare};
use super::scan::each_near;
use super::search::{Clouds, Rows, Search, search, taken_in};
use crate::compiled::compiled;
use crate::{Positions, Real, View};

/// The points within a radius of every query among the blocks taken in so far. With a cap, each row holds only its first
/// points by (distance, global index).
///
/// A point is within the radius when its distance, the rounded root of the squared distance, is at most the radius.
///
/// ```
/// use shard_kernels::{neighbors::{RowOrder, WithinRadius}, Positions, View};
/// let (queries, points) = ([0.0f64, 10.0], [1.5, 9.0, -1.0]);
/// let mut within = WithinRadius::new(2, 1.5, None);
/// within.fold(&View::contiguous(&queries, &[2, 1]), &View::contiguous(&points, &[3, 1]), Positions::from(0));
/// let rows = within.finish(RowOrder::Index);
/// assert_eq!(rows.offsets, [0, 2, 3]);
/// assert_eq!(rows.indexes, [0, 2, 1]);
/// assert_eq!(rows.distances, [1.5, 1.0, 1.0]);
/// ```
#[derive(Clone, Debug)]
pub struct WithinRadius<T> {
    cap: Option<usize>,
    rows: Vec<Hits<T>>,
}

/// The hits of one query.
#[derive(Clone, Debug)]
struct Hits<T> {
    /// The largest squared distance that still counts.
    limit: T,
    hits: Vec<(T, i64)>,
}

/// The order of points within a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// By global index.
    Index,
    /// By distance; equal distances by global index.
    Distance,
}

/// Rows of different lengths, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct RadiusRows<T> {
    /// Where each query's row begins, and at the end the number of entries.
    pub offsets: Vec<usize>,
    /// Global indexes of points.
    pub indexes: Vec<i64>,
    /// Their distances (not squared).
    pub distances: Vec<T>,
}

compiled! { trait CompiledRadius for Real: f32 f64; {
    fn take_in<T>(
        into: &mut WithinRadius<T>,
        how: Search,
        queries: &View<'_, T>,
        points: &View<'_, T>,
        index: Positions<'_>,
        clouds: Option<Clouds<'_>>,
    ) = take_in_here;

    fn rows<T>(of: WithinRadius<T>, order: RowOrder) -> RadiusRows<T> = rows_here;
} }

impl<T: Real> WithinRadius<T> {
    /// The state of no points. With a negative radius, or NaN, no point is within it.
    pub fn new(queries: usize, radius: T, cap: Option<usize>) -> Self {
        let limit = if cap == Some(0) {
            -T::one()
        } else {
            limit(radius)
        };
        let hits = Vec::new();
        Self {
            cap,
            rows: vec![Hits { limit, hits }; queries],
        }
    }

    /// Takes in the state of other points for the same queries, radius and cap.
    ///
    /// # Panics
    /// When the numbers of queries differ.
    pub fn merge(&mut self, other: &Self) {
        assert!(
            self.rows.len() == other.rows.len(),
            "radius search: {} rows into {}",
            other.rows.len(),
            self.rows.len()
        );
        for (i, theirs) in other.rows.iter().enumerate() {
            for &(distance, index) in &theirs.hits {
                self.rows[i].offer(distance, index, self.cap);
            }
        }
    }

    /// The first `cap` points of every query by (distance, global index).
    pub fn into_nearest(mut self, cap: usize) -> Nearest<T> {
        let mut nearest = Nearest::new(self.rows.len(), cap);
        for (i, row) in self.rows.iter_mut().enumerate() {
            row.shrink(cap);
            row.hits.sort_unstable_by(|a, b| compare(*a, *b));
            nearest.set_row(i, &row.hits[..cap.min(row.hits.len())]);
        }
        nearest
    }

    /// The points of every query.
    pub fn finish(self, order: RowOrder) -> RadiusRows<T> {
        rows(self, order)
    }
}

taken_in!(WithinRadius);

fn take_in_here<T: Real>(
    into: &mut WithinRadius<T>,
    how: Search,
    queries: &View<'_, T>,
    points: &View<'_, T>,
    index: Positions<'_>,
    clouds: Option<Clouds<'_>>,
) {
    assert!(
        queries.ndim() == 2 && queries.shape()[0] == into.rows.len(),
        "radius search: queries of shape {:?} into {} rows",
        queries.shape(),
        into.rows.len()
    );
    search(how, queries, points, index, clouds, into);
}

fn rows_here<T: Real>(mut of: WithinRadius<T>, order: RowOrder) -> RadiusRows<T> {
    let mut out = RadiusRows {
        offsets: vec![0],
        indexes: Vec::new(),
        distances: Vec::new(),
    };
    for row in &mut of.rows {
        if let Some(cap) = of.cap {
            row.shrink(cap);
        }
        match order {
            RowOrder::Index => row.hits.sort_unstable_by_key(|&(_, index)| index),
            RowOrder::Distance => row.hits.sort_unstable_by(|a, b| compare(*a, *b)),
        }
        out.indexes.extend(row.hits.iter().map(|&(_, index)| index));
        out.distances
            .extend(row.hits.iter().map(|&(distance, _)| distance.sqrt()));
        out.offsets.push(out.indexes.len());
    }
    out
}

/// The largest squared distance whose root is at most the radius; negative where there is none.
pub fn limit<T: Real>(radius: T) -> T {
    if radius.is_nan() || radius < T::zero() {
        return -T::one();
    }
    let mut limit = radius * radius;
    if limit.is_infinite() && radius.is_finite() {
        return T::max_value();
    }
    // The root of a rounded square is the number again, and only few larger squares have that root.
    loop {
        let next = above(limit);
        if next <= limit || next.sqrt() > radius {
            return limit;
        }
        limit = next;
    }
}

/// The next larger number; the same below the normal numbers.
fn above<T: Real>(x: T) -> T {
    let step = T::epsilon() * T::of(0.5);
    let next = x + x * step;
    if next > x { next } else { x + x * T::epsilon() }
}

impl<T: Real> Hits<T> {
    /// Takes in a point, if it is not beyond the limit.
    #[inline(always)]
    fn offer(&mut self, distance: T, index: i64, cap: Option<usize>) {
        // False for NaN, which is within no radius.
        if distance <= self.limit {
            self.hits.push((distance, index));
            if let Some(cap) = cap
                && self.hits.len() >= cap.saturating_mul(2)
            {
                self.shrink(cap);
            }
        }
    }

    /// Keeps the first `cap` hits and from now on counts no point that is farther.
    fn shrink(&mut self, cap: usize) {
        if self.hits.len() > cap && cap > 0 {
            let (_, last, _) = self
                .hits
                .select_nth_unstable_by(cap - 1, |a, b| compare(*a, *b));
            self.limit = last.0;
            self.hits.truncate(cap);
        }
    }
}

impl<T: Real> Rows<T> for WithinRadius<T> {
    fn last(&self, i: usize) -> (T, i64) {
        (self.rows[i].limit, i64::MAX)
    }

    fn offer(&mut self, i: usize, distances: &[T], index: &[i64]) -> (T, i64) {
        let (bound, _) = self.last(i);
        let row = &mut self.rows[i];
        each_near(distances, index, bound, |distance, index| {
            row.offer(distance, index, self.cap);
        });
        self.last(i)
    }
}
