//! Whether the pieces that a plan writes have elements in common.

use shard_device::view::span;
use shard_spec::{Intersection, Progression};
use smallvec::{SmallVec, smallvec};

use super::pieces::{PieceRef, Pieces};
use crate::Result;

/// How the destinations of the received pieces overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Collisions {
    /// No element is written twice.
    Disjoint,
    /// Pieces write the same elements or have none in common, as in a reduction: see [`ExchangePlan::stacks`].
    Stacked,
    /// Anything else.
    Mixed,
}

/// Received pieces with one destination and equal strides in their sources, in fold order, by their positions in the
/// plan.
pub(crate) type Stack = SmallVec<[usize; 4]>;

/// The pieces by destination; `None` if some overlap without being equal, or have different strides in their sources.
pub(super) fn stacks(pieces: &Pieces) -> Result<Option<Vec<Stack>>> {
    let mut order: Vec<(usize, PieceRef<'_>)> = pieces.iter().enumerate().collect();
    order.sort_by_key(|(_, piece)| piece.dst_offset);
    let (mut firsts, mut stacks): (Vec<PieceRef<'_>>, Vec<Stack>) = (Vec::new(), Vec::new());
    for (k, piece) in order {
        match (firsts.last(), stacks.last_mut()) {
            (Some(first), Some(stack)) if first.dst_offset == piece.dst_offset => {
                let same = first.shape == piece.shape
                    && first.dst_strides == piece.dst_strides
                    && first.src_strides == piece.src_strides;
                if !same {
                    return Ok(None);
                }
                stack.push(k);
            }
            _ => {
                firsts.push(piece);
                stacks.push(smallvec![k]);
            }
        }
    }
    let mut ranges = (firsts.iter())
        .map(|p| span(p.dst_offset, p.shape, p.dst_strides))
        .collect::<Result<SmallVec<[_; 8]>, _>>()?;
    // In which order sums are formed is not left to how many there are.
    let apart = are_disjoint(firsts.into_iter(), &mut ranges, usize::MAX);
    Ok(apart.then_some(stacks))
}

/// Whether no element is written by two pieces, as far as it can be told: disjoint ranges, or disjoint boxes of one array, of which no
/// more than `most` are compared with each other one by one.
pub(super) fn are_disjoint<'a>(
    pieces: impl Iterator<Item = PieceRef<'a>> + Clone,
    ranges: &mut [std::ops::Range<usize>],
    most: usize,
) -> bool {
    ranges.sort_unstable_by_key(|r| r.start);
    if ranges.windows(2).all(|w| w[0].end <= w[1].start) {
        return true;
    }
    boxes(pieces).is_some_and(|mut boxes| are_apart(&mut boxes, 0, most))
}

/// The indices of a piece along each dim of an array, the dim with the largest stride first.
type Corner = SmallVec<[Progression; 6]>;

/// Whether no two boxes have an element in common. Those that lie one after the other along this dim have none; the others are looked
/// at along the next.
fn are_apart(boxes: &mut [Corner], dim: usize, most: usize) -> bool {
    if boxes.len() < 2 {
        return true;
    }
    if dim == boxes[0].len() {
        let never = |a: &Corner, b: &Corner| {
            let mut dims = a.iter().zip(b);
            dims.any(|(a, b)| a.intersect(b) == Intersection::Never)
        };
        let mut all = boxes.iter().enumerate();
        return boxes.len() <= most && all.all(|(i, a)| boxes[..i].iter().all(|b| never(a, b)));
    }
    boxes.sort_unstable_by_key(|one| one[dim].start);
    let (mut begin, mut end) = (0, isize::MIN);
    for i in 0..boxes.len() {
        let along = boxes[i][dim];
        if along.start >= end {
            if !are_apart(&mut boxes[begin..i], dim + 1, most) {
                return false;
            }
            begin = i;
        }
        end = end.max(last(&along) + 1);
    }
    are_apart(&mut boxes[begin..], dim + 1, most)
}

/// The pieces as boxes of one array, of which they may leave out indices; `None` if they are not such boxes.
///
/// The stride of a dim is the largest of which all steps along it are multiples. For example, of a row of 3 a piece at 0 with 2 elements,
/// 2 apart, and a piece at 1 with one element: along the row, whose stride is 2, both have index 0, and what is left is 0 and 1.
fn boxes<'a>(pieces: impl Iterator<Item = PieceRef<'a>> + Clone) -> Option<Vec<Corner>> {
    let ndim = pieces.clone().next()?.shape.len();
    let mut steps: SmallVec<[usize; 6]> = smallvec![0; ndim];
    for piece in pieces.clone() {
        if piece.shape.len() != ndim {
            return None;
        }
        for d in (0..ndim).filter(|&d| piece.shape[d] > 1) {
            let step = usize::try_from(piece.dst_strides[d])
                .ok()
                .filter(|&s| s > 0)?;
            steps[d] = gcd(steps[d], step);
        }
    }
    // Where no piece has more than one index, what it has follows from the other dims.
    let mut order: SmallVec<[usize; 6]> = (0..ndim).filter(|&d| steps[d] > 0).collect();
    order.sort_by_key(|&d| std::cmp::Reverse(steps[d]));
    // None beyond what numbers hold, nor the last of them: the index after each is one too.
    let indices = |start: usize, step: usize, len: usize| {
        let reach = len.saturating_sub(1).checked_mul(step)?;
        let last = isize::try_from(start.checked_add(reach)?).ok()?;
        (last < isize::MAX).then_some(Progression {
            start: start as isize,
            step: step as isize,
            len,
        })
    };
    let corner = |piece: PieceRef<'a>| {
        let mut rest = piece.dst_offset;
        let mut corner = Corner::new();
        for &d in &order {
            let (stride, len) = (steps[d], piece.shape[d]);
            let step = match len {
                0 | 1 => 1,
                _ => piece.dst_strides[d].unsigned_abs() / stride,
            };
            corner.push(indices(rest / stride, step, len)?);
            rest %= stride;
        }
        corner.push(indices(rest, 1, 1)?);
        // A box that reaches past its row would wrap into the next row: then it is not a box of the array.
        let mut reach = rest;
        for (&d, along) in order.iter().zip(&corner).rev() {
            if reach >= steps[d] {
                return None;
            }
            let last = last(along).unsigned_abs();
            reach = last.checked_mul(steps[d])?.checked_add(reach)?;
        }
        Some(corner)
    };
    pieces.map(corner).collect()
}

