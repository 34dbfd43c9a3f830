//! Covers: what parts need rather than own. Intervals may overlap.

use std::ops::Range;

use smallvec::SmallVec;

use crate::hash::{ContentHash, StableHasher};
use crate::layout::{DimSharding, Layout};
use crate::mesh::DeviceMesh;

/// One interval per flat part of a dim, overlapping or empty: the destination of a halo exchange.
///
/// A cover of a tensor is the product of one of these per dim.
///
/// ```
/// use shard_spec::{DimCover, DimSharding, Partition};
/// let own = DimSharding { axes: [0].into_iter().collect(), partition: Partition::chunk(8, 2) };
/// let mut halo = DimCover::from(&own);
/// halo.intervals = vec![0..5, 3..8];
/// assert_eq!(halo.max_size(), 5);
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DimCover {
    /// The mesh axes, major first; empty where every rank needs the same interval.
    pub axes: SmallVec<[usize; 2]>,
    /// One interval per rank along those axes, row-major in their order.
    pub intervals: Vec<Range<usize>>,
}

impl DimCover {
    /// Every rank needs all of a dim.
    pub fn whole(extent: usize) -> Self {
        #[expect(
            clippy::single_range_in_vec_init,
            reason = "one part that needs this range"
        )]
        let intervals = vec![0..extent];
        Self {
            axes: SmallVec::new(),
            intervals,
        }
    }

    /// What each part of a layout owns of one dim: its intervals, without overlap.
    pub fn of(layout: &Layout, dim: usize) -> Self {
        match layout.sharding(dim) {
            Some(sharding) => Self::from(sharding),
            None => Self::whole(layout.shape()[dim]),
        }
    }

    /// The interval of the member of `mesh` at these coordinates.
    pub fn at(&self, mesh: &DeviceMesh, coords: &[usize]) -> Range<usize> {
        self.intervals[mesh.part_at(&self.axes, coords)].clone()
    }

    /// Number of flat parts.
    pub fn parts(&self) -> usize {
        self.intervals.len()
    }

    /// The largest interval.
    pub fn max_size(&self) -> usize {
        self.intervals.iter().map(Range::len).max().unwrap_or(0)
    }
}

impl From<&DimSharding> for DimCover {
    fn from(sharding: &DimSharding) -> Self {
        let partition = &sharding.partition;
        let intervals = (0..partition.parts())
            .map(|part| partition.interval(part))
            .collect();
        Self {
            axes: sharding.axes.clone(),
            intervals,
        }
    }
}

impl ContentHash for DimCover {
    fn feed(&self, hasher: &mut StableHasher) {
        hasher.str("cover");
        hasher.usizes(&self.axes);
        hasher.usize(self.intervals.len());
        for interval in &self.intervals {
            hasher.usize(interval.start);
            hasher.usize(interval.end);
        }
    }
}
