//! On several ranks what `torch_parallel.py` has of PyTorch, as many processes there as ranks here: moves and ops of its distributed
//! tensors, and steps of training. Dims are divided as `torch.chunk` does, whatever the other groups are asked for.

mod ops;
mod training;

use super::redistribute;
use crate::case::{Bench, Work};
use crate::numbers::fill;
use crate::suite::Suite;
use crate::tensors::{numbers, relative};
use shard_spec::ReduceOp;
use shard_tensor::{
    AxisPlacement, Context, LocalSizes, Placement, Result, ShardTensor, partial, replicate, shard,
};

pub(super) fn add(suite: &mut Suite<'_>) {
    let ranks: Vec<usize> = suite.options.ranks.clone();
    for ranks in ranks.into_iter().filter(|&r| r > 1) {
        add_moves(suite, ranks);
        ops::add(suite, ranks);
        training::add(suite, ranks);
    }
}

/// Between placements, of many elements, fewer, 16, and rows that do not divide.
fn add_moves(suite: &mut Suite<'_>, ranks: usize) {
    let (side, less) = (suite.size(4096, 64), suite.size(1024, 32));
    let terms = || partial(ReduceOp::Sum);
    for shape in [[side, side], [less, less], [4, 4], [side + 1, less]] {
        for (name, from, to) in [
            ("S(0) -> S(1)", shard(0), shard(1)),
            ("S(1) -> S(0)", shard(1), shard(0)),
            ("S(0) -> R", shard(0), replicate()),
            ("P -> S(0)", terms(), shard(0)),
            ("P -> R", terms(), replicate()),
            ("R -> S(0)", replicate(), shard(0)),
        ] {
            let name = format!("parallel/{}x{} {name}", shape[0], shape[1]);
            suite.add(name, ranks, move |ctx| {
                moved(ctx, shape, from.clone(), to.clone())
            });
        }
    }
}

fn moved(
    ctx: &Context,
    shape: [usize; 2],
    from: AxisPlacement,
    to: AxisPlacement,
) -> Result<Bench> {
    let mesh = ctx.mesh_of(ctx.world_size())?;
    let terms = matches!(from.placement(shape.len())?, Placement::Partial(_));
    let (x, factor) = if terms {
        let term = fill(&mesh, &shape, replicate(), 1)?.to_local()?;
        let x = mesh.wrap_local(&term, [from], LocalSizes::Global(shape.into()))?;
        (x, ctx.world_size() as f64)
    } else {
        (fill(&mesh, &shape, [from], 1)?, 1.0)
    };
    let target = mesh.layout(shape, [to.clone()])?;
    let limit = redistribute::limit(ctx, x.layout(), &target)?;
    let held = (0..ctx.world_size()).filter_map(|rank| target.local_shape(rank));
    let bytes: usize = held.map(|shape| 4 * shape.iter().product::<usize>()).sum();
    let (checked, placed) = (x.clone(), to.clone());
    Ok(Bench::new(move || x.redistribute([to.clone()]))
        .limit(limit)
        .work(Work::Bytes(bytes as f64))
        .check(move || wrong(&checked.redistribute([placed])?, factor).map(Some)))
}

/// How far what was moved is from so many times what it was filled with.
fn wrong(moved: &ShardTensor, factor: f64) -> Result<f64> {
    let whole = fill(&moved.mesh(), moved.shape(), replicate(), 1)?;
    let expected: Vec<f64> = numbers(&whole)?.iter().map(|x| factor * x).collect();
    Ok(relative(&numbers(moved)?, &expected))
}
