//! Resampling windows: nearest, linear and cubic interpolation with PyTorch's coordinates, with and without antialiasing, and
//! means over equal areas.
//!
//! Both ends of what an output reads rise with the output index, rounding included, so inverse questions are answered by
//! bisection of the map itself and cannot disagree with it.

use std::hash::{Hash, Hasher};
use std::ops::Range;

use smallvec::{SmallVec, smallvec};

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
    /// A cubic through the four inputs around `(o + 0.5) * scale - 0.5`, those beyond the ends being the last ones.
    Cubic,
    /// A cubic through the four inputs around `o * (n - 1) / (outputs - 1)`.
    CubicAligned,
    /// The mean of the inputs `floor(o * n / outputs) .. ceil((o + 1) * n / outputs)`: adaptive pooling. It takes no scale.
    Area,
    /// A triangle as wide as two inputs or, where the output is smaller, two outputs: antialiased.
    LinearAntialias,
    /// [`LinearAntialias`](Self::LinearAntialias) with the step of aligned corners.
    LinearAlignedAntialias,
    /// A cubic as wide as four inputs or, where the output is smaller, four outputs: antialiased.
    CubicAntialias,
    /// [`CubicAntialias`](Self::CubicAntialias) with the step of aligned corners.
    CubicAlignedAntialias,
}

impl ResampleMode {
    /// The name used in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nearest => "nearest",
            Self::NearestExact => "nearest-exact",
            Self::Linear => "linear",
            Self::LinearAligned => "linear-aligned",
            Self::Cubic => "cubic",
            Self::CubicAligned => "cubic-aligned",
            Self::Area => "area",
            Self::LinearAntialias => "linear-antialias",
            Self::LinearAlignedAntialias => "linear-aligned-antialias",
            Self::CubicAntialias => "cubic-antialias",
            Self::CubicAlignedAntialias => "cubic-aligned-antialias",
        }
    }

    /// Whether the centres of the first and last inputs are those of the first and last outputs.
    const fn aligned(self) -> bool {
        matches!(
            self,
            Self::LinearAligned
                | Self::CubicAligned
                | Self::LinearAlignedAntialias
                | Self::CubicAlignedAntialias
        )
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

/// The inputs that an output reads, which follow one another, and their weights.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// The first input.
    pub first: usize,
    /// The weights of this input and of those behind it.
    pub weights: SmallVec<[f64; 4]>,
}

impl Sample {
    /// Every input that is read, and its weight.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        (self.first..).zip(self.weights.iter().copied())
    }
}

pub(super) struct Resample {
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) mode: ResampleMode,
    pub(super) scale: Option<ScaleFactor>,
}

impl Resample {
    pub(super) fn sample(&self, o: usize) -> Sample {
        let read = self.reads(o);
        let first = read.start;
        let weights = match self.mode {
            _ if read.len() == 1 => smallvec![1.0],
            ResampleMode::Linear | ResampleMode::LinearAligned => {
                let behind = (self.source(o) - first as f64).clamp(0.0, 1.0);
                smallvec![1.0 - behind, behind]
            }
            ResampleMode::Cubic | ResampleMode::CubicAligned => self.cubic(o, &read),
            ResampleMode::Nearest | ResampleMode::NearestExact | ResampleMode::Area => {
                smallvec![1.0 / read.len() as f64; read.len()]
            }
            _ => self.filtered(o, &read),
        };
        Sample { first, weights }
    }

    /// The inputs that an output reads, at least one.
    fn reads(&self, o: usize) -> Range<usize> {
        let last = self.input - 1;
        let one = |i: usize| i.min(last)..i.min(last) + 1;
        match self.mode {
            ResampleMode::Nearest => one(whole(o as f64 * self.step())),
            ResampleMode::NearestExact => one(whole(self.source(o) + 0.5)),
            ResampleMode::Linear | ResampleMode::LinearAligned if self.input == self.output => {
                one(o)
            }
            ResampleMode::Linear | ResampleMode::LinearAligned => {
                let first = (self.source(o).floor() as usize).min(last);
                first..(first + 1).min(last) + 1
            }
            ResampleMode::Cubic | ResampleMode::CubicAligned => {
                // Saturates: below 0 is the first input.
                let at = self.source(o).floor();
                let low = ((at - 1.0) as usize).min(last);
                low..((at + 2.0) as usize).min(last) + 1
            }
            ResampleMode::Area => {
                let (n, m) = (self.input as u128, self.output as u128);
                let low = o as u128 * n / m;
                let high = ((o as u128 + 1) * n).div_ceil(m);
                low as usize..high as usize
            }
            _ => {
                let (centre, reach) = (self.step() * (o as f64 + 0.5), self.support());
                let low = ((centre - reach + 0.5) as usize).min(last);
                low..((centre + reach + 0.5) as usize).clamp(low + 1, self.input)
            }
        }
    }

