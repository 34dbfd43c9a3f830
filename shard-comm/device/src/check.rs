//! The checks that every device makes of its arguments: for implementations of [`Device`](crate::Device), inside this workspace
//! and outside it.

use std::ops::Range;

use crate::view::{reach, span_within, steps_apart};
use crate::{Buffer, BufferMut, DType, DeviceError, Monoid, Result, Strided};

pub use crate::kernel::check_fold;

/// The check that every device makes before it copies within a buffer.
///
/// # Errors
/// [`DeviceError::Invalid`] if a range does not fit.
pub fn check_within(len: usize, from: &Range<usize>, to: usize) -> Result<()> {
    let fits = from.start <= from.end && from.end <= len && to <= len - (from.end - from.start);
    if fits {
        return Ok(());
    }
    Err(DeviceError::invalid(
        "copy_within",
        format!("ranges inside 0..{len}"),
        format!("{from:?} to {to}"),
        "check the ranges against the length",
    ))
}

/// The check that every device makes before it copies so many bytes to memory of the caller.
///
/// # Errors
/// [`DeviceError::Invalid`] if there is room for more, or for fewer.
pub fn check_room(bytes: usize, to: &[u8]) -> Result<()> {
    if to.len() == bytes {
        return Ok(());
    }
    Err(DeviceError::invalid(
        "download_into",
        format!("room for the buffer's {bytes} bytes"),
        format!("{} bytes", to.len()),
        "pass a slice as long as the buffer",
    ))
}

/// The check that every device makes before it copies or folds.
///
/// # Errors
/// [`DeviceError::Invalid`] if shapes differ or a view does not fit.
pub fn check_pair(
    op: &'static str,
    src_len: usize,
    sv: &Strided,
    dst_len: usize,
    dv: &Strided,
) -> Result<()> {
    if sv.shape != dv.shape {
        return Err(DeviceError::invalid(
            op,
            format!("views of one shape (destination {:?})", dv.shape.as_slice()),
            format!("source {:?}", sv.shape.as_slice()),
            "broadcast with a zero stride, or slice the larger view",
        ));
    }
    sv.validate(src_len)?;
    dv.validate(dst_len)
}

/// The check that every device makes before it reduces.
///
/// # Errors
/// [`DeviceError::Invalid`] if shapes or types do not fit, or the destination visits an element twice.
pub fn check_terms(
    op: Monoid,
    terms: &[(&Buffer, usize)],
    strides: &[isize],
    dst: &BufferMut,
    dv: &Strided,
) -> Result<()> {
    if !steps_apart(&dv.shape, &dv.strides) {
        return Err(DeviceError::invalid(
            "reduce",
            "a destination that visits no element twice",
            format!("{dv:?}"),
            "fold the terms one by one",
        ));
    }
    dv.validate(dst.len())?;
    let Some((_, first)) = terms.first() else {
        return Ok(());
    };
    let sv = Strided::new(*first, dv.shape.clone(), strides.into());
    check_fold(op, dst.dtype(), &sv, dst.dtype(), dv)?;
    // All terms have the same reach around the element where they begin.
    let reach = reach(&dv.shape, strides);
    for (term, offset) in terms {
        if term.dtype() != dst.dtype() {
            return Err(DeviceError::dtype("reduce", dst.dtype(), term.dtype()));
        }
        let end = span_within(*offset, &dv.shape, strides, reach)?.end;
        if end > term.len() {
            return Err(DeviceError::invalid(
                "reduce",
                format!("a term of at least {end} elements"),
                format!("{}", term.len()),
                "check offsets, shape and strides against the buffers",
            ));
        }
    }
    Ok(())
}

/// The number of elements in these bytes.
///
/// # Errors
/// [`DeviceError::Invalid`] if the bytes are not a whole number of elements.
pub fn whole_elements(dtype: DType, bytes: &[u8]) -> Result<usize> {
    if bytes.len().is_multiple_of(dtype.size()) {
        return Ok(bytes.len() / dtype.size());
    }
    Err(DeviceError::invalid(
        "upload",
        format!("whole elements of {} bytes", dtype.size()),
        format!("{} bytes", bytes.len()),
        "pass the bytes of whole elements",
    ))
}
