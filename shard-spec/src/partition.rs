//! How one dim is divided into consecutive parts.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Result, SpecError};
use crate::hash::{ContentHash, StableHasher};

/// An offset table: `parts + 1` entries from 0 to the extent that never fall. Always valid.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Offsets(Arc<[usize]>);

impl Offsets {
    /// The table itself.
    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }
}

/// How one dim is divided over ranks: flat parts, in order, some possibly empty.
///
/// An empty part keeps its position, so that halos and growing ops know where it lives. Callers go through the methods;
/// other kinds of partition may come.
///
/// ```
/// use shard_spec::Partition;
/// assert_eq!(Partition::chunk(5, 4).offsets(), &[0, 2, 4, 5, 5]);
/// assert_eq!(Partition::balanced(5, 4).offsets(), &[0, 2, 3, 4, 5]);
/// let uneven = Partition::from_sizes(&[3, 0, 2])?;
/// assert_eq!(uneven.owner_of(3), Some(2));
/// # Ok::<(), shard_spec::SpecError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(
        into = "crate::serial::PartitionRepr",
        try_from = "crate::serial::PartitionRepr"
    )
)]
#[non_exhaustive]
pub enum Partition {
    /// One interval per part, in part order.
    Contiguous(Offsets),
}

/// Constructors.
impl Partition {
    /// As `torch.chunk`: parts of ceil(n / parts), the trailing ones short or empty. Zero parts count as one.
    pub fn chunk(n: usize, parts: usize) -> Self {
        let parts = parts.max(1);
        let size = n.div_ceil(parts);
        Self::from_valid((0..=parts).map(|p| size.saturating_mul(p).min(n)).collect())
    }

    /// As `numpy.array_split`: sizes differ by at most one, the larger first. Zero parts count as one.
    pub fn balanced(n: usize, parts: usize) -> Self {
        let parts = parts.max(1);
        let (size, longer) = (n / parts, n % parts);
        Self::from_valid((0..=parts).map(|p| p * size + p.min(longer)).collect())
    }

    /// Parts in proportion to weights: boundary `p` is `n` times the cumulated share, rounded to nearest.
    ///
    /// # Errors
    /// [`SpecError::BadWeights`] for an empty list, a negative or non-finite weight, or a sum that is not positive and finite.
    pub fn weighted(n: usize, weights: &[f64]) -> Result<Self> {
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
    /// [`SpecError::BadOffsets`] naming the first entry that breaks the order.
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
        Ok(Self::from_valid(offsets))
    }

    /// Divides each part of `outer` again: the flat partition over the product, `outer` major.
    ///
    /// # Errors
    /// [`SpecError::PartCount`] where `inner` has not one entry per outer part or its entries differ in their number of parts,
    /// [`SpecError::Extent`] where an entry does not divide its outer part exactly.
    pub fn nested(outer: &Self, inner: &[Self]) -> Result<Self> {
        let op = "nested";
        if inner.len() != outer.parts() {
            return Err(SpecError::PartCount {
                op,
                expected: outer.parts(),
                got: inner.len(),
            });
        }
        let parts = inner[0].parts();
        let mut offsets = Vec::with_capacity(outer.parts() * parts + 1);
        offsets.push(0);
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
            offsets.extend(split.offsets()[1..].iter().map(|x| outer.offsets()[p] + x));
        }
        Ok(Self::from_valid(offsets))
    }

    /// Chunks of chunks, the first number of parts the major one: how repeated shard placements divide one dim.
    pub fn nested_chunk(n: usize, parts: &[usize]) -> Self {
        let mut offsets = vec![0, n];
        for &parts in parts {
            let split = |w: &[usize]| {
                let start = w[0];
                let chunk = Self::chunk(w[1] - start, parts);
                chunk.offsets()[1..]
                    .iter()
                    .map(|x| start + x)
                    .collect::<Vec<_>>()
            };
            offsets = std::iter::once(0)
                .chain(offsets.windows(2).flat_map(split))
                .collect();
        }
        Self::from_valid(offsets)
    }

    /// Boundaries moved by a map that never falls, the first to 0 and the last to the new extent.
    pub(crate) fn map_boundaries(&self, new_extent: usize, map: impl Fn(usize) -> usize) -> Self {
        let mut offsets: Vec<usize> = Vec::with_capacity(self.parts() + 1);
        let mut reached = 0;
        for &x in self.offsets() {
            reached = map(x).clamp(reached, new_extent);
            offsets.push(reached);
        }
        offsets[0] = 0;
        offsets[self.parts()] = new_extent;
        Self::from_valid(offsets)
    }

    fn from_valid(offsets: Vec<usize>) -> Self {
        Self::Contiguous(Offsets(offsets.into()))
    }
}

