//! Writing NumPy's files.

use super::NpyError;
use super::element::descr_of;
use super::header::head;
use crate::files::save_one;
use crate::{Error, Result, ShardTensor};
use ndarray::{ArrayRef, Dimension};
use shard_comm::{Calling, DType, Element};
use std::path::Path;

/// Writes a tensor to a NumPy file. Every rank writes its pieces, as [`checkpoint::save`](crate::checkpoint::save) has it; the
/// file is there as a whole or not at all.
///
/// # Collective
/// All ranks of the program, with the same path and tensor, which is checked.
///
/// # Errors
/// As [`checkpoint::save`](crate::checkpoint::save); [`Argument`](Error::Argument) for `bf16`, which NumPy does not know.
#[track_caller]
pub fn save_npy(path: impl AsRef<Path>, tensor: &ShardTensor) -> Result<()> {
    let _call = Calling::of("save_npy");
    let head = head_of(tensor.dtype(), false, tensor.shape());
    let head = head.map_err(|e| {
        let got = format!("{} {:?}: {e}", tensor.dtype(), tensor.shape());
        Error::argument(
            "save_npy",
            "what NumPy can hold",
            got,
            "convert it with `to`",
        )
    })?;
    save_one("save_npy", path.as_ref(), tensor, head)
}

/// A NumPy file's bytes, in the order that the array has, if it is one of the two that NumPy knows.
///
/// # Errors
/// [`Type`](NpyError::Type) for `bf16`.
pub fn npy_bytes<T: Element, D: Dimension>(array: &ArrayRef<T, D>) -> Result<Vec<u8>, NpyError> {
    let turned = array.t();
    let fortran = !array.is_standard_layout() && turned.is_standard_layout();
    let mut bytes = head_of(T::DTYPE, fortran, array.shape())?;
    let ordered = if fortran { turned } else { array.view() };
    for element in ordered {
        bytes.extend(bytemuck::bytes_of(element));
    }
    Ok(bytes)
}

fn head_of(dtype: DType, fortran: bool, shape: &[usize]) -> Result<Vec<u8>, NpyError> {
    let descr = descr_of(dtype).ok_or_else(|| NpyError::Type {
        found: dtype.to_string(),
        expected: "types that NumPy knows".to_owned(),
    })?;
    head(&descr, fortran, shape)
}
