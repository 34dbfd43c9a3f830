//! A vision transformer, which tells what an image shows.

use super::{cross_entropy, train};
use crate::suite::Suite;
use shard_tensor::nn::{
    Conv, LayerNorm, Linear, Module, PositionEmbedding, TransformerEncoder, TransformerEncoderLayer,
};
use shard_tensor::{ConvOptions, Mesh, Result, ShardTensor, tree};

/// Points along the side of a patch.
const PATCH: usize = 16;
const HEADS: usize = 3;
const CLASSES: usize = 100;

pub(super) fn add(suite: &mut Suite<'_>) {
    let (samples, side) = (suite.size(8, 4), suite.size(224, 32));
    let (width, depth) = (suite.size(192, 24), suite.size(4, 2));
    train(
        suite,
        &format!("ViT {samples}x3x{side}x{side}"),
        move |draw| {
            let images = draw.normal([samples, 3, side, side])?;
            Ok([images, draw.below(CLASSES, [samples])?])
        },
        move |mesh| Vit::new(mesh, side, width, depth),
        cross_entropy,
    );
}

/// Patches as tokens, layers of attention, and a head on the mean of the tokens.
struct Vit {
    patches: Conv,
    positions: PositionEmbedding,
    encoder: TransformerEncoder,
    head: Linear,
}

tree!(Vit {
    patches,
    positions,
    encoder,
    head
});

impl Vit {
    fn new(mesh: &Mesh, side: usize, width: usize, depth: usize) -> Result<Self> {
        let layer = || {
            let layer = TransformerEncoderLayer::new(mesh, width, HEADS, 4 * width)?;
            let layer = layer.norm_first().dropout(0.0);
            Ok(layer.activation(ShardTensor::gelu))
        };
        let encoder = TransformerEncoder::new(depth, layer)?;
        Ok(Self {
            patches: Conv::new(mesh, 3, width, [PATCH; 2], ConvOptions::new().stride(PATCH))?,
            positions: PositionEmbedding::new(mesh, (side / PATCH).pow(2), width)?,
            encoder: encoder.norm(LayerNorm::new(mesh, width)?),
            head: Linear::new(mesh, width, CLASSES)?,
        })
    }
}

impl Module for Vit {
    /// Images `[samples, 3, rows, columns]` to logits `[samples, classes]`.
    fn forward(&self, images: &ShardTensor) -> Result<ShardTensor> {
        let patches = self.patches.forward(images)?.flatten_dims(2, 3)?;
        let tokens = self.positions.forward(&patches.transpose(1, 2)?)?;
        let tokens = self.encoder.forward(&tokens)?;
        self.head.forward(&tokens.mean([1], false)?)
    }
}
