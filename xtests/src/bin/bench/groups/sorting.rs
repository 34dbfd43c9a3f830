//! Sorted elements, and rows by index.

use crate::case::{Bench, Limit};
use crate::numbers::{fill, number};
use crate::suite::{Split, Suite};
use crate::tensors::relative;
use shard_tensor::{Context, DType, Result, ShardTensor, replicate};
use std::collections::BTreeSet;
use std::hint::black_box;

/// Why sorting by the standard library is left out on GPUs.
const HOST: &str = "sorts of the host";

pub(super) fn add(suite: &mut Suite<'_>) {
    let split = suite.options.split;
    let n = suite.size(10_000_000, 20_000);
    for &ranks in &suite.options.ranks {
        suite.add_on_host(HOST, format!("sort/f32 {n}"), ranks, move |ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let x = fill(&mesh, &[n], [split.shard(0, n, ranks)], 1)?;
            sorted(ctx, &x)
        });
    }
    let n = suite.size(1_000_000, 1000);
    for (name, fresh) in [("first use", true), ("later use", false)] {
        for &ranks in &suite.options.ranks {
            suite.add(
                format!("rows/index_select {n}x{ROW} {name}"),
                ranks,
                move |ctx| selected(ctx, n, ranks, split, fresh),
            );
        }
    }
}

/// A sort along the first dim, beside that of all elements on one core by the standard library, which keeps no indices.
fn sorted(ctx: &Context, x: &ShardTensor) -> Result<Bench> {
    let all: Vec<f32> = x
        .full_tensor()?
        .to_array::<f32>()?
        .iter()
        .copied()
        .collect();
    let (x, first) = (x.clone(), ctx.rank() == 0);
    let check = {
        let (x, mut all) = (x.clone(), all.clone());
        move || {
            let (values, indices) = x.sort(0, false)?;
            let got = values.to_array::<f32>()?;
            let at = indices.to_array::<i64>()?;
            let named: Vec<f64> = at.iter().map(|&i| f64::from(all[i as usize])).collect();
            all.sort_unstable_by(f32::total_cmp);
            let got: Vec<f64> = got.iter().map(|&v| f64::from(v)).collect();
            let right: Vec<f64> = all.iter().map(|&v| f64::from(v)).collect();
            Ok(Some(relative(&got, &right).max(relative(&named, &right))))
        }
    };
    let (mut room, world) = (all.clone(), ctx.world().clone());
    let limit = Limit::new("sort_unstable of all", move || {
        if first {
            room.copy_from_slice(&all);
            black_box(&mut room).sort_unstable_by(f32::total_cmp);
        }
        // All ranks take the time of the one that sorts.
        Ok(world.barrier()?)
    });
    Ok(Bench::new(move || x.sort(0, false))
        .limit(limit)
        .check(check))
}

/// How many numbers a row has.
const ROW: usize = 64;

/// Rows of a table that is divided as the indices are, each index anywhere in the table: at the first use of an index, which has to ask
/// for them, and at a later one. Beside it each rank picks as many rows of its own part, and copies as many bytes as it has to get.
fn selected(ctx: &Context, n: usize, ranks: usize, split: Split, fresh: bool) -> Result<Bench> {
    let mesh = ctx.mesh_of(ranks)?;
    let table = fill(&mesh, &[n, ROW], [split.shard(0, n, ranks)], 1)?;
    let near = |i: usize, n: usize| (number(3, i as u64) + 0.5) / 1.5 * n as f64;
    let index = mesh.with_dtype(DType::I64);
    let index = index.from_fn([n], [split.shard(0, n, ranks)], move |i| {
        near(i[0], n).floor()
    })?;
    let own = table.to_local()?;
    let rows = own.shape()[0];
    let picks = index.to_local()?;
    let named: Vec<i64> = picks.to_array::<i64>()?.iter().copied().collect();
    let first: usize = match split.sizes(n, ranks) {
        Some(sizes) => sizes[..ctx.rank()].iter().sum(),
        None => n.div_ceil(ranks) * ctx.rank(),
    };
    let held = first as i64..(first + rows) as i64;
    let remote: BTreeSet<i64> = named
        .iter()
        .copied()
        .filter(|i| !held.contains(i))
        .collect();
    let local = own.mesh().with_dtype(DType::I64);
    let within: Vec<f64> = named
        .iter()
        .map(|i| (i % rows.max(1) as i64) as f64)
        .collect();
    let within = local.from_fn([named.len()], [replicate()], move |i| within[i[0]])?;
    let mut copy = Limit::memcpy(ctx, remote.len() * ROW * 4)?;
    let limit = Limit::new("gather, copy", move || {
        // An index of its own, as the step's.
        let picked = match fresh {
            true => own.index_select(0, &within.sub_scalar(0.0)?)?,
            false => own.index_select(0, &within)?,
        };
        (copy.step)()?;
        Ok(picked)
    });
    let check = {
        let (table, index) = (table.clone(), index.clone());
        move || {
            let got = table.index_select(0, &index)?.to_array::<f32>()?;
            let (table, index) = (table.to_array::<f32>()?, index.to_array::<i64>()?);
            let (got, table): (Vec<f32>, Vec<f32>) = (
                got.iter().copied().collect(),
                table.iter().copied().collect(),
            );
            let right = |(row, &i): (&[f32], &i64)| row == &table[i as usize * ROW..][..ROW];
            let wrong = got
                .chunks_exact(ROW)
                .zip(index.iter())
                .filter(|&pair| !right(pair))
                .count();
            Ok(Some(wrong as f64))
        }
    };
    let step = move || match fresh {
        // A value of its own, which nobody asked by.
        true => table.index_select(0, &index.sub_scalar(0.0)?),
        false => table.index_select(0, &index),
    };
    Ok(Bench::new(step).limit(limit).check(check))
}
