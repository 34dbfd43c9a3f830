//! Training steps: the main job's model on fields of the same shape.

#[path = "../../../../../shard-tensor/examples/downscale/model.rs"]
mod model;

use crate::case::{Bench, Limit};
use crate::numbers::fill;
use crate::suite::Suite;
use crate::tensors::relative;
use model::UNet;
use shard_tensor::nn::{ModelExt, Module};
use shard_tensor::optim::{AdamW, Optimizer};
use shard_tensor::{Context, Error, Result, ShardTensor};

/// Channels in, channels out, at full resolution.
const CHANNELS: [usize; 3] = [4, 3, 16];

/// A model that learns.
struct Training {
    model: UNet,
    adam: AdamW,
    input: ShardTensor,
    target: ShardTensor,
}

impl Training {
    fn new(input: ShardTensor, target: ShardTensor) -> Result<Self> {
        let [inputs, outputs, width] = CHANNELS;
        let model = UNet::new(&input.mesh(), inputs, outputs, width)?;
        let adam = AdamW::new(model.parameters(), 1e-3)?;
        Ok(Self {
            model,
            adam,
            input,
            target,
        })
    }

    fn step(&mut self) -> Result<ShardTensor> {
        let loss = self.model.forward(&self.input)?.mse_loss(&self.target)?;
        self.adam.step(&loss.backward()?)?;
        loss.reduced()
    }
}

pub(super) fn add(suite: &mut Suite<'_>) {
    let [rows, cols] = [suite.size(204, 48), suite.size(187, 44)];
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
                step(ctx, field(CHANNELS[0], 1)?, field(CHANNELS[1], 2)?)
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
                    step(ctx, field(CHANNELS[0], 1)?, field(CHANNELS[1], 2)?)
                },
            );
        }
    }
}

fn step(ctx: &Context, input: ShardTensor, target: ShardTensor) -> Result<Bench> {
    // Weights are drawn from the context's numbers: the two models that are compared draw theirs from the same.
    let whole = [&input, &target].map(|x| x.full_tensor()?.to_local());
    let alone = [&input, &target].map(ShardTensor::to_local);
    let mut training = Training::new(input, target)?;
    if ctx.world_size() == 1 {
        return Ok(Bench::new(move || training.step()));
    }
    let [x, y] = whole;
    let mut single = Training::new(x?, y?)?;
    copy_weights(&training, &single)?;
    let [x, y] = alone;
    let mut alone = Training::new(x?, y?)?;
    let mut losses = Vec::new();
    for _ in 0..3 {
        losses.push((training.step()?.item()?, single.step()?.item()?));
    }
    drop(single);
    let (got, expected): (Vec<f64>, Vec<f64>) = losses.into_iter().unzip();
    Ok(Bench::new(move || training.step())
        .limit(Limit::new("alone", move || alone.step()))
        .check(move || Ok(Some(relative(&got, &expected)))))
}

/// Gives one model the other's weights, which are replicated.
fn copy_weights(from: &Training, to: &Training) -> Result<()> {
    for ((name, from), (_, to)) in (from.model.parameters().iter()).zip(to.model.parameters()) {
        to.set(&from.detach().to_local()?)
            .map_err(|e| Error::custom(format!("{name}: {e}")))?;
    }
    Ok(())
}
