//! The programs whose scaling is asked for, written as an application writes them.

use crate::model::UNet;
use shard_tensor::nn::{LayerNorm, Linear, ModelExt, Module};
use shard_tensor::optim::{AdamW, Optimizer};
use shard_tensor::{Attention, Context, FoldBy, Mesh, Result, ShardTensor, shard, tree};

/// Levels of the field that the main job refines; the altitude is one more input.
const LEVELS: usize = 5;

/// Channels of the main job at full resolution.
const WIDTH: usize = 16;

/// Pixels along a side of a patch.
const PATCH: usize = 8;

/// A program, and how large it is.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    /// The U-Net of the main job, on a field of so many rows and columns divided both ways.
    UNet { rows: usize, columns: usize },
    /// Attention of every token to every other one, tokens divided; a step of training also has the gradients.
    Attention {
        tokens: usize,
        heads: usize,
        dim: usize,
        way: FoldBy,
    },
    /// A vision transformer on a square picture, its patches divided.
    Vit {
        side: usize,
        layers: usize,
        width: usize,
        heads: usize,
        way: FoldBy,
    },
}

/// What a program holds between steps.
pub(crate) struct State {
    model: Box<dyn Module>,
    x: ShardTensor,
    adam: Option<AdamW>,
}

impl Job {
    /// Makes the model and its input, on all ranks.
    pub(crate) fn prepare(&self, ctx: &Context, train: bool) -> Result<State> {
        let ranks = ctx.world_size();
        let (model, x): (Box<dyn Module>, _) = match *self {
            Self::UNet { rows, columns } => {
                let [down, across] = near_square(ranks);
                let mesh = ctx.mesh([("rows", down), ("columns", across)])?;
                let model = UNet::new(&mesh, LEVELS + 1, LEVELS, WIDTH)?;
                let shape = [1, LEVELS + 1, rows, columns];
                (Box::new(model), mesh.randn(shape, [shard(2), shard(3)])?)
            }
            Self::Attention {
                tokens,
                heads,
                dim,
                way,
            } => {
                let mesh = ctx.mesh_of(ranks)?;
                let x = mesh.randn([1, heads, tokens, dim], [shard(2)])?;
                (Box::new(Own { x: x.clone(), way }), x)
            }
            Self::Vit {
                side,
                layers,
                width,
                heads,
                way,
            } => {
                let mesh = ctx.mesh_of(ranks)?;
                let tokens = (side / PATCH).pow(2);
                let x = mesh.randn([1, tokens, 3 * PATCH * PATCH], [shard(1)])?;
                let model = Vit::new(&mesh, tokens, layers, (width, heads, way))?;
                (Box::new(model), x)
            }
        };
        let adam = match (self, train) {
            (Self::Attention { .. }, _) | (_, false) => None,
            _ => Some(AdamW::new(model.parameters(), 1e-3)?),
        };
        let x = match (self, train) {
            (Self::Attention { .. }, true) => x.requires_grad()?,
            _ => x,
        };
        Ok(State { model, x, adam })
    }

    /// One step, of training or of inference.
    pub(crate) fn step(&self, ctx: &Context, state: &mut State, train: bool) -> Result<()> {
        if !train {
            return ctx.no_grad(|| state.model.forward(&state.x).map(drop));
        }
        let y = state.model.forward(&state.x)?;
        let dims: Vec<usize> = (0..y.ndim()).collect();
        let gradients = y.mul(&y)?.mean(&dims, false)?.backward()?;
        match &mut state.adam {
            Some(adam) => adam.step(&gradients),
            None => gradients.get(&state.x).map(drop),
        }
    }
}

/// Two factors whose product is the number of ranks, as near to each other as they can be.
fn near_square(ranks: usize) -> [usize; 2] {
    let root = (1..=ranks).take_while(|r| r * r <= ranks);
    let down = root
        .filter(|r| ranks.is_multiple_of(*r))
        .last()
        .unwrap_or(1);
    [down, ranks / down]
}

/// Attention of an input to itself.
struct Own {
    x: ShardTensor,
    way: FoldBy,
}

tree!(Own { x });

impl Module for Own {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        x.attention(x, x, None, &Attention::new().fold_by(self.way))
    }
}

/// A vision transformer: patches embedded, positions added, blocks of attention and a layer of four times the width.
struct Vit {
    embed: Linear,
    positions: ShardTensor,
    blocks: Vec<Block>,
    norm: LayerNorm,
}

tree!(Vit {
    embed,
    positions,
    blocks,
    norm
});

struct Block {
    heads: usize,
    way: FoldBy,
    norms: [LayerNorm; 2],
    projections: [Linear; 4],
    wide: Linear,
    narrow: Linear,
}

tree!(Block {
    norms,
    projections,
    wide,
    narrow
});

impl Vit {
    fn new(
        mesh: &Mesh,
        tokens: usize,
        layers: usize,
        (width, heads, way): (usize, usize, FoldBy),
    ) -> Result<Self> {
        let blocks = (0..layers).map(|_| Block::new(mesh, width, heads, way));
        Ok(Self {
            embed: Linear::new(mesh, 3 * PATCH * PATCH, width)?,
            positions: mesh
                .randn([1, tokens, width], [shard(1)])?
                .requires_grad()?,
            blocks: blocks.collect::<Result<_>>()?,
            norm: LayerNorm::new(mesh, width)?,
        })
    }
}

impl Module for Vit {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let mut x = self.embed.forward(x)?.add(&self.positions)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        self.norm.forward(&x)
    }
}

impl Block {
    fn new(mesh: &Mesh, width: usize, heads: usize, way: FoldBy) -> Result<Self> {
        let linear = |from, to| Linear::new(mesh, from, to);
        Ok(Self {
            heads,
            way,
            norms: [LayerNorm::new(mesh, width)?, LayerNorm::new(mesh, width)?],
            projections: [
                linear(width, width)?,
                linear(width, width)?,
                linear(width, width)?,
                linear(width, width)?,
            ],
            wide: linear(width, 4 * width)?,
            narrow: linear(4 * width, width)?,
        })
    }

    fn attend(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let [batch, tokens, width] = [x.shape()[0], x.shape()[1], x.shape()[2]];
        let [query, key, value, out] = &self.projections;
        let heads = |layer: &Linear| {
            (layer.forward(x)?)
                .reshape([batch, tokens, self.heads, width / self.heads])?
                .transpose(1, 2)
        };
        let options = Attention::new().fold_by(self.way);
        let y = heads(query)?.attention(&heads(key)?, &heads(value)?, None, &options)?;
        out.forward(&y.transpose(1, 2)?.reshape([batch, tokens, width])?)
    }
}

impl Module for Block {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let x = x.add(&self.attend(&self.norms[0].forward(x)?)?)?;
        let y = self.wide.forward(&self.norms[1].forward(&x)?)?.gelu()?;
        x.add(&self.narrow.forward(&y)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meshes_are_near_square() {
        assert_eq!(near_square(1), [1, 1]);
        assert_eq!(near_square(8), [2, 4]);
        assert_eq!(near_square(16_384), [128, 128]);
        assert_eq!(near_square(7), [1, 7]);
    }
}
