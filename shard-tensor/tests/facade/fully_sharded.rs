//! Fully sharded parameters: what moves, and what is held.

use shard_tensor::nn::{Linear, Lstm, ModelExt, Module, Sequential};
use shard_tensor::optim::{AdamW, Optimizer};
use shard_tensor::{
    Context, DType, Launch, LedgerSnapshot, Mesh, Result, ShardTensor, launch, shard,
};

const WIDTH: usize = 48;
const LAYERS: usize = 10;

fn layers(mesh: &Mesh) -> Result<Sequential> {
    deep(mesh, LAYERS)
}

fn deep(mesh: &Mesh, layers: usize) -> Result<Sequential> {
    let mut net = Sequential::new();
    for _ in 0..layers {
        net = net.then(Linear::new(mesh, WIDTH, WIDTH)?.without_bias());
    }
    Ok(net)
}

/// What a step moves on this rank. With fewer samples than outputs the engine would rather move these than sums of gradients.
fn step(ctx: &Context, net: &Sequential, adam: &mut AdamW, batch: usize) -> Result<LedgerSnapshot> {
    let mesh = net.parameters()[0].1.mesh();
    let x = mesh.randn([batch, WIDTH], shard(0))?.requires_grad()?;
    let before = ctx.ledger().snapshot();
    let y = net.forward(&x)?;
    y.expect_layout(shard(0))?;
    adam.step(&y.backward_with(&y.detach())?)?;
    Ok(ctx.ledger().since(&before))
}

#[test]
fn a_step_moves_three_times_what_the_ranks_lack_of_the_parameters() {
    for ranks in [2, 3, 4] {
        let moved = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh([("shard", ranks)])?;
            let net = layers(&mesh)?.fully_sharded("shard")?;
            let mut adam = AdamW::new(net.parameters(), 1e-3)?;
            // From the second one on, parameters are sent for ahead of their use.
            let steps = (0..3).map(|_| Ok(step(ctx, &net, &mut adam, 96 * ranks)?.bytes as usize));
            steps.collect::<Result<Vec<_>>>()
        });
        let parameters = LAYERS * WIDTH * WIDTH * 8;
        for bytes in moved.unwrap() {
            let formula = 3 * parameters * (ranks - 1) / ranks;
            assert_eq!(bytes, [formula; 3], "{ranks} ranks");
        }
    }
}

#[test]
fn parameters_gradients_and_states_are_as_small_as_the_parts() {
    const RANKS: usize = 4;
    let held = |sharded: bool| {
        let held = Launch::new(RANKS).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh([("shard", RANKS)])?;
            let mut net = layers(&mesh)?;
            if sharded {
                net = net.fully_sharded("shard")?;
            }
            ctx.tape().set_bucket_bytes(1);
            let mut adam = AdamW::new(net.parameters(), 1e-3)?;
            step(ctx, &net, &mut adam, 4)?;
            let x = mesh.randn([4, WIDTH], shard(0))?;
            let gradients = {
                let y = net.forward(&x)?;
                ctx.device().reset_peak();
                let gradients = y.backward_with(&y.detach())?;
                gradients.get(&net.parameters()[0].1)?;
                gradients
            };
            ctx.world().barrier()?;
            let memory = ctx.device().memory();
            drop(gradients);
            Ok((memory.live, memory.peak))
        });
        held.unwrap()[0]
    };
    let ((whole, _), (part, peak)) = (held(false), held(true));
    assert!(whole >= 4 * LAYERS * WIDTH * WIDTH * 8);
    assert!(part * RANKS <= whole * 11 / 10, "{part} of {whole}");
    // Beyond that: one parameter gathered, and gradients of few that are not reduced yet. Never all of them.
    let (few, all) = (6 * WIDTH * WIDTH * 8, LAYERS * WIDTH * WIDTH * 8);
    assert!(peak <= part + few && few < all, "{peak} beside {part}");
}

