//! Moves between layouts: every two kinds of placement, a large matrix and a volume with short rows.

mod limit;

use crate::case::{Bench, Limit, Work};
use crate::suite::{Split, Suite};
use limit::MoveLimit;
use shard_comm::DType;
use shard_redistribute::{Array, MeshComm};
use shard_tensor::{Context, DeviceMesh, Error, Layout, Result};
use std::rc::Rc;

pub(super) fn add(suite: &mut Suite<'_>) {
    let side = suite.size(4096, 256);
    let volume = [suite.size(1000, 100), suite.size(777, 77), 13];
    for &ranks in suite.options.ranks.iter().filter(|&&r| r > 1) {
        for shape in [&[side, side][..], &volume] {
            let s = |dim: usize| sharded(suite.options.split, dim, shape, ranks);
            for from in 0..shape.len() {
                for to in (0..shape.len()).filter(|&to| to != from) {
                    let name = format!("S{from}->S{to}");
                    add_move(suite, &[ranks], shape, &name, &s(from), &s(to));
                }
                add_move(
                    suite,
                    &[ranks],
                    shape,
                    &format!("S{from}->R"),
                    &s(from),
                    "R",
                );
                add_move(
                    suite,
                    &[ranks],
                    shape,
                    &format!("R->S{from}"),
                    "R",
                    &s(from),
                );
                add_move(
                    suite,
                    &[ranks],
                    shape,
                    &format!("P->S{from}"),
                    "P(sum)",
                    &s(from),
                );
            }
            add_move(suite, &[ranks], shape, "P->R", "P(sum)", "R");
            let uneven = sharded(Split::Uneven, 0, shape, ranks);
            add_move(suite, &[ranks], shape, "S0 even->uneven", "S(0)", &uneven);
            if ranks != 4 {
                continue;
            }
            for (name, from, to) in [
                ("S0,S1->S1,S0", "S(0) S(1)", "S(1) S(0)"),
                ("S0,S0->S1,S1", "S(0) S(0)", "S(1) S(1)"),
                ("R,S0->S0,R", "R S(0)", "S(0) R"),
                ("S0,P->S0,S1", "S(0) P(sum)", "S(0) S(1)"),
                ("S1,P->R,S0", "S(1) P(sum)", "R S(0)"),
            ] {
                add_move(suite, &[2, 2], shape, &format!("2x2 {name}"), from, to);
            }
        }
    }
}

/// Dim `dim` over all ranks, as layouts are written.
fn sharded(split: Split, dim: usize, shape: &[usize], ranks: usize) -> String {
    match split.sizes(shape[dim], ranks) {
        None => format!("S({dim})"),
        Some(sizes) => {
            let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
            format!("S({dim})[{}]", sizes.join(","))
        }
    }
}

fn add_move(
    suite: &mut Suite<'_>,
    mesh: &[usize],
    shape: &[usize],
    name: &str,
    from: &str,
    to: &str,
) {
    let extents: Vec<String> = shape.iter().map(ToString::to_string).collect();
    let name = format!("redist/{}/{name}", extents.join("x"));
    let (mesh, shape) = (mesh.to_vec(), shape.to_vec());
    let (from, to) = (from.to_owned(), to.to_owned());
    suite.add(name, mesh.iter().product(), move |ctx| {
        let mesh = DeviceMesh::new(&mesh)?;
        let parse = |text: &str| Layout::parse(&mesh, &shape, text);
        build(ctx, &parse(&from)?, &parse(&to)?)
    });
}

fn build(ctx: &Context, from: &Layout, to: &Layout) -> Result<Bench> {
    let mesh = ctx.mesh_from(from.mesh())?;
    let source = source(mesh.comm(), from)?;
    let limit = limit(ctx, from, to)?;
    let held = (0..ctx.world_size()).filter_map(|rank| to.local_shape(rank));
    let bytes: usize = held.map(|shape| 4 * shape.iter().product::<usize>()).sum();
    let (checked, layout, to) = (source.clone(), from.clone(), to.clone());
    let destination = to.clone();
    Ok(Bench::new(move || Ok(source.redistribute(&to)?))
        .limit(limit)
        .work(Work::Bytes(bytes as f64))
        .check(move || Ok(Some(wrong(&checked.redistribute(&destination)?, &layout)?))))
}

/// What moving from one layout to another costs this rank at least: on the host plain loops over private memory; on a GPU
/// its own copy of the bytes this rank has in the end.
pub(super) fn limit(ctx: &Context, from: &Layout, to: &Layout) -> Result<Limit> {
    if ctx.device().kind().is_cuda() {
        let here = to.local_shape(ctx.rank()).unwrap_or_default();
        return Limit::device_copy(ctx.device(), 4 * here.iter().product::<usize>());
    }
    let mut limit = MoveLimit::new(from, to, ctx.rank())?;
    Ok(Limit::new(limit.kind(), move || {
        limit.run();
        Ok(())
    }))
}

/// The element at a global position, small enough that sums of a few are exact.
fn value(index: &[usize], shape: &[usize]) -> f32 {
    let at = (index.iter().zip(shape)).fold(0, |at, (&i, &n)| at * n + i);
    (at % 65_521) as f32
}

/// An array whose elements are [`value`], times 1, 2, ... from term to term of a partial sum.
fn source(cx: &Rc<MeshComm>, layout: &Layout) -> Result<Array> {
    let coords = cx
        .coords()
        .ok_or_else(|| Error::custom("not on the mesh"))?;
    let term = (cx.mesh().part_at(layout.partial_axes(), coords) + 1) as f32;
    let plain = Array::from_fn(cx, &layout.with_partial_reduced(), |index| {
        term * value(index, layout.shape())
    })?;
    Ok(Array::from_parts(
        cx,
        layout,
        plain.buffer().cloned(),
        DType::F32,
    )?)
}

/// The share of this rank's elements that are not what they should be.
fn wrong(moved: &Array, from: &Layout) -> Result<f64> {
    let terms: usize = (from.partial_axes().iter())
        .map(|&axis| from.mesh().shape()[axis])
        .product();
    let factor = (terms * (terms + 1) / 2) as f32;
    let right = Array::from_fn(moved.cx(), moved.layout(), |index| {
        factor * value(index, moved.shape())
    })?;
    let (got, right) = (moved.to_vec::<f32>()?, right.to_vec::<f32>()?);
    let wrong = got.iter().zip(&right).filter(|(g, r)| g != r).count();
    Ok(wrong as f64 / got.len().max(1) as f64)
}
