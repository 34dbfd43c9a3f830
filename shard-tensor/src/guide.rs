//! Longer texts.

#[doc = include_str!("../docs/cluster.md")]
pub mod cluster {}

#[doc = include_str!("../docs/scaling.md")]
pub mod scaling {}
