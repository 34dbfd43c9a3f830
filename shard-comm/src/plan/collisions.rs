//! Whether the pieces that a plan writes have elements in common.

use shard_device::view::span;
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
    Ok(are_disjoint(firsts.into_iter(), &mut ranges).then_some(stacks))
}

/// Whether no element is written by two pieces, as far as cheap tests can tell: disjoint ranges, or disjoint boxes of one
/// array.
pub(super) fn are_disjoint<'a>(
    pieces: impl ExactSizeIterator<Item = PieceRef<'a>> + Clone,
    ranges: &mut [std::ops::Range<usize>],
) -> bool {
    ranges.sort_unstable_by_key(|r| r.start);
    if ranges.windows(2).all(|w| w[0].end <= w[1].start) {
        return true;
    }
    /// Pairs are compared one by one; with more pieces than this the general path costs less than the proof.
    const MOST: usize = 256;
    if pieces.len() > MOST {
        return false;
    }
    let Some(boxes) = boxes(pieces) else {
        return false;
    };
    boxes.iter().enumerate().all(|(i, a)| {
        boxes[..i]
            .iter()
            .all(|b| a.iter().zip(b).any(|(a, b)| a.1 <= b.0 || b.1 <= a.0))
    })
}

type Corner = SmallVec<[(usize, usize); 7]>;

/// The pieces as boxes of one array whose strides they share; `None` if they are not such boxes.
fn boxes<'a>(pieces: impl Iterator<Item = PieceRef<'a>>) -> Option<Vec<Corner>> {
    let mut pieces = pieces.peekable();
    let strides = pieces.peek()?.dst_strides;
    let mut order: SmallVec<[usize; 6]> = (0..strides.len()).collect();
    order.sort_by_key(|&d| std::cmp::Reverse(strides[d]));
    pieces
        .map(|piece| {
            if piece.dst_strides != strides {
                return None;
            }
            let mut rest = piece.dst_offset;
            let mut room = usize::MAX;
            let mut corner = Corner::new();
            for &d in &order {
                let stride = usize::try_from(strides[d]).ok().filter(|&s| s > 0)?;
                let lo = rest / stride;
                rest %= stride;
                let hi = lo + piece.shape[d];
                // A box that reaches past its row would wrap into the next row: then it is not a box of the array.
                if room != usize::MAX && hi.checked_mul(stride)? > room {
                    return None;
                }
                corner.push((lo, hi));
                room = stride;
            }
            corner.push((rest, rest + 1));
            Some(corner)
        })
        .collect()
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
        // The same places, with one column less.
        let mut torn = halves.to_vec();
        torn[2] = block(&[4, 2], 0, &[6, 1]);
        assert_eq!(overlap(torn), Collisions::Mixed);
    }
}
