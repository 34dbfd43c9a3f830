//! What the host does to memory on behalf of every device it can reach: fill, copy, convert, fold.
//!
//! All of these walk two views of one shape together. The module `nest` turns the views into as few loops as possible, with the
//! destination's smallest step innermost. What is done to the elements is a function pointer, chosen by types and
//! operation before the loops (`copy`, `fold`, `reduce`; `arithmetic` has the operations): such a function is made for each
//! pair of types or operation once, with the loops it needs to be fast and no others. Copies know no types, only sizes.
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
