//! How one dim is divided into parts.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Result, SpecError};
use crate::hash::{ContentHash, StableHasher};
use crate::mesh::MOST_RANKS;
use crate::part::DimPart;
use crate::segments::{RunKind, Runs, Segments, Tiles};

/// An offset table: `parts + 1` entries from 0 to the extent that never fall. Always valid.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Offsets(Arc<[usize]>);

impl Offsets {
    /// The table itself.
    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }

    /// Number of parts.
    pub fn parts(&self) -> usize {
        self.0.len() - 1
    }

    /// The extent that the parts cover.
    pub fn extent(&self) -> usize {
        self.0[self.parts()]
    }

    /// The indices of one part.
    ///
    /// # Panics
    /// Where `part >= parts()`.
    pub fn interval(&self, part: usize) -> Range<usize> {
        self.0[part]..self.0[part + 1]
    }

    /// The intervals of all parts, in part order.
    pub fn intervals(&self) -> impl ExactSizeIterator<Item = Range<usize>> + '_ {
        self.0.windows(2).map(|w| w[0]..w[1])
    }

    /// The part that holds an index; `None` beyond the extent.
    pub fn owner_of(&self, index: usize) -> Option<usize> {
        // The last part that starts at or before the index: those before it at the same offset are empty.
        (index < self.extent()).then(|| self.0.partition_point(|&x| x <= index) - 1)
    }

    /// Boundaries moved by a map that never falls, the first to 0 and the last to the new extent.
    pub(crate) fn map_boundaries(&self, new_extent: usize, map: impl Fn(usize) -> usize) -> Self {
        let mut offsets: Vec<usize> = Vec::with_capacity(self.0.len());
        let mut reached = 0;
        for &x in &*self.0 {
            reached = map(x).clamp(reached, new_extent);
            offsets.push(reached);
        }
        offsets[0] = 0;
        offsets[self.parts()] = new_extent;
        Self(offsets.into())
    }

    /// Boundary `x` moved to `x * new / old`, rounded to nearest, halves up.
    fn scaled(&self, new_extent: usize) -> Self {
        let old = self.extent();
        let scale = |&x: &usize| {
            let (product, old) = (x as u128 * new_extent as u128, old as u128);
            let round_up = product % old >= old - product % old;
            // At most new_extent, since x <= old.
            (product / old + u128::from(round_up)) as usize
        };
        Self(self.0.iter().map(scale).collect())
    }

    /// Inner boundaries moved to the nearest multiple, halves up.
    fn aligned_to(&self, multiple: usize) -> Self {
        let (n, multiple) = (self.extent(), multiple.max(1));
        let align = |&x: &usize| {
            let rest = x % multiple;
            let down = x - rest;
            if x == n || rest == 0 {
                x
            } else if rest >= multiple - rest {
                down.saturating_add(multiple).min(n)
            } else {
                down
            }
        };
        Self(self.0.iter().map(align).collect())
    }
}

/// The most tiles that a nested partition is written out as.
const MOST_TILES: usize = 1 << 24;

/// How one dim is divided over ranks: flat parts, some possibly empty.
///
/// An empty part keeps its position, so that halos and ops that enlarge a dim know where it lies. [`Partition::part`] gives
/// the indices of a part. Where every part is one interval and these stand in part order, [`offsets`](Partition::offsets)
/// gives their table.
///
/// ```
/// use shard_spec::Partition;
/// assert_eq!(Partition::chunk(5, 4).offsets(), Some(&[0, 2, 4, 5, 5][..]));
/// assert_eq!(Partition::balanced(5, 4).offsets(), Some(&[0, 2, 3, 4, 5][..]));
/// let uneven = Partition::from_sizes(&[3, 0, 2])?;
/// assert_eq!(uneven.owner_of(3), Some(2));
/// // Causal attention does equal work where rank 0 holds the first and the last block.
/// let zigzag = Partition::zigzag(8, 2);
/// assert_eq!(zigzag.part(0).intervals().collect::<Vec<_>>(), [0..2, 6..8]);
/// assert_eq!(zigzag.to_string(), "[0:2,1:4,0:2]");
/// # Ok::<(), shard_spec::SpecError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Partition {
    /// One interval per part, in part order.
    Contiguous(Offsets),
    /// Several intervals per part, or parts in another order.
    Segments(Segments),
}

