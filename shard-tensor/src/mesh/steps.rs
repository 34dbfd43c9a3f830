//! Numbers as far from each other as the next.

use crate::{Error, Result};
use std::ops::Range;

/// What [`Mesh::arange`](crate::Mesh::arange) counts: so many numbers from 0, those of a range, or a start, an end and a step, where the end
/// is left out. Whole numbers may be `usize`, `i32` or `i64`.
///
/// ```
/// use shard_tensor::Steps;
/// let rows: usize = 5;
/// let _: [Steps; 5] = [rows.into(), 5_i64.into(), (2..rows).into(), (0.5..3.0).into(), (7, -3, -2).into()];
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps(Kind);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Whole(i128, i128, i128),
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
                let way = end - start;
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

    /// The number at an index, if it is whole by nature and `i64` has it.
    pub(super) fn whole(&self, index: usize) -> Option<i64> {
        match self.0 {
            Kind::Whole(start, _, step) => i64::try_from(start + step * index as i128).ok(),
            Kind::Real(..) => None,
        }
    }

    /// The number at an index.
    pub(super) fn at(&self, index: usize) -> f64 {
        match self.0 {
            Kind::Whole(start, _, step) => (start + step * index as i128) as f64,
            Kind::Real(start, _, step) => start + step * index as f64,
        }
    }

    /// What tells it from others.
    pub(super) fn key(&self) -> [u128; 4] {
        match self.0 {
            Kind::Whole(a, b, c) => [0, a as u128, b as u128, c as u128],
            Kind::Real(a, b, c) => {
                let [a, b, c] = [a, b, c].map(|x| x.to_bits().into());
                [1, a, b, c]
            }
        }
    }
}

/// Counts, ranges and triples, of the types that indices have; `i32` is that of numbers which are written out.
macro_rules! whole {
    ($($kind:ty)*) => {$(
        impl From<$kind> for Steps {
            fn from(count: $kind) -> Self {
                (0..count).into()
            }
        }

        impl From<Range<$kind>> for Steps {
            fn from(range: Range<$kind>) -> Self {
                (range.start, range.end, 1).into()
            }
        }

        impl From<($kind, $kind, $kind)> for Steps {
            fn from((start, end, step): ($kind, $kind, $kind)) -> Self {
                Self(Kind::Whole(start as i128, end as i128, step as i128))
            }
        }
    )*};
}

whole!(usize i32 i64);

impl From<Range<f64>> for Steps {
    fn from(range: Range<f64>) -> Self {
        Self(Kind::Real(range.start, range.end, 1.0))
    }
}

impl From<(f64, f64, f64)> for Steps {
    fn from((start, end, step): (f64, f64, f64)) -> Self {
        Self(Kind::Real(start, end, step))
    }
}
