//! Moves that hold little more than the larger of source and destination, by rounds.
//!
//! An exchange is cut into rounds: of every piece, each round moves an equal range of its row-major elements into a
//! small staging buffer. Both sides of a piece know its extents, so they cut it alike, and since all pieces advance
//! together, what a rank keeps aligned with what others read of it ([`aligned`]), what is still to be read and what has been written never add up to more than the larger of the two blocks
//! and a little. They share one buffer, the source's own ([`pages`]): between rounds, when all ranks have read, the
//! staged elements go to pages that are free.
//!
//! An all-reduce, whose result lies where its source does, is cut into windows in the same way.
//!
//! What is cut and into how many rounds is a function of the layouts, the element type and the staging, and so the
//! same on every rank; how large a page is concerns only the rank itself.

mod aligned;
mod pages;
mod plan;
mod ranges;
mod run;
mod sizes;

pub(crate) use sizes::Way;
