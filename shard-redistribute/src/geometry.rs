//! Intervals, coordinates and pieces: the arithmetic that exchanges are made of.

use shard_comm::{PieceRef, Pieces};
use shard_spec::{
    DeviceMesh, DimCover, DimMap, DimPiece, DimSend, Dims, Layout, Partition, Strides, overlaps,
    overlaps_from,
};
use smallvec::SmallVec;
use std::ops::Range;

/// The covers that describe a layout: its own intervals, without overlap.
pub(crate) fn cover_of(layout: &Layout) -> Vec<DimCover> {
    (0..layout.ndim())
        .map(|d| DimCover::of(layout, d))
        .collect()
}

pub(crate) fn whole(n: usize) -> Partition {
    Partition::chunk(n, 1)
}

/// Whether strides walk the shape as one run of consecutive elements.
pub(crate) fn is_run(shape: &[usize], strides: &[isize]) -> bool {
    let mut expect = 1;
    shape.iter().zip(strides).rev().all(|(&n, &s)| {
        let fits = n == 1 || s == expect;
        expect *= n as isize;
        fits
    })
}

/// What the parts over some mesh axes add to a member's row-major position on the mesh.
///
/// Positions are sums: a member's is the sum of what its part along each group of axes adds.
pub(crate) struct Places {
    /// Size and stride of each digit of a part, the minor one first; axes that follow each other on the mesh are one.
    digits: SmallVec<[(usize, usize); 2]>,
    count: usize,
}

impl Places {
    pub(crate) fn of(mesh: &DeviceMesh, axes: &[usize]) -> Self {
        let mut digits: SmallVec<[(usize, usize); 2]> = SmallVec::new();
        let mut count = 1;
        for &a in axes.iter().rev() {
            let size = mesh.shape()[a];
            let stride = mesh.shape()[a + 1..].iter().product();
            count *= size;
            match digits.last_mut() {
                Some((n, step)) if *n * *step == stride => *n *= size,
                _ => digits.push((size, stride)),
            }
        }
        Self { digits, count }
    }

    /// How many parts there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// What this part adds.
    pub(crate) fn at(&self, mut part: usize) -> usize {
        match &self.digits[..] {
            [] => 0,
            [(_, stride)] => part * stride,
            digits => digits.iter().fold(0, |place, (size, stride)| {
                let digit = part % size;
                part /= size;
                place + digit * stride
            }),
        }
    }
}

/// One overlap of one dim: elements shared with a part of the other side, in coordinates local to both, and what the
/// part says of its rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) len: usize,
    src_start: usize,
    src_step: isize,
    dst_start: usize,
    dst_step: isize,
    /// The extent of the other side's block along this dim.
    extent: usize,
    /// What the part adds to the position of its rank.
    pub(crate) place: usize,
}

impl Run {
    /// Elements `start..end` of the run.
    pub(crate) fn cut(&self, start: usize, end: usize) -> Self {
        let at = |from: usize, step: isize| (from as isize + start as isize * step) as usize;
        Self {
            len: end - start,
            src_start: at(self.src_start, self.src_step),
            dst_start: at(self.dst_start, self.dst_step),
            ..*self
        }
    }
}

/// The runs that a reader's interval of a dim takes from the parts of a source that `keep` accepts.
pub(crate) fn runs_read(
    layout: &Layout,
    dim: usize,
    map: &DimMap,
    want: Range<usize>,
    keep: impl Fn(usize) -> bool,
) -> Vec<Run> {
    let places = Places::of(layout.mesh(), layout.axis_order(dim));
    let whole = whole(layout.shape()[dim]);
    let partition = layout.sharding(dim).map_or(&whole, |s| &s.partition);
    let run = |p: DimPiece| Run {
        len: p.len,
        src_start: p.src_start,
        src_step: p.src_step,
        dst_start: p.dst_start,
        dst_step: p.dst_step,
        extent: partition.size(p.src_part),
        place: places.at(p.src_part),
    };
    let found = overlaps(partition, map, want).into_iter();
    found.filter(|p| keep(p.src_part)).map(run).collect()
}

