//! The k nearest points of every query.

use super::search::{Row, Rows, Search, search};
use crate::kernels::{Positions, Real, View};

/// The index of an entry that no point has taken yet.
const MISSING: i64 = i64::MAX;

/// The k nearest points of every query among the blocks taken in so far, each row ordered by (distance, global index).
///
/// ```
/// use shard_ops::kernels::{neighbors::Nearest, Positions, View};
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
    /// Squared distances `[queries, k]`; NaN where a point is missing, so that nothing is too far.
    distances: Vec<T>,
    indexes: Vec<i64>,
}

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

    /// Takes in points `[points, dim]` with these global indexes, for queries `[queries, dim]`.
    ///
    /// # Panics
    /// When shapes contradict each other or the state.
    pub fn fold(&mut self, queries: &View<'_, T>, points: &View<'_, T>, index: Positions<'_>) {
        self.fold_by(Search::Auto, queries, points, index);
    }

    /// As [`Nearest::fold`], by a search of the caller's choice.
    ///
    /// # Panics
    /// As [`Nearest::fold`].
    pub fn fold_by(
        &mut self,
        how: Search,
        queries: &View<'_, T>,
        points: &View<'_, T>,
        index: Positions<'_>,
    ) {
        assert!(
            queries.ndim() == 2 && queries.shape()[0] * self.k == self.distances.len(),
            "neighbours: queries of shape {:?} into {} entries of rows of {}",
            queries.shape(),
            self.distances.len(),
            self.k
        );
        if self.k > 0 {
            search(how, queries, points, index, self);
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
        for (at, (&distance, &index)) in other.distances.iter().zip(&other.indexes).enumerate() {
            if index != MISSING {
                self.row(at / self.k).offer(distance, index);
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

/// Whether a point comes before another: nearer, or as near with a lower index; NaN is farthest.
#[inline(always)]
pub(super) fn precedes<T: Real>((a, i): (T, i64), (b, j): (T, i64)) -> bool {
    if a < b {
        true
    } else if a > b {
        false
    } else {
        // Equal, or NaN among them.
        let (a, b) = (a.is_nan(), b.is_nan());
        if a == b { i < j } else { b }
    }
}

/// The row of one query, k at least 1.
pub(super) struct NearestRow<'a, T> {
    distances: &'a mut [T],
    indexes: &'a mut [i64],
}

impl<T: Real> Rows<T> for Nearest<T> {
    type Row<'a> = NearestRow<'a, T>;

    #[inline(always)]
    fn row(&mut self, i: usize) -> NearestRow<'_, T> {
        let row = i * self.k..(i + 1) * self.k;
        NearestRow {
            distances: &mut self.distances[row.clone()],
            indexes: &mut self.indexes[row],
        }
    }
}

impl<T: Real> Row<T> for NearestRow<'_, T> {
    #[inline(always)]
    fn bound(&self) -> T {
        self.distances[self.distances.len() - 1]
    }

    #[inline(always)]
    fn offer(&mut self, distance: T, index: i64) {
        let mut at = self.distances.len() - 1;
        if !precedes((distance, index), (self.distances[at], self.indexes[at])) {
            return;
        }
        while at > 0
            && precedes(
                (distance, index),
                (self.distances[at - 1], self.indexes[at - 1]),
            )
        {
            self.distances[at] = self.distances[at - 1];
            self.indexes[at] = self.indexes[at - 1];
            at -= 1;
        }
        self.distances[at] = distance;
        self.indexes[at] = index;
    }
}
