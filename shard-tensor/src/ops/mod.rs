//! Every op as a method.
//!
//! Methods add nothing to the functions of `shard_ops` but the tape and the error type. All of them are
//! collective: every member of the tensors' mesh calls them alike, in the same order.

mod blocks;
mod compare;
mod counts;
mod edges;
#[cfg(feature = "linalg")]
mod equations;
#[cfg(feature = "linalg")]
mod factors;
mod folds;
mod fourier;
mod fused;
mod indexing;
#[cfg(feature = "linalg")]
mod linalg;
mod linear_loss;
mod losses;
mod masks;
mod moves;
mod noise;
mod pointwise;
mod polynomials;
mod products;
mod reduce;
mod scans;
mod shapes;
mod signal;
mod slopes;
mod softmax;
mod spatial;
mod sphere;
mod statistics;
mod windows;

pub use counts::{Bins, Unique};
pub use folds::{RadiusPairs, RadiusTable};
pub use fused::Fused;
pub use losses::ClassLoss;
pub use masks::Branch;
pub(crate) use noise::fine;
pub use signal::Stft;
pub use sphere::{SphereGrid, SphericalTransform};
