//! Graph networks on sharded nodes and edges: neighbours are found, their rows fetched, and messages added up where they belong.

use ndarray::Array1;
use shard_tensor::nn::{Linear, Module, prefixed};
use shard_tensor::optim::{AdamW, Optimizer};
use shard_tensor::{Context, DType, Launch, Placements, Result, ShardTensor, shard};

const NODES: usize = 60;
const NEIGHBOURS: usize = 4;

/// Three layers of messages along the edges of a graph of nearest neighbours, trained for so many steps: losses, and bytes received
/// by each step.
fn train(ctx: &Context, nodes: &Placements, steps: usize) -> Result<(Vec<f64>, Vec<u64>)> {
    let mesh = ctx.mesh_of(ctx.world_size())?;
    let at = |i: &[usize]| ((37 * i[0] + 11 * i[1] * i[0]) % 101) as f64 / 101.0;
    let points = mesh.from_fn([NODES, 2], nodes, at)?;
    let (_, near) = points.nearest(&points, NEIGHBOURS)?;
    // Row by row: the edges of a node lie with it, and its neighbours are the sources.
    let source = near.reshape([NODES * NEIGHBOURS])?;
    let targets: Array1<i64> = (0..NODES * NEIGHBOURS)
        .map(|e| (e / NEIGHBOURS) as i64)
        .collect();
    let target = mesh.distribute(&targets, [shard(0)])?;
    let encode = Linear::new(&mesh, 2, 8)?;
    let layers = (0..3).map(|_| Linear::new(&mesh, 8, 8));
    let layers: Vec<Linear> = layers.collect::<Result<_>>()?;
    let head = Linear::new(&mesh, 8, 1)?;
    let mut parameters = [prefixed("encode", &encode), prefixed("head", &head)].concat();
    for (l, layer) in layers.iter().enumerate() {
        parameters.extend(prefixed(&format!("layer{l}"), layer));
    }
    let mut adam = AdamW::new(parameters, 0.01)?;
    let wanted = mesh.from_fn([NODES, 1], nodes, |i| at(&[i[0], 0]) - at(&[i[0], 1]))?;
    let (mut losses, mut bytes) = (Vec::new(), Vec::new());
    for _ in 0..steps {
        let before = ctx.ledger().snapshot();
        let mut h: ShardTensor = encode.forward(&points)?.tanh()?;
        for layer in &layers {
            let message = layer.forward(&h.index_select(0, &source)?)?.tanh()?;
            let sums = h.index_add(0, &target, &message)?;
            h = (&sums * 0.3).tanh()?;
        }
        let loss = head.forward(&h)?.mse_loss(&wanted)?;
        losses.push(loss.item()?);
        adam.step(&loss.backward()?)?;
        bytes.push(ctx.ledger().since(&before).bytes);
    }
    Ok((losses, bytes))
}

#[test]
fn a_graph_network_trains_as_on_one_rank() {
    let run = |ranks: usize, nodes: Placements| {
        let trained = Launch::new(ranks)
            .dtype(DType::F64)
            .run(|ctx| train(ctx, &nodes, 20));
        trained.unwrap()
    };
    let one = run(1, [shard(0)].into());
    let uneven = run(4, [shard(0).sizes([23, 0, 30, 7])].into());
    assert!(one[0].0[19] < 0.5 * one[0].0[0], "{:?}", one[0].0);
    for (losses, bytes) in &uneven {
        for (got, expected) in losses.iter().zip(&one[0].0) {
            assert!(
                (got - expected).abs() <= 1e-10 * expected,
                "{got} {expected}"
            );
        }
        // The first step asks for rows, the others know whom to ask.
        assert!(bytes[1..].iter().all(|b| *b == bytes[1]), "{bytes:?}");
        assert!(bytes[0] > bytes[1], "{bytes:?}");
    }
}

#[test]
fn segments_are_one_ranks() {
    let run = |ranks: usize| {
        let made = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let value = |i: &[usize]| ((31 * i[0] + 7 * i[1]) % 13) as f64 - 6.0;
            let x = mesh.from_fn([29, 3], [shard(0)], value)?.requires_grad()?;
            let ids: Array1<i64> = (0..29).map(|i| (i * i % 11) as i64).collect();
            let ids = mesh.distribute(&ids, [shard(0)])?;
            let mut all = Vec::new();
            for made in [
                x.segment_sum(&ids, 12)?,
                x.segment_mean(&ids, 12)?,
                x.segment_softmax(&ids, 12)?,
                x.segment_max(&ids, 11)?.map_finite()?,
                x.segment_min(&ids, 11)?.map_finite()?,
            ] {
                let weights =
                    mesh.from_fn(made.shape(), [shard(0)], |i| (i[0] + 2 * i[1]) as f64)?;
                let grads = (&made * &weights).sum_all()?.backward()?;
                all.push(made.to_array::<f64>()?);
                all.push(grads.get(&x)?.unwrap().to_array::<f64>()?);
            }
            Ok(all)
        });
        made.unwrap().remove(0)
    };
    let one = run(1);
    for ranks in [2, 5] {
        for (got, expected) in run(ranks).iter().zip(&one) {
            assert_eq!(got.shape(), expected.shape());
            assert!(
                got.iter()
                    .zip(expected)
                    .all(|(g, e)| (g - e).abs() <= 1e-12)
            );
        }
    }
    // By hand: segment 0 has rows 0, 11 and 22.
    let of = |row: usize| ((31 * row) % 13) as f64 - 6.0;
    assert_eq!(one[0][[0, 0]], of(0) + of(11) + of(22));
    assert_eq!((one[0][[2, 0]], one[2][[2, 0]]), (0.0, 0.0));
    assert_eq!(one[6][[0, 0]], of(0).max(of(11)).max(of(22)));
    let shares = one[4][[0, 0]] + one[4][[11, 0]] + one[4][[22, 0]];
    assert!((shares - 1.0).abs() < 1e-14);
}

/// Segments without rows have infinities, which weights would make NaN of.
trait Finite: Sized {
    fn map_finite(self) -> Result<Self>;
}

impl Finite for ShardTensor {
    fn map_finite(self) -> Result<Self> {
        self.clamp(-1e3, 1e3)
    }
}
