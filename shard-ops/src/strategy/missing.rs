//! How much the busiest rank receives, without asking every rank.
//!
//! What a rank wants of a dim, and has of what it wants, depends only on its place along the axes that divide that dim. Dims
//! that share no axis, directly or through others, are independent: per such group of dims few pairs (wanted, had) can be
//! the worst rank's, and only those are combined. On 8 x 8 x 8 ranks with three dims divided, 24 places are looked at
//! instead of 512.

use shard_spec::{Coords, DeviceMesh, Layout};
use smallvec::{SmallVec, smallvec};
use std::ops::BitOr;

/// A set of mesh axes: one bit for each that has several ranks, of which there are fewer than 64.
type AxisSet = u64;

/// How much of a box a rank wants, and has of that.
type Pair = (usize, usize);

/// The most elements that any rank wants and has not. `axes(d)` are the mesh axes on which dim `d` depends, and
/// `counts(d, coords)` the indices that a rank there wants of it, and has of these.
pub(super) fn most_missing(
    mesh: &DeviceMesh,
    dims: usize,
    axes: impl Fn(usize) -> AxisSet,
    counts: impl Fn(usize, &[usize]) -> Pair,
) -> usize {
    let of_dim: SmallVec<[AxisSet; 8]> = (0..dims).map(axes).collect();
    let mut left: SmallVec<[usize; 8]> = (0..dims).collect();
    let mut worst: SmallVec<[Pair; 8]> = smallvec![(1, 1)];
    while let Some(first) = left.first().copied() {
        // All dims that share axes with those found so far.
        let mut group = of_dim[first];
        while let Some(more) =
            (left.iter()).find(|&&d| of_dim[d] & group != 0 && of_dim[d] & !group != 0)
        {
            group |= of_dim[*more];
        }
        let (together, others) =
            (left.iter().copied()).partition(|&d| d == first || of_dim[d] & group != 0);
        let together: SmallVec<[usize; 8]> = together;
        left = others;
        let mut pairs = SmallVec::new();
        each_place(mesh, group, &mut |coords| {
            let both = together.iter().map(|&d| counts(d, coords));
            let both = both.fold((1, 1), |(w, h): Pair, (want, have)| {
                (w.saturating_mul(want), h.saturating_mul(have))
            });
            keep(&mut pairs, both);
        });
        let mut combined = SmallVec::new();
        for &(w, h) in &worst {
            for &(want, have) in &pairs {
                keep(
                    &mut combined,
                    (w.saturating_mul(want), h.saturating_mul(have)),
                );
            }
        }
        worst = combined;
    }
    let missing = worst.iter().map(|&(want, have)| want - have.min(want));
    missing.max().unwrap_or(0)
}

/// The axes that divide a dim of a layout.
pub(super) fn axes_of(mesh: &DeviceMesh, order: &[usize]) -> AxisSet {
    let several = |a: &usize| mesh.shape()[*a] > 1;
    let bit = |&a: &usize| 1 << (0..a).filter(several).count();
    order
        .iter()
        .filter(|a| several(a))
        .map(bit)
        .fold(0, AxisSet::bitor)
}

/// Elements that the busiest rank receives to have its block of `to` when it has that of `from`.
pub fn most_received(from: &Layout, to: &Layout) -> usize {
    let mesh = from.mesh();
    most_missing(
        mesh,
        to.ndim(),
        |d| axes_of(mesh, to.axis_order(d)) | axes_of(mesh, from.axis_order(d)),
        |d, coords| {
            let want = to.part(d, mesh.part_at(to.axis_order(d), coords));
            let have = from.part(d, mesh.part_at(from.axis_order(d), coords));
            (want.len(), want.common(&have))
        },
    )
}

/// Adds a pair, unless another wants as much and has as little.
fn keep(pairs: &mut SmallVec<[Pair; 8]>, (want, have): Pair) {
    if pairs.iter().any(|&(w, h)| w >= want && h <= have) {
        return;
    }
    pairs.retain(|&mut (w, h)| w > want || h < have);
    pairs.push((want, have));
}

/// Visits all places along some axes, at the start of the others.
fn each_place(mesh: &DeviceMesh, axes: AxisSet, visit: &mut impl FnMut(&[usize])) {
    let several = (0..mesh.ndim()).filter(|&a| mesh.shape()[a] > 1);
    let along: Coords = (several.enumerate())
        .filter_map(|(bit, a)| (axes >> bit & 1 == 1).then_some(a))
        .collect();
    let mut coords: Coords = smallvec![0; mesh.ndim()];
    loop {
        visit(&coords);
        let mut along = along.iter().rev();
        loop {
            let Some(&axis) = along.next() else { return };
            coords[axis] += 1;
            if coords[axis] < mesh.shape()[axis] {
                break;
            }
            coords[axis] = 0;
        }
    }
}
