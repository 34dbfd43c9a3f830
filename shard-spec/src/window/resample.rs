//! Resampling windows: nearest and linear interpolation, with PyTorch's coordinates.
//!
//! Every sampling map rises with the output index, rounding included, so inverse questions are answered by bisection of
//! the map itself and cannot disagree with it.

use std::hash::{Hash, Hasher};
use std::ops::Range;

use super::{Geometry, coordinate};
use crate::error::{Result, SpecError};

/// How an output samples its input.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ResampleMode {
    /// The input at `floor(o * scale)`.
    Nearest,
    /// The input at `floor((o + 0.5) * scale)`.
    NearestExact,
    /// Between the inputs around `(o + 0.5) * scale - 0.5`, not below 0: corners not aligned.
    Linear,
    /// Between the inputs around `o * (n - 1) / (outputs - 1)`: corners aligned.
    LinearAligned,
}

impl ResampleMode {
    /// The name used in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nearest => "nearest",
            Self::NearestExact => "nearest-exact",
            Self::Linear => "linear",
            Self::LinearAligned => "linear-aligned",
        }
    }
}

/// A positive, finite factor from input to output extent. Equal factors have equal bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaleFactor(f64);

impl ScaleFactor {
    pub(super) fn new(value: f64) -> Result<Self> {
        if value.is_finite() && value > 0.0 {
            return Ok(Self(value));
        }
        Err(SpecError::Argument {
            op: "resampling window",
            argument: "scale",
            got: value.to_string(),
            expected: "a positive, finite factor".to_owned(),
            remedy: "give the output extent over the input extent",
        })
    }

    /// The factor.
    pub const fn value(self) -> f64 {
        self.0
    }
}

// Positive and finite, so equality is reflexive and agrees with the bits.
impl Eq for ScaleFactor {}

impl Hash for ScaleFactor {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

/// The two inputs an output reads and their weights; for nearest modes both are the same input, weights 1 and 0.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample {
    /// First input.
    pub i0: usize,
    /// Second input: the next one, or the first again at the end.
    pub i1: usize,
    /// Weight of the first.
    pub w0: f64,
    /// Weight of the second.
    pub w1: f64,
}

pub(super) struct Resample {
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) mode: ResampleMode,
    pub(super) scale: Option<ScaleFactor>,
}

impl Resample {
    pub(super) fn sample(&self, o: usize) -> Sample {
        let one = |i: usize| Sample {
            i0: i,
            i1: i,
            w0: 1.0,
            w1: 0.0,
        };
        let last = self.input - 1;
        match self.mode {
            ResampleMode::Nearest => one(whole(o as f64 * self.step()).min(last)),
            ResampleMode::NearestExact => one(whole(self.half_pixel(o) + 0.5).min(last)),
            ResampleMode::Linear | ResampleMode::LinearAligned if self.input == self.output => {
                one(o)
            }
            ResampleMode::Linear | ResampleMode::LinearAligned => {
                let real = match self.mode {
                    ResampleMode::LinearAligned => o as f64 * self.aligned_step(),
                    _ => self.half_pixel(o),
                };
                let i0 = (real.floor() as usize).min(last);
                let w1 = (real - i0 as f64).clamp(0.0, 1.0);
                Sample {
                    i0,
                    i1: (i0 + 1).min(last),
                    w0: 1.0 - w1,
                    w1,
                }
            }
        }
    }

    /// Inputs per output.
    fn step(&self) -> f64 {
        self.scale
            .map_or(self.input as f64 / self.output as f64, |s| 1.0 / s.value())
    }

    fn aligned_step(&self) -> f64 {
        if self.output > 1 {
            (self.input - 1) as f64 / (self.output - 1) as f64
        } else {
            0.0
        }
    }

    /// The coordinate of an output's centre, on a scale where inputs have their centres at whole numbers.
    fn half_pixel(&self, o: usize) -> f64 {
        (self.step() * (o as f64 + 0.5) - 0.5).max(0.0)
    }

    /// The input an output is centred on: rises with `o`.
    fn centre(&self, o: usize) -> usize {
        let sample = self.sample(o);
        if sample.w1 >= 0.5 {
            sample.i1
        } else {
            sample.i0
        }
    }

    /// The first output for which a condition holds that stays true from there on; the number of outputs where it holds for
    /// none.
    fn first(&self, holds: impl Fn(usize) -> bool) -> usize {
        let (mut lo, mut hi) = (0, self.output);
        while lo < hi {
            let mid = lo + (hi - lo) / 2;
            if holds(mid) {
                hi = mid;
            } else {
                lo = mid + 1;
            }
        }
        lo
    }
}

impl Geometry for Resample {
    fn output_extent(&self, n: usize) -> Result<usize> {
        if n == self.input {
            return Ok(self.output);
        }
        Err(SpecError::Argument {
            op: "output_extent",
            argument: "input extent",
            got: n.to_string(),
            expected: self.input.to_string(),
            remedy: "build the resampling window for this extent",
        })
    }

    fn input_interval(&self, _n: usize, first: usize, last: usize) -> Range<isize> {
        coordinate(self.sample(first).i0 as i128)..coordinate(self.sample(last).i1 as i128 + 1)
    }

    fn output_of_input(&self, first: usize, last: usize, outputs: Range<usize>) -> Range<usize> {
        let start = self.first(|o| self.sample(o).i1 >= first);
        let end = self.first(|o| self.sample(o).i0 > last);
        start.max(outputs.start)..end.min(outputs.end).max(start.max(outputs.start))
    }

    fn first_reading_from(&self, _n: usize, x: usize) -> i128 {
        self.first(|o| self.sample(o).i0 >= x) as i128
    }

    fn first_reading_beyond(&self, _n: usize, x: usize) -> i128 {
        self.first(|o| self.sample(o).i1 >= x) as i128
    }

    fn anchor(&self, _n: usize, x: usize, _outputs: usize) -> i128 {
        self.first(|o| self.centre(o) >= x) as i128
    }

    fn anchor_input(&self, _n: usize, y: usize) -> i128 {
        self.centre(y.min(self.output - 1)) as i128
    }
}

/// The whole part of a coordinate, as PyTorch's nearest modes take it: after rounding to single precision, which mends
/// products such as `3 * (1.0 / 3.0)` that fall short of a whole number. Beyond single precision's whole numbers the
/// double is taken as it is.
fn whole(x: f64) -> usize {
    const EXACT: f64 = (1u32 << 23) as f64;
    if x < EXACT {
        f64::from(x as f32).floor() as usize
    } else {
        x.floor() as usize
    }
}
