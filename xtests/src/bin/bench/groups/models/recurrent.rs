//! Sequences that recurrent layers tell apart by their last step.

use super::{cross_entropy, train};
use crate::suite::Suite;
use shard_tensor::nn::{Gru, Linear, Lstm, Map, Module, Sequential};
use shard_tensor::{Mesh, Result};

const DEPTH: usize = 2;
const CLASSES: usize = 10;

pub(super) fn add(suite: &mut Suite<'_>) {
    add_of(suite, "LSTM", |mesh, [inputs, hidden]| {
        Lstm::new(mesh, inputs, hidden, DEPTH)
    });
    add_of(suite, "GRU", |mesh, [inputs, hidden]| {
        Gru::new(mesh, inputs, hidden, DEPTH)
    });
}

/// Adds a model with layers of a kind, which are made from numbers of inputs and hidden features.
fn add_of<L: Module + Clone + 'static>(
    suite: &mut Suite<'_>,
    kind: &str,
    layers: fn(&Mesh, [usize; 2]) -> Result<L>,
) {
    let (samples, steps) = (suite.size(32, 4), suite.size(48, 6));
    let (inputs, hidden) = (suite.size(64, 8), suite.size(128, 8));
    train(
        suite,
        &format!("{kind} {samples}x{steps}x{inputs}"),
        move |draw| {
            let sequences = draw.normal([samples, steps, inputs])?;
            Ok([sequences, draw.below(CLASSES, [samples])?])
        },
        move |mesh| {
            Ok(Sequential::new()
                .then(layers(mesh, [inputs, hidden])?)
                .then(Map::new(move |found| found.select(1, steps - 1)))
                .then(Linear::new(mesh, hidden, CLASSES)?))
        },
        cross_entropy,
    );
}
