//! The op families, each with rule, host call, CUDA call and the text of its CUDA kernels side by side.

pub mod attention;
pub mod broadcast;
pub mod conv;
pub mod decided;
pub mod einsum;
pub mod elementwise;
pub mod fft;
mod full;
pub mod fused;
pub mod grid;
pub mod histogram;
pub mod index;
pub mod indexing;
pub mod integral;
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

/// The texts of all families for GPUs, each with what tests compile it for.
#[cfg(feature = "cuda")]
pub(crate) const TEXTS: &[&[(crate::cuda::KernelSource, &str)]] = &[
    attention::cuda::TRIED,
    conv::cuda::TRIED,
    elementwise::cuda::TRIED,
    fft::cuda::TRIED,
    grid::cuda::TRIED,
    indexing::cuda::TRIED,
    indexing::products_cuda::TRIED,
    matmul::cuda::TRIED,
    neighborhood::cuda::TRIED,
    neighbors::cuda::TRIED,
    norm::cuda::TRIED,
    optimize::cuda::TRIED,
    over_dims::cuda::TRIED,
    pairwise::cuda::TRIED,
    pool::cuda::TRIED,
    random::cuda::TRIED,
    resample::cuda::TRIED,
    scan::cuda::TRIED,
    search::cuda::TRIED,
    select::cuda::TRIED,
    softmax::cuda::TRIED,
    sort::cuda::TRIED,
    statistics::cuda::TRIED,
    triangle::cuda::TRIED,
    unfold::cuda::TRIED,
];
