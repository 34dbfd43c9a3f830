//! Training in parallel takes the course of one rank.

use shard_tensor::nn::{
    Conv, GroupNorm, LayerNorm, Linear, ModelExt, Module, MultiheadAttention, ParallelPlan,
};
use shard_tensor::optim::{AdamW, Optimizer};
use shard_tensor::{
    Context, DType, Launch, Mesh, Placements, Result, ShardTensor, replicate, shard, tree,
};

/// A block of a transformer, as in every vision transformer.
pub(crate) struct Block {
    norm1: LayerNorm,
    pub(crate) attention: MultiheadAttention,
    norm2: LayerNorm,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}
tree!(Block {
    norm1,
    attention,
    norm2,
    up,
    down
});

impl Block {
    pub(crate) fn new(mesh: &Mesh) -> Result<Self> {
        Ok(Self {
            norm1: LayerNorm::new(mesh, 8)?,
            attention: MultiheadAttention::new(mesh, 8, 2)?,
            norm2: LayerNorm::new(mesh, 8)?,
            up: Linear::new(mesh, 8, 12)?,
            down: Linear::new(mesh, 12, 8)?,
        })
    }
}

impl Module for Block {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let x = x.add(&self.attention.forward(&self.norm1.forward(x)?)?)?;
        let hidden = self.up.forward(&self.norm2.forward(&x)?)?.gelu()?;
        x.add(&self.down.forward(&hidden)?)
    }
}

/// A small net on images, with a step of two.
struct Net {
    first: Conv,
    norm: GroupNorm,
    second: Conv,
    last: Conv,
}
tree!(Net {
    first,
    norm,
    second,
    last
});

impl Net {
    fn new(mesh: &Mesh) -> Result<Self> {
        let same = || shard_tensor::ConvOptions::new().padding(1);
        Ok(Self {
            first: Conv::new(mesh, 2, 6, [3, 3], same())?,
            norm: GroupNorm::new(mesh, 2, 6)?,
            second: Conv::new(mesh, 6, 6, [3, 3], same().stride(2))?,
            last: Conv::new(mesh, 6, 3, [1, 1], shard_tensor::ConvOptions::new())?,
        })
    }
}

impl Module for Net {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let x = self.norm.forward(&self.first.forward(x)?)?.silu()?;
        self.last.forward(&self.second.forward(&x)?.gelu()?)
    }
}

/// How a model is made parallel: the mesh, what becomes of the model, and where the data lie.
struct Way<'a, M> {
    axes: &'a [(&'a str, usize)],
    model: &'a (dyn Fn(M) -> Result<M> + Sync),
    data: Placements,
}

/// The losses of some steps, and the parameters then.
fn train<M: Module>(
    ctx: &Context,
    new: impl Fn(&Mesh) -> Result<M>,
    shape: [usize; 3],
    way: &Way<'_, M>,
) -> Result<Vec<f64>> {
    let mesh = ctx.mesh(way.axes.iter().copied())?;
    let model = (way.model)(new(&mesh)?)?;
    let layouts: Vec<_> = (model.parameters().into_iter())
        .map(|(_, p)| p.layout().clone())
        .collect();
    let mut adam = AdamW::new(model.parameters(), 0.02)?;
    let [batch, ..] = shape;
    let full = match shape {
        [batch, tokens, 0] => vec![batch, tokens, 8],
        [batch, rows, columns] => vec![batch, 2, rows, columns],
    };
    let wave = |i: &[usize]| (i.iter().fold(batch, |at, &i| 5 * at + 3 * i) as f64 * 0.37).sin();
    let x = mesh.from_fn(full, &way.data, wave)?;
    let mut seen = Vec::new();
    for _ in 0..8 {
        let y = model.forward(&x)?;
        let loss = y.sub_scalar(0.5)?.square()?.mean_all()?;
        adam.step(&loss.backward()?)?;
        seen.push(loss.item()?);
    }
    for ((name, parameter), layout) in model.parameters().into_iter().zip(layouts) {
        assert_eq!(parameter.layout(), &layout, "{name}");
        seen.push(parameter.square()?.sum_all()?.item()?);
        seen.push(parameter.mean_all()?.item()?);
    }
    Ok(seen)
}

