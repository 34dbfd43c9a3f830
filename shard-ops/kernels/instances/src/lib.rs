//! Generic crates compiled for the types that `shard-kernels` takes, once, whatever is built of the kernels themselves.
//!
//! Nothing here decides anything: what a transform means is the kernels' matter.

#![forbid(unsafe_code)]

pub mod fourier;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
