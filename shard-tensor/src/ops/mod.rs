//! Every op as a method.
//!
//! Methods add nothing to the functions of `shard_ops` but the tape and the error type. All of them are
//! collective: every member of the tensors' mesh calls them alike, in the same order.

mod folds;
mod indexing;
mod moves;
mod pointwise;
mod reduce;
mod spatial;

pub use folds::{RadiusPairs, RadiusTable};
