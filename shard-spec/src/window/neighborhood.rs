//! Neighbourhoods: every query sees the same number of keys around it, shifted inwards at the ends.
//!
//! With dilation, the indices that are equal modulo it form a line, and a window lies in the line of its query. Along a line,
//! windows move forward with their queries. From one line to the next they may step back, so questions about intervals look at
//! one window of each line.

use std::ops::Range;

use super::{Geometry, Window, check_taps, coordinate};
use crate::error::{Result, SpecError};

/// The keys that one query of a [neighbourhood](Window::neighborhood) sees: `count` of them, `step` apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbors {
    /// The first key.
    pub first: usize,
    /// From one key to the next.
    pub step: usize,
    /// How many keys.
    pub count: usize,
}

impl Neighbors {
    /// The keys, ascending.
    pub fn keys(self) -> impl ExactSizeIterator<Item = usize> + Clone {
        (0..self.count).map(move |t| self.first + t * self.step)
    }

    /// One past the last key.
    fn end(self) -> usize {
        self.first + (self.count - 1) * self.step + 1
    }
}

/// Neighbourhoods.
impl Window {
    /// The neighbourhood of NATTEN (Hassani et al. 2023): among the indices equal to `o` modulo `dilation`, query `o` sees
    /// `kernel` consecutive keys, `kernel / 2` of them before it where the ends allow it. Nearer to an end the window is
    /// shifted inwards, so that every query sees as many keys. A causal query sees its own key and the `kernel - 1` before it,
    /// as far as they exist.
    ///
    /// ```
    /// use shard_spec::Window;
    /// let window = Window::neighborhood(8, 3, 1, false)?;
    /// let keys = |o| window.neighbors(o).unwrap().keys().collect::<Vec<_>>();
    /// assert_eq!([keys(0), keys(1), keys(4), keys(7)], [[0, 1, 2], [0, 1, 2], [3, 4, 5], [5, 6, 7]]);
    /// // At an end a part reads further than half of the window.
    /// assert_eq!(window.input_interval(8, 7..8), 5..8);
    /// # Ok::<(), shard_spec::SpecError>(())
    /// ```
    ///
    /// # Errors
    /// [`SpecError::Argument`] for a kernel or dilation of 0, and where `kernel * dilation` is above the extent, so that some index has fewer than `kernel` keys.
    pub fn neighborhood(
        extent: usize,
        kernel: usize,
        dilation: usize,
        causal: bool,
    ) -> Result<Self> {
        let op = "neighbourhood window";
        check_taps(op, kernel, 1, dilation)?;
        if kernel * dilation > extent {
            return Err(SpecError::Argument {
                op,
                argument: "kernel * dilation",
                got: (kernel * dilation).to_string(),
                expected: format!("at most the extent {extent}"),
                remedy: "use a smaller kernel or dilation",
            });
        }
        Ok(Self::Neighborhood {
            extent,
            kernel,
            dilation,
            causal,
        })
    }

    /// The keys that query `o` of a [neighbourhood](Self::neighborhood) sees; `None` for other windows, or beyond its extent.
    pub fn neighbors(&self, o: usize) -> Option<Neighbors> {
        match *self {
            Self::Neighborhood {
                extent,
                kernel,
                dilation,
                causal,
            } if o < extent => Some(
                Neighborhood {
                    extent,
                    kernel,
                    dilation,
                    causal,
                }
                .of(o),
            ),
            _ => None,
        }
    }
}

pub(super) struct Neighborhood {
    pub(super) extent: usize,
    pub(super) kernel: usize,
    pub(super) dilation: usize,
    pub(super) causal: bool,
}

impl Neighborhood {
    /// What query `i` sees, for `i` below the extent.
    pub(super) fn of(&self, i: usize) -> Neighbors {
        let (line, at) = (i % self.dilation, i / self.dilation);
        let (first, count) = if self.causal {
            let count = self.kernel.min(at + 1);
            (at + 1 - count, count)
        } else {
            // At least `kernel` in every line, as the constructor checks.
            let length = (self.extent - line).div_ceil(self.dilation);
            let first = at.saturating_sub(self.kernel / 2);
            (first.min(length - self.kernel), self.kernel)
        };
        Neighbors {
            first: line + first * self.dilation,
            step: self.dilation,
            count,
        }
    }

    /// The first key that any query from `i` on sees. It rises with `i`.
    fn lowest_from(&self, i: usize) -> usize {
        let lines = i..self.extent.min(i + self.dilation);
        lines.map(|i| self.of(i).first).min().unwrap_or(self.extent)
    }

    /// One past the last key that any query up to `i` sees. It rises with `i`.
    fn highest_to(&self, i: usize) -> usize {
        let lines = (i + 1).saturating_sub(self.dilation)..i + 1;
        lines.map(|i| self.of(i).end()).max().unwrap_or(0)
    }

    /// The first query for which a condition holds that stays true from there on; the extent where it holds for none.
    fn first(&self, holds: impl Fn(usize) -> bool) -> usize {
        let (mut lo, mut hi) = (0, self.extent);
        while lo < hi {
            let mid = lo.midpoint(hi);
            if holds(mid) {
                hi = mid;
            } else {
                lo = mid + 1;
            }
        }
        lo
    }
}

impl Geometry for Neighborhood {
    fn output_extent(&self, n: usize) -> Result<usize> {
        if n == self.extent {
            return Ok(n);
        }
        Err(SpecError::Argument {
            op: "output_extent",
            argument: "input extent",
            got: n.to_string(),
            expected: self.extent.to_string(),
            remedy: "build the neighbourhood for this extent",
        })
    }

    fn input_interval(&self, _n: usize, first: usize, last: usize) -> Range<isize> {
        // Windows of one line rise: the line's first query has the first key, its last query the last.
        let last = last.min(self.extent.saturating_sub(1));
        let heads = first..(first + self.dilation).min(last + 1);
        let tails = first.max((last + 1).saturating_sub(self.dilation))..last + 1;
        let lo = heads.map(|i| self.of(i).first).min().unwrap_or(self.extent);
        let hi = tails.map(|i| self.of(i).end()).max().unwrap_or(lo);
        coordinate(lo as i128)..coordinate(hi as i128)
    }

    fn output_of_input(&self, first: usize, last: usize, outputs: Range<usize>) -> Range<usize> {
        let start = self
            .first(|i| self.highest_to(i) > first)
            .max(outputs.start);
        let end = self.first(|i| self.lowest_from(i) > last).min(outputs.end);
        start..end.max(start)
    }

    fn first_reading_from(&self, _n: usize, x: usize) -> i128 {
        self.first(|i| self.lowest_from(i) >= x) as i128
    }

    fn first_reading_beyond(&self, _n: usize, x: usize) -> i128 {
        self.first(|i| self.highest_to(i) > x) as i128
    }

    fn anchor(&self, _n: usize, x: usize, _outputs: usize) -> i128 {
        x as i128
    }

    fn anchor_input(&self, _n: usize, y: usize) -> i128 {
        y as i128
    }
}
