//! Training steps: the main job's model on fields of the same shape.

#[path = "../../../../../shard-tensor/examples/downscale/model.rs"]
mod model;

use crate::case::Bench;
use crate::numbers::fill;
use crate::suite::Suite;
use crate::training;
use model::UNet;
use shard_tensor::nn::Module;
use shard_tensor::{Result, ShardTensor};

/// Channels in, channels out, at full resolution.
const CHANNELS: [usize; 3] = [4, 3, 16];

pub(super) fn add(suite: &mut Suite<'_>) {
    let [rows, cols] = [suite.size(204, 24), suite.size(187, 22)];
    let split = suite.options.split;
    for &ranks in &suite.options.ranks {
        suite.add(
            format!("train/U-Net {rows}x{cols} step, shardH"),
            ranks,
            move |ctx| {
                let mesh = ctx.mesh_of(ranks)?;
                let field = |channels, seed| {
                    let by = split.shard(2, rows, ranks);
                    fill(&mesh, &[1, channels, rows, cols], [by], seed)
                };
                step(field(CHANNELS[0], 1)?, field(CHANNELS[1], 2)?)
            },
        );
        if ranks == 4 {
            suite.add(
                format!("train/U-Net {rows}x{cols} step, 2x2"),
                4,
                move |ctx| {
                    let mesh = ctx.mesh([("h", 2), ("w", 2)])?;
                    let field = |channels, seed| {
                        let by = [split.shard(2, rows, 2), split.shard(3, cols, 2)];
                        fill(&mesh, &[1, channels, rows, cols], by, seed)
                    };
                    step(field(CHANNELS[0], 1)?, field(CHANNELS[1], 2)?)
                },
            );
        }
    }
}

fn step(input: ShardTensor, target: ShardTensor) -> Result<Bench> {
    let [inputs, outputs, width] = CHANNELS;
    training::bench(
        &[input, target],
        |mesh| UNet::new(mesh, inputs, outputs, width),
        |model, [input, target]| model.forward(input)?.mse_loss(target),
    )
}