/// The runs that an owner's interval of a dim gives to the parts of a cover that lie at `fixed` coordinates, `None`
/// being any.
pub(crate) fn runs_sent(
    mesh: &DeviceMesh,
    have: Range<usize>,
    map: &DimMap,
    cover: &DimCover,
    fixed: &[Option<usize>],
) -> Vec<Run> {
    let places = Places::of(mesh, &cover.axes);
    let run = |p: DimSend| Run {
        len: p.len,
        src_start: p.src_start,
        src_step: p.src_step,
        dst_start: p.dst_start,
        dst_step: p.dst_step,
        extent: cover.intervals[p.dst_part].len(),
        place: places.at(p.dst_part),
    };
    let pinned: SmallVec<[usize; 4]> = (cover.axes.iter().copied())
        .filter(|&a| fixed[a].is_some())
        .collect();
    if pinned.len() == cover.axes.len() {
        // One part alone: no need to look at the others.
        let at = |part: usize, &a: &usize| part * mesh.shape()[a] + fixed[a].unwrap_or(0);
        let only = cover.axes.iter().fold(0, at);
        let mut found = overlaps_from(have, map, &cover.intervals[only..=only]);
        found.iter_mut().for_each(|p| p.dst_part = only);
        return found.into_iter().map(run).collect();
    }
    let mut coords: SmallVec<[usize; 4]> = SmallVec::from_elem(0, mesh.ndim());
    let mut fits = |part: usize| {
        if pinned.is_empty() {
            return true;
        }
        mesh.set_part(&cover.axes, part, &mut coords);
        pinned.iter().all(|&a| fixed[a] == Some(coords[a]))
    };
    let found = overlaps_from(have, map, &cover.intervals).into_iter();
    found.filter(|p| fits(p.dst_part)).map(run).collect()
}

/// Both ends of pieces that have one side's block in common.
pub(crate) struct Ends<'a> {
    /// Which of the owner's sources is read.
    pub(crate) source: usize,
    /// Strides of this rank's own block.
    pub(crate) mine: &'a Strides,
    /// Whether this rank reads, rather than being read from.
    pub(crate) reads: bool,
}

impl Ends<'_> {
    /// Adds the piece that is the product of these runs, to or from the block of a peer that begins at `base` of its
    /// (or this rank's) destination.
    pub(crate) fn push(&self, out: &mut Pieces, peer: usize, runs: &[Run], base: usize) {
        let mut theirs: Strides = SmallVec::from_elem(1, runs.len());
        for d in (1..runs.len()).rev() {
            theirs[d - 1] = theirs[d] * runs[d].extent.max(1) as isize;
        }
        let (src, dst) = match self.reads {
            true => (&theirs, self.mine),
            false => (self.mine, &theirs),
        };
        let (mut shape, mut src_strides, mut dst_strides) =
            (Dims::new(), Strides::new(), Strides::new());
        let (mut src_offset, mut dst_offset) = (0, base);
        for (d, run) in runs.iter().enumerate() {
            shape.push(run.len);
            src_offset += run.src_start * src[d] as usize;
            src_strides.push(run.src_step * src[d]);
            dst_offset += run.dst_start * dst[d] as usize;
            dst_strides.push(run.dst_step * dst[d]);
        }
        out.push(PieceRef {
            peer,
            source: self.source,
            shape: &shape,
            src_offset,
            src_strides: &src_strides,
            dst_offset,
            dst_strides: &dst_strides,
        });
    }
}

/// Share number `share` of `count` of a piece, cut along its longest dim; `None` if it is empty.
pub(crate) fn share_of(runs: &[Run], share: usize, count: usize) -> Option<SmallVec<[Run; 6]>> {
    let mut cut: SmallVec<[Run; 6]> = runs.into();
    // The first of the longest.
    let longest = (0..runs.len()).rev().max_by_key(|&d| runs[d].len);
    let Some(d) = longest else {
        return (share == 0).then_some(cut);
    };
    let len = runs[d].len;
    let (start, end) = (share * len / count, (share + 1) * len / count);
    cut[d] = runs[d].cut(start, end);
    (start < end).then_some(cut)
}

/// Calls `f` with every combination of one element per list, the last list fastest.
pub(crate) fn for_each_product<T: Copy>(lists: &[Vec<T>], mut f: impl FnMut(&[T])) {
    fn step<T: Copy>(lists: &[Vec<T>], chosen: &mut SmallVec<[T; 6]>, f: &mut impl FnMut(&[T])) {
        let Some((first, rest)) = lists.split_first() else {
            return f(chosen);
        };
        for &item in first {
            chosen.push(item);
            step(rest, chosen, f);
            chosen.pop();
        }
    }
    step(lists, &mut SmallVec::new(), &mut f);
}

/// Calls `f` with `coords` set to every combination along `axes`, row-major; restores them afterwards.
pub(crate) fn for_each_coord(
    mesh: &DeviceMesh,
    axes: &[usize],
    coords: &mut SmallVec<[usize; 4]>,
    f: &mut impl FnMut(&[usize]),
) {
    let saved = coords.clone();
    let count: usize = axes.iter().map(|&a| mesh.shape()[a]).product();
    for part in 0..count {
        mesh.set_part(axes, part, coords);
        f(coords);
    }
    *coords = saved;
}
