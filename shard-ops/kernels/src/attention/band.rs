//! Masks that are functions of positions.

use std::ops::Range;

/// Which keys a query sees by their distance: those with `low <= key - query <= high`.
///
/// Causal masks and sliding windows are bands, and so are their intersections.
///
/// ```
/// use shard_kernels::attention::Band;
/// let recent = Band::causal().and(Band::window(2, 2));
/// assert!(recent.sees(5, 5) && recent.sees(5, 3));
/// assert!(!recent.sees(5, 6) && !recent.sees(5, 2));
/// // The last of 3 queries is aligned with the last of 8 keys.
/// assert!(Band::causal_bottom_right(3, 8).sees(0, 5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Band {
    low: i64,
    high: i64,
}

/// How a set of queries and a set of keys meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// No query sees a key.
    None,
    /// Some see some.
    Some,
    /// All see all.
    All,
}

impl Sight {
    /// How they meet where two masks hide pairs.
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, _) | (_, Self::None) => Self::None,
            (Self::All, Self::All) => Self::All,
            _ => Self::Some,
        }
    }
}

/// A number of positions as a distance; one that is too large becomes `i64::MAX`, which is no bound.
const fn distance(positions: usize) -> i64 {
    if positions > i64::MAX as usize {
        i64::MAX
    } else {
        positions as i64
    }
}

impl Band {
    /// Everything is seen.
    pub const ALL: Self = Self {
        low: i64::MIN,
        high: i64::MAX,
    };

    /// Query `i` sees keys `0..=i`: the first query is aligned with the first key.
    pub const fn causal() -> Self {
        Self {
            high: 0,
            ..Self::ALL
        }
    }

    /// Of `queries` queries and `keys` keys in all, query `i` sees keys `0..=i + keys - queries`: the last query is aligned
    /// with the last key.
    pub const fn causal_bottom_right(queries: usize, keys: usize) -> Self {
        Self {
            high: keys as i64 - queries as i64,
            ..Self::ALL
        }
    }

    /// A query sees its own key, `left` keys before its position and `right` keys after it; `usize::MAX` is no bound.
    pub const fn window(left: usize, right: usize) -> Self {
        Self {
            low: -distance(left),
            high: distance(right),
        }
    }

    /// The least and the greatest distance from a query to a key that it sees.
    pub const fn bounds(self) -> (i64, i64) {
        (self.low, self.high)
    }

    /// This band with every key seen as if it stood `offset` further left, which aligns a window or a causal mask differently.
    pub const fn shifted(self, offset: i64) -> Self {
        Self {
            low: if self.low == i64::MIN {
                self.low
            } else {
                self.low.saturating_add(offset)
            },
            high: if self.high == i64::MAX {
                self.high
            } else {
                self.high.saturating_add(offset)
            },
        }
    }

    /// The keys that both bands see.
    pub const fn and(self, other: Self) -> Self {
        Self {
            low: if self.low > other.low {
                self.low
            } else {
                other.low
            },
            high: if self.high < other.high {
                self.high
            } else {
                other.high
            },
        }
    }

    /// Whether a query sees a key.
    #[inline(always)]
    pub const fn sees(self, query: i64, key: i64) -> bool {
        let apart = key.saturating_sub(query);
        self.low <= apart && apart <= self.high
    }

    /// Which of `count` keys that follow each other, the first at `first`, a query sees.
    pub(super) fn seen_of_run(self, query: i64, first: i64, count: usize) -> Range<usize> {
        // The keys before the first at this distance.
        let before = |distance: i64| {
            let apart = i128::from(query) + i128::from(distance) - i128::from(first);
            apart.clamp(0, count as i128) as usize
        };
        let start = if self.low == i64::MIN {
            0
        } else {
            before(self.low)
        };
        let end = if self.high == i64::MAX {
            count
        } else {
            before(self.high.saturating_add(1))
        };
        start.min(end)..end
    }

    /// How queries and keys between these extremes meet.
    pub(super) fn sight(self, queries: (i64, i64), keys: (i64, i64)) -> Sight {
        let nearest = keys.0.saturating_sub(queries.1);
        let farthest = keys.1.saturating_sub(queries.0);
        if self.low <= nearest && farthest <= self.high {
            Sight::All
        } else if farthest < self.low || nearest > self.high {
            Sight::None
        } else {
            Sight::Some
        }
    }
}
