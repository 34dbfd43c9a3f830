//! Matrix products under all placements of their operands.

use crate::harness::{Limit, Work};
use crate::suite::Suite;
use crate::tensors::{Share, bench, fill};
use shard_tensor::{AxisPlacement, ShardTensor, replicate};

/// Where an operand's rows or columns are divided, and what a rank that works alone multiplies.
type Side = (Option<usize>, Share);

pub(super) fn add(suite: &mut Suite<'_>) {
    use Share::{Piece, Whole};
    let n = suite.size(2048, 128);
    let split = suite.options.split;
    let flops = (2 * n * n * n) as f64;
    let layouts: [(&str, Side, Side, bool); 6] = [
        ("A:S0,B:R", (Some(0), Piece), (None, Whole), false),
        ("A:S0,B:S1", (Some(0), Piece), (Some(1), Whole), false),
        ("A:S0,B:S0", (Some(0), Piece), (Some(0), Whole), false),
        (
            "A:S1,B:S0 (partial)",
            (Some(1), Piece),
            (Some(0), Piece),
            false,
        ),
        ("A:R,B:S1", (None, Whole), (Some(1), Piece), false),
        ("A:S1,B:S0 -> R", (Some(1), Piece), (Some(0), Piece), true),
    ];
    for &ranks in &suite.options.ranks {
        if ranks == 1 {
            suite.add(format!("matmul/{n}^3"), 1, move |ctx| {
                let mesh = ctx.mesh_of(1)?;
                let [a, b] = [1, 2].map(|seed| fill(&mesh, &[n, n], [replicate()], seed));
                bench(
                    &[(a?, Piece), (b?, Piece)],
                    |x: &[ShardTensor]| Ok(vec![x[0].matmul(&x[1])?]),
                    || Limit::gemm_rate(flops),
                    Some(Work::Flops(flops)),
                )
            });
            continue;
        }
        for (name, a, b, reduced) in layouts {
            suite.add(format!("matmul/{n}^3 {name}"), ranks, move |ctx| {
                let mesh = ctx.mesh_of(ranks)?;
                let on = |side: Side| -> [AxisPlacement; 1] {
                    [side.0.map_or(replicate(), |dim| split.shard(dim, n, ranks))]
                };
                let (x, y) = (
                    fill(&mesh, &[n, n], on(a), 1)?,
                    fill(&mesh, &[n, n], on(b), 2)?,
                );
                bench(
                    &[(x, a.1), (y, b.1)],
                    move |x: &[ShardTensor]| {
                        let product = x[0].matmul(&x[1])?;
                        Ok(vec![if reduced { product.reduced()? } else { product }])
                    },
                    || Limit::gemm_rate(flops),
                    Some(Work::Flops(flops)),
                )
            });
        }
    }
}
