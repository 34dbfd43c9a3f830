//! The texts of all families, for the tests that compile them.

use super::KernelSource;
use crate::families::{
    attention, conv, elementwise, fft, grid, indexing, matmul, neighborhood, neighbors, norm,
    optimize, over_dims, pairwise, pool, random, resample, scan, search, select, softmax, sort,
    statistics, triangle, unfold,
};

/// Every text, with what it is compiled for.
pub fn texts() -> impl Iterator<Item = &'static (KernelSource, &'static str)> {
    [
        attention::cuda::TRIED,
        conv::cuda::TRIED,
        elementwise::cuda::TRIED,
        fft::cuda::TRIED,
        grid::cuda::TRIED,
        indexing::cuda::TRIED,
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
    ]
    .into_iter()
    .flatten()
}
