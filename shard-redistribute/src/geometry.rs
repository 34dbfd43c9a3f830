//! Intervals, coordinates and pieces: the arithmetic that exchanges are made of.

use shard_comm::{PieceRef, Pieces};
use shard_spec::{
    CoverParts, DeviceMesh, DimCover, DimMap, DimPart, DimPiece, DimSend, DimSharding, Dims,
    Layout, Partition, Strides, overlaps, overlaps_from, overlaps_to, row_major_strides,
};
use smallvec::SmallVec;

/// The covers that describe a layout: its own intervals, without overlap.
pub(crate) fn cover_of(layout: &Layout) -> Vec<DimCover> {
    (0..layout.ndim())
        .map(|d| DimCover::of(layout, d))
        .collect()
}

/// The layout of which these covers are the parts, if they are the parts of one.
pub(crate) fn layout_of(mesh: &DeviceMesh, shape: &[usize], covers: &[DimCover]) -> Option<Layout> {
    let sharding = |(cover, &n): (&DimCover, &usize)| {
        let partition = match &cover.parts {
            CoverParts::Partition(partition) => partition.clone(),
            CoverParts::Intervals(all) => {
                let starts = all.iter().scan(0, |end, interval| {
                    let follows = interval.start == *end;
                    *end = interval.end;
                    follows.then_some(interval.len())
                });
                let sizes: Vec<usize> = starts.collect();
                (sizes.len() == all.len()).then(|| Partition::from_sizes(&sizes).ok())??
            }
        };
        let axes = cover.axes.clone();
        (partition.extent() == n).then_some(Some(DimSharding { axes, partition }))
    };
    let dims: Option<Vec<_>> = covers.iter().zip(shape).map(sharding).collect();
    Layout::from_dims(mesh, shape, dims?, None).ok()
}

