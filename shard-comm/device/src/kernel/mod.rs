//! What the host does to memory on behalf of every device it can reach: fill, copy, convert, fold.
//!
//! All of these walk two views of one shape together. [`nest`] turns the views into as few loops as possible, with the
//! destination's smallest step innermost; the others say what happens to an element and to a dense row.
//!
//! Elements are given as aligned bytes, and views were checked against them (see [`check`](crate::check)) and hold in them: one
//! that reaches past its bytes panics.

mod arithmetic;
mod copy;
mod fold;
mod nest;
mod reduce;

pub use copy::{copy, fill};
pub use fold::{check_fold, fold};
#[cfg(feature = "cuda")]
pub(crate) use nest::Nest;
pub use reduce::reduce;
