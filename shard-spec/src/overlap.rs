//! What moves along one dim: the intersections of owned intervals with needed ones, under an index map.
//!
//! Both sides of a move list the same pieces without talking: the receiver calls [`overlaps`], the sender
//! [`overlaps_from`]. An *overlap* in this crate is always such an intersection, of indices and never of time.

use std::ops::Range;

use crate::cover::CoverParts;
use crate::dim_map::{DimMap, Run};
use crate::part::DimPart;
use crate::partition::{Offsets, Partition};
use crate::segments::Segments;

/// A run of elements of one destination part that come from one source part, in local coordinates of both.
///
/// For `i` in `0..len`: local `dst_start + i * dst_step` copies local `src_start + i * src_step`.
/// Destination steps are never negative; a piece of one element has unit steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct DimPiece {
    /// The flat source part.
    pub src_part: usize,
    /// First destination index, local to the destination part.
    pub dst_start: usize,
    /// First source index, local to the source part.
    pub src_start: usize,
    /// Number of elements.
    pub len: usize,
    /// Destination step.
    pub dst_step: isize,
    /// Source step.
    pub src_step: isize,
}

/// A run of elements that one source part sends to one destination part: the mirror of [`DimPiece`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct DimSend {
    /// The flat destination part.
    pub dst_part: usize,
    /// First destination index, local to the destination part.
    pub dst_start: usize,
    /// First source index, local to the source part.
    pub src_start: usize,
    /// Number of elements.
    pub len: usize,
    /// Destination step.
    pub dst_step: isize,
    /// Source step.
    pub src_step: isize,
}

/// All pieces of a destination part, by source part, then destination start.
///
/// Between intervals this costs one step per piece and a binary search per run of the map, even where the intervals are parts
/// of segments. A part with several intervals is an affine map from its own indices, so its pieces are found by composing
/// maps: their runs are merged, and two runs intersect in closed form. Only parts that can have something in common are looked
/// at, and nothing is done per element.
///
/// ```
/// use shard_spec::{DimMap, Partition, overlaps};
/// // What a part holding 2..5 of a reversed dim of 6 needs from parts of sizes 4 and 2: 3, 2 and 1, all in part 0.
/// let pieces = overlaps(&Partition::from_sizes(&[4, 2])?, &DimMap::flip(6), 2..5);
/// assert_eq!(pieces.len(), 1);
/// assert_eq!((pieces[0].src_part, pieces[0].src_start, pieces[0].src_step, pieces[0].len), (0, 3, -1, 3));
/// # Ok::<(), shard_spec::SpecError>(())
/// ```
///
/// # Panics
/// Where the partition's extent is not the map's source extent.
#[doc(alias = "all-to-all")]
#[doc(alias = "intersect")]
pub fn overlaps(src: &Partition, map: &DimMap, dst: impl Into<DimPart>) -> Vec<DimPiece> {
    assert!(
        src.extent() == map.src_extent(),
        "a partition of {} cannot be the source of a map from {}",
        src.extent(),
        map.src_extent(),
    );
    let dst = dst.into();
    let mut pieces = Vec::new();
    match (src, dst.plain()) {
        (Partition::Contiguous(src), Some(dst)) => between_intervals(src, map, dst, &mut pieces),
        _ => {
            let mut sends = Vec::new();
            let home = home(&dst, map.dst_extent());
            for src_part in owners(src, map, &dst) {
                sends.clear();
                let src = src.part(src_part);
                match (src.plain(), dst.plain()) {
                    (Some(src), Some(dst)) => interval_to_part(src, map, dst, 0, &mut sends),
                    _ => reached_by(&through(&src, map), 0, &home, &mut sends),
                }
                pieces.extend(sends.iter().map(|send| DimPiece {
                    src_part,
                    dst_start: send.dst_start,
                    src_start: send.src_start,
                    len: send.len,
                    dst_step: send.dst_step,
                    src_step: send.src_step,
                }));
            }
        }
    }
    pieces.sort_unstable();
    pieces
}

/// The source parts that may send to a destination part, in order.
fn owners(src: &Partition, map: &DimMap, dst: &DimPart) -> Vec<usize> {
    let mapped;
    let (map, dst) = match dst.plain() {
        Some(dst) => (map, dst.clone()),
        None => {
            mapped = map.then(&home(dst, map.dst_extent()));
            (&mapped, 0..dst.len())
        }
    };
    let mut parts = Vec::new();
    match src {
        Partition::Contiguous(table) => {
            let mut found = Vec::new();
            between_intervals(table, map, &dst, &mut found);
            parts.extend(found.iter().map(|p| p.src_part));
        }
        Partition::Segments(segments) => {
            for run in map.runs() {
                let live = run.dst().within(&signed(&dst));
                if !live.is_empty() {
                    let ends = [live.start, live.end - 1].map(|at| run.src().at(at) as usize);
                    let read = ends[0].min(ends[1])..ends[0].max(ends[1]) + 1;
                    parts.append(&mut segments.parts_within(read));
                }
            }
        }
    }
    parts.sort_unstable();
    parts.dedup();
    parts
}

