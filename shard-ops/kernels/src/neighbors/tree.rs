//! Candidates from a k-d tree of the crate `kiddo`. Our own rule decides which of them count, ties included.
//!
//! The tree rounds distances and orders equal ones in its own way, so it is only asked where to look: for one point more than
//! a row takes. If the last of these points is farther than the others by more than rounding could account for, the others are
//! the row. If not, and where a row takes all points within a bound, the tree is asked for all points up to the bound and a
//! little farther. The points that it names are then measured and ordered as in an exhaustive search.

use super::scan::distances;
use super::search::Row;
use crate::{Real, View};
use shard_instances::tree::{Cells, Position, cells};
use std::num::NonZero;

/// Up to this many dims, not counting those in which all points are equal, a tree is tried.
pub use shard_instances::tree::MAX_TREE_DIM;

/// How much of a distance rounding may account for, in multiples of the epsilon of the element type.
///
/// Our own distance rounds at most three times per dim. The tree works in double precision, and its bounds round at most six
/// times per level, of which there are at most 27, since a point's number has 32 bits. Each rounding is half an epsilon.
fn slack<T: Real>(dim: usize) -> f64 {
    (256.0 + 4.0 * dim as f64) * T::epsilon().wide()
}

/// A tree over one block of points.
pub(super) struct Tree<T> {
    dim: usize,
    /// The dims of the tree. In the others all points are equally far from a query, which would hide how far the tree's cells
    /// are.
    dims: Vec<usize>,
    cells: Box<dyn Cells>,
    /// Points `[points, dim]`: those in the tree, then those with a coordinate that is not finite.
    points: Vec<T>,
    /// How many points are in the tree.
    inside: usize,
    /// Global indexes of the points.
    index: Vec<i64>,
}

impl<T: Real> Tree<T> {
    /// A tree over points `[points, dim]` with these global indexes. `None` where no tree would help: if the points differ in
    /// no dim, or in more than [`MAX_TREE_DIM`], and without the feature `kd-tree`.
    pub(super) fn new(points: &View<'_, T>, index: &[i64]) -> Option<Self> {
        let dim = points.shape()[1];
        let rows = points.to_vec();
        let row = |i: usize| &rows[i * dim..(i + 1) * dim];
        let (mut order, others): (Vec<usize>, Vec<usize>) =
            (0..index.len()).partition(|&i| row(i).iter().all(|x| x.is_finite()));
        let inside = order.len();
        let first = row(*order.first()?);
        let differ = |d: usize| order.iter().any(|&i| row(i)[d] != first[d]);
        let dims: Vec<usize> = (0..dim).filter(|&d| differ(d)).collect();
        let in_tree = order.iter().map(|&i| row(i));
        let places = in_tree.flat_map(|row| dims.iter().map(|&d| row[d].wide()));
        let cells = cells(&places.collect::<Vec<_>>(), dims.len())?;
        order.extend(others);
        Some(Self {
            dim,
            dims,
            cells,
            points: order.iter().flat_map(|&i| row(i)).copied().collect(),
            inside,
            index: order.iter().map(|&i| index[i]).collect(),
        })
    }

    /// Offers the points that may count to the query's row.
    pub(super) fn visit(&self, query: &[T], row: &mut impl Row<T>) {
        if self.visit_inside(query, row).is_none() {
            (0..self.inside).for_each(|i| self.offer(i, query, row));
        }
        (self.inside..self.index.len()).for_each(|i| self.offer(i, query, row));
    }

    /// Offers the points in the tree that may count. Returns `None`, with nothing offered, where the tree cannot tell them
    /// from others.
    fn visit_inside(&self, query: &[T], row: &mut impl Row<T>) -> Option<()> {
        let mut at = Position::default();
        for (x, &d) in at.iter_mut().zip(&self.dims) {
            *x = query[d].is_finite().then(|| query[d].wide())?;
        }
        let bound = row.bound().wide();
        let mut radius = match bound.is_nan() {
            true => f64::INFINITY,
            false => self.reach(bound, bound),
        };
        let most = row.most();
        if most < self.inside {
            let near = self.cells.nearest(&at, NonZero::new(most + 1)?, radius);
            let certain = match near.split_last() {
                // There are no more within the bound.
                _ if near.len() <= most && radius.is_finite() => true,
                Some((next, taken)) if near.len() == most + 1 => match taken.last() {
                    None => true,
                    Some(last) => {
                        let whole = self.distance(last.item as usize, query).wide();
                        let last = self.reach(last.distance, whole);
                        radius = radius.min(last);
                        next.distance > last
                    }
                },
                _ => return None,
            };
            if certain {
                for found in &near[..near.len().min(most)] {
                    self.offer(found.item as usize, query, row);
                }
                return Some(());
            }
        }
        // The tree's bounds mean nothing beyond the range of numbers.
        radius.is_finite().then(|| {
            let offer = &mut |i: u32| self.offer(i as usize, query, row);
            self.cells.within(&at, radius, offer);
        })
    }

    /// A bound on the distance, in the dims of the tree, that rounding may give to a point whose distance is `near` in these
    /// dims and `whole` in all dims.
    fn reach(&self, near: f64, whole: f64) -> f64 {
        // The smallest normal number covers what is lost below it.
        let far = near + whole * slack::<T>(self.dim) + T::min_positive_value().wide();
        if far < T::max_value().wide() {
            far
        } else {
            // All distances that overflow are equally far.
            f64::INFINITY
        }
    }

    #[inline(always)]
    fn offer(&self, i: usize, query: &[T], row: &mut impl Row<T>) {
        row.offer(self.distance(i, query), self.index[i]);
    }

    /// A squared distance, computed as everywhere else.
    #[inline(always)]
    fn distance(&self, i: usize, query: &[T]) -> T {
        let point = &self.points[i * self.dim..(i + 1) * self.dim];
        // No point is beyond a bound of NaN.
        distances::<T, 1>(query, point, T::nan()).map_or(T::nan(), |[distance]| distance)
    }
}
