//! The tests that decide: whole-workspace conformance against reference results, and generators for property
//! tests. Never published.
//!
//! - [`case`]: reference cases in files, [`layouts`]: which layouts to try them on, [`dispatch`]: which op of
//!   the workspace a case is about, [`made`]: cases that no file has.
//! - [`trial`]: one case on one combination of layouts, [`run`]: many of them, [`sixteen`]: in floats of 16 bits, [`report`]: what came out.
//! - [`validate`]: every op's rule against brute force.
//! - [`strategies`]: `proptest` strategies for meshes and layouts; [`generate`]: random cases of ops; [`parsers`]: what reads from outside, on any bytes; [`paths`]: tensors through random layouts;
//!   [`harness`]: a function on the ranks of a mesh; [`differentiate`]: its results and gradients; [`properties`](mod@properties): runs them.
//! - [`programs`]: many ops one after the other; [`trainings`]: models of many layers, trained on one mesh after the other.
//! - [`step_memory`]: what a training step holds at most.
//! - [`page`](mod@page): what is sent for which placement, op by op.
//! - [`say`](mod@say): what programs print, to whoever listens.
//! - `processes`, `job`, with the feature `mpi`: trials, and properties, on ranks that are processes.
#![forbid(unsafe_code)]

pub mod case;
pub mod differentiate;
pub mod dispatch;
pub mod faults;
pub mod generate;
pub mod harness;
#[cfg(feature = "mpi")]
mod job;
pub mod layouts;
pub mod made;
pub mod page;
pub mod parsers;
pub mod paths;
#[cfg(feature = "mpi")]
pub mod processes;
pub mod programs;
pub mod properties;
pub mod report;
pub mod run;
pub mod say;
pub mod sixteen;
pub mod step_memory;
pub mod strategies;
pub mod trainings;
pub mod trial;
pub mod validate;
