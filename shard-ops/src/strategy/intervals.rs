//! Small maths on partitions, covers and mesh coordinates.

use super::Axes;
use shard_spec::{DeviceMesh, DimCover, Layout, Partition};
use smallvec::SmallVec;
use std::ops::Range;

/// Boundaries in units of `block`, rounded to the nearest.
pub(super) fn divided(own: &Partition, block: usize, extent: usize) -> Partition {
    if block == 1 {
        return own.clone();
    }
    remap(own, extent, |x| {
        (x + block / 2).checked_div(block).unwrap_or(0)
    })
}

pub(super) fn shifted(own: &Partition, by: isize, extent: usize) -> Partition {
    remap(own, extent, |x| x.saturating_add_signed(by))
}

/// Moves the inner boundaries; the outer ones stay at 0 and `extent`. Segments become contiguous first.
pub(super) fn remap(own: &Partition, extent: usize, f: impl Fn(usize) -> usize) -> Partition {
    let last = own.parts();
    let own = own.to_contiguous();
    let moved = own.as_slice().iter().enumerate().map(|(k, &x)| match k {
        0 => 0,
        _ if k == last => extent,
        _ => f(x).min(extent),
    });
    // Monotone by construction (f is monotone and clamped), starting at 0 and ending at the extent.
    Partition::from_offsets(extent, moved.collect())
        .unwrap_or_else(|_| Partition::balanced(extent, last))
}

/// Whether the cover is what each rank owns of dim `d`.
pub(super) fn same_intervals(
    cover: &DimCover,
    layout: &Layout,
    d: usize,
    mesh: &DeviceMesh,
) -> bool {
    let own = DimCover::of(layout, d);
    if own.axes == cover.axes {
        return own.parts == cover.parts
            || (0..own.count()).all(|part| own.part(part) == cover.part(part));
    }
    let mut axes: Axes = own.axes.iter().chain(&cover.axes).copied().collect();
    axes.sort_unstable();
    axes.dedup();
    let count: usize = axes.iter().map(|&a| mesh.shape()[a]).product();
    let mut coords: SmallVec<[usize; 4]> = SmallVec::from_elem(0, mesh.ndim());
    (0..count).all(|part| {
        mesh.set_part(&axes, part, &mut coords);
        own.at(mesh, &coords) == cover.at(mesh, &coords)
    })
}

pub(super) fn multiplied(partition: &Partition, block: usize) -> Partition {
    if block == 1 {
        return partition.clone();
    }
    remap(partition, partition.extent() * block, |x| x * block)
}

/// The part of a window's interval that lies inside the dim.
pub(super) fn clip(range: Range<isize>, extent: usize) -> Range<usize> {
    let n = extent as isize;
    let (lo, hi) = (
        range.start.clamp(0, n) as usize,
        range.end.clamp(0, n) as usize,
    );
    lo..hi.max(lo)
}
