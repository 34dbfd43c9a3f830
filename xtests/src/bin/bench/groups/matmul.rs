//! Matrix products under all placements of their operands.

use crate::case::{Bench, Limit, Work};
use crate::numbers::fill;
use crate::suite::Suite;
use crate::tensors::{Share, bench};
use shard_tensor::{AxisPlacement, Context, DType, Result, ShardTensor, replicate};

/// Where an operand's rows or columns are divided, and what a rank that works alone multiplies.
type Side = (Option<usize>, Share);

/// One product on one rank.
fn alone(ctx: &Context, n: usize, dtype: DType) -> Result<Bench> {
    let mesh = ctx.mesh_of(1)?.with_dtype(dtype);
    let [a, b] = [1, 2].map(|seed| fill(&mesh, &[n, n], [replicate()], seed));
    let flops = (2 * n * n * n) as f64;
    bench(
        &[(a?, Share::Piece), (b?, Share::Piece)],
        |x: &[ShardTensor]| Ok(vec![x[0].matmul(&x[1])?]),
        |ctx: &Context| Limit::gemm_rate(ctx, flops),
        Some(Work::Flops(flops)),
    )
}

pub(super) fn add(suite: &mut Suite<'_>) {
    use Share::{Piece, Whole};
    let n = suite.size(2048, 64);
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
                alone(ctx, n, DType::F32)
            });
            suite.add(format!("matmul/{n}^3 bf16"), 1, move |ctx| {
                alone(ctx, n, DType::BF16)
            });
            if suite.on_gpu() {
                let large = suite.size(8192, 48);
                for (dtype, kind) in [(DType::F32, ""), (DType::BF16, " bf16")] {
                    suite.add(format!("matmul/{large}^3{kind}"), 1, move |ctx| {
                        alone(ctx, large, dtype)
                    });
                }
            }
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
                    |ctx: &Context| Limit::gemm_rate(ctx, flops),
                    Some(Work::Flops(flops)),
                )
            });
        }
    }
}
