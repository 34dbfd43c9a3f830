//! The precision of products on a device.

/// The precision that products of `f32` elements may be rounded to on GPUs, where a library computes them.
///
/// Sums of products of 16-bit elements are always taken in `f32`, and those of `f64` in `f64`. The kernels of this workspace and
/// the host compute in full precision, whatever the setting.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum MatmulPrecision {
    /// Products and sums of `f32` in `f32`.
    #[default]
    Full,
    /// Factors may be rounded to TF32, the 10 bits of mantissa that tensor cores take of an `f32`, with sums in `f32`: several
    /// times faster, about three decimal digits.
    Tf32,
}
