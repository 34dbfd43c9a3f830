//! Boxes of elements as ranges of their own row-major order: how a piece is cut into rounds, and which of its
//! elements lie in which part of the flat array that holds it.

use shard_spec::{Dims, Strides, numel};
use std::ops::Range;

/// A box in a flat row-major array. Its steps are those of a move between layouts: positive, and each at least as long as all
/// that the later dims reach. So the box's own row-major order is the order of the array.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Block {
    pub(super) offset: usize,
    pub(super) shape: Dims,
    pub(super) strides: Strides,
}

impl Block {
    pub(super) fn new(offset: usize, shape: &[usize], strides: &[isize]) -> Self {
        Self {
            offset,
            shape: shape.into(),
            strides: strides.into(),
        }
    }

    pub(super) fn numel(&self) -> usize {
        numel(&self.shape)
    }

    /// The place in the array of the box's element at a multi-index.
    pub(super) fn place(&self, index: &[usize]) -> usize {
        let steps = index.iter().zip(&self.strides);
        self.offset + steps.map(|(&i, s)| i * s.unsigned_abs()).sum::<usize>()
    }

    /// The place in the array of the box's element number `i`.
    pub(super) fn at(&self, mut i: usize) -> usize {
        let mut place = self.offset;
        for (&extent, stride) in self.shape.iter().zip(&self.strides).rev() {
            place += i % extent * stride.unsigned_abs();
            i /= extent;
        }
        place
    }

    /// How many of the box's elements lie before element `end` of the array. These are its first ones.
    pub(super) fn count_below(&self, end: usize) -> usize {
        let Some(mut rest) = end.checked_sub(self.offset) else {
            return 0;
        };
        if self.shape.is_empty() {
            return usize::from(rest > 0);
        }
        let mut inner = self.numel();
        let mut count = 0;
        for (d, (&extent, stride)) in self.shape.iter().zip(&self.strides).enumerate() {
            let stride = stride.unsigned_abs();
            inner /= extent;
            if d + 1 == self.shape.len() {
                return count + rest.div_ceil(stride).min(extent);
            }
            let whole = rest / stride;
            if whole >= extent {
                return count + extent * inner;
            }
            count += whole * inner;
            rest -= whole * stride;
        }
        count
    }
}

/// How a box is cut into rounds: where that is nearly even, into whole rows, planes and so on, so that each part is one box.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// Elements that stay together.
    unit: usize,
    units: usize,
    rounds: usize,
}

/// A round may exceed an even share by at most one part in this many, so that rows stay whole.
pub(super) const UNEVEN: usize = 16;

impl Cut {
    pub(super) fn new(shape: &[usize], rounds: usize) -> Self {
        let n = numel(shape);
        let mut unit = 1;
        for &extent in shape.iter().rev() {
            let larger = unit * extent;
            if larger == 0 || larger.saturating_mul(UNEVEN).saturating_mul(rounds) > n {
                break;
            }
            unit = larger;
        }
        Self {
            unit,
            units: n / unit,
            rounds,
        }
    }

    /// The elements of a round.
    pub(super) fn range(&self, round: usize) -> Range<usize> {
        self.start(round)..self.start(round + 1)
    }

    fn start(&self, round: usize) -> usize {
        // Wide, since both factors may be large; the quotient is at most `units`.
        (round as u128 * self.units as u128 / self.rounds as u128) as usize * self.unit
    }

    /// The round of an element.
    pub(super) fn round_of(&self, element: usize) -> usize {
        let unit = (element / self.unit) as u128 + 1;
        ((unit * self.rounds as u128).div_ceil(self.units as u128) - 1) as usize
    }
}

/// One box of a range: the number and multi-index of its first element within the whole box, and its extents.
pub(super) struct Part<'a> {
    pub(super) first: usize,
    pub(super) index: &'a [usize],
    pub(super) shape: &'a [usize],
}

/// Calls `f` with the few boxes that make up a range of a box's elements, in order.
///
/// # Errors
/// The first error of `f`.
pub(super) fn for_each_box<E>(
    range: Range<usize>,
    shape: &[usize],
    mut f: impl FnMut(Part<'_>) -> Result<(), E>,
) -> Result<(), E> {
    if range.is_empty() {
        return Ok(());
    }
    let mut walk = Walk {
        whole: shape,
        first: range.start,
        index: Dims::from_elem(0, shape.len()),
        shape: Dims::from_elem(1, shape.len()),
        f: &mut f,
    };
    walk.split(0, numel(shape), range)
}

struct Walk<'a, F> {
    whole: &'a [usize],
    first: usize,
    index: Dims,
    shape: Dims,
    f: &'a mut F,
}

