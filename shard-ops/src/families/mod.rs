//! The op families, each with rule, host call, CUDA call and the text of its CUDA kernels side by side.

pub mod attention;
pub mod broadcast;
pub mod conv;
pub mod einsum;
pub mod elementwise;
pub mod index;
pub mod indexing;
pub mod loss;
pub mod matmul;
pub mod neighborhood;
pub mod neighbors;
pub mod norm;
mod one_hot;
pub mod optimize;
mod over_dims;
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

pub use one_hot::one_hot;
