//! Partitions whose parts are several intervals: zigzag, striped, block-cyclic.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use crate::dim_map::{DimMap, Run};
use crate::error::{Result, SpecError};
use crate::hash::{ContentHash, StableHasher};
use crate::mesh::MOST_RANKS;
use crate::partition::check_extent;

/// Consecutive tiles of a dim, each owned by a part, repeated with a period. Always valid.
///
/// A part holds its tiles one after the other, in the order of their indices. Periodic forms are kept compressed: 8 parts
/// striped over a million indices are 8 tiles.
///
/// Partitions that differ only in a rotation of the part numbers share a table, so rotating costs nothing however many parts
/// there are.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Segments {
    table: Arc<Table>,
    /// The number that part 0 of the table has here.
    turn: usize,
}

/// Tiles whose parts are numbered so that the first tile belongs to part 0. Each partition then has exactly one table and
/// turn.
#[derive(PartialEq, Eq)]
struct Table {
    extent: usize,
    /// The tiles of one period: tile `t` is `bounds[t]..bounds[t + 1]`, the last bound is the period, which is the extent
    /// where nothing repeats.
    bounds: Vec<usize>,
    owners: Vec<usize>,
    /// Where each tile begins among its owner's indices of one period.
    starts: Vec<usize>,
    /// The tiles of each part, ascending: those of part `p` are `held[first[p]..first[p + 1]]`.
    held: Vec<usize>,
    first: Vec<usize>,
    /// Indices of each part in one period, and in all.
    shares: Vec<usize>,
    sizes: Vec<usize>,
    /// The last part with a tile, if all parts hold one tile or none, in the order of their numbers.
    last_of_ascending: Option<usize>,
    /// The hash of all fields above.
    hash: u128,
}

/// A description in tiles, made canonical: no tile is empty, none lies beyond the extent, and neighbours have different
/// owners.
pub(crate) enum Tiles {
    /// One interval per part in part order: an offset table.
    Contiguous(Vec<usize>),
    /// Anything else.
    Scattered(Segments),
}

