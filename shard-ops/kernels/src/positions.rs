//! Global positions of a block's rows.

use std::borrow::Cow;

/// Where the rows of a block lie in the global sequence or point set.
///
/// A block of a contiguous or striped partition is a run; a zigzag block, or one whose rows depend on data, is a list.
///
/// ```
/// use shard_kernels::Positions;
/// let striped = Positions::Run { start: 1, step: 4 };
/// assert_eq!(striped.list(3)[..], [1, 5, 9]);
/// assert_eq!(Positions::List(&[0, 1, 6, 7]).at(2), 6);
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Positions<'a> {
    /// Row `i` is number `start + i * step`.
    Run {
        /// The position of row 0.
        start: i64,
        /// The step from a row to the next; may be negative.
        step: i64,
    },
    /// Row `i` is number `list[i]`.
    List(&'a [i64]),
}

impl<'a> Positions<'a> {
    /// Consecutive positions from `start` on.
    pub const fn from(start: i64) -> Self {
        Self::Run { start, step: 1 }
    }

    /// The position of row `i`.
    ///
    /// # Panics
    /// When a list has no such row.
    #[inline(always)]
    pub fn at(&self, i: usize) -> i64 {
        match self {
            Self::Run { start, step } => start + i as i64 * step,
            Self::List(list) => list[i],
        }
    }

    /// The positions of `count` rows.
    ///
    /// # Panics
    /// When a list holds another number of rows.
    pub fn list(&self, count: usize) -> Cow<'a, [i64]> {
        match *self {
            Self::Run { start, step } => (0..count as i64).map(|i| start + i * step).collect(),
            Self::List(list) => {
                assert!(
                    list.len() == count,
                    "positions: {} listed for {count} rows",
                    list.len()
                );
                Cow::Borrowed(list)
            }
        }
    }
}
