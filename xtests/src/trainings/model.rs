//! The model of a training: a word's vector, then layers.

use super::layers::Made;
use super::{Lies, Placed, Samples, Stay, TrainingRun};
use crate::strategies::{Recipe, resolve};
use shard_ops::testing::{AxisChoice, Rng, Split, choices};
use shard_tensor::nn::{Embedding, ModelExt, Module, Sequential};
use shard_tensor::{ClassLoss, Context, Mesh, Placements, Result, ShardTensor, shard, tree};

/// Sizes of a training's samples.
pub(super) struct Sizes {
    /// How many samples there are.
    pub(super) samples: usize,
    /// How many are in a batch.
    pub(super) batch: usize,
    /// Extents of what the first layer is given of a sample.
    pub(super) shape: Vec<usize>,
    /// How many words there are.
    pub(super) words: usize,
}

impl Sizes {
    pub(super) fn of(run: &TrainingRun) -> Self {
        let mut rng = Rng::new(run.seed, &["sizes"]);
        let mut from = |least: usize, most: usize| least + rng.below(most - least + 1);
        let dims = if run.samples == Samples::Fields { 3 } else { 2 };
        Self {
            samples: from(5, 11),
            batch: from(2, 5),
            shape: (0..dims).map(|_| from(1, 7)).collect(),
            words: from(2, 9),
        }
    }
}

/// Where a model is: its first layers and the rest, on one mesh or on two.
pub(super) struct Meshes {
    pub(super) all: Mesh,
    early: Mesh,
    late: Mesh,
}

impl Meshes {
    pub(super) fn new(ctx: &Context, stay: &Stay) -> Result<Self> {
        let axes = ["a", "b", "c"].into_iter().zip(stay.mesh.iter().copied());
        let all = ctx.mesh(axes)?;
        if stay.lies != Lies::Staged {
            let (early, late) = (all.clone(), all.clone());
            return Ok(Self { all, early, late });
        }
        let ranks = ctx.world_size();
        let (half, rest) = (ranks.div_ceil(2), ranks.min(ranks / 2));
        Ok(Self {
            all,
            early: ctx.mesh_on(0..half, [("a", half)])?,
            late: ctx.mesh_on(rest..ranks, [("a", ranks - rest)])?,
        })
    }

    /// That of a batch.
    pub(super) fn first(&self) -> &Mesh {
        &self.early
    }
}

/// Layers, one behind the other.
#[derive(Clone, Debug)]
pub(super) struct Model {
    embedding: Option<Embedding>,
    blocks: Vec<Block>,
}

tree!(Model { embedding, blocks });

/// A layer, and what is done with it.
#[derive(Clone, Debug)]
struct Block {
    layer: Sequential,
    mesh: Mesh,
    residual: bool,
    again: bool,
}

tree!(Block { layer });

impl Model {
    /// A model on a mesh, every rank with all of it.
    pub(super) fn new(meshes: &Meshes, run: &TrainingRun, sizes: &Sizes) -> Result<Self> {
        let embedding = match run.samples {
            Samples::Words => Some(embedding(&meshes.early, run, sizes)?),
            _ => None,
        };
        let mut shape = sizes.shape.clone();
        let mut blocks = Vec::new();
        for (at, placed) in run.layers.iter().enumerate() {
            let mesh = match at < run.layers.len() / 2 {
                true => &meshes.early,
                false => &meshes.late,
            };
            let (block, found) = Block::new(mesh, placed, &shape)?;
            blocks.push(block);
            shape = found;
        }
        Ok(Self { embedding, blocks })
    }

    /// The model as it lies where it stays.
    pub(super) fn lies(self, stay: &Stay) -> Result<Self> {
        if stay.lies == Lies::Copied {
            return Ok(self);
        }
        let model = self.place(|name, x| stay.placements(&x.mesh(), name, x.shape()))?;
        match stay.lies {
            Lies::FullySharded => model.fully_sharded("a"),
            _ => Ok(model),
        }
    }

    /// What it finds for a batch.
    pub(super) fn forward(&self, batch: &ShardTensor) -> Result<ShardTensor> {
        let mut x = match &self.embedding {
            Some(embedding) => embedding.forward(batch)?,
            None => batch.clone(),
        };
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        Ok(x)
    }

