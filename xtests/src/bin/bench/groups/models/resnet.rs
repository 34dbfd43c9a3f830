//! A residual network with batch norms.

use super::{cross_entropy, train};
use crate::suite::Suite;
use shard_tensor::nn::{BatchNorm, Conv, Linear, Module};
use shard_tensor::{ConvOptions, Mesh, Result, ShardTensor, tree};

const CLASSES: usize = 10;

pub(super) fn add(suite: &mut Suite<'_>) {
    let (samples, side, width) = (suite.size(32, 4), suite.size(32, 16), suite.size(32, 4));
    train(
        suite,
        &format!("ResNet {samples}x3x{side}x{side}"),
        move |draw| {
            let images = draw.normal([samples, 3, side, side])?;
            Ok([images, draw.below(CLASSES, [samples])?])
        },
        move |mesh| ResNet::new(mesh, width),
        cross_entropy,
    );
}

/// Blocks of ever more channels on ever fewer points, and a head on their mean.
pub(in crate::groups) struct ResNet {
    stem: Conv,
    blocks: [Block; 4],
    head: Linear,
}

tree!(ResNet { stem, blocks, head });

impl ResNet {
    /// With so many channels in the first block.
    pub(in crate::groups) fn new(mesh: &Mesh, width: usize) -> Result<Self> {
        let stem = Conv::new(mesh, 3, width, [3, 3], ConvOptions::new().padding(1))?;
        Ok(Self {
            stem,
            blocks: [
                Block::new(mesh, width, width)?,
                Block::new(mesh, width, 2 * width)?,
                Block::new(mesh, 2 * width, 4 * width)?,
                Block::new(mesh, 4 * width, 8 * width)?,
            ],
            head: Linear::new(mesh, 8 * width, CLASSES)?,
        })
    }
}

impl Module for ResNet {
    /// Images `[samples, 3, rows, columns]` to logits `[samples, classes]`.
    fn forward(&self, images: &ShardTensor) -> Result<ShardTensor> {
        let mut x = self.stem.forward(images)?.relu()?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        self.head.forward(&x.mean([2, 3], false)?)
    }
}

/// Two convolutions beside a skip. Other channels come with half the points along each side.
struct Block {
    conv1: Conv,
    norm1: BatchNorm,
    conv2: Conv,
    norm2: BatchNorm,
    skip: Option<Conv>,
}

tree!(Block {
    conv1,
    norm1,
    conv2,
    norm2,
    skip
});

impl Block {
    fn new(mesh: &Mesh, from: usize, to: usize) -> Result<Self> {
        let conv = |from, side, options| {
            Conv::new(mesh, from, to, [side, side], options).map(Conv::without_bias)
        };
        let (near, coarser) = (ConvOptions::new().padding(1), from != to);
        let stride = if coarser { 2 } else { 1 };
        let skip = coarser.then(|| conv(from, 1, ConvOptions::new().stride(stride)));
        Ok(Self {
            conv1: conv(from, 3, near.clone().stride(stride))?,
            norm1: BatchNorm::new(mesh, to)?,
            conv2: conv(to, 3, near)?,
            norm2: BatchNorm::new(mesh, to)?,
            skip: skip.transpose()?,
        })
    }
}

impl Module for Block {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let y = self.norm1.forward(&self.conv1.forward(x)?)?.relu()?;
        let y = self.norm2.forward(&self.conv2.forward(&y)?)?;
        match &self.skip {
            Some(skip) => skip.forward(x)?.add(&y)?.relu(),
            None => x.add(&y)?.relu(),
        }
    }
}
