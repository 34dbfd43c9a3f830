//! Loop nests over two views at once.

use smallvec::SmallVec;

use crate::Strided;
use crate::view::steps_apart;

/// One loop: how many turns it has, and how far each view moves per turn.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Axis {
    pub(super) extent: usize,
    pub(super) src: isize,
    pub(super) dst: isize,
}

impl Axis {
    /// A loop of one turn.
    const ONCE: Self = Self {
        extent: 1,
        src: 0,
        dst: 0,
    };
}

/// Loops over a source and a destination view of one shape, outermost first.
pub(crate) struct Nest {
    axes: SmallVec<[Axis; 6]>,
    src: isize,
    dst: isize,
    /// Whether elements may be visited in any order.
    free: bool,
}

/// Side of the square tiles in which a transposed pair of loops is walked: two tiles of doubles fit the first cache.
const TILE: usize = 32;

/// Elements that a tile has at least along either side, for squares of it to pay.
const LEAST: usize = 8;

impl Nest {
    /// The loops of two checked views; `None` if they are empty.
    ///
    /// Where the destination visits no element twice, the order is free: its steps are sorted and made positive.
    /// Otherwise the loops keep row-major order, which is the order that folds promise.
    pub(crate) fn new(sv: &Strided, dv: &Strided) -> Option<Self> {
        Self::of((sv.offset, &sv.strides), dv)
    }

    /// As [`Nest::new`], with where a source of the destination's shape begins, and its strides.
    pub(super) fn of((offset, strides): (usize, &[isize]), dv: &Strided) -> Option<Self> {
        if dv.shape.contains(&0) {
            return None;
        }
        let mut nest = Self {
            axes: SmallVec::new(),
            src: offset as isize,
            dst: dv.offset as isize,
            free: steps_apart(&dv.shape, &dv.strides),
        };
        for ((&extent, &src), &dst) in dv.shape.iter().zip(strides).zip(&dv.strides) {
            if extent > 1 {
                nest.axes.push(Axis { extent, src, dst });
            }
        }
        if let [only] = &nest.axes[..]
            && only.dst >= 0
        {
            return Some(nest);
        }
        if nest.free {
            for axis in &mut nest.axes {
                if axis.dst < 0 {
                    let last = axis.extent as isize - 1;
                    nest.src += last * axis.src;
                    nest.dst += last * axis.dst;
                    (axis.src, axis.dst) = (-axis.src, -axis.dst);
                }
            }
            nest.axes.sort_by_key(|axis| std::cmp::Reverse(axis.dst));
            nest.merge();
            nest.pair_transposed();
        } else {
            nest.merge();
        }
        Some(nest)
    }

    /// The loop over elements that lie side by side in both views; `None` if there are none.
    pub(super) fn run(src: usize, dst: usize, extent: usize) -> Option<Self> {
        let axis = Axis {
            extent,
            src: 1,
            dst: 1,
        };
        (extent > 0).then(|| Self {
            axes: SmallVec::from_slice(&[axis]),
            src: src as isize,
            dst: dst as isize,
            free: true,
        })
    }

    /// Where the source's first element lies.
    #[cfg(feature = "cuda")]
    pub(crate) fn src(&self) -> isize {
        self.src
    }

    /// Where the destination's first element lies.
    #[cfg(feature = "cuda")]
    pub(crate) fn dst(&self) -> isize {
        self.dst
    }

