//! Numbers as far from each other as the next.

use crate::{Error, Result};
use std::ops::Range;

/// What [`Mesh::arange`](crate::Mesh::arange) counts: so many numbers from 0, those of a range, or a start, an end and a step, where the end
/// is left out.
///
/// ```
/// use shard_tensor::Steps;
/// let _: [Steps; 4] = [5.into(), (2..7).into(), (0.5..3.0).into(), (7, -3, -2).into()];
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps(Kind);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Whole(i64, i64, i64),
    Real(f64, f64, f64),
}

impl Steps {
    /// How many numbers there are.
    pub(super) fn count(&self) -> Result<usize> {
        let refuse = |fix| {
            let got = match self.0 {
                Kind::Whole(start, end, step) => format!("{start} to {end} by {step}"),
                Kind::Real(start, end, step) => format!("{start} to {end} by {step}"),
            };
            Err(Error::argument(
                "arange",
                "a step that leads from the start to the end",
                got,
                fix,
            ))
        };
        let count = match self.0 {
            Kind::Whole(_, _, 0) => return refuse("give a step other than 0"),
            Kind::Whole(start, end, step) => {
                let (way, step) = (i128::from(end) - i128::from(start), i128::from(step));
                // Rounded away from zero, towards which division rounds.
                let count = (way + step - step.signum()) / step;
                if way != 0 && way.signum() != step.signum() {
                    return refuse("turn the step round");
                }
                usize::try_from(count).ok()
            }
            Kind::Real(start, end, step) => {
                let count = ((end - start) / step).ceil();
                if !(start.is_finite() && end.is_finite() && step.is_finite() && step != 0.0) {
                    return refuse("give finite numbers, and a step other than 0");
                }
                if count < 0.0 {
                    return refuse("turn the step round");
                }
                (count < usize::MAX as f64).then_some(count as usize)
            }
        };
        count.map_or_else(|| refuse("take larger steps"), Ok)
    }

    /// The number at an index, if it is whole by nature.
    pub(super) fn whole(&self, index: usize) -> Option<i64> {
        match self.0 {
            Kind::Whole(start, _, step) => {
                Some(start.wrapping_add(step.wrapping_mul(index as i64)))
            }
            Kind::Real(..) => None,
        }
    }

    /// The number at an index.
    pub(super) fn at(&self, index: usize) -> f64 {
        match self.0 {
            Kind::Whole(start, _, step) => {
                (i128::from(start) + i128::from(step) * index as i128) as f64
            }
            Kind::Real(start, _, step) => start + step * index as f64,
        }
    }

    /// What tells it from others.
    pub(super) fn key(&self) -> [u64; 4] {
        match self.0 {
            Kind::Whole(a, b, c) => [0, a as u64, b as u64, c as u64],
            Kind::Real(a, b, c) => [1, a.to_bits(), b.to_bits(), c.to_bits()],
        }
    }
}

impl From<usize> for Steps {
    fn from(count: usize) -> Self {
        Self(Kind::Whole(0, i64::try_from(count).unwrap_or(i64::MAX), 1))
    }
}

impl From<Range<i64>> for Steps {
    fn from(range: Range<i64>) -> Self {
        Self(Kind::Whole(range.start, range.end, 1))
    }
}

impl From<Range<f64>> for Steps {
    fn from(range: Range<f64>) -> Self {
        Self(Kind::Real(range.start, range.end, 1.0))
    }
}

impl From<(i64, i64, i64)> for Steps {
    fn from((start, end, step): (i64, i64, i64)) -> Self {
        Self(Kind::Whole(start, end, step))
    }
}

impl From<(f64, f64, f64)> for Steps {
    fn from((start, end, step): (f64, f64, f64)) -> Self {
        Self(Kind::Real(start, end, step))
    }
}