/// The bound that `docs/parallel.md` states, of a step from its forward pass to its update.
#[test]
fn a_step_holds_its_parts_and_few_parameters_whole() {
    const RANKS: usize = 4;
    const DEPTH: usize = 40;
    const BATCH: usize = 96;
    let held = |sharded: bool| {
        let held = Launch::new(RANKS).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh([("shard", RANKS)])?;
            let mut net = deep(&mesh, DEPTH)?;
            if sharded {
                net = net.fully_sharded("shard")?;
            }
            // Each bucket is a gradient.
            ctx.tape().set_bucket_bytes(1);
            let mut adam = AdamW::new(net.parameters(), 1e-3)?;
            for _ in 0..2 {
                step(ctx, &net, &mut adam, BATCH)?;
            }
            ctx.world().barrier()?;
            let live = ctx.device().memory().live;
            ctx.device().reset_peak();
            let x = mesh.randn([BATCH, WIDTH], shard(0))?;
            let gradients = {
                let y = net.forward(&x)?;
                y.backward_with(&y.detach())?
            };
            adam.step(&gradients)?;
            Ok((live, ctx.device().memory().peak))
        });
        held.unwrap().into_iter().max().expect("ranks")
    };
    let parameter = WIDTH * WIDTH * 8;
    let (whole, _) = held(false);
    // Weights and two moments; the fourth are the gradients, which are there at the peak.
    assert!(whole >= 3 * DEPTH * parameter);
    let replicated = whole + DEPTH * parameter;
    let (_, peak) = held(true);
    let activations = (DEPTH + 4) * BATCH / RANKS * WIDTH * 8;
    // The one in use and the one in flight; four buckets of gradients.
    let bound = replicated * 11 / 10 / RANKS + activations + 6 * parameter;
    assert!(peak <= bound, "{peak} of {bound}");
    // Were all of them there, it would be more.
    assert!(bound < replicated * 11 / 10 / RANKS + activations + DEPTH / 4 * parameter);
}

#[test]
fn replicas_move_their_gradients_alone_and_these_together() {
    for ranks in [2, 4] {
        let moved = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh([("data", ranks)])?;
            let net = layers(&mesh)?;
            let mut adam = AdamW::new(net.parameters(), 1e-3)?;
            let all = step(ctx, &net, &mut adam, 96 * ranks)?;
            // Buckets of two layers each.
            ctx.tape().set_bucket_bytes(2 * WIDTH * WIDTH * 8);
            let early = step(ctx, &net, &mut adam, 96 * ranks)?;
            Ok([all, early].map(|moved| (moved.bytes as usize, moved.rounds)))
        });
        let bytes = 2 * LAYERS * WIDTH * WIDTH * 8 * (ranks - 1) / ranks;
        for [all, early] in moved.unwrap() {
            // A reduction of large buffers takes two rounds.
            assert_eq!((all, early), ((bytes, 2), (bytes, LAYERS as u64)));
        }
    }
}

#[test]
fn training_ahead_and_in_turn_gives_the_same_bits() {
    let weights = |ahead: bool| {
        let weights = Launch::new(3).run(|ctx| {
            let mesh = ctx.mesh([("shard", 3)])?;
            let net = layers(&mesh)?.fully_sharded("shard")?;
            ctx.tape().set_gathers_ahead(ahead);
            let mut adam = AdamW::new(net.parameters(), 1e-3)?;
            for _ in 0..4 {
                step(ctx, &net, &mut adam, 7)?;
                // Evaluation in between uses the parameters as well.
                let x = mesh.ones([2, WIDTH], shard(0))?;
                ctx.no_grad(|| net.forward(&x))?;
            }
            let all = net.parameters().into_iter();
            all.map(|(_, w)| w.to_array::<f32>())
                .collect::<Result<Vec<_>>>()
        });
        weights.unwrap().remove(2)
    };
    assert!(weights(true) == weights(false));
}

#[test]
fn what_is_gathered_is_told_of() {
    let told = launch(2, |ctx| {
        let mesh = ctx.mesh([("shard", 2)])?;
        let layer = Linear::new(&mesh, 4, 3)?.fully_sharded("shard")?;
        let x = mesh.ones([2, 4], shard(0))?;
        let (_, told) = ctx.explain(|| layer.forward(&x)?.sum_all()?.backward())?;
        Ok(told.to_string())
    });
    let told = told.unwrap().remove(0);
    assert!(
        told.starts_with("0. gather: f32 [3, 4] S(1) -> f32 [3, 4] R"),
        "{told}"
    );
    assert!(told.contains("pinned"), "{told}");
}

