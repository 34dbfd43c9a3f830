//! Layers on ranks of their own, between which activations and their gradients move.

use crate::common::read;
use crate::training::close;
use shard_tensor::ndarray::ArrayD;
use shard_tensor::nn::{Linear, MixtureOfExperts, ModelExt, Module, ParallelPlan, Parameters};
use shard_tensor::optim::{Lbfgs, Optimizer, Sgd};
use shard_tensor::{Context, DType, Launch, Mesh, Result, ShardTensor, replicate, shard};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A mesh of two ranks from this one on.
fn stage(ctx: &Context, first: usize) -> Result<Mesh> {
    ctx.mesh_on(first..first + 2, [("data", 2)])
}

/// Waits until something has happened as often.
fn wait(count: &AtomicUsize, times: usize) {
    let begun = Instant::now();
    while count.load(Ordering::SeqCst) < times {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{times} times: {count:?}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Each stage computes while the other one does: forward with the next sample, backward with the one before.
#[test]
fn stages_compute_at_the_same_time() {
    const SAMPLES: usize = 3;
    let counts = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let [forward, backward] = [0, 1].map(|i| (counts.clone(), i));
    let trained = Launch::new(4).dtype(DType::F64).run(|ctx| {
        let (first, second) = (stage(ctx, 0)?, stage(ctx, 2)?);
        let (up, down) = (Linear::new(&first, 4, 6)?, Linear::new(&second, 6, 1)?);
        let (head, tail) = (first.is_member(), second.is_member());
        let mut losses = Vec::new();
        for sample in 0..SAMPLES {
            let hidden = up.forward(&first.ones([2, 4], shard(0))?)?.gelu()?;
            if ctx.rank() == 0 {
                forward.0[forward.1].fetch_add(1, Ordering::SeqCst);
            }
            let met = hidden.to_mesh(&second, shard(0))?;
            if tail {
                // The first stage goes on with the next sample.
                wait(&forward.0[forward.1], (sample + 2).min(SAMPLES));
            }
            let loss = down.forward(&met)?.sum_all()?;
            let counts = backward.clone();
            let (rank, turn) = (ctx.rank(), SAMPLES - sample);
            met.on_gradient(move |_| {
                if rank == 2 {
                    counts.0[counts.1].fetch_add(1, Ordering::SeqCst);
                }
                Ok(None)
            })?;
            let counts = backward.clone();
            hidden.on_gradient(move |_| {
                if head {
                    // The second stage goes on with the sample before.
                    wait(&counts.0[counts.1], (turn + 1).min(SAMPLES));
                }
                Ok(None)
            })?;
            losses.push(loss);
        }
        let mut all = losses.swap_remove(0);
        for loss in &losses {
            all = all.add(loss)?;
        }
        let gradients = all.backward()?;
        let weight = gradients.get(&up.weight)?.expect("it is used");
        head.then(|| read(&weight)).transpose()
    });
    assert!(trained.unwrap()[0].is_some());
}

/// Two layers, trained on three parts of a batch: on one mesh, or on two with what is between them moved.
fn trained(first: &Mesh, second: &Mesh) -> Result<Vec<(String, ShardTensor)>> {
    let number = |i: &[usize]| ((5 * i[0] + 3 * i.last().unwrap_or(&0)) % 7) as f64 / 7.0 - 0.4;
    let up = Linear::new(first, 3, 5)?;
    let down = Linear::new(second, 5, 2)?;
    let mut parameters: Parameters = Vec::new();
    for (name, p) in up.parameters().into_iter().chain(down.parameters()) {
        let mesh = if parameters.len() < 2 { first } else { second };
        p.set(&mesh.from_fn(p.shape().to_vec(), replicate(), number)?)?;
        parameters.push((format!("{}.{name}", parameters.len()), p));
    }
    let mut sgd = Sgd::new(parameters.clone(), 0.1)?.momentum(0.9);
    for _ in 0..3 {
        let mut sum: Option<ShardTensor> = None;
        for part in 0..3 {
            let x = first.from_fn([5, 3], shard(0), |i| number(&[i[0] + part, i[1]]))?;
            let hidden = up.forward(&x)?.tanh()?.to_mesh(second, shard(0))?;
            let loss = down.forward(&hidden)?.square()?.mean_all()?;
            sum = Some(match sum {
                Some(sum) => sum.add(&loss)?,
                None => loss,
            });
        }
        let mut gradients = sum.expect("there are parts").backward()?;
        // Over the parameters of both.
        let norm = gradients.clip_norm(0.5)?;
        assert!(norm > 0.5, "{norm}");
        sgd.step(&gradients)?;
    }
    Ok(parameters)
}

#[test]
fn stages_train_as_one_mesh_does() {
    let one = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let parameters = trained(&mesh, &mesh)?;
        parameters
            .iter()
            .map(|(_, p)| read(p))
            .collect::<Result<Vec<_>>>()
    });
    let two = Launch::new(4).dtype(DType::F64).run(|ctx| {
        let (first, second) = (stage(ctx, 0)?, stage(ctx, 2)?);
        let parameters = trained(&first, &second)?;
        let own = match first.is_member() {
            true => &parameters[..2],
            false => &parameters[2..],
        };
        own.iter().map(|(_, p)| read(p)).collect::<Result<Vec<_>>>()
    });
    let (one, two) = (one.unwrap(), two.unwrap());
    for (rank, own) in two.iter().enumerate() {
        let expected = if rank < 2 { &one[0][..2] } else { &one[0][2..] };
        for (own, expected) in own.iter().zip(expected) {
            close(own, expected, 1e-12);
        }
    }
}

/// Where rows of experts lie, how far a line search goes and whether numbers are close is up to the data, which ranks off a mesh have not:
/// they are told.
#[test]
fn ranks_that_are_not_on_a_mesh_go_by_what_its_data_decide() {
    let found = |ranks: usize, members: std::ops::Range<usize>| {
        let found = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_on(members.clone(), [("expert", members.len())])?;
            let everywhere = |x: &ShardTensor| {
                let all = ctx.mesh_of(ranks)?;
                x.detach().to_mesh(&all, replicate())?.to_array::<f64>()
            };
            let moe = MixtureOfExperts::new(&mesh, 3, 4, 5, 2)?;
            let moe = moe.distribute(&ParallelPlan::new().shard("w?", "expert", 0))?;
            let x = mesh.randn([7, 3], shard(0))?;
            let gradients = moe.forward(&x)?.square()?.sum_all()?.backward()?;
            let slope = gradients.get(&moe.w1)?.expect("it depends on the experts");
            let close = slope.allclose(&slope, 0.0, 0.0, false)?;

            let w = mesh.ones([4], shard(0))?.requires_grad()?;
            let mut lbfgs = Lbfgs::new(vec![("w".to_owned(), w.clone())], 1.0)?.strong_wolfe();
            let least = lbfgs.step(|| w.add_scalar(-3.0)?.square()?.square()?.sum_all())?;
            Ok((everywhere(&slope)?, everywhere(&w)?, close, least))
        });
        found.unwrap()
    };
    let one = found(1, 0..1).remove(0);
    for of in [found(4, 1..4), found(3, 2..3)] {
        for (slope, w, close, least) in of {
            let apart = |a: &ArrayD<f64>, b: &ArrayD<f64>| {
                a.iter()
                    .zip(b)
                    .fold(0.0_f64, |most, (a, b)| most.max((a - b).abs()))
            };
            assert!(apart(&slope, &one.0) < 1e-12 && apart(&w, &one.1) < 1e-9);
            assert!(close && (least - one.3).abs() < 1e-9);
        }
    }
}