    /// How far what it finds is from what it should: words from themselves, where vectors are as wide as those of words, by the products with
    /// these; else from numbers that are given.
    pub(super) fn loss(&self, batch: &ShardTensor) -> Result<ShardTensor> {
        let found = self.forward(batch)?;
        if let Some(embedding) = &self.embedding {
            let (table, seen) = (&embedding.weight, found.shape());
            if seen[1] == batch.shape()[1] && seen[2] == table.shape()[1] {
                let (mesh, split) = (found.mesh(), Placements::everywhere(shard(0)));
                let table = table.to_mesh(&mesh, split.clone())?;
                let logits = found.linear(&table, None)?.transpose(1, 2)?;
                return logits.cross_entropy(&batch.to_mesh(&mesh, split)?, &ClassLoss::new());
            }
        }
        let wanted = |i: &[usize]| {
            let hash = i.iter().fold(7, |h, &i| (h * 31 + i + 1) % 1009);
            (hash % 11) as f64 / 5.0 - 1.0
        };
        let everywhere = Placements::everywhere(shard(0));
        let wanted = found.mesh().from_fn(found.shape(), everywhere, wanted)?;
        found.mse_loss(&wanted)
    }
}

fn embedding(mesh: &Mesh, run: &TrainingRun, sizes: &Sizes) -> Result<Embedding> {
    let mut rng = Rng::new(run.seed, &["embedding"]);
    let mut embedding = Embedding::new(mesh, sizes.words, sizes.shape[1])?;
    if rng.one_in(3) {
        embedding = embedding.padding(rng.below(sizes.words))?;
    }
    if rng.one_in(3) {
        embedding = embedding.max_norm(2.0, 0.8);
    }
    Ok(match rng.one_in(3) {
        true => embedding.scale_grad_by_freq(),
        false => embedding,
    })
}

impl Block {
    fn new(mesh: &Mesh, placed: &Placed, shape: &[usize]) -> Result<(Self, Vec<usize>)> {
        let mut made = Made::new(mesh, shape, placed.layer.name, placed.seed);
        let layer = placed.layer.make(&mut made)?;
        let block = Self {
            layer,
            mesh: mesh.clone(),
            residual: placed.residual && made.shape == shape,
            again: placed.again,
        };
        Ok((block, made.shape))
    }

    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let (layer, mesh) = (self.layer.clone(), self.mesh.clone());
        // What runs again moves again.
        let y = match self.again {
            true => (x.context()).recompute1(x, move |x| layer.forward(&there(x, &mesh)?))?,
            false => layer.forward(&there(x, &mesh)?)?,
        };
        if self.residual {
            there(x, &self.mesh)?.add(&y)
        } else {
            Ok(y)
        }
    }
}

/// A tensor on the mesh of a layer that it goes to.
fn there(x: &ShardTensor, mesh: &Mesh) -> Result<ShardTensor> {
    match x.mesh().mesh() == mesh.mesh() {
        true => Ok(x.clone()),
        false => x.to_mesh(mesh, Placements::everywhere(shard(0))),
    }
}

impl Stay {
    /// Where a tensor of a model lies.
    fn placements(&self, mesh: &Mesh, name: &str, shape: &[usize]) -> Placements {
        let mut rng = Rng::new(self.seed, &["place", name]);
        let sharded = self.lies == Lies::FullySharded;
        let axes = (0..mesh.mesh().ndim()).map(|axis| {
            // One dim has to be left for the axis that shards fully.
            if rng.one_in(2) || sharded && (axis == 0 || shape.len() < 2) {
                return AxisChoice::Replicate;
            }
            let dims = if sharded { 1 } else { shape.len() };
            rng.pick(&choices(dims, false))
                .unwrap_or(AxisChoice::Replicate)
        });
        let axes = axes.collect();
        let split = rng.pick(&Split::ALL).unwrap_or(Split::Even);
        let recipe = Recipe {
            axes,
            split,
            seed: rng.next_u64(),
        };
        resolve(&recipe, mesh.mesh(), shape).into()
    }
}
