//! Loop nests over two views at once.

use smallvec::SmallVec;

use crate::Strided;
use crate::view::steps_apart;

/// One loop: how often, and how far each view moves per turn.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Axis {
    extent: usize,
    src: isize,
    dst: isize,
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

impl Nest {
    /// The loops of two checked views; `None` if they are empty.
    ///
    /// Where the destination visits no element twice, the order is free: its steps are sorted and made positive.
    /// Where it does, row-major order is kept, which is the order folds promise.
    pub(crate) fn new(sv: &Strided, dv: &Strided) -> Option<Self> {
        if sv.shape.contains(&0) {
            return None;
        }
        let mut nest = Self {
            axes: SmallVec::new(),
            src: sv.offset as isize,
            dst: dv.offset as isize,
            free: steps_apart(&dv.shape, &dv.strides),
        };
        for ((&extent, &src), &dst) in sv.shape.iter().zip(&sv.strides).zip(&dv.strides) {
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

    /// The loops, outermost first: how often, and the steps of source and destination.
    #[cfg(feature = "cuda")]
    pub(crate) fn axes(&self) -> impl Iterator<Item = (usize, isize, isize)> + '_ {
        (self.axes.iter()).map(|axis| (axis.extent, axis.src, axis.dst))
    }

    /// Whether the destination visits no element twice.
    #[cfg(feature = "cuda")]
    pub(crate) fn is_free(&self) -> bool {
        self.free
    }

    /// Joins neighbouring loops that step through both views as one would.
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

    /// Sets every destination element to `f(old, source)`; `row` does the same for a pair of dense rows.
    pub(super) fn sweep<S: Copy, D: Copy>(
        &self,
        src: &[S],
        dst: &mut [D],
        row: impl Fn(&mut [D], &[S]),
        f: impl Fn(D, S) -> D,
    ) {
        let Some((&inner, outer)) = self.axes.split_last() else {
            let (s, d) = (self.src as usize, self.dst as usize);
            dst[d] = f(dst[d], src[s]);
            return;
        };
        let n = inner.extent;
        match (inner.src, inner.dst) {
            (1, 1) => walk(outer, self.src, self.dst, &mut |s, d| {
                row(&mut dst[d..d + n], &src[s..s + n]);
            }),
            (0, 1) => walk(outer, self.src, self.dst, &mut |s, d| {
                let value = src[s];
                for out in &mut dst[d..d + n] {
                    *out = f(*out, value);
                }
            }),
            (step, 1) => match outer.split_last() {
                Some((&rows, outer)) if self.free && rows.src == 1 => {
                    walk(outer, self.src, self.dst, &mut |s, d| {
                        tiles(rows, inner, |i, j, width| {
                            let s = s as isize + i as isize + j as isize * step;
                            let d = d + i * rows.dst as usize + j;
                            gather(src, s, step, &mut dst[d..d + width], &f);
                        });
                    });
                }
                _ => walk(outer, self.src, self.dst, &mut |s, d| {
                    gather(src, s as isize, step, &mut dst[d..d + n], &f);
                }),
            },
            (s_step, d_step) => walk(outer, self.src, self.dst, &mut |s, d| {
                let (mut s, mut d) = (s as isize, d as isize);
                for _ in 0..n {
                    let out = &mut dst[d as usize];
                    *out = f(*out, src[s as usize]);
                    s += s_step;
                    d += d_step;
                }
            }),
        }
    }

    /// The innermost loop: its extent, and its steps in the source and in the destination.
    pub(super) fn innermost(&self) -> (usize, isize, isize) {
        self.axes
            .last()
            .map_or((1, 1, 1), |a| (a.extent, a.src, a.dst))
    }

    /// Visits where each innermost loop begins, in the source and in the destination.
    pub(super) fn starts(&self, mut visit: impl FnMut(isize, isize)) {
        let outer = self.axes.split_last().map_or(&[][..], |(_, outer)| outer);
        walk(outer, self.src, self.dst, &mut |s, d| {
            visit(s as isize, d as isize);
        });
    }

    /// Calls `row` for each pair of dense rows; the innermost loop must be dense in both views.
    pub(super) fn rows<S, D>(&self, src: &[S], dst: &mut [D], row: impl Fn(&mut [D], &[S])) {
        let Some((inner, outer)) = self.axes.split_last() else {
            return;
        };
        let n = inner.extent;
        walk(outer, self.src, self.dst, &mut |s, d| {
            row(&mut dst[d..d + n], &src[s..s + n]);
        });
    }
}

/// Visits the start of every innermost row.
fn walk(axes: &[Axis], src: isize, dst: isize, visit: &mut impl FnMut(usize, usize)) {
    match axes {
        [] => visit(src as usize, dst as usize),
        // Not by the recursion below: short rows must not pay for a call each.
        [axis] => {
            let (mut s, mut d) = (src, dst);
            for _ in 0..axis.extent {
                visit(s as usize, d as usize);
                s += axis.src;
                d += axis.dst;
            }
        }
        [axis, inner @ ..] => {
            let (mut s, mut d) = (src, dst);
            for _ in 0..axis.extent {
                walk(inner, s, d, visit);
                s += axis.src;
                d += axis.dst;
            }
        }
    }
}

/// Visits the rows `(i, j..j + width)` of two loops tile by tile.
fn tiles(rows: Axis, columns: Axis, mut visit: impl FnMut(usize, usize, usize)) {
    for i0 in (0..rows.extent).step_by(TILE) {
        for j in (0..columns.extent).step_by(TILE) {
            let width = TILE.min(columns.extent - j);
            for i in i0..(i0 + TILE).min(rows.extent) {
                visit(i, j, width);
            }
        }
    }
}

/// Combines a strided source into a dense row.
fn gather<S: Copy, D: Copy>(
    src: &[S],
    start: isize,
    step: isize,
    row: &mut [D],
    f: &impl Fn(D, S) -> D,
) {
    if step > 0 {
        let column = src[start as usize..].iter().step_by(step as usize);
        for (out, &value) in row.iter_mut().zip(column) {
            *out = f(*out, value);
        }
    } else {
        let mut s = start;
        for out in row {
            *out = f(*out, src[s as usize]);
            s += step;
        }
    }
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