/// Constructors.
impl Partition {
    /// Whether a dim may have so many parts: no more than a mesh may have ranks, 2^24.
    ///
    /// Layouts ask by their mesh. Who has the number from elsewhere, such as a file, asks before making a partition of it:
    ///
    /// ```
    /// use shard_spec::Partition;
    /// let rows = |parts| Partition::check_parts(parts).map(|parts| Partition::chunk(12, parts));
    /// assert!(rows(5).is_ok());
    /// assert!(rows(1 << 60).is_err());
    /// ```
    ///
    /// # Errors
    /// [`SpecError::Argument`] with the bound.
    pub fn check_parts(parts: usize) -> Result<usize> {
        if parts > MOST_RANKS {
            return Err(SpecError::Argument {
                op: "partition",
                argument: "parts",
                got: parts.to_string(),
                expected: format!("at most {MOST_RANKS}"),
                remedy: "there is one part per rank along the axes",
            });
        }
        Ok(parts)
    }

    /// As `torch.chunk`: parts of ceil(n / parts), the trailing ones short or empty. Zero parts count as one, and an extent beyond
    /// `isize::MAX`, which no tensor has, as that.
    ///
    /// The boundaries of all parts are stored: see [`check_parts`](Self::check_parts) for a number from elsewhere.
    ///
    /// # Panics
    /// If there are more parts than a mesh may have ranks.
    pub fn chunk(n: usize, parts: usize) -> Self {
        let parts = as_many_as_ranks(parts);
        Self::from_valid(Self::chunk_offsets(addressed(n), parts).collect())
    }

    fn chunk_offsets(n: usize, parts: usize) -> impl Iterator<Item = usize> {
        let parts = parts.max(1);
        let size = n.div_ceil(parts);
        (0..=parts).map(move |p| size.saturating_mul(p).min(n))
    }

    /// As `numpy.array_split`: sizes differ by at most one, the larger first. Zeros and large extents count as in
    /// [`chunk`](Self::chunk).
    ///
    /// # Panics
    /// As [`chunk`](Self::chunk).
    pub fn balanced(n: usize, parts: usize) -> Self {
        Self::balanced_in(addressed(n), as_many_as_ranks(parts).max(1))
    }

    fn balanced_in(n: usize, parts: usize) -> Self {
        let (size, longer) = (n / parts, n % parts);
        Self::from_valid((0..=parts).map(|p| p * size + p.min(longer)).collect())
    }

    /// Parts in proportion to weights: boundary `p` is `n` times the cumulated share, rounded to nearest.
    ///
    /// # Errors
    /// [`SpecError::BadWeights`] for an empty list, a negative or non-finite weight, or a sum that is not positive and finite;
    /// [`SpecError::Overflow`] for an extent beyond `isize::MAX`.
    pub fn weighted(n: usize, weights: &[f64]) -> Result<Self> {
        check_extent("weighted", n)?;
        let total: f64 = weights.iter().sum();
        if weights.iter().any(|w| !w.is_finite() || *w < 0.0) || !(total.is_finite() && total > 0.0)
        {
            return Err(SpecError::BadWeights {
                weights: weights.to_vec(),
            });
        }
        let mut offsets = vec![0];
        let (mut sum, mut last) = (0.0, 0);
        for weight in weights {
            sum += weight;
            // The cast saturates and sums of non-negative terms never fall, so the table is monotone.
            last = (((sum / total) * n as f64).round() as usize).clamp(last, n);
            offsets.push(last);
        }
        // f64 cannot hold every n; trailing parts of no weight stay empty.
        let heaviest = weights.iter().rposition(|w| *w > 0.0).unwrap_or(0);
        offsets[heaviest + 1..].fill(n);
        Ok(Self::from_valid(offsets))
    }

    /// Parts of these sizes.
    ///
    /// # Errors
    /// [`SpecError::PartCount`] for an empty list, [`SpecError::Overflow`].
    pub fn from_sizes(sizes: &[usize]) -> Result<Self> {
        if sizes.is_empty() {
            return Err(SpecError::PartCount {
                op: "from_sizes",
                expected: 1,
                got: 0,
            });
        }
        let mut offsets = Vec::with_capacity(sizes.len() + 1);
        let mut end = 0usize;
        offsets.push(end);
        for &size in sizes {
            end = end
                .checked_add(size)
                .filter(|&e| isize::try_from(e).is_ok())
                .ok_or_else(|| SpecError::Overflow {
                    op: "from_sizes",
                    shape: sizes.to_vec(),
                })?;
            offsets.push(end);
        }
        Ok(Self::from_valid(offsets))
    }

