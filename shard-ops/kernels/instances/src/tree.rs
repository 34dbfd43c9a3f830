//! k-d trees of the crate `kiddo`, for a number of dims that is known only when a tree is made.

use std::num::NonZero;

/// The most dims of a tree.
pub const MAX_TREE_DIM: usize = 6;

/// A query in the dims of a tree, followed by zeros.
pub type Position = [f64; MAX_TREE_DIM];

/// A candidate: a point's number, and its squared distance in the dims of the tree.
#[cfg(feature = "kd-tree")]
pub type Candidate = kiddo::QueryResultItem<(), u32, f64>;

/// What a candidate would be.
#[cfg(not(feature = "kd-tree"))]
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// The point's number.
    pub item: u32,
    /// Its squared distance in the dims of the tree.
    pub distance: f64,
}

/// A tree of points of any number of dims. Its squared distances, and which points it leaves out, are right except for rounding.
pub trait Cells {
    /// The nearest points within a squared distance, at most `count`, the nearest first.
    fn nearest(&self, at: &Position, count: NonZero<usize>, within: f64) -> Vec<Candidate>;

    /// Names all points within a squared distance.
    fn within(&self, at: &Position, within: f64, name: &mut dyn FnMut(u32));
}

/// A tree over points `[points, dim]`. `None` where there are no dims, or more than [`MAX_TREE_DIM`], or more points than have a
/// number; and for all points without the feature `kd-tree`.
#[cfg(feature = "kd-tree")]
pub fn cells(points: &[f64], dim: usize) -> Option<Box<dyn Cells>> {
    match dim {
        1 => of_kiddo::flat::<1>(points),
        2 => of_kiddo::flat::<2>(points),
        3 => of_kiddo::flat::<3>(points),
        4 => of_kiddo::flat::<4>(points),
        5 => of_kiddo::flat::<5>(points),
        MAX_TREE_DIM => of_kiddo::flat::<MAX_TREE_DIM>(points),
        _ => None,
    }
}

/// `None`: this build has no trees.
#[cfg(not(feature = "kd-tree"))]
pub fn cells(_: &[f64], _: usize) -> Option<Box<dyn Cells>> {
    None
}

#[cfg(feature = "kd-tree")]
mod of_kiddo {
    use super::{Candidate, Cells, Position};
    use kiddo::leaf_strategies::FlatVec;
    use kiddo::{Eytzinger, KdTree, SquaredEuclidean};
    use std::num::NonZero;

    /// Points per leaf.
    const LEAF: usize = 32;

    /// Flat leaves were measured to be faster than the crate's default.
    type Flat<const D: usize> = KdTree<f64, u32, Eytzinger, FlatVec<f64, u32, D, LEAF>, D, LEAF>;

    pub(super) fn flat<const D: usize>(points: &[f64]) -> Option<Box<dyn Cells>> {
        // The crate refuses more points than its numbers can count.
        let tree = Flat::<D>::new_from_slice(points.as_chunks::<D>().0).ok()?;
        Some(Box::new(tree))
    }

    impl<const D: usize> Cells for Flat<D> {
        fn nearest(&self, at: &Position, count: NonZero<usize>, within: f64) -> Vec<Candidate> {
            let at: [f64; D] = core::array::from_fn(|d| at[d]);
            let query = self.query(&at).nearest_n::<SquaredEuclidean<f64>>(count);
            query.within(within).execute()
        }

        fn within(&self, at: &Position, within: f64, name: &mut dyn FnMut(u32)) {
            let at: [f64; D] = core::array::from_fn(|d| at[d]);
            let query = self.query(&at).within::<SquaredEuclidean<f64>>(within);
            query.unsorted().visit(|found| name(found.item));
        }
    }
}
