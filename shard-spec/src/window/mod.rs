//! Windows: which inputs each output of a convolution, pooling, interpolation or neighbourhood attention reads, along one dim.
//!
//! Every formula is exact for any partition, empty parts included: outputs map to input intervals, inputs to the outputs
//! that read them, and boundaries of one side to boundaries of the other (the anchor rule).

mod direct;
mod neighborhood;
mod resample;
mod transposed;

use std::ops::Range;

pub use neighborhood::Neighbors;
pub use resample::{ResampleMode, Sample, ScaleFactor};

use direct::Direct;
use neighborhood::Neighborhood;
use resample::Resample;
use transposed::Transposed;

use crate::error::{Result, SpecError};
use crate::hash::{ContentHash, StableHasher};
use crate::partition::Partition;

/// The geometry of a sliding, transposed, resampling or clamped window along one dim.
///
/// Built by the validating constructors; outputs are indexed from 0 to [`Window::output_extent`].
///
/// ```
/// use shard_spec::{Partition, Window};
/// // A 3-wide, stride-2 convolution with one element of padding on either side.
/// let conv = Window::conv(3, 2, 1, 1, 1)?;
/// assert_eq!(conv.output_extent(9)?, 5);
/// assert_eq!(conv.input_interval(9, 0..2), -1..4);
/// // Parts of 5 and 4 inputs own 3 and 2 outputs: the first needs one element of its neighbour.
/// let outputs = conv.anchor(9, &Partition::from_sizes(&[5, 4])?);
/// assert_eq!(outputs.offsets(), Some(&[0, 3, 5][..]));
/// assert_eq!(conv.input_interval(9, outputs.contiguous().unwrap().interval(0)), -1..6);
/// # Ok::<(), shard_spec::SpecError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Window {
    /// Output `o` reads inputs `o * stride - pad_lo + k * dilation`, `k` in `0..kernel`: convolution and pooling.
    #[non_exhaustive]
    Direct {
        /// Taps of the kernel.
        kernel: usize,
        /// Inputs from one output to the next.
        stride: usize,
        /// Inputs from one tap to the next.
        dilation: usize,
        /// Padding in front.
        pad_lo: usize,
        /// Padding behind.
        pad_hi: usize,
        /// Whether the output extent is rounded up, so that windows may overhang the padding: `ceil_mode` of pooling.
        ceil: bool,
    },
    /// Input `i` reaches outputs `i * stride - pad_lo + k * dilation`: transposed convolution.
    #[non_exhaustive]
    Transposed {
        /// Taps of the kernel.
        kernel: usize,
        /// Outputs from one input to the next.
        stride: usize,
        /// Outputs from one tap to the next.
        dilation: usize,
        /// Outputs cropped in front.
        pad_lo: usize,
        /// Outputs cropped behind.
        pad_hi: usize,
        /// Outputs added behind.
        output_padding: usize,
    },
    /// Output `o` samples the input at a scaled coordinate: interpolation.
    #[non_exhaustive]
    Resample {
        /// Input extent.
        input: usize,
        /// Output extent.
        output: usize,
        /// The sampling rule.
        mode: ResampleMode,
        /// The scale factor to sample by; `None` for the ratio of the extents.
        scale: Option<ScaleFactor>,
    },
    /// Query `o` sees the keys around it that are equal to it modulo the dilation; at the ends the window is shifted inwards.
    #[non_exhaustive]
    Neighborhood {
        /// Queries, and keys.
        extent: usize,
        /// The number of keys in a window.
        kernel: usize,
        /// Indices from one key to the next.
        dilation: usize,
        /// Whether a query sees only keys up to itself, and fewer of them at the front.
        causal: bool,
    },
}

/// Constructors.
impl Window {
    /// The window of a convolution.
    ///
    /// # Errors
    /// [`SpecError::Argument`] for a kernel, stride or dilation of 0, or an argument beyond `2^31`.
    pub fn conv(
        kernel: usize,
        stride: usize,
        dilation: usize,
        pad_lo: usize,
        pad_hi: usize,
    ) -> Result<Self> {
        check_taps("convolution window", kernel, stride, dilation)?;
        check_at_most(
            "convolution window",
            "pad",
            pad_lo.max(pad_hi),
            LIMIT,
            "pad less",
        )?;
        Ok(Self::Direct {
            kernel,
            stride,
            dilation,
            pad_lo,
            pad_hi,
            ceil: false,
        })
    }

