//! Shapes and strides.

use smallvec::{SmallVec, smallvec};

use crate::error::{Result, SpecError};

/// A shape: extents per dim, inline up to six dims.
pub type Dims = SmallVec<[usize; 6]>;

/// Strides in elements per dim; may be zero or negative.
pub type Strides = SmallVec<[isize; 6]>;

/// Strides, in elements, of a dense row-major array.
///
/// An extent of zero counts as one, so that an empty array has no strides of zero. Products saturate instead of overflowing;
/// shapes from users go through [`checked_numel`] first.
///
/// ```
/// assert_eq!(shard_spec::row_major_strides(&[2, 3, 4]).as_slice(), &[12, 4, 1]);
/// ```
pub fn row_major_strides(shape: &[usize]) -> Strides {
    let mut strides: Strides = smallvec![1; shape.len()];
    for d in (1..shape.len()).rev() {
        let extent = isize::try_from(shape[d].max(1)).unwrap_or(isize::MAX);
        strides[d - 1] = strides[d].saturating_mul(extent);
    }
    strides
}

/// Number of elements of a shape; 1 for a scalar, `usize::MAX` when it does not fit.
///
/// ```
/// assert_eq!(shard_spec::numel(&[2, 3]), 6);
/// assert_eq!(shard_spec::numel(&[]), 1);
/// ```
pub fn numel(shape: &[usize]) -> usize {
    // Zero wins over an overflow before or after it.
    if shape.contains(&0) {
        0
    } else {
        shape.iter().fold(1, |n, &e| n.saturating_mul(e))
    }
}

/// Number of elements of a shape from a user.
///
/// # Errors
/// [`SpecError::Overflow`] where an extent, the number of elements, or a row-major stride exceeds `isize::MAX`.
pub fn checked_numel(shape: &[usize]) -> Result<usize> {
    let strided = shape
        .iter()
        .try_fold(1usize, |n, &e| n.checked_mul(e.max(1)));
    match strided {
        Some(n) if isize::try_from(n).is_ok() => Ok(numel(shape)),
        _ => Err(SpecError::Overflow {
            op: "shape",
            shape: shape.to_vec(),
        }),
    }
}

/// An extent that a tensor may have.
///
/// # Panics
/// For one beyond `isize::MAX`.
pub(crate) fn extent_of(op: &str, n: usize) -> usize {
    assert!(
        isize::try_from(n).is_ok(),
        "{op}: an extent of {n}, expected at most {}; check shapes by `checked_numel` first",
        isize::MAX
    );
    n
}

/// [`row_major_strides`] of a shape from a user.
///
/// # Errors
/// [`SpecError::Overflow`], where [`checked_numel`] reports it.
pub fn checked_row_major_strides(shape: &[usize]) -> Result<Strides> {
    checked_numel(shape)?;
    Ok(row_major_strides(shape))
}