    /// Parts between consecutive offsets of a table of `parts + 1` entries.
    ///
    /// # Errors
    /// [`SpecError::BadOffsets`] naming the first entry that breaks the order; [`SpecError::Overflow`] for an extent beyond
    /// `isize::MAX`.
    pub fn from_offsets(n: usize, offsets: Vec<usize>) -> Result<Self> {
        let bad = |index, expected: String| SpecError::BadOffsets {
            offsets: offsets.clone(),
            extent: n,
            index,
            expected,
        };
        if offsets.len() < 2 {
            return Err(bad(
                offsets.len(),
                "at least two entries, 0 and the extent".to_owned(),
            ));
        }
        if offsets[0] != 0 {
            return Err(bad(0, "0".to_owned()));
        }
        if let Some(i) = offsets.windows(2).position(|w| w[1] < w[0]) {
            return Err(bad(i + 1, format!("at least {}", offsets[i])));
        }
        if offsets[offsets.len() - 1] != n {
            return Err(bad(offsets.len() - 1, format!("the extent {n}")));
        }
        check_extent("from_offsets", n)?;
        Ok(Self::from_valid(offsets))
    }

    /// Divides each part of `outer` again: the flat partition over the product, `outer` major.
    ///
    /// # Errors
    /// [`SpecError::PartCount`] where `inner` does not have one entry per outer part or its entries differ in their number of
    /// parts, [`SpecError::Extent`] where an entry does not divide its outer part exactly, [`SpecError::Argument`] where the
    /// result would take more than 2^24 tiles.
    pub fn nested(outer: &Self, inner: &[Self]) -> Result<Self> {
        let op = "nested";
        let parts = Self::check_nested(op, outer, inner)?;
        if let Self::Contiguous(outer) = outer
            && let Some(inner) = inner.iter().map(Self::offsets).collect::<Option<Vec<_>>>()
        {
            let mut offsets = Vec::with_capacity(outer.parts() * parts + 1);
            offsets.push(0);
            for (p, split) in inner.iter().enumerate() {
                offsets.extend(split[1..].iter().map(|x| outer.as_slice()[p] + x));
            }
            return Ok(Self::from_valid(offsets));
        }
        // The inner intervals are placed in the dim part by part, and then sorted by index.
        let mut tiles: Vec<(usize, usize, usize)> = Vec::new();
        let fits = |count: usize| {
            let refusal = || SpecError::Argument {
                op,
                argument: "tiles",
                got: format!("at least {count}"),
                expected: format!("at most {MOST_TILES}"),
                remedy: "nest partitions of fewer, longer tiles",
            };
            (count <= MOST_TILES).then_some(()).ok_or_else(refusal)
        };
        fits(outer.runs().most)?;
        for (p, split) in inner.iter().enumerate() {
            fits(split.runs().most)?;
            let held = outer.part(p).to_global(outer.extent());
            for q in 0..parts {
                let placed = split.part(q).to_global(split.extent()).compose(&held)?;
                let more = placed.dst_interval_count();
                fits(tiles.len().saturating_add(more))?;
                tiles.extend(
                    placed
                        .dst_intervals()
                        .map(|r| (r.start, p * parts + q, r.len())),
                );
            }
        }
        tiles.sort_unstable();
        let tiles: Vec<(usize, usize)> = tiles.into_iter().map(|(_, p, len)| (p, len)).collect();
        Self::from_segments(outer.extent(), outer.parts() * parts, &tiles)
    }

    /// Into how many parts each part of `outer` is divided.
    fn check_nested(op: &'static str, outer: &Self, inner: &[Self]) -> Result<usize> {
        if inner.len() != outer.parts() {
            return Err(SpecError::PartCount {
                op,
                expected: outer.parts(),
                got: inner.len(),
            });
        }
        let parts = inner[0].parts();
        for (p, split) in inner.iter().enumerate() {
            if split.parts() != parts {
                return Err(SpecError::PartCount {
                    op,
                    expected: parts,
                    got: split.parts(),
                });
            }
            if split.extent() != outer.size(p) {
                return Err(SpecError::Extent {
                    op,
                    expected: outer.size(p),
                    got: split.extent(),
                });
            }
        }
        Ok(parts)
    }