/// Trains on one rank, and in these ways on as many as their meshes have.
fn compare<M: Module>(
    new: impl Fn(&Mesh) -> Result<M> + Sync,
    shape: [usize; 3],
    ways: &[Way<'_, M>],
) {
    let run = |way: &Way<'_, M>| {
        let ranks = way.axes.iter().map(|(_, size)| size).product();
        let launch = Launch::new(ranks).dtype(DType::F64);
        launch.run(|ctx| train(ctx, &new, shape, way)).unwrap()
    };
    let one = run(&Way {
        axes: &[("all", 1)],
        model: &|model| Ok(model),
        data: replicate().into(),
    });
    assert!(one[0][7] < 0.9 * one[0][0], "it learns: {:?}", &one[0][..8]);
    for way in ways {
        for (rank, got) in run(way).iter().enumerate() {
            for (at, (got, expected)) in got.iter().zip(&one[0]).enumerate() {
                // The bias of keys has a gradient of zero, so it is all rounding.
                let off = (got - expected).abs() / expected.abs().max(0.1);
                assert!(
                    off < 1e-10,
                    "{:?}, rank {rank}, {at}: {got} {expected}",
                    way.axes
                );
            }
        }
    }
}

fn tensor_plan() -> ParallelPlan {
    ParallelPlan::new()
        .colwise("attention.?_proj", "tensor")
        .rowwise("attention.out_proj", "tensor")
        .colwise("up", "tensor")
        .rowwise("down", "tensor")
}

#[test]
fn a_block_of_a_transformer() {
    let [data, fully, domain, tensor] = ["data", "shard", "domain", "tensor"];
    compare(
        Block::new,
        [5, 7, 0],
        &[
            Way {
                axes: &[(data, 3)],
                model: &|block| Ok(block),
                data: shard(0).sizes([1, 4, 0]).into(),
            },
            Way {
                axes: &[(fully, 3)],
                model: &|block: Block| block.fully_sharded(fully),
                data: shard(0).into(),
            },
            Way {
                axes: &[(tensor, 2)],
                model: &|block: Block| block.distribute(&tensor_plan()),
                data: replicate().into(),
            },
            Way {
                axes: &[(domain, 3)],
                model: &|block| Ok(block),
                data: shard(1).sizes([1, 4, 2]).into(),
            },
            Way {
                axes: &[(domain, 2), (tensor, 3)],
                model: &|block: Block| block.distribute(&tensor_plan()),
                data: [(domain, shard(1).sizes([5, 2]))].into(),
            },
        ],
    );
}

#[test]
fn a_block_of_a_transformer_on_eight_ranks() {
    let [data, fully, domain, tensor] = ["data", "shard", "domain", "tensor"];
    compare(
        Block::new,
        [5, 7, 0],
        &[
            Way {
                axes: &[(data, 2), (fully, 2), (tensor, 2)],
                model: &|block: Block| block.distribute(&tensor_plan().fully_shard("*", fully)),
                data: [(data, shard(0)), (fully, shard(0))].into(),
            },
            Way {
                axes: &[(data, 2), (domain, 2), (fully, 2)],
                model: &|block: Block| block.fully_sharded(fully),
                data: [
                    (data, shard(0)),
                    (domain, shard(1).sizes([2, 5])),
                    (fully, shard(0)),
                ]
                .into(),
            },
        ],
    );
}

#[test]
fn a_net_of_convolutions() {
    let [data, fully, h, w, tensor] = ["data", "shard", "h", "w", "tensor"];
    compare(
        Net::new,
        [5, 9, 6],
        &[
            Way {
                axes: &[(data, 3)],
                model: &|net| Ok(net),
                data: shard(0).into(),
            },
            Way {
                axes: &[(fully, 4)],
                model: &|net: Net| net.fully_sharded(fully),
                data: shard(0).into(),
            },
            Way {
                axes: &[(h, 2), (w, 2)],
                model: &|net| Ok(net),
                data: [(h, shard(2).sizes([3, 6])), (w, shard(3).sizes([4, 2]))].into(),
            },
            Way {
                axes: &[(h, 2), (fully, 2), (tensor, 2)],
                model: &|net: Net| {
                    let plan = ParallelPlan::new()
                        .shard("second", tensor, 0)
                        .fully_shard("*", fully);
                    net.distribute(&plan)
                },
                data: [(h, shard(2)), (fully, shard(0))].into(),
            },
        ],
    );
}
