//! Host kernels: pure functions on slices of one rank's memory.
//!
//! No layouts and no communication appear here; a kernel sees a strided [`View`] of local memory and writes a [`ViewMut`].
//! Each runs on the calling thread alone (a rank is a thread) and gives the same value for an element however the tensor
//! around it was split, up to rounding: sums over a window run in the order of the window, never in the order of the slab's
//! position.
//!
//! Shapes are planned by the caller (the engine checks users' input first), so a contradiction between the shapes given to
//! a kernel is a defect of the caller and panics with both shapes named; memory safety never depends on it.
//!
//! # A product with a transposed operand
//!
//! ```
//! use shard_kernels::gemm::matmul;
//! use shard_kernels::{View, ViewMut};
//!
//! let a = [1.0f64, 2.0, 3.0, 4.0, 5.0, 6.0];
//! let mut gram = [0.0; 4];
//! let rows = View::contiguous(&a, &[2, 3]);
//! // The transpose is a view of the same memory.
//! let columns = rows.permute(&[1, 0]);
//! matmul(&rows, &columns, &mut ViewMut::contiguous(&mut gram, &[2, 2]), false);
//! assert_eq!(gram, [14.0, 32.0, 32.0, 77.0]);
//! ```

#![deny(unsafe_code)]

mod arrays;
pub mod attention;
pub mod best;
pub mod cells;
mod compiled;
pub mod conv;
pub mod copy;
pub mod cuts;
pub mod exp;
pub mod fft;
pub mod fused;
pub mod gemm;
pub mod grid;
#[cfg(feature = "linalg")]
pub mod linalg;
mod loops;
pub mod math;
pub mod moments;
pub mod neighborhood;
pub mod neighbors;
pub mod normalise;
pub mod optimize;
pub mod pairwise;
pub mod pointwise;
pub mod pool;
mod positions;
pub mod powers;
mod prefetch;
pub mod random;
pub mod real;
pub mod reduce;
pub mod resample;
pub mod rows;
pub mod scan;
mod scratch;
pub mod search;
pub mod softmax;
pub mod sort;
mod special;
pub mod tally;
pub mod together;
pub mod triangle;
mod turn;
pub mod unary;
pub mod unfold;
pub mod view;
pub mod whole;

pub use positions::Positions;
pub use real::Real;
pub use view::{Dims, Strides, View, ViewMut};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
