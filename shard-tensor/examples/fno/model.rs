//! The operator: layers that act on frequencies and on points.

use shard_tensor::nn::{Conv, Module, SpectralConv};
use shard_tensor::{ConvOptions, Mesh, Result, ShardTensor, tree};

/// Channels lifted, three layers, channels brought back.
pub(crate) struct Operator {
    lift: Conv,
    layers: Vec<Layer>,
    project: Conv,
}

tree!(Operator {
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

impl Operator {
    /// # Collective
    /// All ranks: the weights are random, the same on every mesh.
    pub(crate) fn new(
        mesh: &Mesh,
        [inputs, outputs]: [usize; 2],
        width: usize,
        modes: usize,
    ) -> Result<Self> {
        let points = |from, to| Conv::new(mesh, from, to, [1, 1], ConvOptions::new());
        let layer = |_| {
            Ok(Layer {
                spectral: SpectralConv::new(mesh, width, width, [modes, modes])?,
                pointwise: points(width, width)?,
            })
        };
        Ok(Self {
            lift: points(inputs, width)?,
            layers: (0..3).map(layer).collect::<Result<_>>()?,
            project: points(width, outputs)?,
        })
    }
}

impl Module for Operator {
    /// `[hours, inputs, rows, columns]` to as many outputs.
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let mut h = self.lift.forward(x)?;
        for layer in &self.layers {
            h = layer.forward(&h)?;
        }
        self.project.forward(&h)
    }
}

impl Layer {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let far = self.spectral.forward(x)?;
        far.add(&self.pointwise.forward(x)?)?.gelu()
    }
}
