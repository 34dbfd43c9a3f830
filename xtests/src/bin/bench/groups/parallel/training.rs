//! Steps of training, divided in the ways that a program of PyTorch has a wrapper for each.

use crate::case::Bench;
use crate::groups::models::llama::{Llama, Sizes, next_tokens};
use crate::groups::models::resnet::ResNet;
use crate::groups::models::unet::UNet;
use crate::groups::models::{cross_entropy, mean_square};
use crate::numbers::{below, fill, numbered};
use crate::suite::Suite;
use crate::training::bench_placed;
use shard_tensor::nn::ModelExt;
use shard_tensor::{Context, Mesh, Placements, Result, replicate, shard};

/// The name of the mesh's only axis.
const AXIS: &str = "ranks";

pub(super) fn add(suite: &mut Suite<'_>, ranks: usize) {
    add_llama(suite, ranks);
    add_unet(suite, ranks);
    add_resnet(suite, ranks);
}

fn mesh(ctx: &Context) -> Result<Mesh> {
    ctx.mesh([(AXIS, ctx.world_size())])
}

/// How a model is placed.
type Place = fn(Llama) -> Result<Llama>;

fn add_llama(suite: &mut Suite<'_>, ranks: usize) {
    let (samples, length) = (suite.size(4, 4), suite.size(256, 16));
    let sizes = Sizes::of(suite);
    let ways: [(&str, Placements, Place); 3] = [
        ("data parallel", shard(0).into(), Ok),
        ("fully sharded", shard(0).into(), |llama| {
            llama.fully_sharded(AXIS)
        }),
        (
            "tensor and sequence parallel",
            replicate().into(),
            |llama| llama.divided(AXIS),
        ),
    ];
    for (way, placements, place) in ways {
        let name = format!("parallel/Llama {samples}x{length} tokens, {way}");
        suite.add(name, ranks, move |ctx| {
            let mesh = mesh(ctx)?;
            let tokens = |seed| below(&mesh, sizes.tokens, &[samples, length], &placements, seed);
            let batch = [tokens(1)?, tokens(2)?];
            let model = |mesh: &Mesh| numbered(Llama::new(mesh, sizes)?);
            let bench = bench_placed(&batch, model, place, next_tokens)?;
            // Where samples are not divided, each rank alone would do the work of all.
            let limit = bench.limit.filter(|_| !batch[0].layout().is_replicated());
            Ok(Bench { limit, ..bench })
        });
    }
}

fn add_unet(suite: &mut Suite<'_>, ranks: usize) {
    let (samples, side, width) = (suite.size(4, 4), suite.size(64, 8), suite.size(32, 8));
    for (way, dim) in [("data parallel", 0), ("domain parallel", 2)] {
        let name = format!("parallel/U-Net {samples}x3x{side}x{side}, {way}");
        suite.add(name, ranks, move |ctx| {
            let mesh = mesh(ctx)?;
            let images = |seed| fill(&mesh, &[samples, 3, side, side], shard(dim), seed);
            let model = |mesh: &Mesh| numbered(UNet::new(mesh, width)?);
            let bench = bench_placed(&[images(1)?, images(2)?], model, Ok, mean_square)?;
            // A rank's rows alone are no image that can be halved twice.
            let limit = bench.limit.filter(|_| dim == 0);
            Ok(Bench { limit, ..bench })
        });
    }
}

fn add_resnet(suite: &mut Suite<'_>, ranks: usize) {
    let (samples, side, width) = (suite.size(32, 4), suite.size(32, 16), suite.size(32, 4));
    let name = format!("parallel/ResNet {samples}x3x{side}x{side}, data parallel");
    suite.add(name, ranks, move |ctx| {
        let mesh = mesh(ctx)?;
        let images = fill(&mesh, &[samples, 3, side, side], shard(0), 1)?;
        let classes = below(&mesh, 10, &[samples], shard(0), 2)?;
        let model = |mesh: &Mesh| numbered(ResNet::new(mesh, width)?);
        bench_placed(&[images, classes], model, Ok, cross_entropy)
    });
}