/// Frozen parameters are gathered for their uses too, and no more of them held: neither between a forward and a backward pass, nor where
/// nothing below them wants a gradient.
#[test]
fn frozen_parameters_are_not_held_whole() {
    const RANKS: usize = 4;
    let parameter = WIDTH * WIDTH * 8;
    for below in [true, false] {
        let held = Launch::new(RANKS).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh([("shard", RANKS)])?;
            let net = layers(&mesh)?.fully_sharded("shard")?;
            net.set_requires_grad(false)?;
            let mut x = mesh.randn([4, WIDTH], shard(0))?;
            if below {
                x = x.requires_grad()?;
            }
            net.forward(&x)?;
            ctx.world().barrier()?;
            let before = ctx.device().memory().live;
            let moved = ctx.ledger().snapshot();
            let y = net.forward(&x)?;
            ctx.world().barrier()?;
            let held = ctx.device().memory().live - before;
            let forward = ctx.ledger().since(&moved).bytes as usize;
            assert_eq!(y.is_tracked(), below);
            if below {
                let gradients = y.backward_with(&y.detach())?;
                assert_eq!(gradients.len(), 1);
                let bytes = gradients
                    .get(&x)?
                    .expect("y depends on x")
                    .to_array::<f64>()?;
                assert!(bytes.iter().any(|x| *x != 0.0));
            }
            Ok((held, forward, ctx.ledger().since(&moved).bytes as usize))
        });
        for (held, forward, all) in held.unwrap() {
            // Activations, and one parameter in flight.
            assert!(held <= 2 * parameter, "{held} of {}", LAYERS * parameter);
            let once = LAYERS * parameter * (RANKS - 1) / RANKS;
            assert!(
                forward >= once * 9 / 10 && forward <= once,
                "{forward} of {once}"
            );
            // The way back gathers each again, and no gradients of parameters move.
            let back = if below { once * 3 / 2 } else { 0 };
            assert!(
                all - forward <= back && (all - forward > once / 2) == below,
                "{all} of {once}"
            );
        }
    }
}

/// Weights that the steps of a recurrent layer share are gathered once for all of them, forward and backward, and their gradients are one sum.
#[test]
fn steps_of_a_recurrent_layer_share_what_is_gathered() {
    let run = |steps: usize, sharded: bool| {
        let found = Launch::new(3).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh([("shard", 3)])?;
            let mut lstm = Lstm::new(&mesh, 4, 5, 2)?;
            if sharded {
                lstm = lstm.fully_sharded("shard")?;
            }
            let wave = |i: &[usize]| ((7 * i[0] + 5 * i[1] + 3 * i[2]) as f64).sin();
            let x = mesh.from_fn([100, steps, 4], shard(0), wave)?;
            let before = ctx.ledger().snapshot();
            let loss = lstm.forward(&x)?.square()?.mean_all()?;
            let gradients = loss.backward()?;
            let mut slopes = Vec::new();
            for (_, parameter) in lstm.parameters() {
                let slope = gradients.get(&parameter)?.unwrap();
                slopes.push(slope);
            }
            let bytes = ctx.ledger().since(&before).bytes;
            let slopes = slopes.iter().map(ShardTensor::to_array::<f64>);
            Ok((bytes, loss.item()?, slopes.collect::<Result<Vec<_>>>()?))
        });
        found.unwrap().remove(0)
    };
    assert_eq!(run(3, true).0, run(9, true).0);
    let (part, whole) = (run(6, true), run(6, false));
    assert!((part.1 - whole.1).abs() < 1e-12);
    for (part, whole) in part.2.iter().zip(&whole.2) {
        let apart = part.iter().zip(whole).map(|(a, b)| (a - b).abs());
        assert!(part.shape() == whole.shape() && apart.fold(0.0, f64::max) < 1e-12);
    }
}
