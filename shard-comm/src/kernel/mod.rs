//! What the host does to memory on behalf of every device it can reach: fill, copy, convert, fold.
//!
//! All of these walk two views of one shape together. [`nest`] turns the views into as few loops as possible, with the
//! destination's smallest step innermost. What is done to the elements is a function pointer, chosen by types and
//! operation before the loops ([`copy`], [`fold`], [`reduce`]; [`arithmetic`] has the operations): such a function is made
//! for each pair of types or operation once, with the loops it needs to be fast and no others. Copies know no types, only
//! sizes.

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
