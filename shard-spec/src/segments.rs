//! Partitions whose parts are several intervals: zigzag, striped, block-cyclic.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::dim_map::{DimMap, Run};
use crate::error::{Result, SpecError};
use crate::hash::{ContentHash, StableHasher};

/// Consecutive tiles of a dim, each owned by a part, repeated with a period. Always valid.
///
/// A part holds its tiles one after the other, in the order of their indices. Periodic forms are kept compressed: 8 parts
/// striped over a million indices are 8 tiles.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Segments(Arc<Table>);

#[derive(PartialEq, Eq, Hash)]
struct Table {
    extent: usize,
    /// The tiles of one period: tile `t` is `bounds[t]..bounds[t + 1]`, the last bound is the period, which is the extent
    /// where nothing repeats.
    bounds: Vec<usize>,
    owners: Vec<usize>,
    /// Where each tile begins among its owner's indices of one period.
    starts: Vec<usize>,
    /// Indices of each part in one period, and in all.
    shares: Vec<usize>,
    sizes: Vec<usize>,
}

/// Tiles as they are described, told one way: none empty, no two neighbours of one owner, none beyond the extent.
pub(crate) enum Tiles {
    /// One interval per part in part order: an offset table.
    Contiguous(Vec<usize>),
    /// Anything else.
    Scattered(Segments),
}

/// More parts than any mesh has ranks: what is written down may say anything, and each part takes memory.
const MOST_PARTS: usize = 1 << 24;

impl Tiles {
    /// Tiles `(part, size)` in index order, which must cover the extent once, or are repeated over it.
    pub(crate) fn new(
        extent: usize,
        parts: usize,
        tiles: &[(usize, usize)],
        repeated: bool,
    ) -> Result<Self> {
        let op = "from_segments";
        if parts == 0 {
            return Err(SpecError::PartCount {
                op,
                expected: 1,
                got: 0,
            });
        }
        if parts > MOST_PARTS {
            return Err(SpecError::Argument {
                op,
                argument: "parts",
                got: parts.to_string(),
                expected: format!("at most {MOST_PARTS}"),
                remedy: "there is one part per rank along the axes",
            });
        }
        if let Some(&(part, _)) = tiles.iter().find(|(part, _)| *part >= parts) {
            return Err(SpecError::Argument {
                op,
                argument: "tiles",
                got: format!("a tile of part {part}"),
                expected: format!("parts below {parts}"),
                remedy: "number the parts from 0, one per rank along the axes",
            });
        }
        let mut merged: Vec<(usize, usize)> = Vec::new();
        let mut period = 0usize;
        for &(part, size) in tiles.iter().filter(|(_, size)| *size > 0) {
            let left = extent.saturating_sub(period);
            if repeated && left == 0 {
                break;
            }
            let size = if repeated { size.min(left) } else { size };
            period = period.checked_add(size).ok_or(SpecError::Extent {
                op,
                expected: extent,
                got: usize::MAX,
            })?;
            match merged.last_mut() {
                Some((last, run)) if *last == part => *run += size,
                _ => merged.push((part, size)),
            }
        }
        if period != extent && (!repeated || period == 0) {
            return Err(SpecError::Extent {
                op,
                expected: extent,
                got: period,
            });
        }
        if let [(_, size)] = &mut merged[..] {
            *size = extent;
            period = extent;
        }
        if period == extent && merged.windows(2).all(|w| w[0].0 < w[1].0) {
            let mut offsets = vec![0; parts + 1];
            for &(part, size) in &merged {
                offsets[part + 1] = size;
            }
            for part in 0..parts {
                offsets[part + 1] += offsets[part];
            }
            return Ok(Self::Contiguous(offsets));
        }
        Ok(Self::Scattered(Segments::of(extent, parts, &merged)))
    }
}

impl Segments {
    fn of(extent: usize, parts: usize, tiles: &[(usize, usize)]) -> Self {
        let (mut bounds, mut owners, mut starts) = (vec![0], Vec::new(), Vec::new());
        let mut shares = vec![0; parts];
        let mut end = 0;
        for &(part, size) in tiles {
            starts.push(shares[part]);
            owners.push(part);
            shares[part] += size;
            end += size;
            bounds.push(end);
        }
        let (whole, rest) = (extent / end, extent % end);
        let mut sizes: Vec<usize> = shares.iter().map(|share| share * whole).collect();
        for (t, &part) in owners.iter().enumerate() {
            sizes[part] += bounds[t + 1].min(rest).saturating_sub(bounds[t]);
        }
        Self(Arc::new(Table {
            extent,
            bounds,
            owners,
            starts,
            shares,
            sizes,
        }))
    }

