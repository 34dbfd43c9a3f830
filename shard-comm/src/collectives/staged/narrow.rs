//! Sums of 16-bit floats are formed in `f32` and rounded once. Where they are formed in stages, `f32` is what moves.

use std::sync::Arc;

use crate::{Buffer, CommError, DType, DeviceRef, Handle, Monoid, Pending, Result, Strided};

/// The type in which the stages of a reduction of these elements move them.
pub(in super::super) fn moves(dtype: DType, op: Monoid) -> DType {
    match dtype.is_half() && op.accumulates() {
        true => DType::F32,
        false => dtype,
    }
}

/// The same values in another type; the buffer itself if it has that type.
pub(in super::super) fn narrow(buffer: Buffer, dtype: DType) -> Result<Buffer> {
    if buffer.dtype() == dtype {
        return Ok(buffer);
    }
    let device = Arc::clone(buffer.device());
    let all = Strided::contiguous(&[buffer.len()]);
    let mut converted = device.alloc(dtype, buffer.len())?;
    device.copy(&buffer, &all, &mut converted, &all)?;
    Ok(converted.freeze())
}

/// The handle of a sum that is rounded to this type when it is there.
pub(in super::super) fn narrowing(handle: Handle, device: &DeviceRef, dtype: DType) -> Handle {
    Handle::new(Box::new(Narrowing {
        handle: Some(handle),
        device: Arc::clone(device),
        dtype,
    }))
}

struct Narrowing {
    handle: Option<Handle>,
    device: DeviceRef,
    dtype: DType,
}

impl Pending for Narrowing {
    fn wait(&mut self) -> Result<Option<Buffer>> {
        let Some(handle) = self.handle.take() else {
            return Err(CommError::Closed { op: "wait" });
        };
        let sum = handle.wait_optional()?;
        sum.map(|sum| narrow(sum, self.dtype)).transpose()
    }

    fn is_done(&mut self) -> bool {
        self.handle.as_mut().is_none_or(Handle::is_done)
    }

    fn device(&self) -> &DeviceRef {
        &self.device
    }

    fn park(&mut self) {
        drop(self.handle.take());
    }
}
