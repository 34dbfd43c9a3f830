//! The op families, each with rule, host call, CUDA call and the text of its CUDA kernels side by side.

pub mod attention;
pub mod broadcast;
pub mod conv;
mod decided;
pub mod einsum;
pub mod elementwise;
pub mod fft;
pub mod grid;
pub mod histogram;
pub mod index;
pub mod indexing;
#[cfg(feature = "linalg")]
pub mod linalg;
pub mod loss;
pub mod matmul;
pub mod neighborhood;
pub mod neighbors;
pub mod norm;
mod one_hot;
pub mod optimize;
pub(crate) mod over_dims;
pub mod pairwise;
pub mod pool;
pub mod random;
pub mod reduce;
pub mod resample;
pub mod scan;
pub mod search;
pub mod select;
pub mod shape;
pub mod softmax;
pub mod sort;
pub mod statistics;
pub mod triangle;
mod types;
pub mod unfold;
pub mod unique;

pub(crate) use elementwise::cast_op;
pub use one_hot::one_hot;