    /// Chunks of chunks, the first number of parts the major one: how repeated shard placements divide one dim. Zeros and large
    /// extents count as in [`chunk`](Self::chunk).
    ///
    /// # Panics
    /// As [`chunk`](Self::chunk), for all parts.
    pub fn nested_chunk(n: usize, parts: &[usize]) -> Self {
        as_many_as_ranks(parts.iter().fold(1, |n, &p| n.saturating_mul(p.max(1))));
        let mut offsets = vec![0, addressed(n)];
        for &parts in parts {
            let split = |w: &[usize]| {
                let start = w[0];
                let chunk = Self::chunk_offsets(w[1] - start, parts).skip(1);
                chunk.map(|x| start + x).collect::<Vec<_>>()
            };
            offsets = std::iter::once(0)
                .chain(offsets.windows(2).flat_map(split))
                .collect();
        }
        Self::from_valid(offsets)
    }

    /// Twice as many blocks as parts, balanced; part `p` holds block `p` and its mirror image from the end.
    ///
    /// Under a causal mask every part then has nearly the same work. Zeros and large extents count as in [`chunk`](Self::chunk).
    ///
    /// # Panics
    /// As [`chunk`](Self::chunk).
    #[doc(alias = "context parallel")]
    #[doc(alias = "ring attention")]
    pub fn zigzag(n: usize, parts: usize) -> Self {
        let (n, parts) = (addressed(n), as_many_as_ranks(parts).max(1));
        let owner = |block: usize| block.min(2 * parts - 1 - block);
        let blocks = Self::balanced_in(n, 2 * parts);
        Self::of_tiles(
            n,
            parts,
            blocks.sizes().enumerate().map(|(b, size)| (owner(b), size)),
        )
    }

    /// Index `i` to part `i % parts`: block-cyclic with blocks of one.
    ///
    /// # Panics
    /// As [`chunk`](Self::chunk).
    #[doc(alias = "context parallel")]
    pub fn striped(n: usize, parts: usize) -> Self {
        Self::block_cyclic(n, parts, 1)
    }

    /// Blocks dealt to the parts in turn, as in ScaLAPACK; the last block may be short. Zeros count as one, large extents as in
    /// [`chunk`](Self::chunk).
    ///
    /// # Panics
    /// As [`chunk`](Self::chunk).
    pub fn block_cyclic(n: usize, parts: usize, block: usize) -> Self {
        let (n, parts) = (addressed(n), as_many_as_ranks(parts).max(1));
        let block = block.max(1);
        let first = (0..parts).map(|part| (part, block.min(n)));
        match Tiles::new(n, parts, &first.collect::<Vec<_>>(), true) {
            Ok(tiles) => tiles.into(),
            // There are no indices.
            Err(_) => Self::chunk(n, parts),
        }
    }

    /// Consecutive tiles `(part, size)` from index 0 to the extent.
    ///
    /// # Errors
    /// [`SpecError::Extent`] where the sizes do not sum to `n`, [`SpecError::Argument`] for a part out of range or more than
    /// 2^24 parts, [`SpecError::PartCount`] for no parts, [`SpecError::Overflow`] for an extent beyond `isize::MAX`.
    pub fn from_segments(n: usize, parts: usize, tiles: &[(usize, usize)]) -> Result<Self> {
        Tiles::new(n, parts, tiles, false).map(Self::from)
    }

    /// Consecutive tiles `(part, size)`, repeated up to the extent, where the last may be cut.
    ///
    /// # Errors
    /// As [`Partition::from_segments`]; [`SpecError::Extent`] where there is nothing to repeat.
    pub fn from_repeated(n: usize, parts: usize, tiles: &[(usize, usize)]) -> Result<Self> {
        Tiles::new(n, parts, tiles, true).map(Self::from)
    }

    /// Tiles that are known to be of these parts and to sum to `n`.
    fn of_tiles(n: usize, parts: usize, tiles: impl Iterator<Item = (usize, usize)>) -> Self {
        let tiles: Vec<(usize, usize)> = tiles.collect();
        Self::from_segments(n, parts, &tiles).unwrap_or_else(|_| Self::chunk(n, parts))
    }

    fn from_valid(offsets: Vec<usize>) -> Self {
        Self::Contiguous(Offsets(offsets.into()))
    }
}

