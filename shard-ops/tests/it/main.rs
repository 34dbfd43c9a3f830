//! Ops by the engine, as a user of the crate applies them.

mod advice;
mod applied;
mod cells;
mod compare;
mod contraction;
#[cfg(feature = "cuda")]
mod cuda;
mod elementwise;
mod engine;
mod fused;
mod indexing;
mod keys;
#[cfg(feature = "linalg")]
mod linalg;
mod lines;
mod missing;
mod optimize;
mod pairwise;
mod ranks;
mod rng;
mod routes;
mod rows;
mod rules;
mod sorting;
mod testing;
