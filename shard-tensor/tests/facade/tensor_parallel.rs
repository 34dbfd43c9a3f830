//! Tensor and sequence parallelism: the collectives that Megatron needs, and no more.

use shard_tensor::nn::{Linear, ModelExt, Module, Moved, Plan};
use shard_tensor::{
    Context, DType, Launch, Mesh, Placements, Result, ShardTensor, replicate, shard, tree,
};

const SHAPE: [usize; 3] = [2, 12, 32];
const BYTES: usize = 2 * 12 * 32 * 8;

struct Mlp {
    up: Moved<Linear>,
    down: Moved<Linear>,
}
tree!(Mlp { up, down });

impl Module for Mlp {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        self.down.forward(&self.up.forward(x)?.gelu()?)
    }
}

/// The two layers, divided over the axis, between moves of activations to these placements.
fn mlp(mesh: &Mesh, outside: &Placements) -> Result<Mlp> {
    let up = Moved::new(Linear::new(mesh, 32, 96)?).input(replicate());
    let down = Moved::new(Linear::new(mesh, 96, 32)?).output(outside);
    let plan = Plan::new()
        .colwise("up", "tensor")
        .rowwise("down", "tensor");
    Mlp { up, down }.distribute(&plan)
}

/// Bytes that this rank receives in the forward pass and in the backward pass, and the rounds of both.
fn moved(ctx: &Context, ranks: usize, outside: &Placements) -> Result<[(usize, u64); 2]> {
    let mesh = ctx.mesh([("tensor", ranks)])?;
    let mlp = mlp(&mesh, outside)?;
    let x = mesh.randn(SHAPE, outside)?.requires_grad()?;
    let target = mesh.randn(SHAPE, outside)?;
    let start = ctx.ledger().snapshot();
    let y = mlp.forward(&x)?;
    y.expect_layout(outside)?;
    let forward = ctx.ledger().since(&start);
    let start = ctx.ledger().snapshot();
    let gradients = y.backward_with(&target)?;
    gradients
        .get(&x)?
        .expect("it depends on it")
        .expect_layout(outside)?;
    let backward = ctx.ledger().since(&start);
    Ok([forward, backward].map(|moved| (moved.bytes as usize, moved.rounds)))
}

#[test]
fn two_linear_layers_take_one_all_reduce_each_way() {
    for ranks in [2, 4] {
        let launch = Launch::new(ranks).dtype(DType::F64);
        let moved = launch
            .run(|ctx| moved(ctx, ranks, &replicate().into()))
            .unwrap();
        let all_reduce = 2 * BYTES * (ranks - 1) / ranks;
        for moved in moved {
            assert_eq!(moved, [(all_reduce, 2), (all_reduce, 2)]);
        }
    }
}

#[test]
fn with_the_sequence_divided_they_take_a_gather_and_a_scattered_sum_each_way() {
    for ranks in [2, 3] {
        let launch = Launch::new(ranks).dtype(DType::F64);
        let moved = launch
            .run(|ctx| moved(ctx, ranks, &shard(1).into()))
            .unwrap();
        let half = BYTES * (ranks - 1) / ranks;
        for [forward, backward] in moved {
            assert_eq!(forward, (2 * half, 2));
            assert_eq!(backward, (2 * half, 2));
        }
    }
}