/// The parts that may read something of a source part, in order.
fn readers(src: &DimPart, map: &DimMap, dst: &Segments) -> Vec<usize> {
    let mapped;
    let (map, src) = match src.plain() {
        Some(src) => (map, src.clone()),
        None => {
            mapped = through(src, map);
            (&mapped, 0..src.len())
        }
    };
    let mut parts = Vec::new();
    for run in map.runs() {
        let live = run.src().within(&signed(&src));
        if !live.is_empty() {
            // Destination steps are not negative.
            let ends = [live.start, live.end - 1].map(|at| run.dst().at(at) as usize);
            parts.append(&mut dst.parts_within(ends[0]..ends[1] + 1));
        }
    }
    parts.sort_unstable();
    parts.dedup();
    parts
}

/// The map from the global indices of a destination of this extent to the local indices of a part. Composed after
/// `through(..)`, it gives the one list of pieces that both parts use.
fn home(dst: &DimPart, extent: usize) -> DimMap {
    dst.to_global(extent).inverse()
}

/// The map from the local indices of a source part.
fn through(src: &DimPart, map: &DimMap) -> DimMap {
    src.to_global(map.src_extent()).then(map)
}

/// With more elements than this, memory for the pieces is reserved before they are listed.
const FEW: usize = 64;

fn between_intervals(src: &Offsets, map: &DimMap, dst: &Range<usize>, pieces: &mut Vec<DimPiece>) {
    for run in map.runs() {
        let live = run.dst().within(&signed(dst));
        let mut at = live.start;
        let mut near = None;
        if live.len() > FEW {
            let owner = |at: usize| src.owner_of(run.src().at(at) as usize);
            if let (Some(first), Some(last)) = (owner(live.start), owner(live.end - 1)) {
                pieces.reserve((first.abs_diff(last) + 1).min(live.len()));
            }
        }
        while at < live.end {
            let index = run.src().at(at) as usize;
            let Some(part) = owner_near(src, index, near) else {
                break;
            };
            let held = src.interval(part);
            let end = run.src().within(&signed(&held)).end.min(live.end);
            let cut = cut(run, at..end, held.start, dst.start);
            pieces.push(DimPiece {
                src_part: part,
                dst_start: cut.dst_start,
                src_start: cut.src_start,
                len: cut.len,
                dst_step: cut.dst_step,
                src_step: cut.src_step,
            });
            near = Some(part);
            at = end;
        }
    }
}

/// All pieces that one source part sends to a cover of the destination, by destination part, then destination start.
///
/// The pieces that all source parts send are those that all parts of the cover read by [`overlaps`], in the same order for
/// each pair of parts.
///
/// # Panics
/// Where the source part reaches beyond the map's source extent.
pub fn overlaps_from(
    src: impl Into<DimPart>,
    map: &DimMap,
    dst_cover: &CoverParts,
) -> Vec<DimSend> {
    let src = src.into();
    let mut pieces = Vec::new();
    match (src.plain(), dst_cover) {
        (Some(src), CoverParts::Intervals(cover)) => {
            // In an ordered cover, binary search finds the intervals that can meet a run; in any other, all are tried.
            let ordered = cover
                .windows(2)
                .all(|w| w[0].start <= w[1].start && w[0].end <= w[1].end);
            let candidates = |first: usize, last: usize| {
                if ordered {
                    let from = cover.partition_point(|r| r.end <= first);
                    from..cover.partition_point(|r| r.start <= last)
                } else {
                    0..cover.len()
                }
            };
            let part = |p: usize| cover[p].clone();
            interval_to_cover(src, map, candidates, part, &mut pieces);
        }
        (Some(src), CoverParts::Partition(Partition::Contiguous(table))) => {
            let offsets = table.as_slice();
            let candidates = |first: usize, last: usize| {
                let from = offsets[1..].partition_point(|&end| end <= first);
                from..offsets[..table.parts()].partition_point(|&start| start <= last)
            };
            interval_to_cover(src, map, candidates, |p| table.interval(p), &mut pieces);
        }
        (_, CoverParts::Partition(Partition::Segments(segments))) => {
            let reached = through(&src, map);
            for dst_part in readers(&src, map, segments) {
                let dst = dst_cover.get(dst_part);
                match (src.plain(), dst.plain()) {
                    (Some(src), Some(dst)) => {
                        interval_to_part(src, map, dst, dst_part, &mut pieces);
                    }
                    _ => reached_by(
                        &reached,
                        dst_part,
                        &home(&dst, map.dst_extent()),
                        &mut pieces,
                    ),
                }
            }
        }
        _ => {
            let reached = through(&src, map);
            for dst_part in 0..dst_cover.len() {
                let home = home(&dst_cover.get(dst_part), map.dst_extent());
                reached_by(&reached, dst_part, &home, &mut pieces);
            }
        }
    }
    pieces.sort_unstable();
    pieces
}