    /// The window of a pooling, with PyTorch's rules: `pad` on either side is at most half of the window, and with `ceil_mode`
    /// the output extent is rounded up unless the last window would start behind the input and its left padding.
    ///
    /// # Errors
    /// As [`Window::conv`], and [`SpecError::Argument`] for a pad of more than half of the window.
    pub fn pool(
        kernel: usize,
        stride: usize,
        pad: usize,
        dilation: usize,
        ceil_mode: bool,
    ) -> Result<Self> {
        check_taps("pooling window", kernel, stride, dilation)?;
        let span = dilation * (kernel - 1) + 1;
        check_at_most(
            "pooling window",
            "pad",
            pad,
            span / 2,
            "pad at most half of the window",
        )?;
        check_at_most("pooling window", "pad", pad, LIMIT, "pad less")?;
        Ok(Self::Direct {
            kernel,
            stride,
            dilation,
            pad_lo: pad,
            pad_hi: pad,
            ceil: ceil_mode,
        })
    }

    /// The window of a transposed convolution; pads crop the output.
    ///
    /// # Errors
    /// As [`Window::conv`], and [`SpecError::Argument`] for an output padding that is not less than the stride or the dilation.
    pub fn transposed(
        kernel: usize,
        stride: usize,
        dilation: usize,
        pad_lo: usize,
        pad_hi: usize,
        output_padding: usize,
    ) -> Result<Self> {
        let op = "transposed convolution window";
        check_taps(op, kernel, stride, dilation)?;
        check_at_most(op, "pad", pad_lo.max(pad_hi), LIMIT, "crop less")?;
        let most = stride.max(dilation) - 1;
        check_at_most(
            op,
            "output_padding",
            output_padding,
            most,
            "keep it below the stride or the dilation",
        )?;
        Ok(Self::Transposed {
            kernel,
            stride,
            dilation,
            pad_lo,
            pad_hi,
            output_padding,
        })
    }

    /// Interpolation from `input` to `output` elements. With `scale`, coordinates are sampled by that factor instead of the
    /// ratio of the extents (`scale_factor` without `recompute_scale_factor`); aligned corners ignore it.
    ///
    /// # Errors
    /// [`SpecError::Argument`] for an extent of 0, or a scale that is not positive and finite.
    pub fn resample(
        input: usize,
        output: usize,
        mode: ResampleMode,
        scale: Option<f64>,
    ) -> Result<Self> {
        let op = "resampling window";
        let sides = [
            ("input extent", input, "an empty dim cannot be resampled"),
            (
                "output extent",
                output,
                "ask for at least one element, or for a larger scale",
            ),
        ];
        for (argument, extent, remedy) in sides {
            if extent == 0 {
                let (got, expected) = ("0".to_owned(), "at least 1".to_owned());
                return Err(SpecError::Argument {
                    op,
                    argument,
                    got,
                    expected,
                    remedy,
                });
            }
            check_at_most(
                op,
                argument,
                extent,
                isize::MAX as usize,
                "use a smaller extent",
            )?;
        }
        let scale = scale.map(ScaleFactor::new).transpose()?;
        Ok(Self::Resample {
            input,
            output,
            mode,
            scale,
        })
    }

    /// Interpolation by a factor: `floor(input * scale)` elements, sampled by `scale`.
    ///
    /// # Errors
    /// As [`Window::resample`].
    pub fn resample_by(input: usize, scale: f64, mode: ResampleMode) -> Result<Self> {
        let scale = ScaleFactor::new(scale)?.value();
        // Saturates; an extent beyond the address range is refused below.
        Self::resample(
            input,
            (input as f64 * scale).floor() as usize,
            mode,
            Some(scale),
        )
    }
}

/// Geometry.
impl Window {
    /// Number of outputs for `n` inputs.
    ///
    /// # Errors
    /// [`SpecError::WindowTooWide`] where not one window fits, [`SpecError::Overflow`], and [`SpecError::Argument`] where a
    /// resampling window is of another input extent, or a transposed one is padded away.
    pub fn output_extent(&self, n: usize) -> Result<usize> {
        self.with(|g| g.output_extent(n))
    }

    /// The inputs that the outputs `out` read, first to last.
    ///
    /// Direct windows are not clipped: what lies below 0 or beyond `n` is padding. Others are clipped to `0..n`.
    /// Empty for empty `out`.
    #[doc(alias = "halo")]
    pub fn input_interval(&self, n: usize, out: Range<usize>) -> Range<isize> {
        if out.is_empty() {
            let at = self
                .with(|g| g.input_interval(n, out.start, out.start))
                .start;
            return at..at;
        }
        self.with(|g| g.input_interval(n, out.start, out.end - 1))
    }

