//! Norms and means.

use crate::case::{Limit, Work};
use crate::numbers::fill;
use crate::suite::Suite;
use crate::tensors::{Share, bench, gradients};
use shard_tensor::{Context, Result, ShardTensor, replicate};

type Function = fn(&[ShardTensor]) -> Result<Vec<ShardTensor>>;

/// A function of an input and, where there are any, a scale and a shift of so many numbers.
#[derive(Clone)]
struct Case {
    name: String,
    x: Vec<usize>,
    dim: usize,
    scaled: Option<usize>,
    /// Copies of the input's bytes that read and write as much.
    copies: f64,
    backward: bool,
    f: Function,
}

pub(super) fn add(suite: &mut Suite<'_>) {
    let split = suite.options.split;
    let (side, rows) = (suite.size(512, 32), suite.size(16384, 256));
    let n = suite.size(10_000_000, 100_000);
    let image = vec![1, 32, side, side];
    let group: Function = |x| Ok(vec![x[0].group_norm(8, Some(&x[1]), Some(&x[2]), 1e-5)?]);
    let layer: Function = |x| Ok(vec![x[0].layer_norm(1, Some(&x[1]), Some(&x[2]), 1e-5)?]);
    let case = |name: String, x: &[usize], dim, copies, f| Case {
        name,
        x: x.to_vec(),
        dim,
        scaled: None,
        copies,
        backward: false,
        f,
    };
    let groups = format!("norm/group_norm(8) 1x32x{side}x{side} shardH");
    let cases = [
        Case {
            scaled: Some(32),
            ..case(format!("{groups} fwd"), &image, 2, 1.0, group)
        },
        Case {
            scaled: Some(32),
            backward: true,
            ..case(format!("{groups} fwd+bwd"), &image, 2, 2.5, group)
        },
        Case {
            scaled: Some(256),
            ..case(
                format!("norm/layer_norm {rows}x256 shard tokens fwd"),
                &[rows, 256],
                0,
                1.0,
                layer,
            )
        },
        Case {
            scaled: Some(256),
            backward: true,
            ..case(
                format!("norm/layer_norm {rows}x256 shard tokens fwd+bwd"),
                &[rows, 256],
                0,
                2.5,
                layer,
            )
        },
        case(
            format!("norm/softmax {rows}x256 shard tokens fwd"),
            &[rows, 256],
            0,
            1.0,
            |x| Ok(vec![x[0].softmax([1])?]),
        ),
        Case {
            backward: true,
            ..case(
                format!("norm/softmax {rows}x256 shard tokens fwd+bwd"),
                &[rows, 256],
                0,
                2.5,
                |x| Ok(vec![x[0].softmax([1])?]),
            )
        },
        case(
            format!("norm/softmax over sharded dim {rows}x256 fwd"),
            &[rows, 256],
            0,
            1.0,
            |x| Ok(vec![x[0].softmax([0])?]),
        ),
        case(
            format!("norm/log_softmax {rows}x256 shard tokens fwd"),
            &[rows, 256],
            0,
            1.0,
            |x| Ok(vec![x[0].log_softmax([1])?]),
        ),
        case(
            "norm/layer_norm over sharded dims fwd".to_owned(),
            &image,
            2,
            1.0,
            |x| Ok(vec![x[0].layer_norm(3, None, None, 1e-5)?]),
        ),
        case(format!("norm/mean {n}"), &[n], 0, 0.5, |x| {
            Ok(vec![x[0].mean_all()?.reduced()?])
        }),
        case(
            "norm/mean image shardH (full)".to_owned(),
            &image,
            2,
            0.5,
            |x| Ok(vec![x[0].mean_all()?.full_tensor()?]),
        ),
        case(
            "norm/mean over sharded dim (full)".to_owned(),
            &image,
            2,
            0.5,
            |x| Ok(vec![x[0].mean([2], false)?.full_tensor()?]),
        ),
    ];
    for &ranks in &suite.options.ranks {
        for case in cases.clone() {
            suite.add(case.name.clone(), ranks, move |ctx| {
                let mesh = ctx.mesh_of(ranks)?;
                let by = split.shard(case.dim, case.x[case.dim], ranks);
                let mut operands = vec![(fill(&mesh, &case.x, [by.clone()], 1)?, Share::Piece)];
                if let Some(len) = case.scaled {
                    for seed in [2, 3] {
                        operands.push((fill(&mesh, &[len], [replicate()], seed)?, Share::Piece));
                    }
                }
                let bytes = case.copies * 4.0 * case.x.iter().product::<usize>() as f64;
                let machine = |ctx: &Context| Limit::memcpy(ctx, bytes as usize);
                let work = Some(Work::Bytes(2.0 * bytes));
                if case.backward {
                    operands.push((fill(&mesh, &case.x, [by], 4)?, Share::Piece));
                    bench(&operands, gradients(case.f), machine, work)
                } else {
                    bench(&operands, case.f, machine, work)
                }
            });
        }
    }
}
