//! The k nearest points of every query.

use super::ordered::{fill_in_order, put_in_order};
use super::scan::each_near;
use super::search::{Clouds, Rows, Search, search, taken_in};
use super::tree::LEAF;
use crate::compiled::compiled;
use crate::pointwise::vectorized;
use crate::{Positions, Real, View};
use pulp::{Simd, WithSimd};

/// The index of an entry that no point has filled yet.
pub(super) const MISSING: i64 = i64::MAX;

/// Rows of up to this many neighbours are kept in order while points come in. Moving the entries of longer rows would cost
/// more than keeping heaps.
const MOST_SORTED: usize = 64;

/// The k nearest points of every query among the blocks taken in so far, each row ordered by (distance, global index).
///
/// ```
/// use shard_kernels::{neighbors::Nearest, Positions, View};
/// let (queries, points) = ([0.0f32, 10.0], [1.0, 9.0, -1.0]);
/// let queries = View::contiguous(&queries, &[2, 1]);
/// let mut nearest = Nearest::new(2, 2);
/// // Two blocks, the later points first.
/// nearest.fold(&queries, &View::contiguous(&points[1..], &[2, 1]), Positions::from(1));
/// nearest.fold(&queries, &View::contiguous(&points[..1], &[1, 1]), Positions::from(0));
/// let (mut distances, mut indexes) = ([0.0; 4], [0; 4]);
/// nearest.finish(&mut distances, &mut indexes);
/// assert_eq!(indexes, [0, 2, 1, 0]);
/// assert_eq!(distances, [1.0, 1.0, 1.0, 9.0]);
/// ```
#[derive(Clone, Debug)]
pub struct Nearest<T> {
    k: usize,
    /// Squared distances `[queries, k]`; NaN where a point is missing, so that no point is too far.
    distances: Vec<T>,
    indexes: Vec<i64>,
}

compiled! { trait CompiledNearest for Real: f32 f64; {
    fn take_in<T>(
        into: &mut Nearest<T>,
        how: Search,
        queries: &View<'_, T>,
        points: &View<'_, T>,
        index: Positions<'_>,
        clouds: Option<Clouds<'_>>,
    ) = take_in_here;
} }

impl<T: Real> Nearest<T> {
    /// The state of no points: every row is empty.
    pub fn new(queries: usize, k: usize) -> Self {
        Self {
            k,
            distances: vec![T::nan(); queries * k],
            indexes: vec![MISSING; queries * k],
        }
    }

    /// A state from squared distances and indexes `[queries, k]`, as [`Nearest::into_parts`] gives them.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn from_parts(k: usize, distances: Vec<T>, indexes: Vec<i64>) -> Self {
        assert!(
            distances.len() == indexes.len() && (k == 0 || distances.len().is_multiple_of(k)),
            "neighbours: {} distances and {} indexes in rows of {k}",
            distances.len(),
            indexes.len()
        );
        Self {
            k,
            distances,
            indexes,
        }
    }

    /// Squared distances and indexes; NaN and `i64::MAX` where a row has fewer than k points.
    pub fn into_parts(self) -> (Vec<T>, Vec<i64>) {
        (self.distances, self.indexes)
    }

    /// Fills an empty row with points in order, at most k.
    pub(super) fn set_row(&mut self, i: usize, points: &[(T, i64)]) {
        for (j, &(distance, index)) in points.iter().enumerate() {
            (self.distances[i * self.k + j], self.indexes[i * self.k + j]) = (distance, index);
        }
    }

    /// How many points each row has.
    pub fn counts(&self) -> Vec<usize> {
        let of = |row: &[i64]| row.iter().filter(|&&index| index != MISSING).count();
        match self.k {
            0 => Vec::new(),
            k => self.indexes.chunks_exact(k).map(of).collect(),
        }
    }

    /// Puts every row in order.
    fn sort(&mut self) {
        let mut row: Vec<(T, i64)> = Vec::with_capacity(self.k);
        let rows = self.distances.chunks_exact_mut(self.k);
        for (distances, indexes) in rows.zip(self.indexes.chunks_exact_mut(self.k)) {
            row.clear();
            row.extend(distances.iter().copied().zip(indexes.iter().copied()));
            row.sort_unstable_by(|a, b| compare(*a, *b));
            for (i, &(distance, index)) in row.iter().enumerate() {
                (distances[i], indexes[i]) = (distance, index);
            }
        }
    }

    /// Takes in the state of other points for the same queries.
    ///
    /// # Panics
    /// When the sizes differ.
    pub fn merge(&mut self, other: &Self) {
        assert!(
            self.k == other.k && self.distances.len() == other.distances.len(),
            "neighbours: {} entries in rows of {} into {} in rows of {}",
            other.distances.len(),
            other.k,
            self.distances.len(),
            self.k
        );
        let mut merged = Vec::with_capacity(self.k);
        for row in (0..self.distances.len()).step_by(self.k.max(1)) {
            let (mut ours, mut theirs) = (row, row);
            merged.clear();
            while merged.len() < self.k {
                let a = (self.distances[ours], self.indexes[ours]);
                let b = (other.distances[theirs], other.indexes[theirs]);
                if precedes(b, a) {
                    merged.push(b);
                    theirs += 1;
                } else {
                    merged.push(a);
                    ours += 1;
                }
            }
            for (i, &(distance, index)) in merged.iter().enumerate() {
                (self.distances[row + i], self.indexes[row + i]) = (distance, index);
            }
        }
    }

    /// Writes distances (not squared) and global indexes `[queries, k]`; infinity and -1 where a row has fewer than k points.
    ///
    /// # Panics
    /// When an output has another length.
    pub fn finish(&self, distances: &mut [T], indexes: &mut [i64]) {
        let n = self.distances.len();
        assert!(
            distances.len() == n && indexes.len() == n,
            "neighbours: {n} entries into {} and {}",
            distances.len(),
            indexes.len()
        );
        for (i, (&distance, &index)) in self.distances.iter().zip(&self.indexes).enumerate() {
            (distances[i], indexes[i]) = match index {
                MISSING => (T::infinity(), -1),
                index => (distance.sqrt(), index),
            };
        }
    }
}

