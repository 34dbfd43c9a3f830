//! What calls to MPI return, as errors.

use std::ffi::c_int;

use mpi::ffi;

use crate::{CommError, Result};

/// The error that a call returned, if it did.
pub(super) fn check(code: c_int, call: &'static str) -> Result<()> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0_u8; ffi::MPI_MAX_ERROR_STRING as usize + 1];
    let mut length = 0;
    // SAFETY: the text is as long as MPI may write, and one more.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &raw mut length) };
    let length = usize::try_from(length).unwrap_or(0).min(text.len());
    Err(failure(call, &String::from_utf8_lossy(&text[..length])))
}

/// The error that a call failed for this cause.
pub(super) fn failure(call: &'static str, cause: &str) -> CommError {
    CommError::Backend {
        backend: "mpi",
        call,
        cause: cause.into(),
    }
}
