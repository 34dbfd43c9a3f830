//! A small U-Net.

use shard_tensor::nn::{Conv, GroupNorm, Module};
use shard_tensor::{ConvOptions, Mesh, ResampleMode, Result, ShardTensor, tree};

/// Channels that one group norm takes together, as a share of all.
const GROUPS: usize = 4;

/// Three resolutions, each half of the one before rounded up, with skips between them.
///
/// It knows nothing of ranks: written for one device, it runs on pieces of the domain.
pub(crate) struct UNet {
    fine: [Block; 2],
    half: [Block; 2],
    quarter: [Block; 2],
    up_half: Block,
    up_fine: Block,
    head: Conv,
}

tree!(UNet {
    fine,
    half,
    quarter,
    up_half,
    up_fine,
    head
});

/// 3x3 convolution, group norm, gelu. The norm takes every constant away, so the convolution has no bias.
struct Block {
    conv: Conv,
    norm: GroupNorm,
}

tree!(Block { conv, norm });

impl UNet {
    /// `width` channels at full resolution, twice as many at each coarser one.
    ///
    /// # Collective
    /// All ranks: the weights are random, the same on every mesh.
    pub(crate) fn new(mesh: &Mesh, inputs: usize, outputs: usize, width: usize) -> Result<Self> {
        let block = |from, to, stride| Block::new(mesh, from, to, stride);
        let (w, w2, w4) = (width, 2 * width, 4 * width);
        Ok(Self {
            fine: [block(inputs, w, 1)?, block(w, w, 1)?],
            half: [block(w, w2, 2)?, block(w2, w2, 1)?],
            quarter: [block(w2, w4, 2)?, block(w4, w4, 1)?],
            up_half: block(w4 + w2, w2, 1)?,
            up_fine: block(w2 + w, w, 1)?,
            head: Conv::new(mesh, w, outputs, [1, 1], ConvOptions::new())?,
        })
    }
}

impl Module for UNet {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let fine = both(&self.fine, x)?;
        let half = both(&self.half, &fine)?;
        let quarter = both(&self.quarter, &half)?;
        let half = self.up_half.forward(&joined(&quarter, &half)?)?;
        let fine = self.up_fine.forward(&joined(&half, &fine)?)?;
        self.head.forward(&fine)
    }
}

impl Block {
    fn new(mesh: &Mesh, inputs: usize, outputs: usize, stride: usize) -> Result<Self> {
        let options = ConvOptions::new().padding(1).stride(stride);
        Ok(Self {
            conv: Conv::new(mesh, inputs, outputs, [3, 3], options)?.without_bias(),
            norm: GroupNorm::new(mesh, GROUPS, outputs)?,
        })
    }
}

impl Module for Block {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        self.norm.forward(&self.conv.forward(x)?)?.gelu()
    }
}

fn both(blocks: &[Block; 2], x: &ShardTensor) -> Result<ShardTensor> {
    blocks[1].forward(&blocks[0].forward(x)?)
}

/// The coarse channels, interpolated to the extents of the skip, before the skip's.
fn joined(coarse: &ShardTensor, skip: &ShardTensor) -> Result<ShardTensor> {
    let up = coarse.interpolate(&skip.shape()[2..], ResampleMode::Linear)?;
    ShardTensor::cat(&[&up, skip], 1)
}
