//! Distributed tensors for applications: one facade over layouts, communication, operators and gradients.
#![forbid(unsafe_code)]

pub mod checkpoint;
mod context;
mod error;
mod gradients;
mod launch;
mod mesh;
pub mod nn;
mod operators;
mod ops;
pub mod optim;
mod placements;
pub mod rng;
mod shape;
mod tensor;

pub use context::Context;
pub use error::{Error, Result};
pub use gradients::Gradients;
pub use launch::{Launch, launch};
pub use mesh::{LocalSizes, Mesh};
pub use placements::{AxisPlacement, Placements, partial, replicate, shard};
pub use shape::Shape;
pub use tensor::ShardTensor;
