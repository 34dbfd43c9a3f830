//! Boxes of elements as ranges of their own row-major order: how a piece is cut into rounds, and which of its
//! elements lie in which part of the flat array that holds it.

use shard_spec::{Dims, Strides, numel};
use std::ops::Range;

/// A box in a flat row-major array. Its steps are those of a move between layouts: positive, and each at least as long as all
/// that the later dims reach. So the box's own row-major order is the order of the array.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Block {
    /// The place of its first element.
    pub offset: usize,
    /// Its extents.
    pub shape: Dims,
    /// The steps between its elements along each dim.
    pub strides: Strides,
}

impl Block {
    /// The box of these extents and steps from `offset` on.
    pub fn new(offset: usize, shape: &[usize], strides: &[isize]) -> Self {
        Self {
            offset,
            shape: shape.into(),
            strides: strides.into(),
        }
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        numel(&self.shape)
    }

    /// The place in the array of the box's element at a multi-index.
    pub fn place(&self, index: &[usize]) -> usize {
        let steps = index.iter().zip(&self.strides);
        self.offset + steps.map(|(&i, s)| i * s.unsigned_abs()).sum::<usize>()
    }

    /// The place in the array of the box's element number `i`.
    pub fn at(&self, mut i: usize) -> usize {
        let mut place = self.offset;
        for (&extent, stride) in self.shape.iter().zip(&self.strides).rev() {
            place += i % extent * stride.unsigned_abs();
            i /= extent;
        }
        place
    }

    /// How many of the box's elements lie before element `end` of the array. These are its first ones.
    pub fn count_below(&self, end: usize) -> usize {
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
pub struct Cut {
    /// Elements that stay together.
    unit: usize,
    units: usize,
    rounds: usize,
}

/// A round may exceed an even share by at most one part in this many, so that rows stay whole.
pub const UNEVEN: usize = 16;

impl Cut {
    /// A box of these extents in so many rounds.
    pub fn new(shape: &[usize], rounds: usize) -> Self {
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
    pub fn range(&self, round: usize) -> Range<usize> {
        self.start(round)..self.start(round + 1)
    }

    fn start(&self, round: usize) -> usize {
        // Wide, since both factors may be large; the quotient is at most `units`.
        (round as u128 * self.units as u128 / self.rounds as u128) as usize * self.unit
    }

    /// The round of an element.
    pub fn round_of(&self, element: usize) -> usize {
        let unit = (element / self.unit) as u128 + 1;
        ((unit * self.rounds as u128).div_ceil(self.units as u128) - 1) as usize
    }
}

/// One box of a range.
pub struct Part<'a> {
    /// The number of its first element within the whole box.
    pub first: usize,
    /// The multi-index of that.
    pub index: &'a [usize],
    /// Its extents.
    pub shape: &'a [usize],
}

/// Calls `f` with the few boxes that make up a range of a box's elements, in order.
///
/// # Errors
/// The first error of `f`.
pub fn for_each_box<E>(
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
