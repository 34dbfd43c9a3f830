//! Affine index relations along one dim: which source index each destination index copies.

mod algebra;
pub(crate) mod candidates;
mod pad;

use smallvec::SmallVec;

pub use pad::EdgeMap;

use crate::dims::extent_of;
use crate::error::{Result, SpecError};
use crate::hash::{ContentHash, StableHasher};
use crate::progression::Progression;

/// For `i` in `0..len`, destination `dst_start + i * dst_step` copies source `src_start + i * src_step`. Steps may be zero or
/// negative.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Run {
    /// First destination index.
    pub dst_start: usize,
    /// First source index.
    pub src_start: usize,
    /// Number of pairs.
    pub len: usize,
    /// Destination indices from one pair to the next.
    pub dst_step: isize,
    /// Source indices from one pair to the next.
    pub src_step: isize,
}

impl Run {
    pub(crate) fn src(&self) -> Progression {
        Progression {
            start: self.src_start as isize,
            step: self.src_step,
            len: self.len,
        }
    }

    pub(crate) fn dst(&self) -> Progression {
        Progression {
            start: self.dst_start as isize,
            step: self.dst_step,
            len: self.len,
        }
    }

    /// The same pairs in canonical form: destinations never fall, sources never fall where the destination step is zero, and a
    /// single pair has unit steps.
    fn canonical(self) -> Self {
        if self.len == 1 {
            return Self {
                dst_step: 1,
                src_step: 1,
                ..self
            };
        }
        if self.dst_step > 0 || (self.dst_step == 0 && self.src_step >= 0) {
            return self;
        }
        Self {
            dst_start: self.dst().at(self.len - 1) as usize,
            src_start: self.src().at(self.len - 1) as usize,
            len: self.len,
            dst_step: -self.dst_step,
            src_step: -self.src_step,
        }
    }

    /// This run and `next` as one, where `next` continues this run.
    fn join(self, next: Self) -> Option<Self> {
        let continues = (self.dst_step, self.src_step) == (next.dst_step, next.src_step)
            && self.dst().at(self.len) == next.dst_start as isize
            && self.src().at(self.len) == next.src_start as isize;
        continues.then_some(Self {
            len: self.len + next.len,
            ..self
        })
    }
}

/// An index relation along one dim, as runs of an affine map.
///
/// Destination indices that no run reaches are holes, which the exchange fills; an index that is reached twice accumulates.
///
/// ```
/// use shard_spec::DimMap;
/// let every_other = DimMap::slice(5, 0, 2, 3)?;
/// assert_eq!(every_other.pairs().collect::<Vec<_>>(), [(0, 0), (2, 1), (4, 2)]);
/// let adjoint = every_other.inverse();
/// assert!(adjoint.single_valued() && !adjoint.covers_all_dst());
/// # Ok::<(), shard_spec::SpecError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DimMap {
    src_extent: usize,
    dst_extent: usize,
    /// Canonical and sorted; neighbours that continue each other are joined.
    runs: SmallVec<[Run; 2]>,
}

/// Constructors.
impl DimMap {
    /// Every index to itself.
    ///
    /// # Panics
    /// For an extent beyond `isize::MAX`, which no tensor has.
    pub fn identity(n: usize) -> Self {
        let n = extent_of("identity", n);
        Self::from_valid(
            n,
            n,
            [Run {
                dst_start: 0,
                src_start: 0,
                len: n,
                dst_step: 1,
                src_step: 1,
            }],
        )
    }

