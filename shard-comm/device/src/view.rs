//! Strided views of flat memory.

use smallvec::{SmallVec, smallvec};

use shard_spec::{Dims, Strides, row_major_strides};

use crate::{DeviceError, Result};

/// A box of elements inside a flat buffer: where it starts, its extents, and the stride of each dim, all in elements.
///
/// Strides may be zero (a broadcast source) or negative (a flipped one).
///
/// ```
/// use shard_device::Strided;
/// let rows = Strided::contiguous(&[2, 3]);
/// assert_eq!(rows.strides.as_slice(), &[3, 1]);
/// assert!(rows.validate(6).is_ok());
/// assert!(rows.validate(5).is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Strided {
    /// Element index of the first element.
    pub offset: usize,
    /// Extents.
    pub shape: Dims,
    /// Strides; same length as `shape`.
    pub strides: Strides,
}

impl Strided {
    /// A view with explicit offset, extents and strides.
    pub fn new(offset: usize, shape: Dims, strides: Strides) -> Self {
        Self {
            offset,
            shape,
            strides,
        }
    }

    /// A view of `len` contiguous elements.
    pub fn run_at(offset: usize, len: usize) -> Self {
        Self {
            offset,
            shape: smallvec![len],
            strides: smallvec![1],
        }
    }

    /// The dense row-major view of a whole buffer of this shape.
    pub fn contiguous(shape: &[usize]) -> Self {
        Self::contiguous_at(0, shape)
    }

    /// A dense row-major view that starts at `offset`.
    pub fn contiguous_at(offset: usize, shape: &[usize]) -> Self {
        Self {
            offset,
            shape: shape.into(),
            strides: row_major_strides(shape),
        }
    }

    /// Number of dims.
    pub fn ndim(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements visited.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the elements are contiguous in row-major order.
    pub fn is_contiguous(&self) -> bool {
        is_dense(&self.shape, &self.strides)
    }

    /// The range of element indices, if the view is contiguous in row-major order and lies within a buffer of `len` elements.
    pub fn run_within(&self, len: usize) -> Option<std::ops::Range<usize>> {
        if self.shape.len() != self.strides.len() || !self.is_contiguous() {
            return None;
        }
        let numel = (self.shape.iter()).try_fold(1_usize, |n, &extent| n.checked_mul(extent))?;
        let end = self.offset.checked_add(numel)?;
        (end <= len).then_some(self.offset..end)
    }

    /// One more than the greatest element index visited; 0 for an empty view.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] if shape and strides differ in length, or an index is negative or overflows.
    pub fn end(&self) -> Result<usize> {
        span(self.offset, &self.shape, &self.strides).map(|range| range.end)
    }

    /// Checks that every element visited lies in a buffer of `len` elements.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] if some element lies outside.
    pub fn validate(&self, len: usize) -> Result<()> {
        let end = self.end()?;
        if end > len {
            return Err(DeviceError::invalid(
                "strided view",
                format!("indices below {len}"),
                format!("{self:?}, which reaches {}", end - 1),
                "check offset, shape and strides against the buffer",
            ));
        }
        Ok(())
    }
}

/// The range of element indices that a view touches; `0..0` if it is empty.
///
/// # Errors
/// [`DeviceError::Invalid`] if shape and strides differ in length, or an index is negative or overflows.
pub fn span(offset: usize, shape: &[usize], strides: &[isize]) -> Result<std::ops::Range<usize>> {
    let bad = |what: &str| {
        DeviceError::invalid(
            "strided view",
            "non-negative indices, one stride per dim",
            format!("{what} (offset {offset}, shape {shape:?}, strides {strides:?})"),
            "check offset, shape and strides against the buffer",
        )
    };
    if shape.len() != strides.len() {
        return Err(bad("different numbers of extents and strides"));
    }
    if shape.contains(&0) {
        return Ok(0..0);
    }
    let (mut lo, mut hi) = (offset as i128, offset as i128);
    for (&extent, &stride) in shape.iter().zip(strides) {
        // Both factors fit 64 bits, so the product fits 128 bits; sums are checked.
        let reach = (extent as i128 - 1) * stride as i128;
        let side = if reach < 0 { &mut lo } else { &mut hi };
        *side = side
            .checked_add(reach)
            .ok_or_else(|| bad("an index that overflows"))?;
    }
    let lo = usize::try_from(lo).map_err(|_| bad("a negative index"))?;
    let end = hi.checked_add(1).and_then(|end| usize::try_from(end).ok());
    end.map(|end| lo..end)
        .ok_or_else(|| bad("an index that overflows"))
}

/// How far views of these extents and strides reach below and above their offset; `None` if the view is empty, or if the numbers
/// do not fit each other or overflow, which [`span`] tells apart.
pub fn reach(shape: &[usize], strides: &[isize]) -> Option<(isize, isize)> {
    if shape.len() != strides.len() || shape.contains(&0) {
        return None;
    }
    let mut dims = shape.iter().zip(strides);
    dims.try_fold((0_isize, 0_isize), |(lo, hi), (&extent, &stride)| {
        let reach = isize::try_from(extent - 1).ok()?.checked_mul(stride)?;
        Some(match reach < 0 {
            true => (lo.checked_add(reach)?, hi),
            false => (lo, hi.checked_add(reach)?),
        })
    })
}

/// [`span`], computed from the result of [`reach`] for a view.
///
/// # Errors
/// As [`span`].
pub fn span_within(
    offset: usize,
    shape: &[usize],
    strides: &[isize],
    reach: Option<(isize, isize)>,
) -> Result<std::ops::Range<usize>> {
    let quick = reach.and_then(|(lo, hi)| {
        let (first, last) = (
            offset.checked_add_signed(lo)?,
            offset.checked_add_signed(hi)?,
        );
        Some(first..last.checked_add(1)?)
    });
    match quick {
        Some(range) => Ok(range),
        None => span(offset, shape, strides),
    }
}

/// Whether a box is dense in row-major order, ignoring the strides of dims of extent 1.
pub fn is_dense(shape: &[usize], strides: &[isize]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1isize;
    for (&extent, &stride) in shape.iter().zip(strides).rev() {
        if extent != 1 && stride != expected {
            return false;
        }
        expected = expected.saturating_mul(extent as isize);
    }
    true
}

/// Whether a view visits no element twice: each stride steps over everything that the smaller strides reach.
pub fn steps_apart(shape: &[usize], strides: &[isize]) -> bool {
    if let (&[extent], &[stride]) = (shape, strides) {
        return extent <= 1 || stride != 0;
    }
    let mut dims: SmallVec<[(usize, usize); 6]> = shape
        .iter()
        .zip(strides)
        .filter(|&(&extent, _)| extent > 1)
        .map(|(&extent, &stride)| (stride.unsigned_abs(), extent))
        .collect();
    dims.sort_unstable();
    let mut reach = 0usize;
    dims.iter().all(|&(stride, extent)| {
        let apart = stride > reach;
        reach = reach.saturating_add(stride.saturating_mul(extent - 1));
        apart
    })
}
