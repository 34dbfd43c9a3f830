//! Blocks of ConvNeXt: wide depthwise windows, and a net of each point's channels.

use super::{cross_entropy, train};
use crate::suite::Suite;
use shard_tensor::nn::{Conv, LayerNorm, Linear, Module};
use shard_tensor::{ConvOptions, Mesh, Result, ShardTensor, replicate, tree};

/// Points along the side of a patch.
const PATCH: usize = 4;
const DEPTH: usize = 3;
const CLASSES: usize = 100;

pub(super) fn add(suite: &mut Suite<'_>) {
    let (samples, side, width) = (suite.size(4, 4), suite.size(128, 32), suite.size(96, 8));
    train(
        suite,
        &format!("ConvNeXt blocks {samples}x3x{side}x{side}"),
        move |draw| {
            let images = draw.normal([samples, 3, side, side])?;
            Ok([images, draw.below(CLASSES, [samples])?])
        },
        move |mesh| ConvNext::new(mesh, width),
        cross_entropy,
    );
}

/// Patches, blocks, and a head on the mean of the points.
struct ConvNext {
    stem: Conv,
    blocks: Vec<Block>,
    head: Linear,
}

tree!(ConvNext { stem, blocks, head });

impl ConvNext {
    fn new(mesh: &Mesh, width: usize) -> Result<Self> {
        let blocks = (0..DEPTH).map(|_| Block::new(mesh, width));
        Ok(Self {
            stem: Conv::new(mesh, 3, width, [PATCH; 2], ConvOptions::new().stride(PATCH))?,
            blocks: blocks.collect::<Result<_>>()?,
            head: Linear::new(mesh, width, CLASSES)?,
        })
    }
}

impl Module for ConvNext {
    /// Images `[samples, 3, rows, columns]` to logits `[samples, classes]`.
    fn forward(&self, images: &ShardTensor) -> Result<ShardTensor> {
        let mut x = self.stem.forward(images)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        self.head.forward(&x.mean([2, 3], false)?)
    }
}

/// What a point finds around it, channel by channel, and makes of it, with channels last.
struct Block {
    near: Conv,
    norm: LayerNorm,
    up: Linear,
    down: Linear,
    /// What each channel of that is multiplied by.
    scale: ShardTensor,
}

tree!(Block {
    near,
    norm,
    up,
    down,
    scale
});

impl Block {
    fn new(mesh: &Mesh, width: usize) -> Result<Self> {
        let depthwise = ConvOptions::new().padding(3).groups(width);
        Ok(Self {
            near: Conv::new(mesh, width, width, [7, 7], depthwise)?,
            norm: LayerNorm::new(mesh, width)?,
            up: Linear::new(mesh, width, 4 * width)?,
            down: Linear::new(mesh, 4 * width, width)?,
            scale: mesh.ones([width], replicate())?.requires_grad()?,
        })
    }
}

impl Module for Block {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let near = self.near.forward(x)?.permute([0, 2, 3, 1])?;
        let hidden = self.up.forward(&self.norm.forward(&near)?)?.gelu()?;
        let y = self.down.forward(&hidden)?.mul(&self.scale)?;
        x.add(&y.permute([0, 3, 1, 2])?)
    }
}
