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
        let op = "pad";
        let overflow = || SpecError::Overflow {
            op,
            shape: vec![n, before.unsigned_abs(), after.unsigned_abs()],
        };
        let extent = isize::try_from(n).map_err(|_| overflow())?;
        let end = extent.checked_add(after).ok_or_else(overflow)?;
        let total = end.checked_add(before).ok_or_else(overflow)?;
        let Ok(dst_extent) = usize::try_from(total) else {
            let expected = format!("a crop of at most {n}");
            return Err(argument(
                op,
                "crop",
                &format!("{before}, {after}"),
                expected,
                "crop less than the dim holds",
            ));
        };
        let widest = before.max(after);
        if edge == EdgeMap::Reflect && widest > 0 && widest >= extent {
            let expected = format!("a pad narrower than the extent {n}");
            return Err(argument(
                op,
                "reflect pad",
                &widest,
                expected,
                "pad less, or use replicate or circular",
            ));
        }
        let kept = (-before).max(0)..extent.min(end);
        let source = match edge {
            EdgeMap::Zeros => true,
            EdgeMap::Replicate | EdgeMap::Reflect => n > 0,
            EdgeMap::Circular => !kept.is_empty(),
        };
        if dst_extent > 0 && !source {
            let expected = "at least one element to copy".to_owned();
            return Err(argument(
                op,
                edge.name(),
                &"an empty dim",
                expected,
                "use zeros, or do not pad an empty dim",
            ));
        }

        // Extended indices run from -before to end; each run below is given in those.
        let run = |range: Range<isize>, src_start: isize, src_step: isize| Run {
            dst_start: (range.start + before) as usize,
            src_start: src_start as usize,
            len: range.end.saturating_sub(range.start).max(0) as usize,
            dst_step: 1,
            src_step,
        };
        let left = -before..0.min(end);
        let middle = kept.clone();
        let right = extent.max(-before)..end;
        let mut runs = Vec::new();
        if !middle.is_empty() {
            runs.push(run(middle.clone(), middle.start, 1));
        }
        if !left.is_empty() {
            match edge {
                EdgeMap::Zeros | EdgeMap::Circular => {}
                EdgeMap::Replicate => runs.push(run(left, 0, 0)),
                EdgeMap::Reflect => runs.push(run(left.clone(), -left.start, -1)),
            }
        }
        if !right.is_empty() {
            match edge {
                EdgeMap::Zeros | EdgeMap::Circular => {}
                EdgeMap::Replicate => runs.push(run(right, extent - 1, 0)),
                EdgeMap::Reflect => {
                    runs.push(run(right.clone(), 2 * (extent - 1) - right.start, -1));
                }
            }
        }
        if edge == EdgeMap::Circular && dst_extent > 0 {
            runs.clear();
            let period = kept.end - kept.start;
            if period == 1 {
                runs.push(run(-before..end, kept.start, 0));
            } else {
                // One run per period, the first and last ones cut short.
                let mut at = -before;
                while at < end {
                    let phase = (at - kept.start).rem_euclid(period);
                    let next = end.min(at.saturating_add(period - phase));
                    runs.push(run(at..next, kept.start + phase, 1));
                    at = next;
                }
            }
        }
        Ok(Self::from_valid(n, dst_extent, runs))
    }
}
