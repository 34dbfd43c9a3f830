//! How exact products on a device must be.

/// What products of `f32` elements may be rounded to on GPUs, where a library computes them.
///
/// Sums of products of 16-bit elements are always taken in `f32`, and those of `f64` in `f64`. Kernels of this workspace's own
/// and the host compute in full whatever is said here.
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
