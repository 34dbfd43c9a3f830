//! A Fourier neural operator.

use super::{mean_square, train};
use crate::suite::Suite;
use shard_tensor::nn::{Conv, Module, SpectralConv};
use shard_tensor::{ConvOptions, Mesh, Result, ShardTensor, tree};

const DEPTH: usize = 4;

pub(super) fn add(suite: &mut Suite<'_>) {
    let (samples, side) = (suite.size(4, 4), suite.size(64, 12));
    let (width, modes) = (suite.size(32, 4), suite.size(12, 3));
    train(
        suite,
        &format!("FNO {samples}x3x{side}x{side}"),
        move |draw| {
            let fields = draw.normal([samples, 3, side, side])?;
            Ok([fields, draw.normal([samples, 1, side, side])?])
        },
        move |mesh| Fno::new(mesh, width, modes),
        mean_square,
    );
}

/// Channels lifted, layers, channels brought back.
struct Fno {
    lift: Conv,
    layers: Vec<Layer>,
    project: Conv,
}

tree!(Fno {
    lift,
    layers,
    project
});

/// A product with the lowest frequencies, and a linear map of every point's channels.
struct Layer {
    spectral: SpectralConv,
    pointwise: Conv,
}

tree!(Layer {
    spectral,
    pointwise
});

impl Fno {
    fn new(mesh: &Mesh, width: usize, modes: usize) -> Result<Self> {
        let points = |from, to| Conv::new(mesh, from, to, [1, 1], ConvOptions::new());
        let layer = |_| {
            Ok(Layer {
                spectral: SpectralConv::new(mesh, width, width, [modes, modes])?,
                pointwise: points(width, width)?,
            })
        };
        Ok(Self {
            lift: points(3, width)?,
            layers: (0..DEPTH).map(layer).collect::<Result<_>>()?,
            project: points(width, 1)?,
        })
    }
}

impl Module for Fno {
    /// Fields `[samples, 3, rows, columns]` to one channel.
    fn forward(&self, fields: &ShardTensor) -> Result<ShardTensor> {
        let mut x = self.lift.forward(fields)?;
        for layer in &self.layers {
            x = layer.forward(&x)?;
        }
        self.project.forward(&x)
    }
}

impl Module for Layer {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let far = self.spectral.forward(x)?;
        far.add(&self.pointwise.forward(x)?)?.gelu()
    }
}
