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

/// The clouds that queries and points are of, a number for each: a query meets the points of its own cloud alone.
#[derive(Clone, Copy, Debug)]
pub struct Clouds<'a> {
    /// Of each query.
    pub queries: &'a [i64],
    /// Of each point.
    pub points: &'a [i64],
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

/// Offers every point of a block that may count to the rows of the queries; of several clouds those of the query's own.
///
/// `queries` is `[queries, dim]`, `points` `[points, dim]`.
pub(super) fn search<T: Real>(
    how: Search,
    queries: &View<'_, T>,
    points: &View<'_, T>,
    index: Positions<'_>,
    clouds: Option<Clouds<'_>>,
    rows: &mut dyn Rows<T>,
) {
    assert!(
        queries.ndim() == 2 && points.ndim() == 2 && queries.shape()[1] == points.shape()[1],
        "neighbours: queries of shape {:?} among points of shape {:?}",
        queries.shape(),
        points.shape()
    );
    let index = index.list(points.shape()[0]);
    let Some(clouds) = clouds else {
        return search_all(how, queries, points, &index, rows);
    };
    assert!(
        clouds.queries.len() == queries.shape()[0] && clouds.points.len() == points.shape()[0],
        "neighbours: clouds of {} queries and {} points for {:?} and {:?}",
        clouds.queries.len(),
        clouds.points.len(),
        queries.shape(),
        points.shape()
    );
    let (asking, asked) = (members(clouds.queries), members(clouds.points));
    let mut theirs = asked.chunk_by(|&a, &b| clouds.points[a] == clouds.points[b]);
    let mut next = theirs.next();
    for ours in asking.chunk_by(|&a, &b| clouds.queries[a] == clouds.queries[b]) {
        let cloud = clouds.queries[ours[0]];
        while next.is_some_and(|of| clouds.points[of[0]] < cloud) {
            next = theirs.next();
        }
        if let Some(of) = next.filter(|of| clouds.points[of[0]] == cloud) {
            let index: Vec<i64> = of.iter().map(|&i| index[i]).collect();
            let [own, other] = [(queries, ours), (points, of)].map(|(of, rows)| picked(of, rows));
            let [own, other] = [(&own, ours), (&other, of)]
                .map(|(data, rows)| View::contiguous(data, &[rows.len(), queries.shape()[1]]));
            search_all(how, &own, &other, &index, &mut Members { rows, of: ours });
        }
    }
}

/// The rows in the order of their clouds.
fn members(clouds: &[i64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..clouds.len()).collect();
    // Where clouds stand one after the other already, this is one pass.
    order.sort_by_key(|&i| clouds[i]);
    order
}

/// Some rows of a table, one after the other.
fn picked<T: Real>(table: &View<'_, T>, rows: &[usize]) -> Vec<T> {
    let [down, across] = [table.strides()[0], table.strides()[1]];
    let mut picked = Vec::with_capacity(rows.len() * table.shape()[1]);
    for &row in rows {
        let from = table.offset().wrapping_add_signed(row as isize * down);
        let at = |d: usize| table.data()[from.wrapping_add_signed(d as isize * across)];
        picked.extend((0..table.shape()[1]).map(at));
    }
    picked
}

/// The rows of some queries.
struct Members<'a, T> {
    rows: &'a mut dyn Rows<T>,
    of: &'a [usize],
}

impl<T> Rows<T> for Members<'_, T> {
    fn last(&self, i: usize) -> (T, i64) {
        self.rows.last(self.of[i])
    }

    fn offer(&mut self, i: usize, distances: &[T], index: &[i64]) -> (T, i64) {
        self.rows.offer(self.of[i], distances, index)
    }
}

/// Offers every point of a block that may count to the rows of the queries.
fn search_all<T: Real>(
    how: Search,
    queries: &View<'_, T>,
    points: &View<'_, T>,
    index: &[i64],
    rows: &mut dyn Rows<T>,
) {
    let (n, dim) = (points.shape()[0], points.shape()[1]);
    if n == 0 || queries.shape()[0] == 0 {
        return;
    }
    let count = queries.shape()[0];
    let tree = match how {
        Search::Exhaustive => false,
        Search::Tree => true,
        Search::Auto => tree_pays(count, n),
    };
    let tree = tree.then(|| Tree::new(points, index)).flatten();
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
            index,
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

/// The methods by which a state of rows takes in blocks of points, by the `take_in` of its module.
macro_rules! taken_in {
    ($state:ident) => {
        impl<T: Real> $state<T> {
            /// Takes in points `[points, dim]` with these global indexes, for queries `[queries, dim]`.
            ///
            /// # Panics
            /// When shapes contradict each other or the state.
            pub fn fold(
                &mut self,
                queries: &View<'_, T>,
                points: &View<'_, T>,
                index: Positions<'_>,
            ) {
                self.fold_by(Search::Auto, queries, points, index);
            }

            /// As [`fold`](Self::fold), by a search of the caller's choice.
            ///
            /// # Panics
            /// As [`fold`](Self::fold).
            pub fn fold_by(
                &mut self,
                how: Search,
                queries: &View<'_, T>,
                points: &View<'_, T>,
                index: Positions<'_>,
            ) {
                take_in(self, how, queries, points, index, None);
            }

            /// As [`fold`](Self::fold), where each query meets only the points of its own cloud. Clouds may be in any order.
            ///
            /// # Panics
            /// As [`fold`](Self::fold); when clouds are not as many as queries and points.
            pub fn fold_by_cloud(
                &mut self,
                queries: &View<'_, T>,
                points: &View<'_, T>,
                index: Positions<'_>,
                clouds: Clouds<'_>,
            ) {
                take_in(self, Search::Auto, queries, points, index, Some(clouds));
            }
        }
    };
}
pub(super) use taken_in;