    /// The outputs whose window, from its first to its last tap, touches any of these inputs: what the gradient with
    /// respect to these inputs needs of the gradient with respect to the output.
    pub fn output_of_input(&self, n: usize, input: Range<usize>) -> Range<usize> {
        let outputs = 0..self.extent_or_zero(n);
        let input = input.start.min(n)..input.end.min(n);
        if input.is_empty() || outputs.is_empty() {
            return 0..0;
        }
        self.with(|g| g.output_of_input(input.start, input.end - 1, outputs))
    }

    /// The outputs of `out` that read no input outside `local`, padding aside: what can be computed while a halo is on its
    /// way. At a global edge nothing is missing, so that side is no bound.
    ///
    /// The result is one interval: windows wholly in padding, and dilated neighbourhoods at the ends, count as interior only
    /// where they adjoin the rest.
    pub fn interior(&self, n: usize, local: Range<usize>, out: Range<usize>) -> Range<usize> {
        if out.is_empty() {
            return out.start..out.start;
        }
        let lo = if local.start == 0 {
            i128::MIN
        } else {
            self.with(|g| g.first_reading_from(n, local.start))
        };
        let hi = if local.end >= n {
            i128::MAX
        } else {
            self.with(|g| g.first_reading_beyond(n, local.end))
        };
        clip(lo, hi, &out)
    }

    /// The anchor rule: output boundaries from input boundaries, so that each part owns the outputs whose windows are centred
    /// on its inputs. A part without inputs owns no outputs, unless no part has inputs: then all outputs, which read padding
    /// only, are balanced. A window that does not fit has no outputs.
    ///
    /// With "same" padding and stride 1 boundaries stay as they are, and halos are never wider than half of the window.
    /// Segments count as [contiguous](Partition::to_contiguous) parts of their sizes.
    pub fn anchor(&self, n: usize, offsets: &Partition) -> Partition {
        let total = self.extent_or_zero(n);
        self.map_boundaries(offsets, n, total, |g, x| g.anchor(n, x, total))
    }

    /// The reverse of [`Window::anchor`]: input boundaries from output boundaries.
    pub fn anchor_input(&self, n: usize, out: &Partition) -> Partition {
        let total = self.extent_or_zero(n);
        self.map_boundaries(out, total, n, |g, y| g.anchor_input(n, y))
    }

    /// Where output `o` of a resampling window samples, and with what weights; `None` for other windows, or beyond the output.
    ///
    /// The coordinates and weights are PyTorch's, in double precision; kernels take them from here, so that there is one formula.
    pub fn sample(&self, o: usize) -> Option<Sample> {
        match *self {
            Self::Resample {
                input,
                output,
                mode,
                scale,
            } if o < output => Some(
                Resample {
                    input,
                    output,
                    mode,
                    scale,
                }
                .sample(o),
            ),
            _ => None,
        }
    }

    fn extent_or_zero(&self, n: usize) -> usize {
        self.output_extent(n).unwrap_or(0)
    }

    /// Maps inner boundaries, keeps the ends, and keeps empty parts at the ends empty.
    fn map_boundaries(
        &self,
        from: &Partition,
        from_extent: usize,
        to_extent: usize,
        map: impl Fn(&dyn Geometry, usize) -> i128,
    ) -> Partition {
        if from_extent == 0 || from.extent() == 0 {
            return Partition::balanced(to_extent, from.parts());
        }
        self.with(|g| {
            let moved = from.to_contiguous().map_boundaries(to_extent, |x| match x {
                0 => 0,
                x if x >= from_extent => to_extent,
                x => map(g, x).clamp(0, to_extent as i128) as usize,
            });
            moved.into()
        })
    }

    fn with<R>(&self, f: impl FnOnce(&dyn Geometry) -> R) -> R {
        match *self {
            Self::Direct {
                kernel,
                stride,
                dilation,
                pad_lo,
                pad_hi,
                ceil,
            } => f(&Direct {
                stride,
                pad_lo,
                pad_hi,
                reach: dilation * (kernel - 1),
                ceil,
            }),
            Self::Transposed {
                kernel,
                stride,
                dilation,
                pad_lo,
                pad_hi,
                output_padding,
            } => f(&Transposed {
                stride,
                pad_lo,
                pad_hi,
                reach: dilation * (kernel - 1),
                output_padding,
            }),
            Self::Resample {
                input,
                output,
                mode,
                scale,
            } => f(&Resample {
                input,
                output,
                mode,
                scale,
            }),
            Self::Neighborhood {
                extent,
                kernel,
                dilation,
                causal,
            } => f(&Neighborhood {
                extent,
                kernel,
                dilation,
                causal,
            }),
        }
    }
}

