//! Scaled dot product attention as a fold over blocks of keys: `softmax(scale · q kᵀ + mask) v`, and its gradient.
//!
//! The matrix of queries by keys never exists as a whole. An [`AttentionState`] takes in any number of blocks, in any order
//! and split in any way, and keeps per query the running maximum, the sum of exponentials and the unnormalised output. A
//! single rank folds once, and a ring folds the blocks as they arrive. An [`AttentionGrad`] does the same for the gradient,
//! from the result and its log-sum-exp alone.
//!
//! Masks look at *global positions* ([`Positions`](super::Positions)), never at the place in a block, so blocks need not be
//! intervals. Tiles that no query sees cost nothing, and tiles that all queries see are not masked.
//! [Segments](Queries::segments) are numbers of queries and keys, and hide keys of other numbers in the same tiles.
//!
//! Queries are `[batch, heads, queries, dim]`, keys `[batch, kv heads, keys, dim]`, values
//! `[batch, kv heads, keys, value dim]`, with any strides. Heads are a multiple of kv heads, and query head `h` reads kv head
//! `h / (heads / kv heads)`.
//!
//! A query that sees no key gets zeros and a log-sum-exp of -inf. A hidden key's *value* is multiplied by 0 where it shares a
//! tile with visible ones, so it must be finite; hidden keys may hold anything.

mod backward;
mod band;
mod cover;
mod dropout;
mod forward;
mod merge;
mod problem;
mod products;
mod segments;
mod stored;
mod tiles;

pub use backward::{AttentionGrad, BlockGrad, PausedGrad};
pub use band::Band;
pub use dropout::{DropWhere, DropoutMask};
pub use forward::AttentionState;
pub use merge::merge;
pub use problem::{KeyBlock, Queries, Tile};
pub use stored::Stored;
pub(crate) use stored::gather;
#[doc(hidden)]
pub use tiles::inside;
