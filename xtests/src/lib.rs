//! The tests that decide: whole-workspace conformance against reference results, and generators for property
//! tests. Never published.
//!
//! - [`case`]: reference cases in files, [`layouts`]: which layouts to try them on, [`dispatch`]: which op of
//!   the workspace a case is about.
//! - [`trial`]: one case on one combination of layouts, [`run`]: many of them, [`report`]: what came out.
//! - [`strategies`]: `proptest` strategies for meshes and layouts; [`arrays`]: data on ranks and back.
#![forbid(unsafe_code)]

pub mod case;
pub mod compare;
pub mod layouts;
pub mod rng;
