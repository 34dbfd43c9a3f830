//! What moves along one dim: the intersections of owned intervals with needed ones, under an index map.
//!
//! Both sides of a move list the same pieces without talking: [`overlaps`] for who receives, [`overlaps_from`] for who sends.

use std::ops::Range;

use crate::dim_map::{DimMap, Run};
use crate::partition::Partition;

/// Pieces of one destination interval that come from one source part, in local coordinates of both.
///
/// For `i` in `0..len`: local `dst_start + i * dst_step` copies local `src_start + i * src_step`.
/// Destination steps are never negative; a piece of one element has unit steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct DimPiece {
    /// The flat source part.
    pub src_part: usize,
    /// First destination index, from the start of the destination interval.
    pub dst_start: usize,
    /// First source index, from the start of the source part.
    pub src_start: usize,
    /// Number of elements.
    pub len: usize,
    /// Destination step.
    pub dst_step: isize,
    /// Source step.
    pub src_step: isize,
}

/// Pieces that one source interval sends to one destination part: the mirror of [`DimPiece`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct DimSend {
    /// The flat destination part.
    pub dst_part: usize,
    /// First destination index, from the start of the destination interval.
    pub dst_start: usize,
    /// First source index, from the start of the source interval.
    pub src_start: usize,
    /// Number of elements.
    pub len: usize,
    /// Destination step.
    pub dst_step: isize,
    /// Source step.
    pub src_step: isize,
}

/// All pieces of a destination interval, by source part, then destination start.
///
/// Costs one step per piece and a binary search per run of the map; nothing is done per element.
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
pub fn overlaps(src: &Partition, map: &DimMap, dst: Range<usize>) -> Vec<DimPiece> {
    assert!(
        src.extent() == map.src_extent(),
        "a partition of {} cannot be the source of a map from {}",
        src.extent(),
        map.src_extent(),
    );
    let mut pieces = Vec::new();
    for run in map.runs() {
        let live = run.dst().within(&signed(&dst));
        let mut at = live.start;
        let mut near = None;
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
    pieces.sort_unstable();
    pieces
}

/// All pieces that one source interval sends to a cover of the destination, by destination part, then destination start.
///
/// The union over source parts is the union of [`overlaps`] over the cover's intervals, piece by piece, and for each pair
/// of parts in the same order.
pub fn overlaps_from(
    src_interval: Range<usize>,
    map: &DimMap,
    dst_cover: &[Range<usize>],
) -> Vec<DimSend> {
    // In an ordered cover those that can meet a run are found by binary search; any cover is allowed.
    let ordered = dst_cover
        .windows(2)
        .all(|w| w[0].start <= w[1].start && w[0].end <= w[1].end);
    let mut pieces = Vec::new();
    for run in map.runs() {
        let live = run.src().within(&signed(&src_interval));
        if live.is_empty() {
            continue;
        }
        // Destination steps are not negative.
        let (first, last) = (
            run.dst().at(live.start) as usize,
            run.dst().at(live.end - 1) as usize,
        );
        let candidates = if ordered {
            let from = dst_cover.partition_point(|r| r.end <= first);
            from..dst_cover.partition_point(|r| r.start <= last)
        } else {
            0..dst_cover.len()
        };
        for dst_part in candidates {
            let dst = &dst_cover[dst_part];
            let hit = run.dst().within(&signed(dst));
            let both = hit.start.max(live.start)..hit.end.min(live.end);
            if both.is_empty() {
                continue;
            }
            let cut = cut(run, both, src_interval.start, dst.start);
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
    pieces.sort_unstable();
    pieces
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

/// The owner of an index, looked for beside the part found last before searching for it.
fn owner_near(src: &Partition, index: usize, near: Option<usize>) -> Option<usize> {
    let beside =
        |part: usize| (part < src.parts() && src.interval(part).contains(&index)).then_some(part);
    near.and_then(|p| beside(p + 1).or_else(|| beside(p.checked_sub(1)?)))
        .or_else(|| src.owner_of(index))
}

/// Extents are at most `isize::MAX`, so ends of intervals are too; beyond, nothing is reachable anyway.
fn signed(range: &Range<usize>) -> Range<isize> {
    let signed = |x: usize| isize::try_from(x).unwrap_or(isize::MAX);
    signed(range.start)..signed(range.end)
}
