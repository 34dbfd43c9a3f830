//! Tensor and sequence parallelism: the collectives that Megatron needs, and no more.

use shard_tensor::nn::{Linear, ModelExt, Module, Moved, MultiheadAttention, ParallelPlan};
use shard_tensor::{
    Attention, Causal, Context, DType, Launch, Mesh, Placements, Result, ShardTensor, replicate,
    shard, tree,
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
    let plan = ParallelPlan::new()
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

/// The bytes that this rank receives in a pass each way of an attention of these heads of four features, by this plan.
fn attended(
    ctx: &Context,
    [ranks, heads, kv_heads]: [usize; 3],
    plan: &ParallelPlan,
) -> Result<[usize; 2]> {
    let mesh = ctx.mesh([("tensor", ranks)])?;
    let attention = MultiheadAttention::new(&mesh, 4 * heads, heads)?.kv_heads(kv_heads)?;
    let x = mesh.randn([2, 24, 4 * heads], replicate())?;
    let whole = attention.forward(&x)?.to_array::<f64>()?;
    let attention = attention.distribute(plan)?;
    let start = ctx.ledger().snapshot();
    let y = attention.forward(&x)?;
    let forward = ctx.ledger().since(&start).bytes as usize;
    let gradients = y.backward_with(&x)?;
    for (_, parameter) in attention.parameters() {
        let gradient = gradients.get(&parameter)?.expect("it depends on it");
        gradient.expect_layout(parameter.layout())?;
    }
    let both = ctx.ledger().since(&start).bytes as usize;
    for (a, b) in y.to_array::<f64>()?.iter().zip(&whole) {
        assert!((a - b).abs() < 1e-12, "{a} {b}");
    }
    Ok([forward, both - forward])
}

/// Where parts are whole heads nothing moves in the forward pass, whatever the numbers of heads and ranks; and one key and value
/// head for all leaves each rank its own queries.
#[test]
fn whole_heads_do_not_move() {
    let torn = ParallelPlan::new()
        .colwise("?_proj", "tensor")
        .rowwise("out_proj", "tensor");
    let heads = |queries: &str, width| {
        let plan = ParallelPlan::new().colwise_by(queries, "tensor", width);
        plan.rowwise_by("out_proj", "tensor", width)
    };
    let grouped = heads("q_proj", 8)
        .colwise_by("k_proj", "tensor", 4)
        .colwise_by("v_proj", "tensor", 4);
    for (sizes, plan, moves) in [
        ([3, 5, 5], &torn, true),
        ([3, 5, 5], &heads("?_proj", 4), false),
        ([3, 10, 5], &grouped, false),
        ([4, 8, 4], &grouped, false),
        ([3, 6, 1], &heads("q_proj", 4), false),
        ([4, 4, 2], &heads("q_proj", 4), false),
        ([3, 5, 1], &heads("q_proj", 4), false),
    ] {
        let launch = Launch::new(sizes[0]).dtype(DType::F64);
        let moved = launch.run(|ctx| attended(ctx, sizes, plan)).unwrap();
        let forward = moved.iter().map(|m| m[0]).sum::<usize>();
        assert_eq!(forward > 0, moves, "{sizes:?}: {moved:?}");
    }
}

/// An axis that a move does not name gets copies: it gathers the batch.
#[test]
fn moves_name_every_axis() {
    let moved = |outside: Placements| {
        let launch = Launch::new(4).dtype(DType::F64);
        let moved = launch.run(|ctx| {
            let mesh = ctx.mesh([("data", 2), ("tensor", 2)])?;
            let batch = [("data", shard(0)), ("tensor", shard(1))];
            let x = mesh.randn(SHAPE, batch)?;
            let up = Moved::new(Linear::new(&mesh, 32, 96)?).input([("data", shard(0))]);
            let down = Moved::new(Linear::new(&mesh, 96, 32)?).output(&outside);
            let plan = ParallelPlan::new()
                .colwise("up", "tensor")
                .rowwise("down", "tensor");
            let start = ctx.ledger().snapshot();
            let y = Mlp { up, down }.distribute(&plan)?.forward(&x)?;
            Ok((
                y.layout().to_string(),
                ctx.ledger().since(&start).bytes as usize,
            ))
        });
        moved.unwrap().swap_remove(0)
    };
    let half = BYTES / 2 / 2;
    let named = moved([("data", shard(0)), ("tensor", shard(1))].into());
    assert_eq!(named, ("S(0) S(1)".to_owned(), 2 * half));
    let (layout, bytes) = moved([("tensor", shard(1))].into());
    assert_eq!(layout, "R S(1)");
    assert!(bytes > 2 * half, "{bytes}");
}

/// Keys that a layer adds are seen by all heads, wherever heads and tokens are, also where a head of keys serves queries of several ranks.
#[test]
fn heads_and_tokens_in_pieces_see_keys_of_the_layers_own() {
    let run = |domain: usize, tensor: usize, kv_heads: usize| {
        let launch = Launch::new(domain * tensor).dtype(DType::F64).seed(4);
        let found = launch.run(|ctx| {
            let mesh = ctx.mesh([("domain", domain), ("tensor", tensor)])?;
            let plan = ParallelPlan::new()
                .colwise("?_proj", "tensor")
                .rowwise("out_proj", "tensor");
            let attention = MultiheadAttention::new(&mesh, 8, 4)?
                .add_bias_kv()?
                .kv_heads(kv_heads)?
                .add_zero_attn()
                .options(Attention::new().causal(Causal::TopLeft))
                .distribute(&plan)?;
            let x = mesh.randn([2, 5, 8], [("domain", shard(1))])?;
            let y = attention.forward(&x)?;
            let (bias_k, bias_v) = (attention.bias_k.as_ref(), attention.bias_v.as_ref());
            let of = [bias_k.unwrap(), bias_v.unwrap(), &attention.k_proj.weight];
            let mut all = vec![y.to_array::<f64>()?];
            for slope in y.square()?.sum_all()?.grad(&of, false)? {
                all.push(slope.unwrap().to_array::<f64>()?);
            }
            // In 16 bits as well.
            let half = ctx.autocast(DType::BF16, || attention.forward(&x))?;
            assert!(half.to(DType::F64)?.allclose(&y, 0.1, 0.05, false)?);
            Ok(all)
        });
        found.unwrap().swap_remove(0)
    };
    for kv_heads in [4, 2, 1] {
        let one = run(1, 1, kv_heads);
        for (domain, tensor) in [(3, 1), (1, 2), (2, 2), (1, 4)] {
            for (found, one) in run(domain, tensor, kv_heads).iter().zip(&one) {
                let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-10;
                assert!(
                    found.shape() == one.shape() && found.iter().zip(one).all(near),
                    "{domain} by {tensor}, {kv_heads} heads: {found} is not {one}"
                );
            }
        }
    }
}