    /// `dst[i] = src[start + i * step]` for `i` in `0..len`; a negative step runs backwards.
    ///
    /// # Errors
    /// [`SpecError::Argument`] for a step of 0, or where the slice leaves `0..n`.
    pub fn slice(n: usize, start: usize, step: isize, len: usize) -> Result<Self> {
        if step == 0 {
            let expected = "a step other than 0".to_owned();
            return Err(argument(
                "slice",
                "step",
                &0,
                expected,
                "use `expand` to repeat one index",
            ));
        }
        if len == 0 && start > n {
            let expected = format!("at most {n}");
            return Err(argument(
                "slice",
                "start",
                &start,
                expected,
                "start within the dim",
            ));
        }
        if len == 0 {
            return Ok(Self::from_valid(n, 0, []));
        }
        Self::from_runs(
            n,
            len,
            [Run {
                dst_start: 0,
                src_start: start,
                len,
                dst_step: 1,
                src_step: step,
            }],
        )
    }

    /// The reverse order.
    ///
    /// # Panics
    /// As [`identity`](Self::identity).
    pub fn flip(n: usize) -> Self {
        let n = extent_of("flip", n);
        Self::from_valid(
            n,
            n,
            [Run {
                dst_start: 0,
                src_start: n.saturating_sub(1),
                len: n,
                dst_step: 1,
                src_step: -1,
            }],
        )
    }

    /// `dst[(i + shift) mod n] = src[i]`.
    ///
    /// # Panics
    /// As [`identity`](Self::identity).
    pub fn roll(n: usize, shift: isize) -> Self {
        if extent_of("roll", n) == 0 {
            return Self::identity(0);
        }
        // In 0..n, which fits both types.
        let shift = (shift as i128).rem_euclid(n as i128) as usize;
        let unit = |dst_start, src_start, len| Run {
            dst_start,
            src_start,
            len,
            dst_step: 1,
            src_step: 1,
        };
        Self::from_valid(n, n, [unit(shift, 0, n - shift), unit(0, n - shift, shift)])
    }

    /// The whole source at offset `at` of a larger destination, as one operand of a concatenation is placed.
    ///
    /// # Errors
    /// [`SpecError::Argument`] where it does not fit, [`SpecError::Overflow`] for a destination beyond `isize::MAX`.
    pub fn place(src_n: usize, dst_n: usize, at: usize) -> Result<Self> {
        crate::dims::checked_numel(&[dst_n])?;
        if at.checked_add(src_n).is_none_or(|end| end > dst_n) {
            let expected = format!("a place for {src_n} elements within {dst_n}");
            return Err(argument(
                "place",
                "at",
                &at,
                expected,
                "size the destination as the sum of its operands",
            ));
        }
        let run = Run {
            dst_start: at,
            src_start: 0,
            len: src_n,
            dst_step: 1,
            src_step: 1,
        };
        Ok(Self::from_valid(src_n, dst_n, [run]))
    }

    /// The source repeated `times` times.
    ///
    /// # Errors
    /// [`SpecError::Overflow`].
    pub fn repeat(n: usize, times: usize) -> Result<Self> {
        let dst_extent = crate::dims::checked_numel(&[n, times])?;
        if n == 1 {
            return Ok(Self::expand(times));
        }
        let copies = if n == 0 { 0 } else { times };
        let runs = (0..copies).map(|c| Run {
            dst_start: c * n,
            src_start: 0,
            len: n,
            dst_step: 1,
            src_step: 1,
        });
        Ok(Self::from_valid(n, dst_extent, runs))
    }

    /// One source index to `n` destinations.
    ///
    /// # Panics
    /// As [`identity`](Self::identity).
    pub fn expand(n: usize) -> Self {
        let n = extent_of("expand", n);
        Self::from_valid(
            1,
            n,
            [Run {
                dst_start: 0,
                src_start: 0,
                len: n,
                dst_step: 1,
                src_step: 0,
            }],
        )
    }

