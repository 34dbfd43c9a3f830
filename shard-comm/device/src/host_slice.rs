//! The elements of buffers as jobs of the host see them.

use crate::{DType, DeviceError, Element, Result};

/// A buffer's elements as a [`HostJob`](crate::HostJob) sees them.
#[derive(Clone, Copy)]
pub struct HostSlice<'a> {
    dtype: DType,
    bytes: &'a [u8],
}

impl<'a> HostSlice<'a> {
    /// Elements as aligned bytes; for implementations of devices.
    pub fn new(dtype: DType, bytes: &'a [u8]) -> Self {
        Self { dtype, bytes }
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The elements as bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The elements.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] if `T` is not the element type.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T]> {
        if T::DTYPE != self.dtype {
            return Err(DeviceError::dtype("as_slice", self.dtype, T::DTYPE));
        }
        bytemuck::try_cast_slice(self.bytes).map_err(|e| misaligned(&e))
    }
}

/// A buffer's elements as a [`HostJob`](crate::HostJob) writes them.
pub struct HostSliceMut<'a> {
    dtype: DType,
    bytes: &'a mut [u8],
}

impl<'a> HostSliceMut<'a> {
    /// Elements as aligned bytes; for implementations of devices.
    pub fn new(dtype: DType, bytes: &'a mut [u8]) -> Self {
        Self { dtype, bytes }
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The elements as bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// The elements.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] if `T` is not the element type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        if T::DTYPE != self.dtype {
            return Err(DeviceError::dtype("as_mut_slice", self.dtype, T::DTYPE));
        }
        bytemuck::try_cast_slice_mut(self.bytes).map_err(|e| misaligned(&e))
    }
}

fn misaligned(error: &bytemuck::PodCastError) -> DeviceError {
    DeviceError::invalid(
        "host slice",
        "aligned whole elements",
        error.to_string(),
        "construct it from a whole buffer",
    )
}
