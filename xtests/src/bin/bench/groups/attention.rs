//! Attention, divided along the sequence, and to neighbourhoods on a grid, divided along its first dim.

use crate::case::{Bench, Limit, Work};
use crate::numbers::fill;
use crate::suite::{Split, Suite};
use crate::tensors::{Share, bench, gradients};
use shard_tensor::{
    Attention, AxisPlacement, Causal, Context, DType, Neighborhood, Result, ShardTensor, shard,
};

const HEADS: usize = 8;
const DIM: usize = 64;

/// A kind of attention over a sequence.
#[derive(Clone, Copy)]
struct Case {
    length: usize,
    options: Attention,
    /// The share of all pairs that count.
    pairs: f64,
    zigzag: bool,
    dtype: DType,
}

pub(super) fn add(suite: &mut Suite<'_>) {
    let length = suite.size(4096, 256);
    let split = suite.options.split;
    let window = 256.min(length / 4);
    let full = Case {
        length,
        options: Attention::new(),
        pairs: 1.0,
        zigzag: false,
        dtype: DType::F32,
    };
    let causal = Case {
        options: full.options.causal(Causal::TopLeft),
        pairs: 0.5,
        ..full
    };
    let mut cases = vec![
        (String::new(), full),
        ("/causal".to_owned(), causal),
        (
            "/causal zigzag".to_owned(),
            Case {
                zigzag: true,
                ..causal
            },
        ),
        (
            format!("/window {window}"),
            Case {
                options: full.options.window(window, 0),
                pairs: (window as f64 + 0.5) / length as f64,
                ..full
            },
        ),
    ];
    let halves = [("/bf16", full), ("/causal/bf16", causal)];
    cases.extend(halves.map(|(name, case)| {
        let dtype = DType::BF16;
        (name.to_owned(), Case { dtype, ..case })
    }));
    for &ranks in &suite.options.ranks {
        for (name, case) in &cases {
            // In halves results of several ranks are those of one only roughly.
            if (case.zigzag && ranks == 1) || (case.dtype != DType::F32 && ranks > 1) {
                continue;
            }
            for (pass, backward) in [("fwd", false), ("fwd+bwd", true)] {
                let case = *case;
                suite.add(
                    format!("sdpa/B1H{HEADS}S{length}D{DIM}{name}/{pass}"),
                    ranks,
                    move |ctx| case.build(ctx, split, backward),
                );
            }
        }
    }
    add_grids(suite);
}

/// Side of the grid of neighbourhoods, of their windows, and the heads and dim of its sites.
const GRID: [usize; 4] = [32, 5, 4, 32];

/// Neighbourhoods, and on one rank what they are instead of: all sites of the grid as one sequence.
fn add_grids(suite: &mut Suite<'_>) {
    let [side, kernel, heads, dim] = GRID;
    let split = suite.options.split;
    for &ranks in &suite.options.ranks {
        for (pass, backward) in [("fwd", false), ("fwd+bwd", true)] {
            for dense in [false, true] {
                if dense && ranks > 1 {
                    continue;
                }
                let what = if dense { " dense" } else { "" };
                suite.add(
                    format!("na2d/{side}x{side}k{kernel}H{heads}D{dim}{what}/{pass}"),
                    ranks,
                    move |ctx| grid(ctx, split, dense, backward),
                );
            }
        }
    }
}

fn grid(ctx: &Context, split: Split, dense: bool, backward: bool) -> Result<Bench> {
    let [side, kernel, heads, dim] = GRID;
    let ranks = ctx.world_size();
    let mesh = ctx.mesh_of(ranks)?;
    let sites = side * side;
    let shape = if dense {
        vec![1, heads, sites, dim]
    } else {
        vec![1, side, side, heads, dim]
    };
    let by = || -> [AxisPlacement; 1] {
        [if dense {
            shard(2)
        } else {
            split.shard(1, side, ranks)
        }]
    };
    let tensor = |seed| (fill(&mesh, &shape, by(), seed), Share::Piece);
    let mut operands = Vec::new();
    for (tensor, share) in [tensor(1), tensor(2), tensor(3)] {
        operands.push((tensor?, share));
    }
    let near = Neighborhood::new([kernel]);
    let f = move |x: &[ShardTensor]| {
        Ok(vec![if dense {
            x[0].attention(&x[1], &x[2], None, &Attention::new())?
        } else {
            x[0].neighborhood_attention(&x[1], &x[2], &near)?
        }])
    };
    let keys = if dense { sites } else { kernel * kernel };
    let products = if backward { 7.0 } else { 2.0 };
    let flops = products * (2 * heads * sites * keys * dim) as f64;
    let (machine, work) = (
        |ctx: &Context| Limit::gemm_rate(ctx, flops),
        Some(Work::Flops(flops)),
    );
    if backward {
        let (tensor, share) = tensor(4);
        operands.push((tensor?, share));
        bench(&operands, gradients(f), machine, work)
    } else {
        bench(&operands, f, machine, work)
    }
}

impl Case {
    fn build(self, ctx: &Context, split: Split, backward: bool) -> Result<Bench> {
        let ranks = ctx.world_size();
        let mesh = ctx.mesh_of(ranks)?.with_dtype(self.dtype);
        let by = || -> [AxisPlacement; 1] {
            [if self.zigzag {
                shard(2).zigzag()
            } else {
                split.shard(2, self.length, ranks)
            }]
        };
        let shape = [1, HEADS, self.length, DIM];
        let tensor = |seed| fill(&mesh, &shape, by(), seed);
        // Every query meets every key: alone, a rank has its queries and all keys. Under masks that look at positions
        // this is not its part of the work, so that its share is taken of all pairs.
        let mut operands = vec![
            (tensor(1)?, Share::Piece),
            (tensor(2)?, Share::Whole),
            (tensor(3)?, Share::Whole),
        ];
        let options = self.options;
        let f = move |x: &[ShardTensor]| Ok(vec![x[0].attention(&x[1], &x[2], None, &options)?]);
        let products = if backward { 7.0 } else { 2.0 };
        let pairs = self.pairs * (HEADS * self.length * self.length) as f64;
        let flops = pairs * products * (2 * DIM) as f64;
        let (machine, work) = (
            |ctx: &Context| Limit::gemm_rate(ctx, flops),
            Some(Work::Flops(flops)),
        );
        let mut bench = if backward {
            operands.push((tensor(4)?, Share::Piece));
            bench(&operands, gradients(f), machine, work)
        } else {
            bench(&operands, f, machine, work)
        }?;
        if self.pairs < 1.0 && ranks > 1 {
            bench.limit = Some(Limit::gemm_rate(ctx, flops / ranks as f64)?);
        }
        Ok(bench)
    }
}
