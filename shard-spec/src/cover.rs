//! Covers: the indices that parts need, as opposed to those that they own. The parts of a cover may overlap.

use std::ops::Range;

use smallvec::SmallVec;

use crate::hash::{ContentHash, StableHasher};
use crate::layout::{DimSharding, Layout};
use crate::mesh::DeviceMesh;
use crate::part::DimPart;
use crate::partition::Partition;

/// The indices of one dim that each flat part needs, such as its own rows and a halo: the destination of an exchange.
///
/// A cover of a tensor is the product of one `DimCover` per dim.
///
/// ```
/// use shard_spec::{DimCover, DimSharding, Partition};
/// let own = DimSharding { axes: [0].into_iter().collect(), partition: Partition::chunk(8, 2) };
/// let halo = DimCover::intervals(&own.axes, vec![0..5, 3..8]);
/// assert_eq!((DimCover::from(&own).max_size(), halo.max_size()), (4, 5));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[doc(alias = "halo")]
#[doc(alias = "ghost")]
pub struct DimCover {
    /// The mesh axes, major first; empty where every rank needs the same.
    pub axes: SmallVec<[usize; 2]>,
    /// One part per rank along those axes, row-major in their order.
    pub parts: CoverParts,
}

/// The parts of a [`DimCover`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum CoverParts {
    /// One interval per part. Intervals may overlap, as halos do, and may be empty.
    Intervals(Vec<Range<usize>>),
    /// The parts of a partition, which do not overlap.
    Partition(Partition),
}

impl DimCover {
    /// One interval for each part along these axes.
    pub fn intervals(axes: &[usize], intervals: Vec<Range<usize>>) -> Self {
        Self {
            axes: SmallVec::from_slice(axes),
            parts: CoverParts::Intervals(intervals),
        }
    }

    /// Every rank needs all of a dim.
    pub fn whole(extent: usize) -> Self {
        Self {
            axes: SmallVec::new(),
            parts: CoverParts::Partition(Partition::chunk(extent, 1)),
        }
    }

    /// The indices of one dim that each part of a layout owns, without overlap.
    pub fn of(layout: &Layout, dim: usize) -> Self {
        match layout.sharding(dim) {
            Some(sharding) => Self::from(sharding),
            None => Self::whole(layout.shape()[dim]),
        }
    }

    /// The indices that the member of `mesh` at these coordinates needs.
    pub fn at(&self, mesh: &DeviceMesh, coords: &[usize]) -> DimPart {
        self.part(mesh.part_at(&self.axes, coords))
    }

    /// The indices that a part needs.
    ///
    /// # Panics
    /// Where `part >= count()`.
    pub fn part(&self, part: usize) -> DimPart {
        self.parts.get(part)
    }

    /// The number of indices a part needs.
    ///
    /// # Panics
    /// Where `part >= count()`.
    pub fn size(&self, part: usize) -> usize {
        match &self.parts {
            CoverParts::Intervals(intervals) => intervals[part].len(),
            CoverParts::Partition(partition) => partition.size(part),
        }
    }

    /// Number of flat parts.
    pub fn count(&self) -> usize {
        self.parts.len()
    }

    /// The most indices that one part needs.
    pub fn max_size(&self) -> usize {
        (0..self.count()).map(|p| self.size(p)).max().unwrap_or(0)
    }
}

impl CoverParts {
    /// Number of parts.
    pub fn len(&self) -> usize {
        match self {
            Self::Intervals(intervals) => intervals.len(),
            Self::Partition(partition) => partition.parts(),
        }
    }

    /// Whether there are no parts.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One part.
    ///
    /// # Panics
    /// Where `part >= len()`.
    pub fn get(&self, part: usize) -> DimPart {
        match self {
            Self::Intervals(intervals) => intervals[part].clone().into(),
            Self::Partition(partition) => partition.part(part),
        }
    }
}

impl From<&DimSharding> for DimCover {
    fn from(sharding: &DimSharding) -> Self {
        Self {
            axes: sharding.axes.clone(),
            parts: CoverParts::Partition(sharding.partition.clone()),
        }
    }
}

impl ContentHash for DimCover {
    fn feed(&self, hasher: &mut StableHasher) {
        hasher.str("cover");
        hasher.usizes(&self.axes);
        match &self.parts {
            CoverParts::Partition(partition) => partition.feed(hasher),
            CoverParts::Intervals(intervals) => {
                hasher.usize(intervals.len());
                for interval in intervals {
                    hasher.usize(interval.start);
                    hasher.usize(interval.end);
                }
            }
        }
    }
}
