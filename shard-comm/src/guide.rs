//! Pages to read from top to bottom.

#[doc = include_str!("../docs/testing.md")]
pub mod testing {}