impl<E, F: FnMut(Part<'_>) -> Result<(), E>> Walk<'_, F> {
    /// Splits a range of the `n` elements of dims `d..`.
    fn split(&mut self, d: usize, n: usize, range: Range<usize>) -> Result<(), E> {
        if d == self.whole.len() {
            return self.found();
        }
        let inner = n / self.whole[d];
        let (mut lo, hi) = (range.start / inner, range.end / inner);
        let (before, after) = (range.start % inner, range.end % inner);
        if before > 0 {
            let end = if lo == hi { after } else { inner };
            self.one(d, lo, inner, before..end)?;
            lo += 1;
        }
        if lo < hi {
            (self.index[d], self.shape[d]) = (lo, hi - lo);
            self.index[d + 1..].fill(0);
            self.shape[d + 1..].copy_from_slice(&self.whole[d + 1..]);
            self.found()?;
        }
        if after > 0 && lo <= hi {
            self.one(d, hi, inner, 0..after)?;
        }
        Ok(())
    }

    /// Splits a range within one index of a dim.
    fn one(&mut self, d: usize, at: usize, inner: usize, range: Range<usize>) -> Result<(), E> {
        (self.index[d], self.shape[d]) = (at, 1);
        self.split(d + 1, inner, range)
    }

    fn found(&mut self) -> Result<(), E> {
        let first = self.first;
        self.first += numel(&self.shape);
        (self.f)(Part {
            first,
            index: &self.index,
            shape: &self.shape,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use shard_spec::row_major_strides;
    use std::convert::Infallible;

    /// A box within a row-major array, with steps between its elements.
    fn block() -> impl Strategy<Value = Block> {
        prop::collection::vec((1_usize..5, 0_usize..3, 1_usize..3, 0_usize..3), 0..4).prop_map(
            |dims| {
                let extents: Vec<usize> = dims
                    .iter()
                    .map(|&(n, before, step, after)| before + (n - 1) * step + 1 + after)
                    .collect();
                let rows = row_major_strides(&extents);
                Block {
                    offset: dims.iter().zip(&rows).map(|(d, &s)| d.1 * s as usize).sum(),
                    shape: dims.iter().map(|d| d.0).collect(),
                    strides: dims
                        .iter()
                        .zip(&rows)
                        .map(|(d, &s)| d.2 as isize * s)
                        .collect(),
                }
            },
        )
    }

    proptest! {
        #[test]
        fn the_first_elements_are_those_before(block in block(), end in 0_usize..200) {
            let places: Vec<usize> = (0..block.numel()).map(|i| block.at(i)).collect();
            prop_assert!(places.is_sorted());
            prop_assert_eq!(block.count_below(end), places.iter().filter(|&&p| p < end).count());
        }

        #[test]
        fn rounds_are_nearly_even_and_know_their_elements(
            shape in prop::collection::vec(1_usize..40, 0..4), rounds in 1_usize..50,
        ) {
            let (n, cut) = (numel(&shape), Cut::new(&shape, rounds));
            let mut next = 0;
            for round in 0..rounds {
                let range = cut.range(round);
                prop_assert_eq!(range.start, next);
                prop_assert!(range.len() * UNEVEN * rounds <= n * (UNEVEN + 1) + UNEVEN * rounds);
                for element in range.clone() {
                    prop_assert_eq!(cut.round_of(element), round);
                }
                next = range.end;
            }
            prop_assert_eq!(next, n);
        }

        #[test]
        fn a_range_is_its_boxes(block in block(), a in 0.0..=1.0, b in 0.0..=1.0) {
            let n = block.numel();
            let at = |x: f64| (x * n as f64) as usize;
            let range = at(f64::min(a, b))..at(f64::max(a, b));
            let (mut seen, mut boxes) = (Vec::new(), 0);
            for_each_box(range.clone(), &block.shape, |part| {
                assert_eq!(part.first, range.start + seen.len());
                let part = Block {
                    offset: block.place(part.index),
                    shape: part.shape.into(),
                    strides: block.strides.clone(),
                };
                seen.extend((0..part.numel()).map(|i| part.at(i)));
                boxes += 1;
                Ok::<(), Infallible>(())
            })
            .unwrap();
            prop_assert_eq!(seen, range.map(|i| block.at(i)).collect::<Vec<_>>());
            prop_assert!(boxes < (2 * block.shape.len()).max(2));
        }
    }
}
