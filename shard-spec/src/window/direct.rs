//! Sliding windows: convolution and pooling.

use std::ops::Range;

use super::{Geometry, ceil_div, clip, coordinate, floor_div};
use crate::error::{Result, SpecError};

/// `reach` is from the first to the last tap: `dilation * (kernel - 1)`.
pub(super) struct Direct {
    pub(super) stride: usize,
    pub(super) pad_lo: usize,
    pub(super) pad_hi: usize,
    pub(super) reach: usize,
    pub(super) ceil: bool,
}

impl Direct {
    /// Where the window of output 0 has its centre, the left one of two.
    fn centre(&self) -> i128 {
        (self.reach / 2) as i128 - self.pad_lo as i128
    }
}

impl Geometry for Direct {
    fn output_extent(&self, n: usize) -> Result<usize> {
        let padded = n as i128 + self.pad_lo as i128 + self.pad_hi as i128;
        let slack = padded - self.reach as i128 - 1;
        let steps = if self.ceil {
            ceil_div(slack, self.stride)
        } else {
            floor_div(slack, self.stride)
        };
        let mut outputs = steps + 1;
        // As PyTorch: a window that starts in the right padding or beyond it is dropped.
        if self.ceil && (outputs - 1) * self.stride as i128 >= n as i128 + self.pad_lo as i128 {
            outputs -= 1;
        }
        if outputs < 1 {
            let (span, padded) = (self.reach + 1, padded as usize);
            return Err(SpecError::WindowTooWide {
                op: "output_extent",
                span,
                padded,
                extent: n,
            });
        }
        usize::try_from(outputs).map_err(|_| SpecError::Overflow {
            op: "output_extent",
            shape: vec![n, self.pad_lo, self.pad_hi],
        })
    }

    fn input_interval(&self, _n: usize, first: usize, last: usize) -> Range<isize> {
        let start_of = |o: usize| o as i128 * self.stride as i128 - self.pad_lo as i128;
        coordinate(start_of(first))..coordinate(start_of(last) + self.reach as i128 + 1)
    }

    fn output_of_input(&self, first: usize, last: usize, outputs: Range<usize>) -> Range<usize> {
        let pad = self.pad_lo as i128;
        let lo = ceil_div(first as i128 + pad - self.reach as i128, self.stride);
        let hi = floor_div(last as i128 + pad, self.stride);
        clip(lo, hi + 1, &outputs)
    }

    fn first_reading_from(&self, _n: usize, x: usize) -> i128 {
        ceil_div(x as i128 + self.pad_lo as i128, self.stride)
    }

    fn first_reading_beyond(&self, _n: usize, x: usize) -> i128 {
        ceil_div(
            x as i128 + self.pad_lo as i128 - self.reach as i128,
            self.stride,
        )
    }

    fn anchor(&self, _n: usize, x: usize, _outputs: usize) -> i128 {
        ceil_div(x as i128 - self.centre(), self.stride)
    }

    fn anchor_input(&self, _n: usize, y: usize) -> i128 {
        y as i128 * self.stride as i128 + self.centre()
    }
}