taken_in!(Nearest);

fn take_in_here<T: Real>(
    into: &mut Nearest<T>,
    how: Search,
    queries: &View<'_, T>,
    points: &View<'_, T>,
    index: Positions<'_>,
    clouds: Option<Clouds<'_>>,
) {
    assert!(
        queries.ndim() == 2 && queries.shape()[0] * into.k == into.distances.len(),
        "neighbours: queries of shape {:?} into {} entries of rows of {}",
        queries.shape(),
        into.distances.len(),
        into.k
    );
    match into.k {
        0 => {}
        1..=MOST_SORTED => search(how, queries, points, index, clouds, into),
        k => {
            // A descending row is a heap with the last neighbour on top.
            into.distances.chunks_exact_mut(k).for_each(<[T]>::reverse);
            into.indexes.chunks_exact_mut(k).for_each(<[i64]>::reverse);
            search(how, queries, points, index, clouds, &mut Heaps(into));
            into.sort();
        }
    }
}

/// Whether a point comes before another: nearer, or as near with a lower index; NaN is farthest.
#[inline(always)]
pub(super) fn precedes<T: Real>((a, i): (T, i64), (b, j): (T, i64)) -> bool {
    if a < b {
        true
    } else if a > b {
        false
    } else {
        // The distances are equal, or one of them is NaN.
        let (a, b) = (a.is_nan(), b.is_nan());
        if a == b { i < j } else { b }
    }
}

/// The order of neighbours, as an `Ordering`.
pub(super) fn compare<T: Real>(a: (T, i64), b: (T, i64)) -> core::cmp::Ordering {
    if precedes(a, b) {
        core::cmp::Ordering::Less
    } else if precedes(b, a) {
        core::cmp::Ordering::Greater
    } else {
        core::cmp::Ordering::Equal
    }
}

/// Rows in order, k at least 1.
impl<T: Real> Rows<T> for Nearest<T> {
    fn last(&self, i: usize) -> (T, i64) {
        let last = (i + 1) * self.k - 1;
        (self.distances[last], self.indexes[last])
    }

    fn offer(&mut self, i: usize, distances: &[T], index: &[i64]) -> (T, i64) {
        let row = i * self.k..(i + 1) * self.k;
        vectorized(Offer {
            kept: &mut self.distances[row.clone()],
            indexes: &mut self.indexes[row],
            distances,
            index,
        });
        self.last(i)
    }
}

/// Points that may count for a row in order.
struct Offer<'a, T> {
    kept: &'a mut [T],
    indexes: &'a mut [i64],
    distances: &'a [T],
    index: &'a [i64],
}

impl<T: Real> WithSimd for Offer<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        if let (&[.., MISSING], Ok(points)) = (&*self.indexes, self.distances.try_into())
            && fill_in_order::<T, LEAF>(self.kept, self.indexes, points, self.index)
        {
            return;
        }
        let bound = self.kept[self.kept.len() - 1];
        each_near(
            self.distances,
            self.index,
            bound,
            #[inline(always)]
            |distance, index| put_in_order(self.kept, self.indexes, (distance, index)),
        );
    }
}

/// Rows as binary heaps, k at least 1: no entry precedes its children, so the last neighbour is on top.
struct Heaps<'a, T>(&'a mut Nearest<T>);

impl<T: Real> Rows<T> for Heaps<'_, T> {
    fn last(&self, i: usize) -> (T, i64) {
        let top = i * self.0.k;
        (self.0.distances[top], self.0.indexes[top])
    }

    fn offer(&mut self, i: usize, distances: &[T], index: &[i64]) -> (T, i64) {
        let (bound, _) = self.last(i);
        let row = i * self.0.k..(i + 1) * self.0.k;
        let (kept, indexes) = (&mut self.0.distances[row.clone()], &mut self.0.indexes[row]);
        each_near(distances, index, bound, |distance, index| {
            put_in_heap(kept, indexes, (distance, index));
        });
        self.last(i)
    }
}

/// Puts a point in the place of the top, if it comes before that, and then where it belongs.
#[inline(always)]
fn put_in_heap<T: Real>(distances: &mut [T], indexes: &mut [i64], new: (T, i64)) {
    if !precedes(new, (distances[0], indexes[0])) {
        return;
    }
    let k = distances.len();
    let (mut at, mut child) = (0, 1);
    while child < k {
        let entry = |i: usize| (distances[i], indexes[i]);
        if child + 1 < k && precedes(entry(child), entry(child + 1)) {
            child += 1;
        }
        if !precedes(new, entry(child)) {
            break;
        }
        (distances[at], indexes[at]) = entry(child);
        (at, child) = (child, 2 * child + 1);
    }
    (distances[at], indexes[at]) = new;
}
