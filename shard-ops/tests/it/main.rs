//! Ops by the engine, as a user of the crate applies them.

mod applied;
mod cells;
mod compare;
mod contraction;
mod elementwise;
mod engine;
mod indexing;
#[cfg(feature = "linalg")]
mod linalg;
mod optimize;
mod pairwise;
mod ranks;
mod rng;
mod rows;
mod sorting;
mod testing;
