//! Neighbours of query points as a fold over blocks of points: the k nearest, all within a radius, and farthest point sampling.
//!
//! A state takes in any number of blocks of points, in any order and split in any way, and at the end holds what one block of
//! all points would have given, bit for bit. That rests on three rules:
//!
//! - a squared distance is `Σ (x_d - y_d)²`, summed over the dims in order, each operation rounded, nothing fused;
//! - neighbours are ordered by (squared distance, global index); equal distances go to the lower index; NaN counts as farther
//!   than everything, and points at NaN are still ordered by index;
//! - points are passed over only where they are farther than the worst distance that still counts, or as far with a larger
//!   index, whatever rounding does.
//!
//! From some number of points and queries on, in up to [`MAX_TREE_DIM`] dims, candidates come from a tree of boxes, otherwise
//! from all points. The result does not show which. The tree is our own: no crate orders neighbours as we do, so one could only
//! say where to look, for one point more than a row takes, and all points that are as far as the last had to be measured after
//! that. These crates were tried on 20,000 points, 5,000 queries and 17 neighbours in 3 dims (f32, one thread, building
//! included), where all points, in tiles of vectors, took 36 and 41 ms:
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
//!
//! `kiddo` was used until it was measured beside the tree here, on the same points and k 16, in turns, least times on a Zen 3
//! in its slow state. With it a build also took a seventeenth more, for ten crates and what is generic of them:
//!
//! | points | through `kiddo` | here |
//! |---|---|---|
//! | uniform, 3 dims | 12.0 ms | 11.1 ms |
//! | uniform, 2 dims | 8.4 ms | 8.9 ms |
//! | uniform, 6 dims | 42 ms | 25 ms |
//! | in a plane | 8.5 ms | 8.3 ms |
//! | nearly in a plane | 24 ms | 8.1 ms |
//! | a lattice of 27 places a side | 21 ms | 15 ms |
//! | half of them in one point | 460 ms | 20 ms |
//! | all but one in one point | 1600 ms | 12 ms |

mod farthest;
mod nearest;
mod ordered;
mod radius;
mod scan;
mod search;
mod tree;

pub(crate) use farthest::CompiledFarthest;
pub use farthest::{farthest, farthest_by_cloud, lower, lower_by_cloud, unsampled};
pub(crate) use nearest::CompiledNearest;
pub use nearest::Nearest;
pub(crate) use radius::CompiledRadius;
pub use radius::{RadiusRows, RowOrder, WithinRadius, limit};
pub use search::{Clouds, Search};
pub use tree::MAX_TREE_DIM;
