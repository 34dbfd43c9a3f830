//! Boxes of the global index space.

use std::fmt;
use std::ops::Range;

use crate::dims::{Dims, numel};

/// A half-open box of global indices, `lo[d]..hi[d]` per dim.
///
/// ```
/// use shard_spec::IndexBox;
/// let a = IndexBox::new([0, 2], [4, 6]);
/// let b = IndexBox::new([3, 0], [9, 3]);
/// assert_eq!(a.intersect(&b), Some(IndexBox::new([3, 2], [4, 3])));
/// assert_eq!(a.numel(), 16);
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct IndexBox {
    /// First index per dim.
    pub lo: Dims,
    /// One past the last index per dim.
    pub hi: Dims,
}

impl IndexBox {
    /// The box `lo..hi`. Where the corners differ in length, only the dims that both have count.
    pub fn new(lo: impl IntoIterator<Item = usize>, hi: impl IntoIterator<Item = usize>) -> Self {
        let (lo, hi) = lo.into_iter().zip(hi).unzip();
        Self { lo, hi }
    }

    /// The box of a whole tensor.
    pub fn whole(shape: &[usize]) -> Self {
        shape.iter().map(|&n| 0..n).collect()
    }

    /// Number of dims.
    pub fn ndim(&self) -> usize {
        self.lo.len()
    }

    /// The indices along one dim.
    ///
    /// # Panics
    /// Where `dim >= ndim()`.
    pub fn interval(&self, dim: usize) -> Range<usize> {
        self.lo[dim]..self.hi[dim]
    }

    /// Extent per dim; 0 where a corner is inverted.
    pub fn shape(&self) -> Dims {
        self.lo
            .iter()
            .zip(&self.hi)
            .map(|(&l, &h)| h.saturating_sub(l))
            .collect()
    }

    /// Number of indices inside.
    pub fn numel(&self) -> usize {
        numel(&self.shape())
    }

    /// Whether no index is inside. A box without dims holds one.
    pub fn is_empty(&self) -> bool {
        self.lo.iter().zip(&self.hi).any(|(l, h)| l >= h)
    }

    /// The indices inside both boxes; `None` where there are none, or where their dims differ in number.
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        if self.ndim() != other.ndim() {
            return None;
        }
        let both: Self = (0..self.ndim())
            .map(|d| self.lo[d].max(other.lo[d])..self.hi[d].min(other.hi[d]))
            .collect();
        (!both.is_empty()).then_some(both)
    }

    /// Whether an index is inside.
    pub fn contains(&self, index: &[usize]) -> bool {
        index.len() == self.ndim() && (0..self.ndim()).all(|d| self.interval(d).contains(&index[d]))
    }

    /// Whether every index of `other` is inside; an empty box is inside every box.
    pub fn contains_box(&self, other: &Self) -> bool {
        other.is_empty() || self.intersect(other).as_ref() == Some(other)
    }
}

impl FromIterator<Range<usize>> for IndexBox {
    fn from_iter<I: IntoIterator<Item = Range<usize>>>(intervals: I) -> Self {
        let (lo, hi) = intervals.into_iter().map(|r| (r.start, r.end)).unzip();
        Self { lo, hi }
    }
}

impl fmt::Debug for IndexBox {
    /// `[0..4, 2..6]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries((0..self.ndim()).map(|d| self.interval(d)))
            .finish()
    }
}