/// The pieces that one source part sends to destination part number `dst_part`, whose indices are `dst`: those of
/// [`overlaps_from`] for that part alone.
///
/// # Panics
/// Where the source part reaches beyond the map's source extent.
pub fn overlaps_to(
    src: impl Into<DimPart>,
    map: &DimMap,
    dst: &DimPart,
    dst_part: usize,
) -> Vec<DimSend> {
    let (src, mut pieces) = (src.into(), Vec::new());
    match (src.plain(), dst.plain()) {
        (Some(src), Some(dst)) => interval_to_part(src, map, dst, dst_part, &mut pieces),
        _ => {
            let home = home(dst, map.dst_extent());
            reached_by(&through(&src, map), dst_part, &home, &mut pieces);
        }
    }
    pieces.sort_unstable();
    pieces
}

/// Adds what one source interval sends to destination part number `dst_part`, which is the interval `dst`.
fn interval_to_part(
    src: &Range<usize>,
    map: &DimMap,
    dst: &Range<usize>,
    dst_part: usize,
    pieces: &mut Vec<DimSend>,
) {
    let only = |_, _| dst_part..dst_part + 1;
    interval_to_cover(src, map, only, |_| dst.clone(), pieces);
}

/// Adds the pieces by which a map from local source indices reaches a destination part.
fn reached_by(reached: &DimMap, dst_part: usize, home: &DimMap, pieces: &mut Vec<DimSend>) {
    let pairs = reached.then(home);
    pieces.extend(pairs.runs().iter().map(|run| DimSend {
        dst_part,
        dst_start: run.dst_start,
        src_start: run.src_start,
        len: run.len,
        dst_step: run.dst_step,
        src_step: run.src_step,
    }));
}

/// Adds what a source interval sends to intervals, of which only those numbered `candidates(first, last)` can hold
/// destinations in `first..=last`.
fn interval_to_cover(
    src: &Range<usize>,
    map: &DimMap,
    candidates: impl Fn(usize, usize) -> Range<usize>,
    interval: impl Fn(usize) -> Range<usize>,
    pieces: &mut Vec<DimSend>,
) {
    for run in map.runs() {
        let live = run.src().within(&signed(src));
        if live.is_empty() {
            continue;
        }
        // Destination steps are not negative.
        let (first, last) = (
            run.dst().at(live.start) as usize,
            run.dst().at(live.end - 1) as usize,
        );
        let candidates = candidates(first, last);
        pieces.reserve(candidates.len().min(live.len()));
        for dst_part in candidates {
            let dst = interval(dst_part);
            let hit = run.dst().within(&signed(&dst));
            let both = hit.start.max(live.start)..hit.end.min(live.end);
            if both.is_empty() {
                continue;
            }
            let cut = cut(run, both, src.start, dst.start);
            pieces.push(DimSend {
                dst_part,
                dst_start: cut.dst_start,
                src_start: cut.src_start,
                len: cut.len,
                dst_step: cut.dst_step,
                src_step: cut.src_step,
            });
        }
    }
}

/// The pairs at `at` of a run, in coordinates local to both intervals.
fn cut(run: &Run, at: Range<usize>, src_base: usize, dst_base: usize) -> Run {
    let unit = at.len() == 1;
    Run {
        dst_start: run.dst().at(at.start) as usize - dst_base,
        src_start: run.src().at(at.start) as usize - src_base,
        len: at.len(),
        dst_step: if unit { 1 } else { run.dst_step },
        src_step: if unit { 1 } else { run.src_step },
    }
}

/// The owner of an index. The parts beside the one found last are tried before searching.
fn owner_near(src: &Offsets, index: usize, near: Option<usize>) -> Option<usize> {
    let beside =
        |part: usize| (part < src.parts() && src.interval(part).contains(&index)).then_some(part);
    near.and_then(|p| beside(p + 1).or_else(|| beside(p.checked_sub(1)?)))
        .or_else(|| src.owner_of(index))
}

/// Extents are at most `isize::MAX`, so interval ends within them fit; nothing beyond is reachable.
fn signed(range: &Range<usize>) -> Range<isize> {
    let signed = |x: usize| isize::try_from(x).unwrap_or(isize::MAX);
    signed(range.start)..signed(range.end)
}