/// What each kind of window answers. Indices are in range and intervals closed and non-empty, so each file holds formulas only.
trait Geometry {
    fn output_extent(&self, n: usize) -> Result<usize>;
    /// Inputs read by the outputs `first..=last`.
    fn input_interval(&self, n: usize, first: usize, last: usize) -> Range<isize>;
    /// Outputs, of those given, that read any of the inputs `first..=last`.
    fn output_of_input(&self, first: usize, last: usize, outputs: Range<usize>) -> Range<usize>;
    /// The first output that reads nothing before input `x`, for `0 < x <= n`.
    fn first_reading_from(&self, n: usize, x: usize) -> i128;
    /// The first output that reads input `x` or one behind it, for `x < n`.
    fn first_reading_beyond(&self, n: usize, x: usize) -> i128;
    /// The output boundary that belongs to the input boundary `x`.
    fn anchor(&self, n: usize, x: usize, outputs: usize) -> i128;
    /// The input boundary that belongs to the output boundary `y`.
    fn anchor_input(&self, n: usize, y: usize) -> i128;
}

impl ContentHash for Window {
    fn feed(&self, hasher: &mut StableHasher) {
        match *self {
            Self::Direct {
                kernel,
                stride,
                dilation,
                pad_lo,
                pad_hi,
                ceil,
            } => {
                hasher.str("direct");
                hasher.usizes(&[kernel, stride, dilation, pad_lo, pad_hi, usize::from(ceil)]);
            }
            Self::Transposed {
                kernel,
                stride,
                dilation,
                pad_lo,
                pad_hi,
                output_padding,
            } => {
                hasher.str("transposed");
                hasher.usizes(&[kernel, stride, dilation, pad_lo, pad_hi, output_padding]);
            }
            Self::Resample {
                input,
                output,
                mode,
                scale,
            } => {
                hasher.str(mode.name());
                hasher.usizes(&[input, output]);
                hasher.u64(scale.map_or(0, |s| s.value().to_bits()));
            }
            Self::Neighborhood {
                extent,
                kernel,
                dilation,
                causal,
            } => {
                hasher.str("neighborhood");
                hasher.usizes(&[extent, kernel, dilation, usize::from(causal)]);
            }
        }
    }
}

/// Bound on kernels, strides, dilations and pads: products of two still fit in an address.
const LIMIT: usize = 1 << 31;

fn check_taps(op: &'static str, kernel: usize, stride: usize, dilation: usize) -> Result<()> {
    for (argument, got) in [
        ("kernel", kernel),
        ("stride", stride),
        ("dilation", dilation),
    ] {
        if got == 0 {
            let (got, expected) = ("0".to_owned(), "at least 1".to_owned());
            return Err(SpecError::Argument {
                op,
                argument,
                got,
                expected,
                remedy: "use 1 for no effect",
            });
        }
        check_at_most(op, argument, got, LIMIT, "use a smaller window")?;
    }
    Ok(())
}

fn check_at_most(
    op: &'static str,
    argument: &'static str,
    got: usize,
    most: usize,
    remedy: &'static str,
) -> Result<()> {
    if got <= most {
        return Ok(());
    }
    Err(SpecError::Argument {
        op,
        argument,
        got: got.to_string(),
        expected: format!("at most {most}"),
        remedy,
    })
}

/// Quotient rounded down, for a positive divisor.
fn floor_div(a: i128, b: usize) -> i128 {
    a.div_euclid(b as i128)
}

/// Quotient rounded up, for a positive divisor.
fn ceil_div(a: i128, b: usize) -> i128 {
    -(-a).div_euclid(b as i128)
}

/// `lo..hi` within a range; where nothing is left, empty at the nearest place.
fn clip(lo: i128, hi: i128, range: &Range<usize>) -> Range<usize> {
    let start = lo.clamp(range.start as i128, range.end as i128);
    let end = hi.clamp(start, range.end as i128);
    start as usize..end as usize
}

/// A coordinate clamped to the address range, beyond which no part owns anything.
fn coordinate(x: i128) -> isize {
    x.clamp(isize::MIN as i128, isize::MAX as i128) as isize
}