/// The last of some indices.
fn last(of: &Progression) -> isize {
    of.at(of.len.saturating_sub(1))
}

fn gcd(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        b => gcd(b, a % b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExchangePlan, Piece};

    fn block(shape: &[usize], at: usize, strides: &[isize]) -> Piece {
        Piece {
            peer: 0,
            source: 0,
            shape: shape.into(),
            src_offset: 0,
            src_strides: shard_spec::row_major_strides(shape),
            dst_offset: at,
            dst_strides: strides.into(),
        }
    }

    fn overlap(pieces: Vec<Piece>) -> Collisions {
        ExchangePlan::new("t", 0, pieces.into(), Pieces::new(), None, None).collisions()
    }

    #[test]
    fn boxes_of_one_array_are_told_apart() {
        // The four quadrants of a 4x6 array interleave in memory, yet do not overlap.
        let quads = [(0, 2, 3), (3, 2, 3), (12, 2, 3), (15, 2, 3)];
        let pieces: Vec<_> = quads
            .iter()
            .map(|&(at, h, w)| block(&[h, w], at, &[6, 1]))
            .collect();
        assert_eq!(overlap(pieces.clone()), Collisions::Disjoint);
        let plan = ExchangePlan::new("t", 0, pieces.clone().into(), Pieces::new(), None, None);
        assert!(plan.covers(24) && !plan.covers(25));
        let mut bigger = pieces;
        bigger[0] = block(&[2, 4], 0, &[6, 1]);
        assert_eq!(overlap(bigger), Collisions::Mixed);
    }

    #[test]
    fn wrapping_boxes_are_not_called_disjoint() {
        // The first box reaches past its row of 4 into element 4, where the second one begins.
        let pieces = vec![block(&[2, 3], 2, &[4, 1]), block(&[1, 2], 4, &[4, 1])];
        assert_eq!(overlap(pieces), Collisions::Mixed);
    }

    #[test]
    fn reductions_are_stacked() {
        let pieces = vec![Piece::run(0, 0, 4, 0, 0), Piece::run(1, 0, 4, 8, 0)];
        assert_eq!(overlap(pieces), Collisions::Stacked);
        assert_eq!(overlap(vec![block(&[3], 0, &[0])]), Collisions::Mixed);
        // Two terms of each half of the columns of a 4x6 array.
        let halves = [0, 3, 0, 3].map(|at| block(&[4, 3], at, &[6, 1]));
        let plan = ExchangePlan::new("t", 0, halves.clone().into(), Pieces::new(), None, None);
        assert_eq!(plan.collisions(), Collisions::Stacked);
        let stacks: Vec<_> = plan.stacks().iter().map(|s| s.to_vec()).collect();
        assert_eq!(stacks, [[0, 2], [1, 3]]);
        assert!(plan.covers(24) && !plan.covers(48));
        // Of a row of 5 every other element from two ranks, and the others from two others.
        let every_other = |at, n| block(&[1, n], at, &[5, 2]);
        let both = vec![
            every_other(0, 3),
            every_other(0, 3),
            every_other(1, 2),
            every_other(1, 2),
        ];
        assert_eq!(overlap(both), Collisions::Stacked);
        // Those that have an element in common, and a single one that was cut from another row.
        let some = vec![block(&[1, 3], 0, &[6, 2]), block(&[1, 2], 1, &[6, 3])];
        assert_eq!(overlap(some), Collisions::Mixed);
        let none = vec![block(&[2, 3], 0, &[6, 2]), block(&[1, 1], 3, &[1, 1])];
        assert_eq!(overlap(none), Collisions::Disjoint);
        // Steps as large as numbers can be.
        let most = isize::MAX;
        for (step, at) in [(most, 0), (most - 1, 1), (most - 5, 2)] {
            let far = vec![block(&[2], at, &[step]), block(&[4], 0, &[1])];
            overlap(far.clone());
            overlap([&far[..], &far[..]].concat());
        }
        // The same places, with one column less.
        let mut torn = halves.to_vec();
        torn[2] = block(&[4, 2], 0, &[6, 1]);
        assert_eq!(overlap(torn), Collisions::Mixed);
    }
}
