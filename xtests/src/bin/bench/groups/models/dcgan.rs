//! The generator of DCGAN, which makes images of few numbers.

use super::{mean_square, train};
use crate::suite::Suite;
use shard_tensor::nn::{BatchNorm, ConvTranspose, Map, Sequential};
use shard_tensor::{ConvTransposeOptions, Mesh, Result, ShardTensor};

pub(super) fn add(suite: &mut Suite<'_>) {
    let (samples, channels, side) = (suite.size(16, 4), suite.size(128, 8), suite.size(8, 4));
    train(
        suite,
        &format!("DCGAN {samples}x{channels}x{side}x{side}"),
        move |draw| {
            let seeds = draw.normal([samples, channels, side, side])?;
            Ok([seeds, draw.normal([samples, 3, 8 * side, 8 * side])?])
        },
        move |mesh| generator(mesh, channels),
        mean_square,
    );
}

/// Three convolutions, each of which doubles the points along either side.
fn generator(mesh: &Mesh, channels: usize) -> Result<Sequential> {
    let options = || ConvTransposeOptions::new().stride(2).padding(1);
    let twice = |from, to| ConvTranspose::new(mesh, from, to, [4, 4], options());
    Ok(Sequential::new()
        .then(twice(channels, channels / 2)?)
        .then(BatchNorm::new(mesh, channels / 2)?)
        .then(Map::new(ShardTensor::relu))
        .then(twice(channels / 2, channels / 4)?)
        .then(BatchNorm::new(mesh, channels / 4)?)
        .then(Map::new(ShardTensor::relu))
        .then(twice(channels / 4, 3)?)
        .then(Map::new(ShardTensor::tanh)))
}