impl From<Tiles> for Partition {
    fn from(tiles: Tiles) -> Self {
        match tiles {
            Tiles::Contiguous(offsets) => Self::from_valid(offsets),
            Tiles::Scattered(segments) => Self::Segments(segments),
        }
    }
}

/// Queries.
impl Partition {
    /// Number of parts, empty ones included; at least 1.
    pub fn parts(&self) -> usize {
        match self {
            Self::Contiguous(offsets) => offsets.parts(),
            Self::Segments(segments) => segments.parts(),
        }
    }

    /// The extent that the parts cover.
    pub fn extent(&self) -> usize {
        match self {
            Self::Contiguous(offsets) => offsets.extent(),
            Self::Segments(segments) => segments.extent(),
        }
    }

    /// The indices of one part.
    ///
    /// # Panics
    /// Where `part >= parts()`.
    pub fn part(&self, part: usize) -> DimPart {
        assert!(part < self.parts(), "part {part} of {}", self.parts());
        match self {
            Self::Contiguous(offsets) => offsets.interval(part).into(),
            Self::Segments(segments) => DimPart::of(segments, part),
        }
    }

    /// The size of one part.
    ///
    /// # Panics
    /// Where `part >= parts()`.
    pub fn size(&self, part: usize) -> usize {
        match self {
            Self::Contiguous(offsets) => offsets.interval(part).len(),
            Self::Segments(segments) => segments.size(part),
        }
    }

    /// All sizes, in part order.
    pub fn sizes(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        (0..self.parts()).map(|part| self.size(part))
    }

    /// The size of the largest part.
    pub fn max_size(&self) -> usize {
        match self {
            Self::Contiguous(table) => table.intervals().map(|i| i.len()).max().unwrap_or(0),
            Self::Segments(segments) => segments.max_size(),
        }
    }

    /// The offset table, `parts() + 1` entries from 0 to the extent, where each part is one interval and they stand in part
    /// order.
    pub fn offsets(&self) -> Option<&[usize]> {
        self.contiguous().map(Offsets::as_slice)
    }

    /// The table of intervals, where each part is one interval and they stand in part order.
    pub fn contiguous(&self) -> Option<&Offsets> {
        match self {
            Self::Contiguous(offsets) => Some(offsets),
            Self::Segments(_) => None,
        }
    }

    /// Whether each part is one interval and they stand in part order.
    pub fn is_contiguous(&self) -> bool {
        self.contiguous().is_some()
    }

    /// The part that holds an index; `None` beyond the extent.
    pub fn owner_of(&self, index: usize) -> Option<usize> {
        match self {
            Self::Contiguous(offsets) => offsets.owner_of(index),
            Self::Segments(segments) => {
                (index < segments.extent()).then(|| segments.locate(index).0)
            }
        }
    }
}

/// What counting pieces needs.
impl Partition {
    /// The intervals in index order, as `(part, size)`, none empty.
    pub(crate) fn blocks(&self) -> Box<dyn Iterator<Item = (usize, usize)> + '_> {
        match self {
            Self::Contiguous(_) => Box::new(self.sizes().enumerate().filter(|&(_, size)| size > 0)),
            Self::Segments(segments) => Box::new(segments.blocks()),
        }
    }

    /// How many affine runs the parts consist of.
    pub(crate) fn runs(&self) -> Runs {
        match self {
            Self::Contiguous(offsets) => Runs {
                kind: RunKind::Blocks,
                total: offsets.parts(),
                most: 1,
                intervals: offsets.parts(),
            },
            Self::Segments(segments) => segments.runs(),
        }
    }
}

/// Derived partitions.
impl Partition {
    /// Parts of the same sizes, each one interval, in part order: what ops on neighbouring indices need.
    pub fn to_contiguous(&self) -> Offsets {
        match self {
            Self::Contiguous(offsets) => offsets.clone(),
            Self::Segments(_) => {
                let ends = self.sizes().scan(0, |end, size| {
                    *end += size;
                    Some(*end)
                });
                Offsets(std::iter::once(0).chain(ends).collect())
            }
        }
    }