    /// The relation that the given runs describe, in any order.
    ///
    /// # Errors
    /// [`SpecError::Argument`] for a run that leaves either extent, [`SpecError::Overflow`] for an extent beyond `isize::MAX`.
    pub fn from_runs(
        src_extent: usize,
        dst_extent: usize,
        runs: impl IntoIterator<Item = Run>,
    ) -> Result<Self> {
        crate::dims::checked_numel(&[src_extent])?;
        crate::dims::checked_numel(&[dst_extent])?;
        let runs: SmallVec<[Run; 2]> = runs.into_iter().filter(|run| run.len > 0).collect();
        for run in &runs {
            let ends = [
                (run.src_start, run.src_step, src_extent),
                (run.dst_start, run.dst_step, dst_extent),
            ];
            for ((start, step, extent), name) in ends.into_iter().zip(["source", "destination"]) {
                let last = start as i128 + (run.len as i128 - 1) * step as i128;
                if start >= extent || last < 0 || last >= extent as i128 {
                    let got = format!("{start} to {last}");
                    let expected = format!("indices within 0..{extent}");
                    return Err(argument(
                        "index map",
                        name,
                        &got,
                        expected,
                        "shorten the run or move its start",
                    ));
                }
            }
        }
        Ok(Self::from_valid(src_extent, dst_extent, runs))
    }

    /// Puts valid runs in canonical form.
    pub(crate) fn from_valid(
        src_extent: usize,
        dst_extent: usize,
        runs: impl IntoIterator<Item = Run>,
    ) -> Self {
        let mut sorted: SmallVec<[Run; 2]> = runs
            .into_iter()
            .filter(|run| run.len > 0)
            .map(Run::canonical)
            .collect();
        sorted.sort_unstable();
        let mut runs: SmallVec<[Run; 2]> = SmallVec::with_capacity(sorted.len());
        for run in sorted {
            match runs
                .last_mut()
                .and_then(|last| Some((last.join(run)?, last)))
            {
                Some((joined, last)) => *last = joined,
                None => runs.push(run),
            }
        }
        Self {
            src_extent,
            dst_extent,
            runs,
        }
    }
}

/// Queries.
impl DimMap {
    /// Extent of the source dim.
    pub fn src_extent(&self) -> usize {
        self.src_extent
    }

    /// Extent of the destination dim.
    pub fn dst_extent(&self) -> usize {
        self.dst_extent
    }

    /// The runs, by first destination index; destination steps are never negative.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Every `(source, destination)` pair, run by run.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.runs.iter().flat_map(|run| {
            (0..run.len).map(|i| (run.src().at(i) as usize, run.dst().at(i) as usize))
        })
    }

    /// The intervals of destination indices that the runs reach, run by run. A run with a step other than 1 gives one interval
    /// per index.
    pub(crate) fn dst_intervals(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        self.runs.iter().flat_map(|run| {
            let (whole, each) = if run.dst_step == 1 {
                (run.len, 1)
            } else {
                (1, run.len)
            };
            (0..each).map(move |i| {
                let start = run.dst().at(i) as usize;
                start..start + whole
            })
        })
    }

    /// How many intervals `dst_intervals` gives.
    pub(crate) fn dst_interval_count(&self) -> usize {
        let count = |run: &Run| if run.dst_step == 1 { 1 } else { run.len };
        self.runs.iter().map(count).fold(0, usize::saturating_add)
    }

    /// Whether every index maps to itself.
    pub fn is_identity(&self) -> bool {
        self.src_extent == self.dst_extent && *self == Self::identity(self.src_extent)
    }
}

impl ContentHash for DimMap {
    fn feed(&self, hasher: &mut StableHasher) {
        hasher.str("dim map");
        hasher.usizes(&[self.src_extent, self.dst_extent, self.runs.len()]);
        for run in &self.runs {
            hasher.usizes(&[run.dst_start, run.src_start, run.len]);
            hasher.isize(run.dst_step);
            hasher.isize(run.src_step);
        }
    }
}

/// The [`SpecError::Argument`] of this module's operations.
fn argument(
    op: &'static str,
    argument: &'static str,
    got: &dyn std::fmt::Display,
    expected: String,
    remedy: &'static str,
) -> SpecError {
    SpecError::Argument {
        op,
        argument,
        got: got.to_string(),
        expected,
        remedy,
    }
}
