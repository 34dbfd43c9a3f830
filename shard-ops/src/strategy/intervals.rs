//! Small maths on partitions, covers and mesh coordinates.

use shard_spec::{DeviceMesh, DimCover, DimSharding, Layout, Partition, SpecError};
use smallvec::SmallVec;
use std::ops::Range;

/// Mesh axes.
pub(crate) type Axes = SmallVec<[usize; 4]>;

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
    let count = mesh.part_count(&axes);
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

/// The part of an interval that lies inside the dim: what a halo reaches beyond is not there.
pub(super) fn clip_halo(range: Range<isize>, extent: usize) -> Range<usize> {
    let n = extent as isize;
    let (lo, hi) = (
        range.start.clamp(0, n) as usize,
        range.end.clamp(0, n) as usize,
    );
    lo..hi.max(lo)
}

/// A factor divided further, by axes that have `parts` ranks.
pub(super) fn further(
    own: Option<&DimSharding>,
    extent: usize,
    axes: &[usize],
    parts: usize,
) -> Option<DimSharding> {
    let evenly = |size| Ok::<_, SpecError>(Partition::balanced(size, parts));
    DimSharding::further(own, extent, axes, evenly).ok()
}