    /// Inputs per output.
    fn step(&self) -> f64 {
        match self.scale {
            _ if self.mode.aligned() => match self.output {
                1 => 0.0,
                outputs => (self.input - 1) as f64 / (outputs - 1) as f64,
            },
            Some(scale) => 1.0 / scale.value(),
            None => self.input as f64 / self.output as f64,
        }
    }

    /// The coordinate of an output's centre, on a scale where inputs have their centres at whole numbers. Not below 0, but for
    /// cubics.
    fn source(&self, o: usize) -> f64 {
        if self.mode.aligned() {
            return o as f64 * self.step();
        }
        let centre = self.step() * (o as f64 + 0.5) - 0.5;
        match self.mode {
            ResampleMode::Cubic => centre,
            _ => centre.max(0.0),
        }
    }

    /// The weights of a cubic convolution; what lies beyond the ends counts for the input there.
    fn cubic(&self, o: usize, read: &Range<usize>) -> SmallVec<[f64; 4]> {
        let source = self.source(o);
        // As PyTorch: beyond the last input nothing is behind it.
        let at = source.floor().min((self.input - 1) as f64);
        let behind = (source - at).clamp(0.0, 1.0);
        let mut weights = smallvec![0.0; read.len()];
        for tap in -1..=2 {
            let i = (at as isize + tap).clamp(read.start as isize, read.end as isize - 1);
            weights[i as usize - read.start] += keys_cubic(tap as f64 - behind, -0.75);
        }
        weights
    }

    /// How far from an output's centre an antialiased mode reads.
    fn support(&self) -> f64 {
        let half = match self.mode {
            ResampleMode::CubicAntialias | ResampleMode::CubicAlignedAntialias => 2.0,
            _ => 1.0,
        };
        half * self.step().max(1.0)
    }

    /// The weights of an antialiased mode: its filter, stretched to the output's step, so that they sum to 1.
    fn filtered(&self, o: usize, read: &Range<usize>) -> SmallVec<[f64; 4]> {
        let (centre, stretch) = (self.step() * (o as f64 + 0.5), self.step().max(1.0));
        let weight = |i: usize| {
            let x = (i as f64 - centre + 0.5) / stretch;
            match self.mode {
                ResampleMode::CubicAntialias | ResampleMode::CubicAlignedAntialias => {
                    keys_cubic(x, -0.5)
                }
                _ => (1.0 - x.abs()).max(0.0),
            }
        };
        let mut weights: SmallVec<[f64; 4]> = read.clone().map(weight).collect();
        let total: f64 = weights.iter().sum();
        if total != 0.0 {
            weights.iter_mut().for_each(|w| *w /= total);
        }
        weights
    }

    /// The input an output is centred on: rises with `o`.
    fn centre(&self, o: usize) -> usize {
        let read = self.reads(o);
        match self.mode {
            ResampleMode::Linear | ResampleMode::LinearAligned if read.len() > 1 => {
                let behind = self.source(o) - read.start as f64;
                read.start + usize::from(behind >= 0.5)
            }
            _ => read.start + (read.len() - 1) / 2,
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
        coordinate(self.reads(first).start as i128)..coordinate(self.reads(last).end as i128)
    }

    fn output_of_input(&self, first: usize, last: usize, outputs: Range<usize>) -> Range<usize> {
        let start = self.first(|o| self.reads(o).end > first);
        let end = self.first(|o| self.reads(o).start > last);
        start.max(outputs.start)..end.min(outputs.end).max(start.max(outputs.start))
    }

    fn first_reading_from(&self, _n: usize, x: usize) -> i128 {
        self.first(|o| self.reads(o).start >= x) as i128
    }

    fn first_reading_beyond(&self, _n: usize, x: usize) -> i128 {
        self.first(|o| self.reads(o).end > x) as i128
    }

    fn anchor(&self, _n: usize, x: usize, _outputs: usize) -> i128 {
        self.first(|o| self.centre(o) >= x) as i128
    }

    fn anchor_input(&self, _n: usize, y: usize) -> i128 {
        self.centre(y.min(self.output - 1)) as i128
    }
}

/// The cubic convolution kernel of Keys (1981), 0 from 2 on; `a` is its slope at 1.
fn keys_cubic(x: f64, a: f64) -> f64 {
    let x = x.abs();
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((x - 5.0) * x + 8.0) * x * a - 4.0 * a
    } else {
        0.0
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
