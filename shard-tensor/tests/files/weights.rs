//! Weights that PyTorch has saved give PyTorch's outputs. `xtests/data/torch/make.py` made the files.

use shard_tensor::checkpoint::{self, Checkpoint};
use shard_tensor::nn::{
    BatchNorm, Conv, GroupNorm, LayerNorm, Linear, ModelExt, Module, MultiheadAttention, Strict,
    TransformerEncoderLayer, load_state_with,
};
use shard_tensor::{
    ConvTransposeOptions, Launch, Mesh, Placements, PoolOptions, Result, ShardTensor, replicate,
    shard, tree,
};

/// A layer without weights.
struct Gelu;
tree!(Gelu {});

impl Module for Gelu {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        x.gelu()
    }
}

struct Up {
    weight: ShardTensor,
    bias: ShardTensor,
}
tree!(Up { weight, bias });

struct UNet {
    down: Conv,
    norm: BatchNorm,
    middle: Vec<Box<dyn Module>>,
    up: Up,
    head: Vec<Box<dyn Module>>,
}
tree!(UNet {
    down,
    norm,
    middle,
    up,
    head
});

impl UNet {
    fn new(mesh: &Mesh) -> Result<Self> {
        let conv = |inputs, outputs| {
            Conv::new(
                mesh,
                inputs,
                outputs,
                [3, 3],
                shard_tensor::ConvOptions::new().padding(1),
            )
        };
        let zeros = |shape: &[usize]| mesh.zeros(shape, Placements::replicated())?.requires_grad();
        let point = Conv::new(mesh, 6, 1, [1, 1], shard_tensor::ConvOptions::new())?;
        Ok(Self {
            down: conv(2, 6)?,
            norm: BatchNorm::new(mesh, 6)?,
            middle: vec![
                Box::new(conv(6, 8)?),
                Box::new(GroupNorm::new(mesh, 2, 8)?),
                Box::new(conv(8, 8)?),
            ],
            up: Up {
                weight: zeros(&[8, 6, 2, 2])?,
                bias: zeros(&[6])?,
            },
            head: vec![Box::new(conv(12, 6)?), Box::new(Gelu), Box::new(point)],
        })
    }
}

fn in_turn(layers: &[Box<dyn Module>], x: ShardTensor) -> Result<ShardTensor> {
    layers.iter().try_fold(x, |x, layer| layer.forward(&x))
}

impl Module for UNet {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let skip = self.norm.forward(&self.down.forward(x)?)?.relu()?;
        let h = skip.max_pool(PoolOptions::new([2, 2]).stride([2, 2]))?;
        let h = in_turn(&self.middle, h)?.relu()?;
        let options = ConvTransposeOptions::new().stride([2, 2]);
        let up = h.conv_transpose(&self.up.weight, Some(&self.up.bias), options)?;
        in_turn(&self.head, ShardTensor::cat(&[&up, &skip], 1)?)
    }
}

const HEADS: usize = 3;

struct Block {
    norm1: LayerNorm,
    attn: MultiheadAttention,
    norm2: LayerNorm,
    mlp: Vec<Box<dyn Module>>,
}
tree!(Block {
    norm1,
    attn,
    norm2,
    mlp
});

impl Module for Block {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let x = x.add(&self.attn.forward(&self.norm1.forward(x)?)?)?;
        x.add(&in_turn(&self.mlp, self.norm2.forward(&x)?)?)
    }
}

struct ViT {
    patch: Conv,
    position: ShardTensor,
    blocks: Vec<Box<dyn Module>>,
    norm: LayerNorm,
    head: Linear,
}
tree!(ViT {
    patch,
    position,
    blocks,
    norm,
    head
});

impl ViT {
    fn new(mesh: &Mesh) -> Result<Self> {
        const WIDTH: usize = 12;
        let zeros = |shape: &[usize]| mesh.zeros(shape, Placements::replicated())?.requires_grad();
        let norm = || LayerNorm::new(mesh, WIDTH);
        let attention = || MultiheadAttention::new(mesh, WIDTH, HEADS);
        let (up, down) = (
            || Linear::new(mesh, WIDTH, 2 * WIDTH),
            || Linear::new(mesh, 2 * WIDTH, WIDTH),
        );
        let block = Block {
            norm1: norm()?,
            attn: attention()?,
            norm2: norm()?,
            mlp: vec![Box::new(up()?), Box::new(Gelu), Box::new(down()?)],
        };
        let layer = TransformerEncoderLayer::new(mesh, WIDTH, HEADS, 2 * WIDTH)?
            .norm_first()
            .activation(ShardTensor::gelu);
        Ok(Self {
            patch: Conv::new(
                mesh,
                1,
                WIDTH,
                [4, 4],
                shard_tensor::ConvOptions::new().stride([4, 4]),
            )?,
            position: zeros(&[1, 15, WIDTH])?,
            blocks: vec![Box::new(block), Box::new(layer)],
            norm: norm()?,
            head: Linear::new(mesh, WIDTH, 5)?,
        })
    }
}

