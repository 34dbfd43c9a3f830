//! The indices of one part of a dim.

use std::ops::Range;

use crate::dim_map::{DimMap, Run};
use crate::segments::Segments;

/// The indices of a dim that one part holds, ascending. Their positions 0, 1, 2 and so on are the part's local indices.
///
/// ```
/// use shard_spec::Partition;
/// let rows = Partition::zigzag(8, 2);
/// assert_eq!(rows.part(0).intervals().collect::<Vec<_>>(), [0..2, 6..8]);
/// assert_eq!(rows.part(0).index(2), 6);
/// assert_eq!(rows.part(1).interval(), Some(2..6));
/// ```
#[derive(Clone, Debug)]
pub struct DimPart(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Interval(Range<usize>),
    Segments { segments: Segments, part: usize },
}

impl From<Range<usize>> for DimPart {
    fn from(interval: Range<usize>) -> Self {
        Self(Kind::Interval(interval))
    }
}

impl DimPart {
    pub(crate) fn of(segments: &Segments, part: usize) -> Self {
        Self(match segments.only(part) {
            Some(interval) => Kind::Interval(interval),
            None => Kind::Segments {
                segments: segments.clone(),
                part,
            },
        })
    }

    /// The interval, where the part is kept as one.
    pub(crate) fn plain(&self) -> Option<&Range<usize>> {
        match &self.0 {
            Kind::Interval(interval) => Some(interval),
            Kind::Segments { .. } => None,
        }
    }

    /// Number of indices.
    pub fn len(&self) -> usize {
        match &self.0 {
            Kind::Interval(interval) => interval.len(),
            Kind::Segments { segments, part } => segments.size(*part),
        }
    }

    /// Whether the part holds no indices.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The indices as one interval, where they form one.
    pub fn interval(&self) -> Option<Range<usize>> {
        match &self.0 {
            Kind::Interval(interval) => Some(interval.clone()),
            // A part that recurs with the period has gaps in between.
            Kind::Segments { segments, part } if segments.recurs(*part) => None,
            Kind::Segments { .. } => {
                let mut intervals = self.intervals();
                let first = intervals.next().unwrap_or(0..0);
                intervals.next().is_none().then_some(first)
            }
        }
    }

    /// The indices as ascending, non-empty intervals that do not touch. They are found lazily: a part that recurs may have as
    /// many intervals as indices.
    pub fn intervals(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (one, several) = match &self.0 {
            Kind::Interval(interval) => (Some(interval.clone()), None),
            Kind::Segments { segments, part } => (None, Some(segments.clone().intervals(*part))),
        };
        let one = one.into_iter().filter(|interval| !interval.is_empty());
        one.chain(several.into_iter().flatten())
    }

    /// All indices, ascending.
    pub fn indices(&self) -> impl Iterator<Item = usize> + use<> {
        self.intervals().flatten()
    }

    /// The global index at a local one.
    ///
    /// # Panics
    /// Where `local >= len()`.
    pub fn index(&self, local: usize) -> usize {
        assert!(local < self.len(), "local index {local} of {}", self.len());
        match &self.0 {
            Kind::Interval(interval) => interval.start + local,
            Kind::Segments { segments, part } => segments.index(*part, local),
        }
    }

    /// The local index of a global one; `None` where the part does not hold it.
    pub fn position(&self, index: usize) -> Option<usize> {
        match &self.0 {
            Kind::Interval(interval) => interval.contains(&index).then(|| index - interval.start),
            Kind::Segments { segments, part } => {
                let held = (index < segments.extent()).then(|| segments.locate(index))?;
                (held.0 == *part).then_some(held.1)
            }
        }
    }

    /// Number of indices that both hold.
    pub fn common(&self, other: &Self) -> usize {
        if let (Some(a), Some(b)) = (self.plain(), other.plain()) {
            return a.end.min(b.end).saturating_sub(a.start.max(b.start));
        }
        // Parts of one partition are equal or disjoint.
        if let (
            Kind::Segments {
                segments: a,
                part: i,
            },
            Kind::Segments {
                segments: b,
                part: j,
            },
        ) = (&self.0, &other.0)
            && a == b
        {
            return if i == j { self.len() } else { 0 };
        }
        // Compared as maps, since there may be as many intervals as indices.
        let extent = self.extent().max(other.extent());
        let (mine, theirs) = (self.to_global(extent), other.to_global(extent));
        let both = mine.then(&theirs.inverse());
        both.runs().iter().map(|run| run.len).sum()
    }

    /// An extent that all indices lie below.
    fn extent(&self) -> usize {
        match &self.0 {
            Kind::Interval(interval) => interval.end,
            Kind::Segments { segments, .. } => segments.extent(),
        }
    }

    /// The relation from local indices to the global ones of a dim of `extent` indices.
    pub fn to_global(&self, extent: usize) -> DimMap {
        match &self.0 {
            Kind::Interval(interval) => {
                let run = Run {
                    src_start: 0,
                    dst_start: interval.start,
                    len: interval.len(),
                    src_step: 1,
                    dst_step: 1,
                };
                DimMap::from_valid(interval.len(), extent, [run])
            }
            Kind::Segments { segments, part } => segments.to_global(*part),
        }
    }
}

impl PartialEq for DimPart {
    /// Whether both hold the same indices.
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kind::Interval(a), Kind::Interval(b)) => a == b || (a.is_empty() && b.is_empty()),
            (
                Kind::Segments {
                    segments: a,
                    part: i,
                },
                Kind::Segments {
                    segments: b,
                    part: j,
                },
            ) if i == j && a == b => true,
            _ => self.len() == other.len() && self.common(other) == self.len(),
        }
    }
}

impl Eq for DimPart {}
