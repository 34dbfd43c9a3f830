//! Arithmetic progressions of indices, intersected in closed form.

use std::ops::Range;

/// The indices `start + i * step` for `i` in `0..len`. The step may be zero or negative.
///
/// ```
/// use shard_spec::{Intersection, Progression};
/// let every = |step, start| Progression { start, step, len: 5 };
/// // 1, 4, 7, 10, 13 and 0, 2, 4, 6, 8 have 4 in common.
/// let common = every(3, 1).intersect(&every(2, 0));
/// assert_eq!(common, Intersection::Line { i_start: 1, i_step: 2, j_start: 2, j_step: 3, len: 1 });
/// assert_eq!(every(2, 1).intersect(&every(2, 0)), Intersection::Never);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progression {
    /// The first index.
    pub start: isize,
    /// From one index to the next.
    pub step: isize,
    /// How many indices there are.
    pub len: usize,
}

/// Where two progressions are equal, as positions `i` in the first and `j` in the second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intersection {
    /// Nowhere.
    Never,
    /// At `i = i_start + t * i_step`, `j = j_start + t * j_step` for `t` in `0..len`.
    Line {
        /// The first position in the first progression.
        i_start: usize,
        /// From one position there to the next.
        i_step: usize,
        /// The first position in the second progression.
        j_start: usize,
        /// From one position there to the next.
        j_step: isize,
        /// How many pairs there are.
        len: usize,
    },
    /// At every pair: both have step zero and the same index.
    Everywhere,
}

impl Progression {
    /// The index at position `i`.
    pub fn at(&self, i: usize) -> isize {
        self.start + i as isize * self.step
    }

    /// The positions whose indices lie in a range.
    pub fn within(&self, range: &Range<isize>) -> Range<usize> {
        let Self { start, step, len } = *self;
        if step == 0 {
            return if range.contains(&start) { 0..len } else { 0..0 };
        }
        // The first position that reaches `bound`: whose index is not below it when rising, not above it when falling.
        let first_reaching = |bound: isize| -> usize {
            let (distance, stride) = if step > 0 {
                (bound - start, step)
            } else {
                (start - bound, -step)
            };
            if distance <= 0 {
                0
            } else {
                (distance as usize).div_ceil(stride as usize).min(len)
            }
        };
        let (near, past) = if step > 0 {
            (range.start, range.end)
        } else {
            (range.end - 1, range.start - 1)
        };
        let first = first_reaching(near);
        first..first_reaching(past).max(first)
    }

    /// Where this progression and another are equal.
    pub fn intersect(&self, other: &Self) -> Intersection {
        if self.len == 0 || other.len == 0 {
            return Intersection::Never;
        }
        match (self.step, other.step) {
            (0, 0) if self.start == other.start => Intersection::Everywhere,
            (0, 0) => Intersection::Never,
            (0, _) => {
                let j = other.within(&(self.start..self.start + 1));
                if j.is_empty() {
                    return Intersection::Never;
                }
                Intersection::Line {
                    i_start: 0,
                    i_step: 1,
                    j_start: j.start,
                    j_step: 0,
                    len: self.len,
                }
            }
            (_, 0) => {
                let i = self.within(&(other.start..other.start + 1));
                if i.is_empty() {
                    return Intersection::Never;
                }
                Intersection::Line {
                    i_start: i.start,
                    i_step: 0,
                    j_start: 0,
                    j_step: 1,
                    len: other.len,
                }
            }
            (1, 1) => self.intersect_intervals(other),
            _ => self.intersect_moving(other),
        }
    }

    /// Intersects two intervals, the most frequent case by far.
    fn intersect_intervals(&self, other: &Self) -> Intersection {
        let start = self.start.max(other.start);
        let end = self.at(self.len).min(other.at(other.len));
        if start >= end {
            return Intersection::Never;
        }
        Intersection::Line {
            i_start: (start - self.start) as usize,
            i_step: 1,
            j_start: (start - other.start) as usize,
            j_step: 1,
            len: (end - start) as usize,
        }
    }

    /// Solves `start + i p = start' + j q` for `p`, `q` not zero: a congruence for `i`, then bounds for both.
    fn intersect_moving(&self, other: &Self) -> Intersection {
        let (p, q) = (self.step as i128, other.step as i128);
        let gap = other.start as i128 - self.start as i128;
        let (gcd, inverse) = extended_gcd(p, q.abs());
        if gap % gcd != 0 {
            return Intersection::Never;
        }
        let i_step = q.abs() / gcd;
        let i0 = (gap / gcd * inverse).rem_euclid(i_step);
        let j0 = (i0 * p - gap) / q;
        let j_step = p * q.signum() / gcd;
        if i0 >= self.len as i128 {
            return Intersection::Never;
        }
        // The positions t along the line for which both i and j exist.
        let by_i = (self.len as i128 - i0 + i_step - 1) / i_step;
        let (mut first, mut end) = (0, by_i);
        let last_j = other.len as i128 - 1;
        let (rising_from, falling_to) = if j_step > 0 {
            (-j0, last_j - j0)
        } else {
            (j0 - last_j, j0)
        };
        first = first.max(-(-rising_from).div_euclid(j_step.abs()));
        end = end.min(falling_to.div_euclid(j_step.abs()) + 1);
        if first >= end {
            return Intersection::Never;
        }
        // Inside both progressions, so everything below fits.
        Intersection::Line {
            i_start: (i0 + first * i_step) as usize,
            i_step: i_step as usize,
            j_start: (j0 + first * j_step) as usize,
            j_step: j_step as isize,
            len: (end - first) as usize,
        }
    }
}

/// `(g, x)` with `g = gcd(a, m) > 0` and `a x = g (mod m)`, for `m > 0`.
fn extended_gcd(a: i128, m: i128) -> (i128, i128) {
    let (mut r0, mut r1) = (a.rem_euclid(m), m);
    let (mut x0, mut x1) = (1, 0);
    while r1 != 0 {
        let quotient = r0 / r1;
        (r0, r1) = (r1, r0 - quotient * r1);
        (x0, x1) = (x1, x0 - quotient * x1);
    }
    (r0, x0)
}

/// The greatest common divisor; the other number where one is 0.
pub(crate) fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
