//! Neighbours of query points as a fold over blocks of points: the k nearest, all within a radius, and farthest point sampling.
//!
//! A state takes any number of blocks of points, in any order and split anyhow, and holds at the end what one block of all
//! points would have given, bit for bit. That rests on three rules:
//!
//! - a squared distance is `Σ (x_d - y_d)²`, summed over the dims in order, each operation rounded, nothing fused;
//! - neighbours are ordered by (squared distance, global index); equal distances go to the lower index; NaN counts as farther
//!   than everything, and points at NaN are still ordered by index;
//! - whole boxes of points are passed over only where a lower bound *rounded like the distances themselves* exceeds the worst distance
//!   that still counts: rounding is monotone, so no neighbour is lost.
//!
//! In up to [`MAX_TREE_DIM`] dims and from some number of points and queries on, a block is searched through a tree of boxes, otherwise
//! exhaustively; which of them never shows in the result.
//!
//! Why not a crate: of the well-kept ones `kiddo` decides equal distances by its own order (and its mutable tree refuses many
//! equal coordinates), and `rstar` gives them in any order. Exact ties and blocks are the point here.

mod farthest;
mod nearest;
mod radius;
mod scan;
mod search;
#[cfg(test)]
mod tests;
mod tree;

pub use farthest::{farthest, lower, unsampled};
pub use nearest::Nearest;
pub use radius::{RadiusRows, RowOrder, WithinRadius};
pub use search::Search;
pub use tree::MAX_TREE_DIM;
