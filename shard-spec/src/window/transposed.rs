//! Transposed windows: each input spreads over a window of outputs.

use std::ops::Range;

use super::{Geometry, ceil_div, clip, coordinate, floor_div};
use crate::error::{Result, SpecError};

/// `reach` is from the first to the last tap: `dilation * (kernel - 1)`.
pub(super) struct Transposed {
    pub(super) stride: usize,
    pub(super) pad_lo: usize,
    pub(super) pad_hi: usize,
    pub(super) reach: usize,
    pub(super) output_padding: usize,
}

impl Transposed {
    /// The output boundary of input boundary 0. It divides the outputs that neighbouring windows share evenly, so that a
    /// kernel as wide as its stride, and "same"-like padding of a wider one, give exactly `x * stride`.
    fn boundary(&self) -> i128 {
        ceil_div(self.reach as i128 + 1 - self.stride as i128, 2) - self.pad_lo as i128
    }
}

impl Geometry for Transposed {
    fn output_extent(&self, n: usize) -> Result<usize> {
        if n == 0 {
            // Zeros that depend on nothing: the way back has no window that fits.
            return Err(SpecError::Argument {
                op: "transposed output_extent",
                argument: "input extent",
                got: "0".into(),
                expected: "at least one input".into(),
                remedy: "an empty dim has nothing to spread",
            });
        }
        let natural = (n as i128 - 1) * self.stride as i128
            + self.reach as i128
            + 1
            + self.output_padding as i128;
        let outputs = natural - self.pad_lo as i128 - self.pad_hi as i128;
        if outputs < 1 {
            return Err(SpecError::Argument {
                op: "transposed output_extent",
                argument: "padding",
                got: format!("{} and {}", self.pad_lo, self.pad_hi),
                expected: format!(
                    "less in all than the {} outputs of {n} inputs without it",
                    natural.max(0)
                ),
                remedy: "pad less, or give more inputs",
            });
        }
        isize::try_from(outputs)
            .map(isize::unsigned_abs)
            .map_err(|_| SpecError::Overflow {
                op: "output_extent",
                shape: vec![n, self.stride],
            })
    }

    fn input_interval(&self, n: usize, first: usize, last: usize) -> Range<isize> {
        let pad = self.pad_lo as i128;
        let lo = ceil_div(first as i128 + pad - self.reach as i128, self.stride);
        let hi = floor_div(last as i128 + pad, self.stride);
        let inputs = clip(lo, hi + 1, &(0..n));
        coordinate(inputs.start as i128)..coordinate(inputs.end as i128)
    }

    fn output_of_input(&self, first: usize, last: usize, outputs: Range<usize>) -> Range<usize> {
        // Inputs whose whole window is cropped reach nothing, and would leave gaps at the ends.
        let reaching = self.input_interval(last + 1, outputs.start, outputs.end - 1);
        let (first, end) = ((first as isize).max(reaching.start), reaching.end);
        if first >= end {
            return outputs.start..outputs.start;
        }
        let start_of = |i: isize| i as i128 * self.stride as i128 - self.pad_lo as i128;
        clip(
            start_of(first),
            start_of(end - 1) + self.reach as i128 + 1,
            &outputs,
        )
    }

    fn first_reading_from(&self, _n: usize, x: usize) -> i128 {
        // Behind the last output of input x - 1.
        (x as i128 - 1) * self.stride as i128 - self.pad_lo as i128 + self.reach as i128 + 1
    }

    fn first_reading_beyond(&self, _n: usize, x: usize) -> i128 {
        x as i128 * self.stride as i128 - self.pad_lo as i128
    }

    fn anchor(&self, _n: usize, x: usize, _outputs: usize) -> i128 {
        x as i128 * self.stride as i128 + self.boundary()
    }

    fn anchor_input(&self, _n: usize, y: usize) -> i128 {
        ceil_div(y as i128 - self.boundary(), self.stride)
    }
}