/// The shape of the product of these parts.
pub(crate) fn shape_of(parts: &[DimPart]) -> Dims {
    parts.iter().map(DimPart::len).collect()
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

/// What the parts along some mesh axes add to a member's row-major position on the mesh.
///
/// A member's position is the sum of what its part along each group of axes adds.
pub(crate) struct Places {
    /// Size and stride of each digit of a part, the minor digit first; axes that follow each other on the mesh form one digit.
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

    /// What this part adds to the position.
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

/// One overlap of one dim: elements shared with a part of the other side, in coordinates local to both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) len: usize,
    part: usize,
    src_start: usize,
    src_step: isize,
    dst_start: usize,
    dst_step: isize,
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

impl From<DimPiece> for Run {
    fn from(p: DimPiece) -> Self {
        Self {
            len: p.len,
            part: p.src_part,
            src_start: p.src_start,
            src_step: p.src_step,
            dst_start: p.dst_start,
            dst_step: p.dst_step,
        }
    }
}

impl From<DimSend> for Run {
    fn from(p: DimSend) -> Self {
        Self {
            len: p.len,
            part: p.dst_part,
            src_start: p.src_start,
            src_step: p.src_step,
            dst_start: p.dst_start,
            dst_step: p.dst_step,
        }
    }
}

/// What one dim of a rank's block shares with the parts of the other side.
pub(crate) struct Along<'a> {
    /// One run per overlap; there may be thousands.
    runs: Vec<Run>,
    places: Places,
    sizes: Sizes<'a>,
}

/// The extents of the other side's parts.
enum Sizes<'a> {
    Whole(usize),
    Parts(&'a Partition),
    Cover(&'a DimCover),
}

impl<'a> Along<'a> {
    /// The runs that a reader's part of a dim takes from the parts of a source that `keep` accepts.
    pub(crate) fn reads(
        layout: &'a Layout,
        dim: usize,
        map: &DimMap,
        want: DimPart,
        keep: impl Fn(usize) -> bool,
    ) -> Self {
        let n = layout.shape()[dim];
        let (found, sizes) = match layout.sharding(dim) {
            Some(s) => (
                overlaps(&s.partition, map, want),
                Sizes::Parts(&s.partition),
            ),
            None => (
                overlaps(&Partition::chunk(n, 1), map, want),
                Sizes::Whole(n),
            ),
        };
        let kept = found.into_iter().filter(|p| keep(p.src_part));
        Self {
            runs: kept.map(Run::from).collect(),
            places: Places::of(layout.mesh(), layout.axis_order(dim)),
            sizes,
        }
    }

    /// The runs that an owner's part of a dim gives to those parts of a cover that lie at the coordinates `fixed`, where
    /// `None` stands for any coordinate.
    pub(crate) fn sends(
        mesh: &DeviceMesh,
        have: DimPart,
        map: &DimMap,
        cover: &'a DimCover,
        fixed: &[Option<usize>],
    ) -> Self {
        let pinned: SmallVec<[usize; 4]> = (cover.axes.iter().copied())
            .filter(|&a| fixed[a].is_some())
            .collect();
        let found = if pinned.len() == cover.axes.len() {
            // There is only one part, so the others need not be looked at.
            let at = |part: usize, &a: &usize| part * mesh.shape()[a] + fixed[a].unwrap_or(0);
            let only = cover.axes.iter().fold(0, at);
            overlaps_to(have, map, &cover.part(only), only)
        } else {
            let mut coords: SmallVec<[usize; 4]> = SmallVec::from_elem(0, mesh.ndim());
            let mut found = overlaps_from(have, map, &cover.parts);
            if !pinned.is_empty() {
                found.retain(|p| {
                    mesh.set_part(&cover.axes, p.dst_part, &mut coords);
                    pinned.iter().all(|&a| fixed[a] == Some(coords[a]))
                });
            }
            found
        };
        Self {
            runs: found.into_iter().map(Run::from).collect(),
            places: Places::of(mesh, &cover.axes),
            sizes: Sizes::Cover(cover),
        }
    }

    /// Whether nothing is shared.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    fn like(&self, run: &Run) -> Like {
        Like {
            len: run.len,
            src_step: run.src_step,
            dst_step: run.dst_step,
            extent: match self.sizes {
                Sizes::Whole(n) => n,
                Sizes::Parts(partition) => partition.size(run.part),
                Sizes::Cover(cover) => cover.size(run.part),
            },
        }
    }
}

/// What decides the extents and steps of a piece along one dim. Pieces that are alike in every dim share what follows from it.
#[derive(Clone, Copy, PartialEq)]
struct Like {
    len: usize,
    src_step: isize,
    dst_step: isize,
    /// The extent of the other side's block.
    extent: usize,
}

/// How many pieces the product of the dims makes.
pub(crate) fn product_len(dims: &[Along<'_>]) -> usize {
    dims.iter().map(|along| along.runs.len()).product()
}

/// Calls `f` with every combination of one run per dim, and with what the parts of the runs together add to the position of
/// the rank on the other side.
pub(crate) fn for_each_product(dims: &[Along<'_>], mut f: impl FnMut(&[Run], usize)) {
    fn step(
        dims: &[Along<'_>],
        place: usize,
        chosen: &mut SmallVec<[Run; 6]>,
        f: &mut impl FnMut(&[Run], usize),
    ) {
        let Some((along, rest)) = dims.split_first() else {
            return f(chosen, place);
        };
        for &run in &along.runs {
            chosen.push(run);
            step(rest, place + along.places.at(run.part), chosen, f);
            chosen.pop();
        }
    }
    step(dims, 0, &mut SmallVec::new(), &mut f);
}

/// Adds pieces to a list that have the block of one side in common.
pub(crate) struct Writer<'a> {
    out: &'a mut Pieces,
    dims: &'a [Along<'a>],
    /// Which of the owner's sources is read.
    source: usize,
    /// Strides of this rank's own block.
    mine: Strides,
    /// Whether this rank reads the pieces; otherwise they are read from it.
    reads: bool,
    /// The last two kinds of pieces: the sizes of uneven parts differ by one and often alternate.
    recent: [Option<Kind>; 2],
}

/// What a piece that was added is like, with the strides of the two blocks it is cut from.
struct Kind {
    first: usize,
    like: SmallVec<[Like; 6]>,
    src: Strides,
    dst: Strides,
}

impl<'a> Writer<'a> {
    /// A writer of pieces between the rank with a block of this shape, which reads or is read from, and the ranks that the
    /// runs of `dims` name.
    pub(crate) fn new(
        out: &'a mut Pieces,
        dims: &'a [Along<'a>],
        source: usize,
        shape: &[usize],
        reads: bool,
    ) -> Self {
        Self {
            out,
            dims,
            source,
            mine: row_major_strides(shape),
            reads,
            recent: [None, None],
        }
    }

    /// Makes room for this many more pieces.
    pub(crate) fn reserve(&mut self, pieces: usize) {
        self.out.reserve(pieces);
    }

    /// Adds the piece that is the product of these runs, to or from the block of a peer. The reader's block begins at `base`
    /// in the destination.
    pub(crate) fn push(&mut self, peer: usize, runs: &[Run], base: usize) {
        let dims = || runs.iter().zip(self.dims);
        for kind in self.recent.iter().flatten() {
            if (dims().zip(&kind.like)).all(|((run, along), like)| along.like(run) == *like) {
                let (src, dst) = offsets(runs, &kind.src, &kind.dst);
                return self.out.again(kind.first, peer, src, base + dst);
            }
        }
        let like: SmallVec<[Like; 6]> = dims().map(|(run, along)| along.like(run)).collect();
        let extents: Dims = like.iter().map(|l| l.extent).collect();
        let (src, dst) = match self.reads {
            true => (row_major_strides(&extents), self.mine.clone()),
            false => (self.mine.clone(), row_major_strides(&extents)),
        };
        let (src_offset, dst_offset) = offsets(runs, &src, &dst);
        let steps = |strides: &Strides, step: fn(&Like) -> isize| -> Strides {
            (like.iter().zip(strides))
                .map(|(l, s)| step(l) * s)
                .collect()
        };
        self.out.push(PieceRef {
            peer,
            source: self.source,
            shape: &like.iter().map(|l| l.len).collect::<Dims>(),
            src_offset,
            src_strides: &steps(&src, |l| l.src_step),
            dst_offset: base + dst_offset,
            dst_strides: &steps(&dst, |l| l.dst_step),
        });
        self.recent.swap(0, 1);
        self.recent[0] = Some(Kind {
            first: self.out.len().saturating_sub(1),
            like,
            src,
            dst,
        });
    }
}

/// Where a piece begins in both blocks.
fn offsets(runs: &[Run], src: &Strides, dst: &Strides) -> (usize, usize) {
    let mut at = (0, 0);
    for (d, run) in runs.iter().enumerate() {
        at.0 += run.src_start * src[d] as usize;
        at.1 += run.dst_start * dst[d] as usize;
    }
    at
}

/// Share number `share` of `count` of a piece, cut along its longest dim; `None` if it is empty.
pub(crate) fn share_of(runs: &[Run], share: usize, count: usize) -> Option<SmallVec<[Run; 6]>> {
    cut_of(runs, share, share + 1, count)
}

/// The part of a piece between the fractions `from / whole` and `to / whole`, cut along its longest dim; `None` if it is
/// empty.
pub(crate) fn cut_of(
    runs: &[Run],
    from: usize,
    to: usize,
    whole: usize,
) -> Option<SmallVec<[Run; 6]>> {
    if from >= to {
        return None;
    }
    let mut cut: SmallVec<[Run; 6]> = runs.into();
    // The first of the longest dims.
    let longest = (0..runs.len()).rev().max_by_key(|&d| runs[d].len);
    let Some(d) = longest else {
        return (to == whole).then_some(cut);
    };
    let at = |x: usize| (x as u128 * runs[d].len as u128 / whole as u128) as usize;
    let (start, end) = (at(from), at(to));
    cut[d] = runs[d].cut(start, end);
    (start < end).then_some(cut)
}

/// Calls `f` with `coords` set to every combination along `axes`, row-major; restores them afterwards.
pub(crate) fn for_each_coord(
    mesh: &DeviceMesh,
    axes: &[usize],
    coords: &mut SmallVec<[usize; 4]>,
    f: &mut impl FnMut(&[usize]),
) {
    let saved = coords.clone();
    let count = mesh.part_count(axes);
    for part in 0..count {
        mesh.set_part(axes, part, coords);
        f(coords);
    }
    *coords = saved;
}
