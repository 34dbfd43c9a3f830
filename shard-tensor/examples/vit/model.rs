//! A vision transformer that gives a field for two fields.

use shard_tensor::nn::{Conv, LayerNorm, Linear, Module, MultiheadAttention, PositionEmbedding};
use shard_tensor::{Attention, ConvOptions, FoldBy, Mesh, Result, ShardTensor, tree};

/// Patches as tokens, blocks of attention, and tokens as patches.
pub(crate) struct Vit {
    patches: Conv,
    place: PositionEmbedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
    /// Patches along rows and columns, and points along a patch's side.
    grid: [usize; 2],
    side: usize,
}

tree!(Vit {
    patches,
    place,
    blocks,
    norm,
    head
});

/// Attention of the tokens to each other, and a net of each token's features.
struct Block {
    norm1: LayerNorm,
    attention: MultiheadAttention,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
}

tree!(Block {
    norm1,
    attention,
    norm2,
    up,
    down
});

/// Sizes of a model.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) grid: [usize; 2],
    pub(crate) side: usize,
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) depth: usize,
}

impl Vit {
    /// # Collective
    /// All ranks: the weights are random, the same on every mesh.
    pub(crate) fn new(mesh: &Mesh, sizes: Sizes) -> Result<Self> {
        let Sizes {
            grid, side, width, ..
        } = sizes;
        let blocks = (0..sizes.depth).map(|_| Block::new(mesh, width, sizes.heads));
        Ok(Self {
            patches: Conv::new(
                mesh,
                2,
                width,
                [side, side],
                ConvOptions::new().stride(side),
            )?,
            place: PositionEmbedding::new(mesh, grid[0] * grid[1], width)?,
            blocks: blocks.collect::<Result<_>>()?,
            norm: LayerNorm::new(mesh, width)?,
            head: Linear::new(mesh, width, side * side)?,
            grid,
            side,
        })
    }
}

impl Module for Vit {
    /// `[samples, 2, rows, columns]` to `[samples, 1, rows, columns]`.
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let ([rows, columns], side, samples) = (self.grid, self.side, x.shape()[0]);
        let width = self.norm.weight.numel();
        let patches = self.patches.forward(x)?;
        let tokens = patches
            .reshape([samples, width, rows * columns])?
            .transpose(1, 2)?;
        let mut tokens = self.place.forward(&tokens)?;
        for block in &self.blocks {
            tokens = block.forward(&tokens)?;
        }
        let points = self.head.forward(&self.norm.forward(&tokens)?)?;
        points
            .reshape([samples, rows, columns, side, side])?
            .permute([0, 1, 3, 2, 4])?
            .reshape([samples, 1, rows * side, columns * side])
    }
}

impl Block {
    fn new(mesh: &Mesh, width: usize, heads: usize) -> Result<Self> {
        // Keys and values travel around the ring of ranks that share the field.
        let ring = Attention::new().fold_by(FoldBy::Ring);
        let mut attention = MultiheadAttention::new(mesh, width, heads)?.options(ring);
        // It shifts all logits of a query alike, which the softmax does not see.
        attention.k_proj.bias = None;
        Ok(Self {
            norm1: LayerNorm::new(mesh, width)?,
            attention,
            norm2: LayerNorm::new(mesh, width)?,
            up: Linear::new(mesh, width, 4 * width)?,
            down: Linear::new(mesh, 4 * width, width)?,
        })
    }
}

impl Module for Block {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let x = x.add(&self.attention.forward(&self.norm1.forward(x)?)?)?;
        x.add(
            &self
                .down
                .forward(&self.up.forward(&self.norm2.forward(&x)?)?.gelu()?)?,
        )
    }
}
