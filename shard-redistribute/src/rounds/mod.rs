//! Moves that hold little more than the larger of source and destination, by rounds.
//!
//! An exchange is cut into rounds. In each round, an equal range of the row-major elements of every piece moves into a small
//! staging buffer. Both sides of a piece know its extents, so they cut it alike. All pieces advance together, and a rank cuts
//! the pieces that it reads from itself as others cut what they read of it ([`aligned`]). So the elements still to be read and
//! those written already never add up to more than the larger of the two blocks and a little. They share one buffer, the
//! source's own ([`pages`]): between rounds, when all ranks have read, the staged elements go to free pages.
//!
//! An all-reduce, whose result lies in the place of its source, is cut into slices in the same way.
//!
//! The layouts, the element type and the staging decide what is cut into how many rounds, and all ranks know these. The size
//! of a page matters to its rank alone.

mod aligned;
mod pages;
mod plan;
pub(crate) mod ranges;
mod run;
mod sizes;

pub(crate) use sizes::Way;
