//! The crate against the engine, on in-process ranks.

mod ahead;
mod checks;
mod common;
mod halos;
mod law;
mod local;
mod memory;
mod pieces;
mod shared;
mod tape;
mod used;
mod windows;
