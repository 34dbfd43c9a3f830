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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The source of an extended index, one at a time.
    fn source(n: isize, before: isize, after: isize, i: isize, edge: EdgeMap) -> Option<isize> {
        let (lo, hi) = ((-before).max(0), n.min(n + after));
        match edge {
            EdgeMap::Zeros => (0..n).contains(&i).then_some(i),
            EdgeMap::Replicate => Some(i.clamp(0, n - 1)),
            EdgeMap::Reflect if i < 0 => Some(-i),
            EdgeMap::Reflect if i >= n => Some(2 * (n - 1) - i),
            EdgeMap::Reflect => Some(i),
            EdgeMap::Circular => Some(lo + (i - lo).rem_euclid(hi - lo)),
        }
    }

    fn edges() -> impl Strategy<Value = EdgeMap> {
        prop::sample::select(vec![
            EdgeMap::Zeros,
            EdgeMap::Replicate,
            EdgeMap::Reflect,
            EdgeMap::Circular,
        ])
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn pads_match_index_by_index(n in 0isize..9, before in -9isize..20, after in -9isize..20, edge in edges()) {
            match DimMap::pad(n as usize, before, after, edge) {
                Ok(map) => {
                    prop_assert_eq!(map.dst_extent() as isize, n + before + after);
                    let mut expected = Vec::new();
                    for j in 0..map.dst_extent() {
                        if let Some(s) = source(n, before, after, j as isize - before, edge) {
                            expected.push((s as usize, j));
                        }
                    }
                    let mut found: Vec<_> = map.pairs().collect();
                    found.sort_unstable_by_key(|&(s, d)| (d, s));
                    prop_assert_eq!(found, expected);
                    prop_assert!(map.single_valued());
                    prop_assert!(map.covers_all_dst() || edge == EdgeMap::Zeros);
                }
                Err(SpecError::Argument { .. }) => {
                    let negative = n + before + after < 0;
                    let too_wide = edge == EdgeMap::Reflect && before.max(after) > 0 && before.max(after) >= n;
                    let nothing = edge != EdgeMap::Zeros && (n == 0 || -before >= n || -after >= n);
                    prop_assert!(negative || too_wide || nothing);
                }
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }

    #[test]
    fn wide_circular_pads_wrap_many_times() {
        let map = DimMap::pad(3, 7, 1, EdgeMap::Circular).unwrap();
        let sources: Vec<usize> = map.pairs().map(|(s, _)| s).collect();
        assert_eq!(sources, [2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn wide_reflections_and_negative_extents_are_refused() {
        for (before, after, edge) in [
            (3, 0, EdgeMap::Reflect),
            (-2, -2, EdgeMap::Zeros),
            (-3, 1, EdgeMap::Circular),
        ] {
            let bad = DimMap::pad(3, before, after, edge);
            assert!(
                matches!(bad, Err(SpecError::Argument { op: "pad", .. })),
                "{bad:?}"
            );
        }
        assert!(matches!(
            DimMap::pad(1, isize::MAX, 1, EdgeMap::Zeros),
            Err(SpecError::Overflow { .. })
        ));
        assert!(matches!(
            DimMap::pad(1, isize::MIN, 0, EdgeMap::Zeros),
            Err(SpecError::Argument { .. })
        ));
    }
}
