//! Intervals, coordinates and pieces: the arithmetic that exchanges are made of.

use shard_comm::{PieceRef, Pieces};
use shard_spec::{DeviceMesh, DimCover, DimPiece, DimSend, Dims, Layout, Partition, Strides};
use smallvec::SmallVec;

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

pub(crate) fn local_shape(layout: &Layout, parts: &[usize]) -> Dims {
    parts
        .iter()
        .enumerate()
        .map(|(d, &p)| layout.interval(d, p).len())
        .collect()
}

/// One overlap of one dim: a run of elements shared with part `part` of the other side, in local coordinates.
#[derive(Clone, Copy)]
pub(crate) struct Overlap {
    pub(crate) part: usize,
    pub(crate) len: usize,
    src_start: usize,
    src_step: isize,
    dst_start: usize,
    dst_step: isize,
}

impl Overlap {
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

impl From<DimPiece> for Overlap {
    fn from(p: DimPiece) -> Self {
        let DimPiece {
            src_part,
            len,
            src_start,
            src_step,
            dst_start,
            dst_step,
        } = p;
        Self {
            part: src_part,
            len,
            src_start,
            src_step,
            dst_start,
            dst_step,
        }
    }
}

impl From<DimSend> for Overlap {
    fn from(p: DimSend) -> Self {
        let DimSend {
            dst_part,
            len,
            src_start,
            src_step,
            dst_start,
            dst_step,
        } = p;
        Self {
            part: dst_part,
            len,
            src_start,
            src_step,
            dst_start,
            dst_step,
        }
    }
}

/// Adds the piece that is the product of these overlaps: `src` and `dst` are the strides of the two blocks, `base`
/// is where the destination's begins.
pub(crate) fn push_piece(
    out: &mut Pieces,
    peer: usize,
    source: usize,
    dims: &[Overlap],
    src: &Strides,
    base: usize,
    dst: &Strides,
) {
    let (mut shape, mut src_strides, mut dst_strides) =
        (Dims::new(), Strides::new(), Strides::new());
    let (mut src_offset, mut dst_offset) = (0, base);
    for (d, run) in dims.iter().enumerate() {
        shape.push(run.len);
        src_offset += run.src_start * src[d] as usize;
        src_strides.push(run.src_step * src[d]);
        dst_offset += run.dst_start * dst[d] as usize;
        dst_strides.push(run.dst_step * dst[d]);
    }
    out.push(PieceRef {
        peer,
        source,
        shape: &shape,
        src_offset,
        src_strides: &src_strides,
        dst_offset,
        dst_strides: &dst_strides,
    });
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