impl Tiles {
    /// Tiles `(part, size)` in index order, which must cover the extent once, or are repeated over it.
    pub(crate) fn new(
        extent: usize,
        parts: usize,
        tiles: &[(usize, usize)],
        repeated: bool,
    ) -> Result<Self> {
        let op = match repeated {
            true => "from_repeated",
            false => "from_segments",
        };
        Self::check(op, extent, parts, tiles)?;
        let merged = Self::merged(op, extent, tiles, repeated)?;
        let period: usize = merged.iter().map(|(_, size)| size).sum();
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

    fn check(
        op: &'static str,
        extent: usize,
        parts: usize,
        tiles: &[(usize, usize)],
    ) -> Result<()> {
        check_extent(op, extent)?;
        if parts == 0 {
            return Err(SpecError::PartCount {
                op,
                expected: 1,
                got: 0,
            });
        }
        if parts > MOST_RANKS {
            return Err(SpecError::Argument {
                op,
                argument: "parts",
                got: parts.to_string(),
                expected: format!("at most {MOST_RANKS}"),
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
        Ok(())
    }

    /// The tiles of one period without empty ones, neighbours of one part being one tile.
    fn merged(
        op: &'static str,
        extent: usize,
        tiles: &[(usize, usize)],
        repeated: bool,
    ) -> Result<Vec<(usize, usize)>> {
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
        }
        Ok(merged)
    }
}

/// How many affine runs the parts of a partition consist of.
pub(crate) struct Runs {
    pub(crate) kind: RunKind,
    /// The runs of all parts.
    pub(crate) total: usize,
    /// The most runs of one part.
    pub(crate) most: usize,
    /// The intervals of all parts.
    pub(crate) intervals: usize,
}

/// The kind of a partition's runs, see [`Segments::to_global`].
pub(crate) enum RunKind {
    /// Every run is an interval.
    Blocks,
    /// Every run consists of the indices at one place of each period.
    Strides { period: usize },
    /// There are runs of both kinds.
    Mixed,
}

impl Segments {
    fn of(extent: usize, parts: usize, tiles: &[(usize, usize)]) -> Self {
        let turn = tiles.first().map_or(0, |&(part, _)| part);
        let (mut bounds, mut owners, mut starts) = (vec![0], Vec::new(), Vec::new());
        let (mut shares, mut first) = (vec![0; parts], vec![0; parts + 1]);
        let mut end = 0;
        for &(part, size) in tiles {
            let part = (part + parts - turn) % parts;
            starts.push(shares[part]);
            owners.push(part);
            shares[part] += size;
            first[part + 1] += 1;
            end += size;
            bounds.push(end);
        }
        for part in 0..parts {
            first[part + 1] += first[part];
        }
        let mut held: Vec<usize> = (0..owners.len()).collect();
        held.sort_by_key(|&t| owners[t]);
        let (whole, rest) = (extent / end, extent % end);
        let mut sizes: Vec<usize> = shares.iter().map(|share| share * whole).collect();
        for (t, &part) in owners.iter().enumerate() {
            sizes[part] += bounds[t + 1].min(rest).saturating_sub(bounds[t]);
        }
        let ascends = end == extent && owners.windows(2).all(|w| w[0] < w[1]);
        let last_of_ascending = owners.last().copied().filter(|_| ascends);
        let mut hasher = StableHasher::new("tiles");
        hasher.usize(extent);
        hasher.usize(parts);
        hasher.usizes(&bounds);
        hasher.usizes(&owners);
        Self {
            table: Arc::new(Table {
                extent,
                bounds,
                owners,
                starts,
                held,
                first,
                shares,
                sizes,
                last_of_ascending,
                hash: hasher.finish(),
            }),
            turn,
        }
    }

    /// Part `p` holds what part `p + by` held, the last followed by the first.
    pub(crate) fn rotated(&self, by: usize) -> Tiles {
        let parts = self.parts();
        let rotated = Self {
            table: Arc::clone(&self.table),
            turn: (self.turn + parts - by % parts) % parts,
        };
        match rotated.offsets() {
            Some(offsets) => Tiles::Contiguous(offsets),
            None => Tiles::Scattered(rotated),
        }
    }

    /// The offset table, where each part is one interval and they stand in part order.
    fn offsets(&self) -> Option<Vec<usize>> {
        let last = self.table.last_of_ascending?;
        if last + self.turn >= self.parts() {
            return None;
        }
        let mut offsets = vec![0; self.parts() + 1];
        for part in 0..self.parts() {
            offsets[part + 1] = offsets[part] + self.size(part);
        }
        Some(offsets)
    }

    /// The number of a part in the table.
    fn row(&self, part: usize) -> usize {
        let at = part + self.parts() - self.turn;
        if at < self.parts() {
            at
        } else {
            at - self.parts()
        }
    }

    /// The number of a part of the table.
    fn part(&self, row: usize) -> usize {
        let at = row + self.turn;
        if at < self.parts() {
            at
        } else {
            at - self.parts()
        }
    }

    /// Number of parts.
    pub(crate) fn parts(&self) -> usize {
        self.table.sizes.len()
    }

    /// The tiles of one period as `(part, size)`, in index order.
    pub fn tiles(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let sizes = self.table.bounds.windows(2).map(|w| w[1] - w[0]);
        let owners = self.table.owners.iter().map(|&row| self.part(row));
        owners.zip(sizes)
    }

    /// After how many indices the tiles repeat; the extent where they do not.
    pub fn period(&self) -> usize {
        self.table.bounds[self.table.owners.len()]
    }

    pub(crate) fn extent(&self) -> usize {
        self.table.extent
    }

    /// The size of a part.
    pub(crate) fn size(&self, part: usize) -> usize {
        self.table.sizes[self.row(part)]
    }

    /// The size of the largest part.
    pub(crate) fn max_size(&self) -> usize {
        self.table.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Whether a part holds two indices that are a period apart.
    pub(crate) fn recurs(&self, part: usize) -> bool {
        let row = self.row(part);
        self.table.sizes[row] > self.table.shares[row]
    }

    /// The indices of a part that holds one tile or none: an interval, empty ones at 0.
    pub(crate) fn only(&self, part: usize) -> Option<Range<usize>> {
        match self.tiles_of(part) {
            [] => Some(0..0),
            &[t] if !self.recurs(part) => Some(self.table.bounds[t]..self.table.bounds[t + 1]),
            _ => None,
        }
    }

    /// The parts that hold any of these indices, in order, each once.
    pub fn parts_within(&self, indices: Range<usize>) -> Vec<usize> {
        let table = &*self.table;
        let (start, end) = (indices.start, indices.end.min(table.extent));
        if start >= end {
            return Vec::new();
        }
        // Tiles are counted on from the period of the first index, through the next one.
        let tile = |at: usize| table.bounds.partition_point(|&x| x <= at) - 1;
        let (count, period) = (table.owners.len(), self.period());
        let from = tile(start % period);
        let tiles = match end - start {
            len if len >= period => count,
            len => {
                let last = (start % period) + len - 1;
                tile(last % period) + last / period * count + 1 - from
            }
        };
        let owners = (from..from + tiles).map(|t| self.part(table.owners[t % count]));
        let mut parts: Vec<usize> = owners.collect();
        parts.sort_unstable();
        parts.dedup();
        parts
    }

    /// The part that holds an index below the extent, and the position there.
    pub(crate) fn locate(&self, index: usize) -> (usize, usize) {
        let table = &*self.table;
        let (turn, at) = (index / self.period(), index % self.period());
        let tile = table.bounds.partition_point(|&x| x <= at) - 1;
        let row = table.owners[tile];
        let position = turn * table.shares[row] + table.starts[tile] + at - table.bounds[tile];
        (self.part(row), position)
    }

    /// The index at a position of a part that holds more than `position` indices.
    pub(crate) fn index(&self, part: usize, position: usize) -> usize {
        let table = &*self.table;
        let share = table.shares[self.row(part)].max(1);
        let (turn, at) = (position / share, position % share);
        let tiles = self.tiles_of(part);
        let after = tiles.partition_point(|&t| table.starts[t] <= at);
        let tile = after.checked_sub(1).map(|before| tiles[before]);
        tile.map_or(0, |t| {
            turn * self.period() + table.bounds[t] + at - table.starts[t]
        })
    }

    /// The intervals of a part, ascending, touching ones joined.
    pub(crate) fn intervals(self, part: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (mut base, mut next) = (0, 0);
        let tiles = std::iter::from_fn(move || {
            let tiles = self.tiles_of(part);
            if next == tiles.len() {
                (base, next) = (base + self.period(), 0);
            }
            let (&t, extent) = (tiles.get(next)?, self.extent());
            next += 1;
            let cut = |at: usize| (base + at).min(extent);
            let tile = cut(self.table.bounds[t])..cut(self.table.bounds[t + 1]);
            // Tiles ascend, so beyond the end there are no others.
            (!tile.is_empty()).then_some(tile)
        });
        let mut tiles = tiles.peekable();
        std::iter::from_fn(move || {
            let mut interval = tiles.next()?;
            while let Some(next) = tiles.next_if(|next| next.start == interval.end) {
                interval.end = next.end;
            }
            Some(interval)
        })
    }

    /// The intervals in index order, as `(part, size)`.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let mut left = self.extent();
        let sizes = self.table.bounds.windows(2).map(|w| w[1] - w[0]);
        let tiles = self.table.owners.iter().zip(sizes).cycle();
        tiles.map_while(move |(&row, size)| {
            let size = size.min(left);
            left -= size;
            (size > 0).then(|| (self.part(row), size))
        })
    }

    /// The runs that [`Segments::to_global`] gives, counted.
    pub(crate) fn runs(&self) -> Runs {
        let table = &*self.table;
        let (period, mut total, mut strided) = (self.period(), 0usize, 0);
        let mut per_row = vec![0usize; self.parts()];
        for (w, &row) in table.bounds.windows(2).zip(&table.owners) {
            let (size, turns) = (w[1] - w[0], (table.extent - w[0]).div_ceil(period));
            strided += usize::from(turns > size);
            per_row[row] = per_row[row].saturating_add(turns.min(size));
            total = total.saturating_add(turns.min(size));
        }
        let tiles = table.owners.len();
        Runs {
            kind: match strided {
                0 => RunKind::Blocks,
                n if n == tiles => RunKind::Strides { period },
                _ => RunKind::Mixed,
            },
            total,
            most: per_row.into_iter().max().unwrap_or(0),
            intervals: tiles.saturating_mul(table.extent.div_ceil(period)),
        }
    }

    /// The relation from a part's local indices to global ones: per tile of a period either its blocks, or one stride per
    /// element of it, whichever is fewer.
    pub(crate) fn to_global(&self, part: usize) -> DimMap {
        let (table, row) = (&*self.table, self.row(part));
        let (period, share) = (self.period(), table.shares[row]);
        let mut runs = Vec::new();
        for &t in self.tiles_of(part) {
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
        DimMap::from_valid(table.sizes[row], table.extent, runs)
    }

    /// The tiles of a part in one period, ascending.
    fn tiles_of(&self, part: usize) -> &[usize] {
        let (table, row) = (&*self.table, self.row(part));
        &table.held[table.first[row]..table.first[row + 1]]
    }
}

impl Hash for Table {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.hash);
    }
}

impl ContentHash for Segments {
    fn feed(&self, hasher: &mut StableHasher) {
        hasher.str("segments");
        hasher.u128(self.table.hash);
        hasher.usize(self.turn);
    }
}

impl fmt::Display for Segments {
    /// The tiles as `part:size`, and `*` where they repeat: `[0:2,1:4,0:2]`, `[0:1,1:1]*`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (t, (part, size)) in self.tiles().enumerate() {
            write!(f, "{}{part}:{size}", if t == 0 { '[' } else { ',' })?;
        }
        f.write_str(if self.period() < self.extent() {
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
