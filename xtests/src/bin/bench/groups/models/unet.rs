//! A U-Net of residual blocks with group norms, as models of diffusion have it.

use super::{mean_square, train};
use crate::suite::Suite;
use shard_tensor::nn::{Conv, ConvTranspose, GroupNorm, Module};
use shard_tensor::{ConvOptions, ConvTransposeOptions, Mesh, Result, ShardTensor, tree};

/// Groups of channels that a norm takes together.
const GROUPS: usize = 8;

pub(super) fn add(suite: &mut Suite<'_>) {
    let (samples, side, width) = (suite.size(4, 4), suite.size(64, 8), suite.size(32, 8));
    train(
        suite,
        &format!("U-Net {samples}x3x{side}x{side}"),
        move |draw| {
            let images = || draw.normal([samples, 3, side, side]);
            Ok([images()?, images()?])
        },
        move |mesh| UNet::new(mesh, width),
        mean_square,
    );
}

/// Two resolutions, with a skip at the finer one.
pub(in crate::groups) struct UNet {
    first: Conv,
    fine: Block,
    down: Conv,
    coarse: [Block; 2],
    up: ConvTranspose,
    joined: Block,
    last: Conv,
}

tree!(UNet {
    first,
    fine,
    down,
    coarse,
    up,
    joined,
    last
});

impl UNet {
    /// With so many channels at the finer resolution, and twice as many at the coarser.
    pub(in crate::groups) fn new(mesh: &Mesh, width: usize) -> Result<Self> {
        let (near, wide) = (ConvOptions::new().padding(1), 2 * width);
        let conv = |from, to, options| Conv::new(mesh, from, to, [3, 3], options);
        let block = |from, to| Block::new(mesh, from, to);
        let twice = ConvTransposeOptions::new().stride(2);
        Ok(Self {
            first: conv(3, width, near.clone())?,
            fine: block(width, width)?,
            down: conv(width, wide, near.clone().stride(2))?,
            coarse: [block(wide, wide)?, block(wide, wide)?],
            up: ConvTranspose::new(mesh, wide, width, [2, 2], twice)?,
            joined: block(wide, width)?,
            last: conv(width, 3, near)?,
        })
    }
}

impl Module for UNet {
    /// Images `[samples, 3, rows, columns]`, of even extents, to such images.
    fn forward(&self, images: &ShardTensor) -> Result<ShardTensor> {
        let fine = self.fine.forward(&self.first.forward(images)?)?;
        let mut coarse = self.down.forward(&fine)?;
        for block in &self.coarse {
            coarse = block.forward(&coarse)?;
        }
        let up = self.up.forward(&coarse)?;
        let joined = ShardTensor::cat(&[&fine, &up], 1)?;
        self.last.forward(&self.joined.forward(&joined)?.silu()?)
    }
}

/// Two convolutions beside a skip, which brings channels to their new number.
struct Block {
    norm1: GroupNorm,
    conv1: Conv,
    norm2: GroupNorm,
    conv2: Conv,
    skip: Option<Conv>,
}

tree!(Block {
    norm1,
    conv1,
    norm2,
    conv2,
    skip
});

impl Block {
    fn new(mesh: &Mesh, from: usize, to: usize) -> Result<Self> {
        let near = |from| Conv::new(mesh, from, to, [3, 3], ConvOptions::new().padding(1));
        let skip = (from != to).then(|| Conv::new(mesh, from, to, [1, 1], ConvOptions::new()));
        Ok(Self {
            norm1: GroupNorm::new(mesh, GROUPS, from)?,
            conv1: near(from)?,
            norm2: GroupNorm::new(mesh, GROUPS, to)?,
            conv2: near(to)?,
            skip: skip.transpose()?,
        })
    }
}

impl Module for Block {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let y = self.conv1.forward(&self.norm1.forward(x)?.silu()?)?;
        let y = self.conv2.forward(&self.norm2.forward(&y)?.silu()?)?;
        match &self.skip {
            Some(skip) => skip.forward(x)?.add(&y),
            None => x.add(&y),
        }
    }
}
