//! The crate against the engine, on in-process ranks.

mod checks;
mod common;
mod law;
mod memory;
mod tape;
