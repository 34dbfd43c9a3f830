//! A U-Net of three dims.

use shard_tensor::nn::{Conv, ConvTranspose, GroupNorm, Module};
use shard_tensor::{
    ConvOptions, ConvTransposeOptions, Mesh, PoolOptions, Result, Shape, ShardTensor, tree,
};

/// Groups of channels that a norm takes together.
const GROUPS: usize = 4;

/// A stem that halves rows and columns, two pools that halve all three dims, and transposed convolutions back.
///
/// It knows nothing of ranks: written for one device, it runs on pieces of the volume.
pub(crate) struct UNet3d {
    stem: Block,
    fine: Block,
    half: [Block; 2],
    quarter: [Block; 2],
    up_half: Up,
    up_fine: Up,
    head: ConvTranspose,
}

tree!(UNet3d {
    stem,
    fine,
    half,
    quarter,
    up_half,
    up_fine,
    head
});

/// 3x3x3 convolution, group norm, gelu. The norm takes every constant away, so the convolution has no bias.
struct Block {
    conv: Conv,
    norm: GroupNorm,
}

tree!(Block { conv, norm });

/// Twice the extents, joined with what had them before.
struct Up {
    up: ConvTranspose,
    block: Block,
}

tree!(Up { up, block });

impl UNet3d {
    /// `width` channels at the finest resolution within, twice as many at each coarser one.
    ///
    /// # Collective
    /// All ranks: the weights are random, the same on every mesh.
    pub(crate) fn new(mesh: &Mesh, inputs: usize, outputs: usize, width: usize) -> Result<Self> {
        let block = |from, to| Block::new(mesh, from, to, [1, 1, 1]);
        let (w, w2, w4) = (width, 2 * width, 4 * width);
        Ok(Self {
            stem: Block::new(mesh, inputs, w, [1, 2, 2])?,
            fine: block(w, w)?,
            half: [block(w, w2)?, block(w2, w2)?],
            quarter: [block(w2, w4)?, block(w4, w4)?],
            up_half: Up::new(mesh, w4, w2)?,
            up_fine: Up::new(mesh, w2, w)?,
            head: twice(mesh, w, outputs, [1, 2, 2])?,
        })
    }
}

impl Module for UNet3d {
    /// `[samples, inputs, levels, rows, columns]` to as many outputs.
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let fine = self.fine.forward(&self.stem.forward(x)?)?;
        let half = both(&self.half, &halved(&fine)?)?;
        let quarter = both(&self.quarter, &halved(&half)?)?;
        let half = self.up_half.forward(&quarter, &half)?;
        let fine = self.up_fine.forward(&half, &fine)?;
        cropped(&self.head.forward(&fine)?, x)
    }
}

impl Block {
    fn new(mesh: &Mesh, from: usize, to: usize, stride: [usize; 3]) -> Result<Self> {
        let options = ConvOptions::new().padding(1).stride(stride);
        Ok(Self {
            conv: Conv::new(mesh, from, to, [3, 3, 3], options)?.without_bias(),
            norm: GroupNorm::new(mesh, GROUPS, to)?,
        })
    }
}

impl Module for Block {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        self.norm.forward(&self.conv.forward(x)?)?.gelu()
    }
}

impl Up {
    fn new(mesh: &Mesh, from: usize, to: usize) -> Result<Self> {
        Ok(Self {
            up: twice(mesh, from, to, [2, 2, 2])?,
            block: Block::new(mesh, 2 * to, to, [1, 1, 1])?,
        })
    }

    fn forward(&self, coarse: &ShardTensor, skip: &ShardTensor) -> Result<ShardTensor> {
        let up = cropped(&self.up.forward(coarse)?, skip)?;
        self.block.forward(&ShardTensor::cat(&[&up, skip], 1)?)
    }
}

fn both(blocks: &[Block; 2], x: &ShardTensor) -> Result<ShardTensor> {
    blocks[1].forward(&blocks[0].forward(x)?)
}

/// The largest of each 2 x 2 x 2 values, or of fewer at the end of an odd dim.
fn halved(x: &ShardTensor) -> Result<ShardTensor> {
    x.max_pool(PoolOptions::new(2).ceil_mode(true))
}

/// So many times the extents.
fn twice(mesh: &Mesh, from: usize, to: usize, by: [usize; 3]) -> Result<ConvTranspose> {
    ConvTranspose::new(
        mesh,
        from,
        to,
        Shape::from(by),
        ConvTransposeOptions::new().stride(by),
    )
}

/// Without what goes beyond the extents of another.
fn cropped(x: &ShardTensor, like: &ShardTensor) -> Result<ShardTensor> {
    (2..5).try_fold(x.clone(), |x, dim| x.narrow(dim, 0..like.shape()[dim]))
}
