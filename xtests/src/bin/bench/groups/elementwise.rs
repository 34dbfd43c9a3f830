//! Maps of ten million numbers, and sums over them.

use crate::case::{Limit, Work};
use crate::numbers::fill;
use crate::suite::Suite;
use crate::tensors::{Share, bench};
use shard_tensor::{Context, Fused, Result, ShardTensor};
use std::sync::LazyLock;

type Function = fn(&[ShardTensor]) -> Result<Vec<ShardTensor>>;

pub(super) fn add(suite: &mut Suite<'_>) {
    let n = suite.size(10_000_000, 100_000);
    let split = suite.options.split;
    // Name, operands, how many times the bytes of one operand a copy moves that reads and writes as much.
    let cases: [(String, usize, f64, Function); 7] = [
        (format!("elem/add {n}"), 2, 1.5, |x| {
            Ok(vec![x[0].add(&x[1])?])
        }),
        (format!("elem/dot {n}"), 2, 1.0, |x| {
            Ok(vec![x[0].dot(&x[1])?.reduced()?])
        }),
        (format!("elem/(x*y).sum() full {n}"), 2, 2.0, |x| {
            Ok(vec![x[0].mul(&x[1])?.sum_all()?.full_tensor()?])
        }),
        (format!("elem/silu(x)*y in one pass {n}"), 2, 1.5, |x| {
            static GATED: LazyLock<Fused<2, 1>> =
                LazyLock::new(|| Fused::new("gated", |[gate, x]| [gate.silu() * x]));
            Ok(GATED.of([&x[0], &x[1]])?.into())
        }),
        (format!("elem/gelu {n}"), 1, 1.0, |x| Ok(vec![x[0].gelu()?])),
        (format!("elem/exp {n}"), 1, 1.0, |x| Ok(vec![x[0].exp()?])),
        (format!("elem/tanh {n}"), 1, 1.0, |x| Ok(vec![x[0].tanh()?])),
    ];
    for &ranks in &suite.options.ranks {
        for (name, operands, copies, f) in cases.clone() {
            suite.add(name, ranks, move |ctx| {
                let mesh = ctx.mesh_of(ranks)?;
                let inputs = (0..operands)
                    .map(|i| {
                        let x = fill(&mesh, &[n], [split.shard(0, n, ranks)], i as u64)?;
                        Ok((x, Share::Piece))
                    })
                    .collect::<Result<Vec<_>>>()?;
                let bytes = 4.0 * n as f64;
                bench(
                    &inputs,
                    f,
                    |ctx: &Context| Limit::memcpy(ctx, (copies * bytes) as usize),
                    Some(Work::Bytes(2.0 * copies * bytes)),
                )
            });
        }
    }
}