    /// Every `count` consecutive parts as one; `count` must divide the number of parts.
    ///
    /// # Errors
    /// [`SpecError::Argument`] where it does not.
    pub fn joined(&self, count: usize) -> Result<Self> {
        let parts = self.parts();
        if count == 0 || !parts.is_multiple_of(count) {
            return Err(SpecError::Argument {
                op: "joined",
                argument: "count",
                got: count.to_string(),
                expected: format!("a divisor of {parts}"),
                remedy: "join as many neighbouring parts as divide their number",
            });
        }
        match self {
            Self::Contiguous(offsets) => {
                let kept = offsets.as_slice().iter().step_by(count);
                Ok(Self::from_valid(kept.copied().collect()))
            }
            Self::Segments(segments) => {
                let tiles: Vec<_> = segments.tiles().map(|(p, n)| (p / count, n)).collect();
                Self::from_repeated(self.extent(), parts / count, &tiles)
            }
        }
    }

    /// The same parts renumbered: part `p` holds what part `p + by` held, and the first part follows the last.
    ///
    /// In step `by` of a ring, each rank has the block that this partition gives it. The first rotation builds a table of all
    /// parts; rotating the result further costs nothing.
    ///
    /// ```
    /// use shard_spec::Partition;
    /// let blocks = Partition::from_sizes(&[3, 1, 2])?;
    /// assert_eq!(blocks.rotated(1).part(0), blocks.part(1));
    /// assert_eq!(blocks.rotated(1).part(2), blocks.part(0));
    /// # Ok::<(), shard_spec::SpecError>(())
    /// ```
    #[must_use]
    pub fn rotated(&self, by: usize) -> Self {
        match self {
            Self::Segments(segments) => segments.rotated(by).into(),
            Self::Contiguous(_) => {
                let parts = self.parts();
                let holder = |part: usize| (part + parts - by % parts) % parts;
                let tiles = self.sizes().enumerate().map(|(p, n)| (holder(p), n));
                Self::of_tiles(self.extent(), parts, tiles)
            }
        }
    }

    /// The same proportions over another extent: the partition that cat, roll, flip and slice give their result.
    ///
    /// Boundary `x` becomes `x * new / old` rounded to nearest, halves up; an old extent of 0 gives the balanced partition.
    /// Segments over another extent become contiguous parts in proportion to their sizes. Large extents count as in
    /// [`chunk`](Self::chunk).
    pub fn scaled(&self, new_extent: usize) -> Self {
        let (old, new_extent) = (self.extent(), addressed(new_extent));
        if old == new_extent {
            return self.clone();
        }
        if old == 0 {
            return Self::balanced(new_extent, self.parts());
        }
        Self::Contiguous(self.to_contiguous().scaled(new_extent))
    }

    /// Inner boundaries moved to the nearest multiple, halves up: the parts that a reshape can split. Zero counts as one;
    /// segments become contiguous first.
    pub fn aligned_to(&self, multiple: usize) -> Self {
        Self::Contiguous(self.to_contiguous().aligned_to(multiple))
    }
}

/// The extent, or the largest that a tensor may have. What users ask for is refused where a shape is checked, before or after a
/// partition is made of it.
fn addressed(n: usize) -> usize {
    n.min(isize::MAX.unsigned_abs())
}

/// Whether a tensor may have such an extent.
pub(crate) fn check_extent(op: &'static str, n: usize) -> Result<()> {
    match isize::try_from(n) {
        Ok(_) => Ok(()),
        Err(_) => Err(SpecError::Overflow { op, shape: vec![n] }),
    }
}

/// So many parts, which must not be more than a mesh may have ranks.
fn as_many_as_ranks(parts: usize) -> usize {
    assert!(
        parts <= MOST_RANKS,
        "a dim in {parts} parts: at most {MOST_RANKS}, one per rank (`Partition::check_parts` asks first)"
    );
    parts
}

impl From<Offsets> for Partition {
    fn from(offsets: Offsets) -> Self {
        Self::Contiguous(offsets)
    }
}

impl ContentHash for Partition {
    fn feed(&self, hasher: &mut StableHasher) {
        match self {
            Self::Contiguous(offsets) => {
                hasher.str("contiguous");
                hasher.usizes(offsets.as_slice());
            }
            Self::Segments(segments) => segments.feed(hasher),
        }
    }
}

impl fmt::Display for Partition {
    /// The sizes: `[3,1,0,2]`; of segments, `part:size` of each tile in index order, and `*` where they repeat.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Segments(segments) = self {
            return fmt::Display::fmt(segments, f);
        }
        for (part, size) in self.sizes().enumerate() {
            write!(f, "{}{size}", if part == 0 { '[' } else { ',' })?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