/// Queries.
impl Partition {
    /// Number of parts, empty ones included; at least 1.
    pub fn parts(&self) -> usize {
        self.offsets().len() - 1
    }

    /// The extent that the parts cover.
    pub fn extent(&self) -> usize {
        self.offsets()[self.parts()]
    }

    /// The indices of one part.
    ///
    /// # Panics
    /// Where `part >= parts()`.
    pub fn interval(&self, part: usize) -> Range<usize> {
        self.offsets()[part]..self.offsets()[part + 1]
    }

    /// The size of one part.
    ///
    /// # Panics
    /// Where `part >= parts()`.
    pub fn size(&self, part: usize) -> usize {
        self.interval(part).len()
    }

    /// All sizes, in part order.
    pub fn sizes(&self) -> impl Iterator<Item = usize> + '_ {
        self.offsets().windows(2).map(|w| w[1] - w[0])
    }

    /// The size of the largest part.
    pub fn max_size(&self) -> usize {
        self.sizes().max().unwrap_or(0)
    }

    /// The offset table, `parts() + 1` entries from 0 to the extent.
    pub fn offsets(&self) -> &[usize] {
        let Self::Contiguous(offsets) = self;
        offsets.as_slice()
    }

    /// The part that holds an index; `None` beyond the extent.
    pub fn owner_of(&self, index: usize) -> Option<usize> {
        // The last part that starts at or before the index: those before it at the same offset are empty.
        (index < self.extent()).then(|| self.offsets().partition_point(|&x| x <= index) - 1)
    }
}

/// Derived partitions.
impl Partition {
    /// The same proportions over another extent: what cat, roll, flip and slice give their result.
    ///
    /// Boundary `x` becomes `x * new / old` rounded to nearest, halves up; an old extent of 0 gives the balanced partition.
    pub fn scaled(&self, new_extent: usize) -> Self {
        let old = self.extent();
        if old == new_extent {
            return self.clone();
        }
        if old == 0 {
            return Self::balanced(new_extent, self.parts());
        }
        let scale = |&x: &usize| {
            let (product, old) = (x as u128 * new_extent as u128, old as u128);
            let round_up = product % old >= old - product % old;
            // At most new_extent, since x <= old.
            (product / old + u128::from(round_up)) as usize
        };
        Self::from_valid(self.offsets().iter().map(scale).collect())
    }

    /// Inner boundaries moved to the nearest multiple, halves up: the parts a reshape can split. Zero counts as one.
    pub fn aligned_to(&self, multiple: usize) -> Self {
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
        Self::from_valid(self.offsets().iter().map(align).collect())
    }

    /// [`Partition::scaled`], then [`Partition::aligned_to`].
    pub fn scaled_multiple_of(&self, new_extent: usize, multiple: usize) -> Self {
        self.scaled(new_extent).aligned_to(multiple)
    }
}

impl ContentHash for Partition {
    fn feed(&self, hasher: &mut StableHasher) {
        match self {
            Self::Contiguous(offsets) => {
                hasher.str("contiguous");
                hasher.usizes(offsets.as_slice());
            }
        }
    }
}

impl fmt::Display for Partition {
    /// The sizes: `[3,1,0,2]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