impl Module for ViT {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let patches = self.patch.forward(x)?;
        let &[batch, width, rows, columns] = patches.shape() else {
            unreachable!("patches")
        };
        let tokens = patches
            .reshape([batch, width, rows * columns])?
            .transpose(1, 2)?;
        let mut tokens = tokens.add(&self.position)?;
        for block in &self.blocks {
            tokens = block.forward(&tokens)?;
        }
        self.head
            .forward(&self.norm.forward(&tokens)?.mean([1], false)?)
    }
}

/// How a model takes up a file of weights.
type Load<M> = fn(&mut M, &Mesh, &str) -> Result<()>;

/// By the names of its fields: every one that PyTorch gives is known, but that of a counter.
fn by_name<M: ModelExt>(model: &mut M, mesh: &Mesh, weights: &str) -> Result<()> {
    let all = model.parameters().into_iter().chain(model.buffers());
    let known: Vec<String> = all.map(|p| p.0).collect();
    for there in checkpoint::contents(mesh.context(), weights)? {
        assert!(
            known.contains(&there.name) || there.name.ends_with("num_batches_tracked"),
            "{}",
            there.name
        );
    }
    Checkpoint::new().with("", model).load(weights)
}

/// With the joint projections of PyTorch's attention.
fn with_projections<M: ModelExt>(model: &mut M, mesh: &Mesh, weights: &str) -> Result<()> {
    let state = checkpoint::read_all(weights, mesh, |_| replicate().into())?;
    assert!(state.tensor("blocks.0.attn.in_proj_weight").is_some());
    assert!(state.tensor("blocks.1.self_attn.in_proj_bias").is_some());
    load_state_with(model, &state, Strict::Yes)?;
    Ok(())
}

fn compare<M: ModelExt + Module>(
    name: &str,
    ranks: usize,
    placements: &Placements,
    model: impl Fn(&Mesh) -> Result<M> + Sync,
    load: Load<M>,
) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../xtests/data/torch");
    let (weights, io) = (
        format!("{folder}/{name}.safetensors"),
        format!("{folder}/{name}.io.safetensors"),
    );
    let worst = Launch::new(ranks).run(|ctx| {
        let mesh = ctx.mesh([("all", ranks)])?;
        let mut model = model(&mesh)?;
        load(&mut model, &mesh, &weights)?;
        model.eval();
        let x = checkpoint::read(&io, "x", &mesh, placements.clone())?;
        let y = checkpoint::read(&io, "y", &mesh, replicate())?.to_array::<f32>()?;
        let found = ctx.no_grad(|| model.forward(&x))?.to_array::<f32>()?;
        assert_eq!(found.shape(), y.shape());
        let largest = y.iter().fold(0_f32, |m, y| m.max(y.abs()));
        Ok(found
            .iter()
            .zip(&y)
            .fold(0_f32, |m, (a, b)| m.max((a - b).abs()))
            / largest)
    });
    for worst in worst.unwrap() {
        assert!(worst < 1e-5, "{name}: {worst}");
    }
}

#[test]
fn a_unet_of_pytorchs_gives_its_outputs() {
    compare("unet", 1, &replicate().into(), UNet::new, by_name);
    let rows = shard(2).sizes([5, 8, 1]).into();
    compare("unet", 3, &rows, UNet::new, by_name);
}

#[test]
fn a_vision_transformer_of_pytorchs_gives_its_outputs() {
    let load = with_projections;
    compare("vit", 1, &replicate().into(), ViT::new, load);
    let columns = shard(3).sizes([12, 8]).into();
    compare("vit", 2, &columns, ViT::new, load);
    let sharded = |mesh: &Mesh| ViT::new(mesh)?.fully_sharded("all");
    compare("vit", 2, &shard(0).into(), sharded, load);
}
