//! Kernels against their definitions, on seeded numbers: whatever the types, strides and sizes.

mod attention;
mod attention_tiles;
mod best;
mod cells;
mod conv;
mod copy;
mod cuts;
mod exp;
mod fft;
mod gemm;
mod grid;
#[cfg(feature = "linalg")]
mod linalg;
mod math;
mod moments;
mod neighborhood;
mod neighbors;
mod normalise;
mod normalise_cells;
mod pairwise;
mod pointwise;
mod pool;
mod reduce;
mod resample;
mod rows;
mod scan;
mod softmax;
mod softmax_rows;
mod sort;
mod tally;
mod testing;
mod triangle;
mod unary;
mod unfold;
mod view;
mod whole;
