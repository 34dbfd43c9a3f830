//! What an op costs that computes next to nothing: 16 elements.

use crate::case::{Bench, Limit};
use crate::numbers::fill;
use crate::suite::Suite;
use shard_comm::{DType, Monoid, Scalar, Strided};
use shard_tensor::{Context, LocalSizes, Placements, Result, ShardTensor, replicate, shard};
use std::hint::black_box;

const LEN: usize = 16;

pub(super) fn add(suite: &mut Suite<'_>) {
    for &ranks in &suite.options.ranks {
        let here = LEN.div_ceil(ranks);
        suite.add("dispatch/add 16 elements", ranks, move |ctx| {
            let [x, y] = [operand(ctx, 1)?, operand(ctx, 2)?];
            Ok(
                Bench::new(move || x.add(&y).map(drop)).limit(plain(ctx, here, |a, b| {
                    let sums: Vec<f32> = a.iter().zip(b).map(|(a, b)| a + b).collect();
                    drop(black_box(sums));
                })?),
            )
        });
        suite.add("dispatch/add 16 elements, recorded", ranks, move |ctx| {
            let x = operand(ctx, 1)?.requires_grad()?;
            let y = operand(ctx, 2)?;
            Ok(
                Bench::new(move || x.add(&y).map(drop)).limit(plain(ctx, here, |a, b| {
                    let sums: Vec<f32> = a.iter().zip(b).map(|(a, b)| a + b).collect();
                    drop(black_box(sums));
                })?),
            )
        });
        suite.add("dispatch/relu 16 elements", ranks, move |ctx| {
            let x = operand(ctx, 1)?;
            Ok(
                Bench::new(move || x.relu().map(drop)).limit(plain(ctx, here, |a, _| {
                    let positive: Vec<f32> = a.iter().map(|a| a.max(0.0)).collect();
                    drop(black_box(positive));
                })?),
            )
        });
        suite.add("dispatch/sum 16 elements (no comm)", ranks, move |ctx| {
            let x = operand(ctx, 1)?;
            Ok(
                Bench::new(move || x.sum_all().map(drop)).limit(plain(ctx, here, |a, _| {
                    drop(black_box(vec![a.iter().sum::<f32>()]));
                })?),
            )
        });
        suite.add("dispatch/from_local+to_local 16", ranks, move |ctx| {
            let x = operand(ctx, 1)?;
            let (mesh, piece, layout) = (x.mesh(), x.to_local()?, x.layout().clone());
            Ok(Bench::new(move || {
                mesh.wrap_local(&piece, &layout, LocalSizes::Global(LEN.into()))?
                    .to_local()
                    .map(drop)
            }))
        });
        if ranks == 1 {
            continue;
        }
        suite.add("dispatch/S0->R 16 elements", ranks, |ctx| {
            let x = operand(ctx, 1)?;
            Ok(Bench::new(move || x.redistribute([replicate()]).map(drop)))
        });
        suite.add("dispatch/sum+full_tensor 16 elements", ranks, |ctx| {
            let x = operand(ctx, 1)?;
            Ok(Bench::new(move || x.sum_all()?.full_tensor().map(drop)))
        });
        suite.add("dispatch/barrier", ranks, |ctx| {
            let world = ctx.world().clone();
            Ok(Bench::new(move || Ok(world.barrier()?)))
        });
        suite.add("dispatch/raw all_reduce 1 element", ranks, |ctx| {
            let one = ctx
                .mesh_of(ctx.world_size())?
                .ones((), Placements::replicated())?;
            let world = ctx.world().clone();
            Ok(Bench::new(move || {
                let value = one.value();
                if let Some(buffer) = value.array().buffer() {
                    drop(black_box(world.all_reduce(buffer, Monoid::SUM)?));
                }
                Ok(())
            }))
        });
    }
}

fn operand(ctx: &Context, seed: u64) -> Result<ShardTensor> {
    fill(&ctx.mesh_of(ctx.world_size())?, &[LEN], [shard(0)], seed)
}

/// The same work on plain slices, with a result of its own; on a GPU one bare launch.
fn plain(ctx: &Context, len: usize, mut f: impl FnMut(&[f32], &[f32]) + 'static) -> Result<Limit> {
    if ctx.device().kind().is_cuda() {
        let (device, all) = (ctx.device().clone(), Strided::contiguous(&[len]));
        let mut to = device.alloc(DType::F32, len)?;
        return Ok(Limit::new("one launch", move || {
            Ok(device.fill(&mut to, &all, Scalar::ZERO)?)
        }));
    }
    let (a, b) = (vec![1.0_f32; len], vec![2.0_f32; len]);
    Ok(Limit::new("plain loop", move || {
        f(black_box(&a), black_box(&b));
        Ok(())
    }))
}
