//! Padding as an index relation: what lies beyond the edges of a dim.

use std::ops::Range;

use super::{DimMap, Run, argument};
use crate::error::{Result, SpecError};

/// What an index beyond the edge of a dim stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum EdgeMap {
    /// Nothing: a hole, which the exchange fills with zeros or another constant.
    Zeros,
    /// The nearest index inside.
    Replicate,
    /// The mirror image about the edge element, which is not repeated; pads are narrower than the dim.
    Reflect,
    /// The index modulo the extent; pads may be any number of times wider than the dim.
    Circular,
}

impl EdgeMap {
    /// The name used in errors and traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zeros => "zeros",
            Self::Replicate => "replicate",
            Self::Reflect => "reflect",
            Self::Circular => "circular",
        }
    }
}

impl DimMap {
    /// `n` elements with `before` more in front and `after` more behind, as in `torch.nn.functional.pad`; negative pads crop.
    ///
    /// Where a pad crops, `Replicate` and `Reflect` still look at the whole dim, but `Circular` wraps within what is kept.
    ///
    /// # Errors
    /// [`SpecError::Argument`] where the result would have a negative extent, where a reflecting pad is not narrower than the dim,
    /// and where there is nothing to copy from; [`SpecError::Overflow`] for a result beyond `isize::MAX`.
    pub fn pad(n: usize, before: isize, after: isize, edge: EdgeMap) -> Result<Self> {
        let padded = Padded::new(n, before, after, edge)?;
        let runs = match edge {
            EdgeMap::Circular => padded.periods(),
            _ => padded.beside_each_other(edge),
        };
        Ok(Self::from_valid(n, padded.total, runs))
    }
}

/// A dim of which indices are extended: from `-before` to `end`.
struct Padded {
    extent: isize,
    before: isize,
    end: isize,
    /// How many indices there are.
    total: usize,
    /// Those of the dim's own elements that are kept.
    kept: Range<isize>,
}

impl Padded {
    fn new(n: usize, before: isize, after: isize, edge: EdgeMap) -> Result<Self> {
        let op = "pad";
        let overflow = || SpecError::Overflow {
            op,
            shape: vec![n, before.unsigned_abs(), after.unsigned_abs()],
        };
        let extent = isize::try_from(n).map_err(|_| overflow())?;
        let end = extent.checked_add(after).ok_or_else(overflow)?;
        let total = end.checked_add(before).ok_or_else(overflow)?;
        let Ok(total) = usize::try_from(total) else {
            let (got, expected) = (
                format!("{before}, {after}"),
                format!("a crop of at most {n}"),
            );
            let remedy = "crop less than the dim holds";
            return Err(argument(op, "crop", &got, expected, remedy));
        };
        let widest = before.max(after);
        if edge == EdgeMap::Reflect && widest > 0 && widest >= extent {
            let expected = format!("a pad narrower than the extent {n}");
            let remedy = "pad less, or use replicate or circular";
            return Err(argument(op, "reflect pad", &widest, expected, remedy));
        }
        let kept = (-before).max(0)..extent.min(end);
        let source = match edge {
            EdgeMap::Zeros => true,
            EdgeMap::Replicate | EdgeMap::Reflect => n > 0,
            EdgeMap::Circular => !kept.is_empty(),
        };
        if total > 0 && !source {
            let expected = "at least one element to copy".to_owned();
            let remedy = "use zeros, or do not pad an empty dim";
            return Err(argument(op, edge.name(), &"an empty dim", expected, remedy));
        }
        Ok(Self {
            extent,
            before,
            end,
            total,
            kept,
        })
    }

    /// A run of extended indices.
    fn run(&self, range: Range<isize>, src_start: isize, src_step: isize) -> Run {
        Run {
            dst_start: (range.start + self.before) as usize,
            src_start: src_start as usize,
            len: range.end.saturating_sub(range.start).max(0) as usize,
            dst_step: 1,
            src_step,
        }
    }

    /// What is kept, and what is put on either side of it.
    fn beside_each_other(&self, edge: EdgeMap) -> Vec<Run> {
        let (extent, before, end) = (self.extent, self.before, self.end);
        let left = -before..0.min(end);
        let right = extent.max(-before)..end;
        let mut runs = Vec::new();
        if !self.kept.is_empty() {
            runs.push(self.run(self.kept.clone(), self.kept.start, 1));
        }
        for range in [left, right].into_iter().filter(|range| !range.is_empty()) {
            let nearest = if range.start < 0 { 0 } else { extent - 1 };
            match edge {
                EdgeMap::Zeros | EdgeMap::Circular => {}
                EdgeMap::Replicate => runs.push(self.run(range, nearest, 0)),
                // As far from the edge, on its other side.
                EdgeMap::Reflect => {
                    let start = 2 * nearest - range.start;
                    runs.push(self.run(range, start, -1));
                }
            }
        }
        runs
    }

    /// What is kept, over and over.
    fn periods(&self) -> Vec<Run> {
        let kept = &self.kept;
        let period = kept.end - kept.start;
        if period == 1 {
            return vec![self.run(-self.before..self.end, kept.start, 0)];
        }
        // One run per period, the first and last ones cut short.
        let mut runs = Vec::new();
        let mut at = -self.before;
        while at < self.end {
            let phase = (at - kept.start).rem_euclid(period);
            let next = self.end.min(at.saturating_add(period - phase));
            runs.push(self.run(at..next, kept.start + phase, 1));
            at = next;
        }
        runs
    }
}
