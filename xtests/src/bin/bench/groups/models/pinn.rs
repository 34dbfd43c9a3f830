//! A physics-informed net, which learns a solution of the heat equation from the equation alone: its loss has gradients of gradients.

use super::train;
use crate::suite::Suite;
use shard_tensor::nn::{Linear, Map, Module, Sequential};
use shard_tensor::{Error, Mesh, Result, ShardTensor};

pub(super) fn add(suite: &mut Suite<'_>) {
    let (points, width) = (suite.size(1024, 32), suite.size(64, 8));
    train(
        suite,
        &format!("PINN {points} points"),
        move |draw| Ok([draw.normal([points, 2])?]),
        move |mesh| solution(mesh, width),
        |model, [points]| residual(model, points),
    );
}

/// A number for a place and a time.
fn solution(mesh: &Mesh, width: usize) -> Result<Sequential> {
    Ok(Sequential::new()
        .then(Linear::new(mesh, 2, width)?)
        .then(Map::new(ShardTensor::tanh))
        .then(Linear::new(mesh, width, width)?)
        .then(Map::new(ShardTensor::tanh))
        .then(Linear::new(mesh, width, width)?)
        .then(Map::new(ShardTensor::tanh))
        .then(Linear::new(mesh, width, 1)?))
}

/// By how much it misses u_t = u_xx at points `[points, (x, t)]`: the mean of the squares.
fn residual(model: &Sequential, points: &ShardTensor) -> Result<ShardTensor> {
    let points = points.requires_grad()?;
    let slopes = slopes(&model.forward(&points)?, &points)?;
    let (along_x, along_t) = (slopes.select(1, 0)?, slopes.select(1, 1)?);
    let bend = self::slopes(&along_x, &points)?.select(1, 0)?;
    along_t.sub(&bend)?.square()?.mean_all()
}

/// How what was found at each point changes with the point, on the tape again.
fn slopes(found: &ShardTensor, points: &ShardTensor) -> Result<ShardTensor> {
    let slopes = found.sum_all()?.grad(&[points], true)?.remove(0);
    slopes.ok_or_else(|| Error::custom("a solution that is the same everywhere"))
}
