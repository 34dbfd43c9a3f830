//! Convolutions.

use crate::case::{Bench, Limit, Work};
use crate::numbers::fill;
use crate::suite::{Split, Suite};
use crate::tensors::{Share, bench, gradients};
use shard_tensor::{Context, ConvOptions, DType, Result, ShardTensor, replicate};

/// A convolution and where its input is divided.
#[derive(Clone)]
struct Case {
    name: String,
    x: Vec<usize>,
    w: Vec<usize>,
    stride: usize,
    padding: usize,
    groups: usize,
    dim: usize,
    dtype: DType,
}

impl Case {
    /// A 3-wide kernel that keeps the extents.
    fn same(x: &[usize], out: usize, dim: usize) -> Self {
        let spatial = x.len() - 2;
        let letter = ["D", "H", "W"][3 - spatial + dim - 2];
        Self {
            name: format!(
                "conv{spatial}d/{}/{}->{out}/k3p1/shard{letter}",
                join(x),
                x[1]
            ),
            x: x.to_vec(),
            w: [&[out, x[1]][..], &vec![3; spatial]].concat(),
            stride: 1,
            padding: 1,
            groups: 1,
            dim,
            dtype: DType::F32,
        }
    }

    fn output(&self) -> Vec<usize> {
        let spatial = self.x[2..].iter().zip(&self.w[2..]);
        let extents = spatial.map(|(n, k)| (n + 2 * self.padding - k) / self.stride + 1);
        [self.x[0], self.w[0]].into_iter().chain(extents).collect()
    }

    /// Operations of one pass.
    fn flops(&self) -> f64 {
        let taps: usize = self.w[1..].iter().product();
        (2 * taps * self.output().iter().product::<usize>()) as f64
    }

    fn function(&self) -> impl Fn(&[ShardTensor]) -> Result<Vec<ShardTensor>> + Clone + use<> {
        let options = ConvOptions::new()
            .padding(self.padding)
            .stride(self.stride)
            .groups(self.groups);
        move |x: &[ShardTensor]| Ok(vec![x[0].conv(&x[1], Some(&x[2]), options.clone())?])
    }

    fn build(&self, ctx: &Context, split: Split, backward: bool) -> Result<Bench> {
        let ranks = ctx.world_size();
        let mesh = ctx.mesh_of(ranks)?.with_dtype(self.dtype);
        let x = fill(
            &mesh,
            &self.x,
            [split.shard(self.dim, self.x[self.dim], ranks)],
            1,
        )?;
        let w = fill(&mesh, &self.w, [replicate()], 2)?;
        let b = fill(&mesh, &[self.w[0]], [replicate()], 3)?;
        let passes = if backward { 3.0 } else { 1.0 };
        let flops = passes * self.flops();
        let (machine, work) = (
            |ctx: &Context| Limit::gemm_rate(ctx, flops),
            Some(Work::Flops(flops)),
        );
        let mut operands = vec![(x, Share::Piece), (w, Share::Piece), (b, Share::Piece)];
        if !backward {
            return bench(&operands, self.function(), machine, work);
        }
        let y = self.function()(&operands.iter().map(|o| o.0.clone()).collect::<Vec<_>>())?;
        let cotangent = fill(&mesh, &self.output(), y[0].layout(), 4)?;
        operands.push((cotangent, Share::Piece));
        bench(&operands, gradients(self.function()), machine, work)
    }
}

pub(super) fn add(suite: &mut Suite<'_>) {
    let split = suite.options.split;
    let (side, depth) = (suite.size(512, 24), suite.size(96, 12));
    let mut cases = vec![
        Case::same(&[1, 32, side, side], 32, 2),
        Case::same(&[1, 8, depth, depth, depth], 16, 2),
        Case::same(&[1, 32, side, side], 32, 3),
    ];
    let side = suite.size(256, 32);
    let channels = suite.size(64, 16);
    cases.push(Case {
        name: format!("conv2d/1x{channels}x{side}x{side}/depthwise/k3p1/shardH"),
        x: vec![1, channels, side, side],
        w: vec![channels, 1, 3, 3],
        groups: channels,
        ..Case::same(&[1, channels, side, side], channels, 2)
    });
    let (side, out) = (suite.size(512, 64), suite.size(256, 16));
    cases.push(Case {
        name: format!("conv2d/1x3x{side}x{side}/3->{out}/k16s16/shardH"),
        x: vec![1, 3, side, side],
        w: vec![out, 3, 16, 16],
        stride: 16,
        padding: 0,
        ..Case::same(&[1, 3, side, side], out, 2)
    });
    // What a network has within, of many channels on few sites.
    let (side, channels) = (suite.size(56, 14), suite.size(256, 64));
    let within = [[2, 64, side], [4, channels, 14]]
        .map(|[batch, channels, side]| Case::same(&[batch, channels, side, side], channels, 2));
    let halves = (within.iter().chain(&cases)).map(|case| Case {
        name: format!("{}/bf16", case.name),
        dtype: DType::BF16,
        ..case.clone()
    });
    let alone: Vec<Case> = within.iter().cloned().chain(halves).collect();
    for &ranks in &suite.options.ranks {
        let alone = if ranks == 1 { &alone[..] } else { &[] };
        for case in cases.iter().chain(alone) {
            for (pass, backward) in [("fwd", false), ("fwd+bwd", true)] {
                let (name, case) = (format!("{}/{pass}", case.name), case.clone());
                suite.add(name, ranks, move |ctx| case.build(ctx, split, backward));
            }
        }
    }
}

fn join(extents: &[usize]) -> String {
    let texts: Vec<String> = extents.iter().map(ToString::to_string).collect();
    texts.join("x")
}
