//! A search: queries against a block of points, with the candidates going into rows.

use super::scan::Columns;
use super::tree::Tree;
use crate::pointwise::vectorized;
use crate::{Positions, Real, View};
use pulp::{Simd, WithSimd};

/// How a block of points is searched; the result never depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Search {
    /// The tree where it was measured to be faster.
    #[default]
    Auto,
    /// Every query against every point.
    Exhaustive,
    /// Through a tree, where points differ in one to [`MAX_TREE_DIM`](super::MAX_TREE_DIM) dims.
    Tree,
}

/// Collects candidates, in a row per query.
pub(super) trait Rows<T> {
    /// The last point that counts for query `i`: farther points do not, nor such as far with larger indexes. At NaN while all
    /// do.
    fn last(&self, i: usize) -> (T, i64);

    /// Takes in those of some points, at these squared distances, that count for query `i`. Returns the last that counts now.
    fn offer(&mut self, i: usize, distances: &[T], index: &[i64]) -> (T, i64);
}

/// Whether a point at this distance may count under a bound: it is not farther, or one of the two is NaN.
#[inline(always)]
pub(super) fn counts<T: Real>(distance: T, bound: T) -> bool {
    // `>` is false for NaN, so it must not be turned into `<=`.
    let beyond = distance > bound;
    !beyond
}

/// Offers every point of a block that may count to the rows of the queries.
///
/// `queries` is `[queries, dim]`, `points` `[points, dim]`.
pub(super) fn search<T: Real>(
    how: Search,
    queries: &View<'_, T>,
    points: &View<'_, T>,
    index: Positions<'_>,
    rows: &mut dyn Rows<T>,
) {
    assert!(
        queries.ndim() == 2 && points.ndim() == 2 && queries.shape()[1] == points.shape()[1],
        "neighbours: queries of shape {:?} among points of shape {:?}",
        queries.shape(),
        points.shape()
    );
    let (n, dim) = (points.shape()[0], points.shape()[1]);
    let index = index.list(n);
    if n == 0 || queries.shape()[0] == 0 {
        return;
    }
    let count = queries.shape()[0];
    let tree = match how {
        Search::Exhaustive => false,
        Search::Tree => true,
        Search::Auto => tree_pays(count, n),
    };
    let tree = tree.then(|| Tree::new(points, &index)).flatten();
    let queries = queries.to_vec();
    if let Some(tree) = tree {
        vectorized(Through {
            tree: &tree,
            dim,
            queries: &queries,
            rows,
        });
    } else {
        let columns = Columns::new(points);
        vectorized(All {
            columns: &columns,
            index: &index,
            queries: &queries,
            count,
            rows,
        });
    }
}

/// Whether the points that a tree passes over make up for building it.
///
/// This was measured with 16 neighbours, in 1, 3 and 6 dims, at these bounds and beyond: a tree takes 0.94 of the time at most,
/// in 6 dims and with few queries, and 0.3 at best. With fewer queries, building it costs more than it saves where there are many
/// points: 64 queries of 4096 points in 6 dims take as long or half as long again.
fn tree_pays(queries: usize, points: usize) -> bool {
    points >= 256 && queries >= 128 && queries >= points / 64
}

/// Each query through a tree.
struct Through<'a, T> {
    tree: &'a Tree<T>,
    dim: usize,
    queries: &'a [T],
    rows: &'a mut dyn Rows<T>,
}

impl<T: Real> WithSimd for Through<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (i, query) in self.queries.chunks_exact(self.dim).enumerate() {
            self.tree.visit(query, i, self.rows);
        }
    }
}

/// Each query with all points.
struct All<'a, T> {
    columns: &'a Columns<T>,
    index: &'a [i64],
    queries: &'a [T],
    /// Number of queries.
    count: usize,
    rows: &'a mut dyn Rows<T>,
}

impl<T: Real> WithSimd for All<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let dim = self.columns.dim();
        // A tile of points stays in the first-level cache while all queries are compared with it.
        for tile in self.columns.tiles() {
            for i in 0..self.count {
                let query = &self.queries[i * dim..(i + 1) * dim];
                self.columns
                    .visit(query, tile.clone(), self.index, i, self.rows);
            }
        }
    }
}
