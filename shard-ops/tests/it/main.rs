//! Ops by the engine, as a user of the crate applies them.

mod contraction;
mod engine;
mod indexing;
mod ranks;
mod rows;
mod sorting;
mod testing;
