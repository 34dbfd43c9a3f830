//! The terrain of the examples.

use ndarray::Array2;
use shard_tensor::data::{DataError, Npy};

const ALTITUDE: &[u8] = include_bytes!("../data/uk_hires_altitude.npy");

/// Altitudes in metres, `[rows, columns]`, row 0 the southernmost; see the README beside the file.
pub(crate) fn altitude() -> Result<Array2<f32>, DataError> {
    Npy::from_bytes(ALTITUDE)?.to_array()
}

/// Uneven sizes, in proportion to 3, 4, 5, ...
pub(crate) fn strips(n: usize, ranks: usize) -> Vec<usize> {
    let before = |rank: usize| n * (rank * (rank + 5)) / (ranks * (ranks + 5));
    (0..ranks)
        .map(|rank| before(rank + 1) - before(rank))
        .collect()
}
