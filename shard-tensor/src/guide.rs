//! Longer texts.

#[doc = include_str!("../docs/cluster.md")]
pub mod cluster {}