    /// The tiles of one period as `(part, size)`, in index order.
    pub fn tiles(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let sizes = self.0.bounds.windows(2).map(|w| w[1] - w[0]);
        self.0.owners.iter().copied().zip(sizes)
    }

    /// After how many indices the tiles repeat; the extent where they do not.
    pub fn period(&self) -> usize {
        self.0.bounds[self.0.owners.len()]
    }

    pub(crate) fn extent(&self) -> usize {
        self.0.extent
    }

    /// The size of each part.
    pub(crate) fn sizes(&self) -> &[usize] {
        &self.0.sizes
    }

    /// Whether a part holds two indices that are a period apart.
    pub(crate) fn recurs(&self, part: usize) -> bool {
        self.0.sizes[part] > self.0.shares[part]
    }

    /// The part that holds an index below the extent, and the position there.
    pub(crate) fn locate(&self, index: usize) -> (usize, usize) {
        let table = &*self.0;
        let (turn, at) = (index / self.period(), index % self.period());
        let tile = table.bounds.partition_point(|&x| x <= at) - 1;
        let part = table.owners[tile];
        let position = turn * table.shares[part] + table.starts[tile] + at - table.bounds[tile];
        (part, position)
    }

    /// The index at a position of a part that holds more than `position` indices.
    pub(crate) fn index(&self, part: usize, position: usize) -> usize {
        let table = &*self.0;
        let share = table.shares[part].max(1);
        let (turn, at) = (position / share, position % share);
        let tile = self
            .tiles_of(part)
            .take_while(|&t| table.starts[t] <= at)
            .last();
        tile.map_or(0, |t| {
            turn * self.period() + table.bounds[t] + at - table.starts[t]
        })
    }

    /// The intervals of a part, ascending, touching ones joined.
    pub(crate) fn intervals(&self, part: usize) -> Vec<Range<usize>> {
        let mut found: Vec<Range<usize>> = Vec::new();
        let mut base = 0;
        while base < self.0.extent {
            for t in self.tiles_of(part) {
                let start = (base + self.0.bounds[t]).min(self.0.extent);
                let end = (base + self.0.bounds[t + 1]).min(self.0.extent);
                match found.last_mut() {
                    Some(last) if last.end == start => last.end = end,
                    _ if start < end => found.push(start..end),
                    _ => {}
                }
            }
            base += self.period();
        }
        found
    }

    /// The relation from a part's local indices to global ones: per tile of a period either its blocks, or one stride per
    /// element of it, whichever is fewer.
    pub(crate) fn to_global(&self, part: usize) -> DimMap {
        let table = &*self.0;
        let (period, share) = (self.period(), table.shares[part]);
        let mut runs = Vec::new();
        for t in self.tiles_of(part) {
            let (lo, hi) = (table.bounds[t], table.bounds[t + 1]);
            let turns = (table.extent - lo.min(table.extent)).div_ceil(period);
            if turns <= hi - lo {
                runs.extend((0..turns).map(|turn| {
                    let start = turn * period + lo;
                    Run {
                        src_start: turn * share + table.starts[t],
                        dst_start: start,
                        len: (hi - lo).min(table.extent - start),
                        src_step: 1,
                        dst_step: 1,
                    }
                }));
            } else {
                runs.extend((lo..hi.min(table.extent)).map(|start| Run {
                    src_start: table.starts[t] + start - lo,
                    dst_start: start,
                    len: (table.extent - start).div_ceil(period),
                    src_step: share as isize,
                    dst_step: period as isize,
                }));
            }
        }
        DimMap::from_valid(table.sizes[part], table.extent, runs)
    }

    fn tiles_of(&self, part: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.0.owners.len()).filter(move |&t| self.0.owners[t] == part)
    }
}

impl ContentHash for Segments {
    fn feed(&self, hasher: &mut StableHasher) {
        hasher.str("segments");
        hasher.usize(self.0.extent);
        hasher.usize(self.0.sizes.len());
        hasher.usizes(&self.0.bounds);
        hasher.usizes(&self.0.owners);
    }
}

impl fmt::Display for Segments {
    /// The tiles as `part:size`, and `*` where they repeat: `[0:2,1:4,0:2]`, `[0:1,1:1]*`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (t, (part, size)) in self.tiles().enumerate() {
            write!(f, "{}{part}:{size}", if t == 0 { '[' } else { ',' })?;
        }
        f.write_str(if self.period() < self.0.extent {
            "]*"
        } else {
            "]"
        })
    }
}

impl fmt::Debug for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
