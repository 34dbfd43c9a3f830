//! What the host does to memory on behalf of every device it can reach: fill, copy, convert, fold.
//!
//! All of these walk two views of one shape together. [`nest`] turns the views into as few loops as possible, with the
//! destination's smallest step innermost; the others say what happens to an element and to a dense row.

mod arithmetic;
mod copy;
mod fold;
mod nest;
mod reduce;

pub(crate) use copy::{copy, fill};
pub(crate) use fold::{check as check_fold, fold};
#[cfg(feature = "cuda")]
pub(crate) use nest::Nest;
pub(crate) use reduce::reduce;