    /// The loops, outermost first: number of turns, and the steps of source and destination.
    #[cfg(feature = "cuda")]
    pub(crate) fn axes(&self) -> impl Iterator<Item = (usize, isize, isize)> + '_ {
        (self.axes.iter()).map(|axis| (axis.extent, axis.src, axis.dst))
    }

    /// Whether the destination visits no element twice.
    #[cfg(feature = "cuda")]
    pub(crate) fn is_free(&self) -> bool {
        self.free
    }

    /// Joins neighbouring loops that step through both views as one loop would.
    fn merge(&mut self) {
        let mut merged: SmallVec<[Axis; 6]> = SmallVec::new();
        for &axis in &self.axes {
            let extent = axis.extent as isize;
            match merged.last_mut() {
                Some(outer) if outer.src == axis.src * extent && outer.dst == axis.dst * extent => {
                    *outer = Axis {
                        extent: outer.extent * axis.extent,
                        ..axis
                    };
                }
                _ => merged.push(axis),
            }
        }
        self.axes = merged;
    }

    /// Moves the loop along which the source is dense next to the innermost one, so that tiles of the two are
    /// dense in either view.
    fn pair_transposed(&mut self) {
        let Some(last) = self.axes.len().checked_sub(1) else {
            return;
        };
        if self.axes[last].src.unsigned_abs() > 1
            && let Some(dense) = self.axes[..last].iter().position(|a| a.src == 1)
        {
            let axis = self.axes.remove(dense);
            self.axes.insert(last - 1, axis);
        }
    }

    /// Visits all loops as one block, or, where the rows of one view and the columns of the other are dense, one square tile
    /// after the other. This function knows neither the elements nor the work on them, so its loops are compiled once.
    pub(super) fn blocks(&self, visit: &mut dyn FnMut(&Block<'_>)) {
        let (outer, rows, inner) = self.split();
        let transposed = rows.src == 1 && !matches!(inner.src, 0 | 1) && inner.dst == 1;
        if self.free && transposed {
            self.tiles(outer, rows, inner, visit);
        } else {
            let (far, outer) = outer.split_at(outer.len().saturating_sub(NEAR));
            walk(far, self.src, self.dst, &mut |src, dst| {
                visit(&Block {
                    outer,
                    ..Block::new(src, dst, rows, inner)
                });
            });
        }
    }

    /// Visits square tiles of rows along which the source is dense and an inner loop along which the destination is. Where one of the two is
    /// short, a tile has turns of the loop along which that view goes on behind it, too.
    ///
    /// Of `[o, i, y, 2]` as `[y, i, 2, o]` the source is dense along two elements, and along `y` behind them: a tile has 32 of these by 32 of
    /// `o`, and each line of the source's is read once.
    fn tiles(&self, outer: &[Axis], rows: Axis, inner: Axis, visit: &mut dyn FnMut(&Block<'_>)) {
        let mut far: SmallVec<[Axis; 6]> = outer.into();
        let mut near = |extent: usize, step: fn(&Axis) -> isize| {
            let goes_on = |axis: &Axis| step(axis) == extent as isize;
            let at = (extent < TILE / 2).then(|| far.iter().position(goes_on));
            at.flatten().map(|at| (far.remove(at), TILE / extent))
        };
        let behind = [
            near(rows.extent, |axis| axis.src),
            near(inner.extent, |axis| axis.dst),
        ];
        let behind: SmallVec<[(Axis, usize); 2]> = behind.into_iter().flatten().collect();
        walk(&far, self.src, self.dst, &mut |src, dst| {
            let whole = Block::new(src, dst, rows, inner);
            whole.with_parts(&behind, &mut SmallVec::new(), &mut |block| {
                block.parts(TILE, TILE, visit);
            });
        });
    }

    /// Visits parts of two loops with at most `elements` elements each, in row-major order.
    pub(super) fn parts_of(&self, elements: usize, visit: &mut dyn FnMut(&Block<'_>)) {
        let (outer, rows, inner) = self.split();
        let columns = elements.min(inner.extent);
        walk(outer, self.src, self.dst, &mut |src, dst| {
            Block::new(src, dst, rows, inner).parts(elements / columns, columns, visit);
        });
    }

    /// How many elements each view visits.
    pub(super) fn numel(&self) -> usize {
        self.axes.iter().map(|axis| axis.extent).product()
    }

    /// The steps of the innermost loop, in the source and in the destination.
    pub(super) fn innermost(&self) -> (isize, isize) {
        self.axes.last().map_or((1, 1), |axis| (axis.src, axis.dst))
    }

    /// The two innermost loops, and the loops outside them. Where there are fewer than two, loops of one turn take their place.
    fn split(&self) -> (&[Axis], Axis, Axis) {
        let once = |step| Axis {
            extent: 1,
            src: step,
            dst: step,
        };
        match self.axes[..] {
            [] => (&[], once(0), once(1)),
            [inner] => (&[], once(0), inner),
            [ref outer @ .., rows, inner] => (outer, rows, inner),
        }
    }
}

/// Visits every turn of some loops, in order.
fn walk(axes: &[Axis], src: isize, dst: isize, visit: &mut dyn FnMut(isize, isize)) {
    let (axes, inner) = axes.split_at(axes.len().min(NEAR));
    let mut place = Place::new(src, dst);
    loop {
        if inner.is_empty() {
            visit(place.src, place.dst);
        } else {
            walk(inner, place.src, place.dst, visit);
        }
        if !place.advance(axes) {
            return;
        }
    }
}

/// How many loops a block has besides its two innermost ones; nests with more loops are rare.
const NEAR: usize = 6;

/// The current position in at most [`NEAR`] loops.
struct Place {
    turns: [usize; NEAR],
    src: isize,
    dst: isize,
}

impl Place {
    #[inline]
    fn new(src: isize, dst: isize) -> Self {
        let turns = [0; NEAR];
        Self { turns, src, dst }
    }

    /// Goes on to the next turn; false after the last one. Not inlined, so that code that is compiled per type does not contain
    /// it.
    #[inline(never)]
    fn advance(&mut self, axes: &[Axis]) -> bool {
        for (turn, axis) in self.turns[..axes.len()].iter_mut().zip(axes).rev() {
            *turn += 1;
            self.src += axis.src;
            self.dst += axis.dst;
            if *turn < axis.extent {
                return true;
            }
            *turn = 0;
            self.src -= axis.extent as isize * axis.src;
            self.dst -= axis.extent as isize * axis.dst;
        }
        false
    }
}

/// Loops over elements and where they begin, for code that knows the elements' type. That code contains all of these loops, so
/// that short rows do not cost a call each.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    /// At most [`NEAR`] loops.
    outer: &'a [Axis],
    pub(super) src: isize,
    pub(super) dst: isize,
    pub(super) rows: Axis,
    pub(super) inner: Axis,
}

/// The work on the elements of a block. The slices are the bytes of whole buffers: destination, then source.
pub(super) type Kernel = fn(&mut [u8], &[u8], &Block<'_>);

impl Block<'_> {
    fn new(src: isize, dst: isize, rows: Axis, inner: Axis) -> Self {
        let outer = &[];
        Self {
            outer,
            src,
            dst,
            rows,
            inner,
        }
    }

    /// Visits the block with one part after the other of each of these loops outside of its own, so many turns at most.
    fn with_parts(
        &self,
        loops: &[(Axis, usize)],
        outer: &mut SmallVec<[Axis; 2]>,
        visit: &mut dyn FnMut(&Block<'_>),
    ) {
        let Some(((axis, most), others)) = loops.split_first() else {
            return visit(&Block { outer, ..*self });
        };
        for first in (0..axis.extent).step_by(*most) {
            let extent = (*most).min(axis.extent - first);
            outer.push(Axis { extent, ..*axis });
            let part = Block {
                src: self.src + first as isize * axis.src,
                dst: self.dst + first as isize * axis.dst,
                ..*self
            };
            part.with_parts(others, outer, visit);
            outer.pop();
        }
    }

    /// The block as a tile in which the source's rows are the destination's columns, if it is one that is not too narrow. Rows of the
    /// destination lie apart, so that any order writes the same.
    #[inline]
    pub(super) fn turned(&self) -> Option<Turned> {
        let is_turned = (self.rows.src, self.inner.dst) == (1, 1)
            && self.rows.dst.unsigned_abs() >= self.inner.extent;
        if !is_turned {
            return None;
        }
        let mut turned = Turned {
            rows: [Axis::ONCE, self.rows],
            inner: [Axis::ONCE, self.inner],
        };
        for axis in self.outer {
            if turned.rows[0] == Axis::ONCE && axis.src == self.rows.extent as isize {
                turned.rows[0] = *axis;
            } else if turned.inner[0] == Axis::ONCE && axis.dst == self.inner.extent as isize {
                turned.inner[0] = *axis;
            } else {
                return None;
            }
        }
        let pays = |[far, near]: [Axis; 2]| (LEAST..=TILE).contains(&(far.extent * near.extent));
        (pays(turned.rows) && pays(turned.inner) && turned.lies_apart()).then_some(turned)
    }

    /// Whether elements of a row lie side by side in both views.
    #[inline]
    pub(super) fn is_dense(&self) -> bool {
        (self.inner.src, self.inner.dst) == (1, 1)
    }

    /// How many elements it visits.
    pub(super) fn numel(&self) -> usize {
        let outer: usize = self.outer.iter().map(|axis| axis.extent).product();
        outer * self.rows.extent * self.inner.extent
    }

    /// Visits two loops in parts of `rows` rows and `columns` columns, in row-major order of the parts.
    pub(super) fn parts(&self, rows: usize, columns: usize, visit: &mut dyn FnMut(&Self)) {
        for i in (0..self.rows.extent).step_by(rows) {
            for j in (0..self.inner.extent).step_by(columns) {
                let (i, j) = (i as isize, j as isize);
                visit(&Self {
                    outer: self.outer,
                    src: self.src + i * self.rows.src + j * self.inner.src,
                    dst: self.dst + i * self.rows.dst + j * self.inner.dst,
                    rows: Axis {
                        extent: rows.min(self.rows.extent - i as usize),
                        ..self.rows
                    },
                    inner: Axis {
                        extent: columns.min(self.inner.extent - j as usize),
                        ..self.inner
                    },
                });
            }
        }
    }

    /// This part with a dense destination of its own (a tile), which begins at element 0.
    pub(super) fn onto_tile(&self) -> Self {
        let n = self.inner.extent as isize;
        Self {
            dst: 0,
            rows: Axis {
                dst: n,
                ..self.rows
            },
            inner: Axis {
                dst: 1,
                ..self.inner
            },
            ..*self
        }
    }

    /// This part with a dense source of its own (a tile), which begins at element 0.
    pub(super) fn within_tile(&self) -> Self {
        let n = self.inner.extent as isize;
        Self {
            src: 0,
            rows: Axis {
                src: n,
                ..self.rows
            },
            inner: Axis {
                src: 1,
                ..self.inner
            },
            ..*self
        }
    }

    /// This block with a source that lies `delta` elements further on.
    pub(super) fn shifted(&self, delta: isize) -> Self {
        Self {
            src: self.src + delta,
            ..*self
        }
    }

    /// Visits where each row begins.
    #[inline]
    pub(super) fn starts(&self, mut visit: impl FnMut(isize, isize)) {
        let mut place = Place::new(self.src, self.dst);
        loop {
            let (mut s, mut d) = (place.src, place.dst);
            for _ in 0..self.rows.extent {
                visit(s, d);
                s += self.rows.src;
                d += self.rows.dst;
            }
            if self.outer.is_empty() || !place.advance(self.outer) {
                return;
            }
        }
    }

    /// Visits where each row begins, and its length; rows must be dense in both views.
    #[inline]
    pub(super) fn dense_rows(&self, mut visit: impl FnMut(usize, usize, usize)) {
        let n = self.inner.extent;
        self.starts(|s, d| visit(s as usize, d as usize, n));
    }

    /// Sets every destination element to `f(old, source)`.
    #[inline]
    pub(super) fn sweep<S: Copy, D: Copy>(&self, src: &[S], dst: &mut [D], f: impl Fn(D, S) -> D) {
        let n = self.inner.extent;
        match (self.inner.src, self.inner.dst) {
            (1, 1) => self.dense_rows(|s, d, n| {
                for (out, &value) in dst[d..d + n].iter_mut().zip(&src[s..s + n]) {
                    *out = f(*out, value);
                }
            }),
            (0, 1) => self.dense_rows(|s, d, n| {
                let value = src[s];
                for out in &mut dst[d..d + n] {
                    *out = f(*out, value);
                }
            }),
            (step, 1) => self.starts(|mut s, d| {
                for out in &mut dst[d as usize..][..n] {
                    *out = f(*out, src[s as usize]);
                    s += step;
                }
            }),
            (s_step, d_step) => self.starts(|mut s, mut d| {
                for _ in 0..n {
                    let out = &mut dst[d as usize];
                    *out = f(*out, src[s as usize]);
                    s += s_step;
                    d += d_step;
                }
            }),
        }
    }
}

/// A tile along whose rows the source is dense, and along whose inner loops the destination is: two loops of either, of which the second
/// goes on where the first one's next turn begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turned {
    rows: [Axis; 2],
    inner: [Axis; 2],
}

impl Turned {
    /// Where each row of the destination begins, of which the first is at `first`, and how many there are.
    pub(super) fn rows(&self, first: isize) -> ([usize; TILE], usize) {
        starts(self.rows, first, |axis| axis.dst)
    }

    /// Where each column of the source begins, of which the first is at `first`, and how many there are.
    pub(super) fn columns(&self, first: isize) -> ([usize; TILE], usize) {
        starts(self.inner, first, |axis| axis.src)
    }

    /// Whether no element of the destination is in two rows.
    fn lies_apart(&self) -> bool {
        let columns = self.inner[0].extent * self.inner[1].extent;
        let mut rows = self.rows.map(|axis| (axis.dst.unsigned_abs(), axis.extent));
        rows.sort_unstable();
        let mut reach = columns;
        rows.into_iter()
            .filter(|(_, extent)| *extent > 1)
            .all(|(step, extent)| {
                let apart = step >= reach;
                reach = reach.max(step * extent);
                apart
            })
    }
}

/// Where the turns of two loops begin, and how many there are.
#[inline]
fn starts(
    [far, near]: [Axis; 2],
    first: isize,
    step: impl Fn(&Axis) -> isize,
) -> ([usize; TILE], usize) {
    let (mut all, mut count) = ([0; TILE], 0);
    for i in 0..far.extent as isize {
        let first = first + i * step(&far);
        let turns = &mut all[count..count + near.extent];
        for (k, at) in turns.iter_mut().enumerate() {
            *at = (first + k as isize * step(&near)) as usize;
        }
        count += near.extent;
    }
    (all, count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    fn axes(sv: &Strided, dv: &Strided) -> Vec<(usize, isize, isize)> {
        Nest::new(sv, dv)
            .unwrap()
            .axes
            .iter()
            .map(|a| (a.extent, a.src, a.dst))
            .collect()
    }

    #[test]
    fn dense_views_become_one_loop() {
        let v = Strided::contiguous(&[3, 1, 4, 5]);
        assert_eq!(axes(&v, &v), [(60, 1, 1)]);
    }

    #[test]
    fn transposes_pair_their_dense_loops() {
        let src = Strided::new(0, smallvec![7, 5, 6], smallvec![1, 42, 7]);
        assert_eq!(
            axes(&src, &Strided::contiguous(&[7, 5, 6])),
            [(7, 1, 30), (30, 7, 1)]
        );
        let src = Strided::new(0, smallvec![7, 5, 6], smallvec![1, 7, 40]);
        assert_eq!(
            axes(&src, &Strided::contiguous(&[7, 5, 6])),
            [(5, 7, 6), (7, 1, 30), (6, 40, 1)]
        );
    }

    #[test]
    fn order_is_kept_where_the_destination_overlaps_itself() {
        let src = Strided::contiguous(&[2, 3]);
        let dst = Strided::new(0, smallvec![2, 3], smallvec![1, 1]);
        assert_eq!(axes(&src, &dst), [(2, 3, 1), (3, 1, 1)]);
    }

    #[test]
    fn backward_destinations_are_walked_forward() {
        let src = Strided::contiguous(&[4]);
        let dst = Strided::new(3, smallvec![4], smallvec![-1]);
        assert_eq!(axes(&src, &dst), [(4, -1, 1)]);
    }
}
