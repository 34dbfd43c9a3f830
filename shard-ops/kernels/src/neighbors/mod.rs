//! Neighbours of query points as a fold over blocks of points: the k nearest, all within a radius, and farthest point sampling.
//!
//! A state takes in any number of blocks of points, in any order and split in any way, and at the end holds what one block of
//! all points would have given, bit for bit. That rests on three rules:
//!
//! - a squared distance is `Σ (x_d - y_d)²`, summed over the dims in order, each operation rounded, nothing fused;
//! - neighbours are ordered by (squared distance, global index); equal distances go to the lower index; NaN counts as farther
//!   than everything, and points at NaN are still ordered by index;
//! - points are passed over only where they are farther than the worst distance that still counts, by more than rounding could
//!   account for.
//!
//! From some number of points and queries on, in up to [`MAX_TREE_DIM`] dims, candidates come from a k-d tree of the crate
//! `kiddo`, otherwise from all points, and always from all points without the feature `kd-tree`. The result does not show
//! which. No crate breaks ties as we do, so a tree only says where to look. These were measured on 20,000 points, 5,000
//! queries and 17 neighbours in 3 dims (f32, one thread, building included):
//!
//! | crate | uniform points | all in a plane |
//! |---|---|---|
//! | `kiddo` 6.3, flat leaves | 7.2 ms | 34 ms |
//! | `kiddo` 6.3, as it comes | 8.0 ms | 41 ms |
//! | `kiddo` 5.3, immutable | 10.4 ms | 49 ms |
//! | `nabo` 0.6 | 13.6 ms | 158 ms |
//! | `kd-tree` 0.6 | 13.9 ms | 130 ms |
//! | `kdtree` 0.8 | 17.4 ms | 17 ms |
//! | `rstar` 0.13 | 19.5 ms | 29 ms |
//! | all points, tiles of vectors | 36 ms | 41 ms |
//!
//! All crates handled points that are all equal, lattices, and 100,000 points in a plane. The search here takes 8.8 ms for the
//! uniform points and 6.8 ms for those in a plane, since the tree is built over the dims in which points differ. A tree of
//! boxes of our own took 8.2 and 6.8 ms in the same run. It was faster where points nearly fill a plane (7.1 ms to 14.6 ms) or
//! half of them coincide (8.5 ms to 15.4 ms).

mod farthest;
mod nearest;
mod radius;
mod scan;
mod search;
mod tree;

pub(crate) use farthest::CompiledFarthest;
pub use farthest::{farthest, lower, unsampled};
pub(crate) use nearest::CompiledNearest;
pub use nearest::Nearest;
pub(crate) use radius::CompiledRadius;
pub use radius::{RadiusRows, RowOrder, WithinRadius, limit};
pub use search::Search;
pub use tree::MAX_TREE_DIM;
