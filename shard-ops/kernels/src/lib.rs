//! Host kernels: pure functions on slices of one rank's memory.
//!
//! No layouts and no communication appear here; a kernel sees a strided [`View`] of local memory and writes a
//! [`ViewMut`]. Each runs on the calling thread alone (a rank is a thread) and gives the same value for an element however
//! the tensor around it was split, up to rounding: sums over a window run in the order of the window, never in the order
//! of the slab's position.
//!
//! Shapes are planned by the caller (the engine checks users' input first), so a contradiction between the shapes given to
//! a kernel is a defect of the caller and panics with both shapes named; memory safety never depends on it.

pub mod attention;
pub mod conv;
pub mod copy;
pub mod gemm;
pub mod math;
pub mod moments;
pub mod neighborhood;
pub mod neighbors;
pub(crate) mod normalise;
pub mod pointwise;
pub mod pool;
mod positions;
pub mod real;
pub mod reduce;
pub mod resample;
#[cfg(test)]
mod testing;
pub mod unary;
pub mod view;

pub use positions::Positions;
pub use real::Real;
pub use view::{Dims, Strides, View, ViewMut};
