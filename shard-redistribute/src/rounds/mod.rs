//! Moves that hold little more than the larger of source and destination, by rounds.
//!
//! An exchange is cut into rounds: of every piece, each round moves an equal range of its row-major elements into a
//! small staging buffer. Both sides of a piece know its extents, so they cut it alike. All pieces advance together, and a
//! rank cuts what it keeps as others cut what they read of it ([`aligned`]): so what is still to be read and what has been
//! written never add up to more than the larger of the two blocks and a little. They share one buffer, the source's own
//! ([`pages`]): between rounds, when all ranks have read, the staged elements go to pages that are free.
//!
//! An all-reduce, whose result lies where its source does, is cut into slices in the same way.
//!
//! The layouts, the element type and the staging decide what is cut into how many rounds, and all ranks know these. How
//! large a page is concerns only the rank itself.

mod aligned;
mod pages;
mod plan;
mod ranges;
mod run;
mod sizes;

pub(crate) use sizes::Way;
