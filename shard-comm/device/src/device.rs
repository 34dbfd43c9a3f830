//! The work that a device does for this workspace: memory, strided copies and folds, host jobs, and order between queues.

use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use crate::{
    Buffer, BufferMut, DType, DeviceError, DeviceKind, Element, Event, HostJob, HostSlice,
    HostSliceMut, Monoid, Result, Scalar, Strided, Work, WorkStats,
};

/// A shared device.
pub type DeviceRef = Arc<dyn Device>;

/// Host code over the elements of some buffers that are read, and of others that are written.
pub type HostRun<'a> = &'a mut dyn FnMut(&[HostSlice<'_>], &mut [HostSliceMut<'_>]);

/// The memory and the work queue of one rank's device. It has no kernels: those are jobs of the crates above.
///
/// All work of one device happens in the order it was submitted. Work may be *queued*: a call returns before its
/// effect is in memory, and only [`Device::synchronize`], [`Device::download`] or an [`Event`] make it certain.
/// Every method checks its views against the buffers before anything is queued.
pub trait Device: Any + Debug + Send + Sync {
    /// What kind of device this is.
    fn kind(&self) -> DeviceKind;

    /// A name for messages.
    fn name(&self) -> String;

    /// Whether it runs jobs of the host on its memory; others need kernels of their own.
    fn runs_host_jobs(&self) -> bool {
        !self.kind().is_cuda()
    }

    /// Memory for `len` elements, from the caching pool. Its contents are unspecified but initialised.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn alloc(&self, dtype: DType, len: usize) -> Result<BufferMut>;

    /// Writes `value` to every element of a view.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] if the view does not fit.
    fn fill(&self, dst: &mut BufferMut, view: &Strided, value: Scalar) -> Result<()>;

    /// Copies a view onto a view of the same shape, converting between element types where they differ.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] if shapes differ or a view does not fit.
    fn copy(&self, src: &Buffer, sv: &Strided, dst: &mut BufferMut, dv: &Strided) -> Result<()>;

    /// [`copy`](Self::copy) of contiguous elements, to a destination that begins at `to`. An empty range copies nothing.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    fn copy_run(
        &self,
        src: &Buffer,
        from: Range<usize>,
        dst: &mut BufferMut,
        to: usize,
    ) -> Result<()> {
        let run = |at| Strided::run_at(at, from.len());
        self.copy(src, &run(from.start), dst, &run(to))
    }

    /// Copies several views of buffers of one type into one destination, each onto a view of its own shape. The views of the
    /// destination have no element in common.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    fn copy_pieces(
        &self,
        pieces: &[(&Buffer, Strided, Strided)],
        dst: &mut BufferMut,
    ) -> Result<()> {
        (pieces.iter()).try_for_each(|(src, sv, dv)| self.copy(src, sv, dst, dv))
    }

    /// Whether [`copy_pieces`](Self::copy_pieces) is faster than a copy for each piece.
    fn takes_many_pieces(&self) -> bool {
        false
    }

    /// Combines a view into a view of the same shape: `dst = dst op src`, element by element, in row-major order
    /// where the destination overlaps itself.
    ///
    /// The element types are equal, or `src` is a 16-bit float and `dst` is [`DType::F32`]. For a monoid of width
    /// above one the innermost dim of both views is dense and a multiple of that width.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] if shapes or types do not fit.
    fn fold(
        &self,
        op: Monoid,
        src: &Buffer,
        sv: &Strided,
        dst: &mut BufferMut,
        dv: &Strided,
    ) -> Result<()>;

    /// Sets a view to several views of its shape combined, element by element, [by the tree](crate::by_tree) over the terms'
    /// numbers: of four, `dst = (terms[0] op terms[1]) op (terms[2] op terms[3])`.
    ///
    /// A term is a buffer and the element where its view begins; all terms have the strides `strides`. All buffers
    /// have one element type, and 16-bit floats are combined in `f32` and rounded once. The destination's view visits
    /// no element twice. Without terms nothing is done. For a monoid of width above one see [`Device::fold`].
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] if shapes or types do not fit, or the destination's view overlaps itself.
    fn reduce(
        &self,
        op: Monoid,
        terms: &[(&Buffer, usize)],
        strides: &[isize],
        dst: &mut BufferMut,
        dv: &Strided,
    ) -> Result<()>;

    /// Copies elements to another place in the same buffer, as [`slice::copy_within`] does: the ranges may overlap.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] if a range does not fit.
    fn copy_within(&self, buffer: &mut BufferMut, from: Range<usize>, to: usize) -> Result<()>;

    /// Makes a buffer longer or shorter, keeping the elements that both lengths have. Elements beyond the old length are
    /// unspecified but initialised.
    ///
    /// Where the device can, it does so without a second copy in memory: on [`Host`](crate::Host) the system's allocator is
    /// asked to resize in place, which on Linux remaps large memory (always from 32 MiB on) and may copy small memory.
    /// This default allocates, copies and frees, so that for a moment both copies are in memory. A buffer that is part of another
    /// one is resized in that way too.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`]; the buffer is then lost.
    fn resize(&self, buffer: BufferMut, len: usize) -> Result<BufferMut> {
        resize_by_copy(self, buffer, len)
    }

    /// A new buffer with elements from the host's memory.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] if the bytes are not a whole number of elements; [`DeviceError::OutOfMemory`].
    fn upload(&self, dtype: DType, bytes: &[u8]) -> Result<Buffer>;

    /// Copies the elements of a buffer, after all work queued so far, to memory of the caller, who can use it again: pages that are
    /// fresh from the system cost more than the copy.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] if `to` has not as many bytes; [`DeviceError::Queued`] if queued work failed.
    fn download_into(&self, src: &Buffer, to: &mut [u8]) -> Result<()>;

    /// The bytes of a buffer, after all work queued so far, in memory of their own.
    ///
    /// # Errors
    /// As [`download_into`](Self::download_into).
    fn download(&self, src: &Buffer) -> Result<Vec<u8>> {
        let mut bytes = vec![0; src.bytes()];
        self.download_into(src, &mut bytes)?;
        Ok(bytes)
    }

    /// Runs host code over these buffers, in order with the device's other work. The outputs come back at once;
    /// their contents are there when the job has run.
    ///
    /// [`Host`](crate::Host) runs the job now, [`TestDevice`](crate::TestDevice) queues it, and an accelerator whose memory
    /// the host cannot reach refuses it.
    ///
    /// # Errors
    /// [`DeviceError::HostOnly`] if the host cannot reach a buffer.
    fn submit(
        &self,
        inputs: Vec<Buffer>,
        outputs: Vec<BufferMut>,
        job: HostJob,
    ) -> Result<Vec<BufferMut>>;

    /// Runs host code over these buffers before it returns, if the device does its work when it is asked for, as
    /// [`Host`](crate::Host) does. Code that is not queued may borrow what it needs. Returns false, and has done nothing, where work
    /// is queued: the code is then to be [submitted](Self::submit).
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    fn run_now(
        &self,
        _name: &'static str,
        _work: Work,
        _inputs: &[&Buffer],
        _outputs: &mut [BufferMut],
        _run: HostRun<'_>,
    ) -> Result<bool> {
        Ok(false)
    }

    /// A mark after all work submitted so far.
    fn record(&self) -> Event;

    /// Work submitted from now on starts after the event, which may belong to another device.
    ///
    /// # Errors
    /// [`DeviceError::Queued`] if the work before the event failed.
    fn wait(&self, event: &Event) -> Result<()>;

    /// Returns when all work submitted so far is done.
    ///
    /// # Errors
    /// [`DeviceError::Queued`] if some of it failed.
    fn synchronize(&self) -> Result<()>;

    /// Bytes in use now, the most bytes in use at once, and bytes cached.
    fn memory(&self) -> MemoryStats;

    /// Starts a new measurement of [`MemoryStats::peak`] at the bytes in use now.
    fn reset_peak(&self);

    /// Raises [`MemoryStats::peak`] to what it was before somebody else began a new measurement, so that the one before goes on.
    fn raise_peak(&self, _to: usize) {}

    /// The work and time of jobs, copies and folds so far, by name, on a device that keeps such an account: a
    /// [metered](crate::HostOptions::meter) host measures, a simulated device forecasts, and other devices return nothing.
    fn spent(&self) -> Vec<(&'static str, WorkStats)> {
        Vec::new()
    }

    /// Starts a new account of what is [spent](Device::spent).
    fn reset_spent(&self) {}

    /// Gives memory that was kept for reuse back to the system.
    fn trim(&self) {}
}

impl dyn Device + '_ {
    /// A new buffer with the elements of a slice.
    ///
    /// # Errors
    /// As [`Device::upload`].
    pub fn upload_slice<T: Element>(&self, values: &[T]) -> Result<Buffer> {
        self.upload(T::DTYPE, bytemuck::cast_slice(values))
    }

    /// The elements of a buffer as a vector.
    ///
    /// # Errors
    /// As [`Device::download`]; [`DeviceError::Invalid`] if `T` is not the element type.
    pub fn download_vec<T: Element>(&self, src: &Buffer) -> Result<Vec<T>> {
        let mut elements = bytemuck::allocation::zeroed_vec(src.len());
        self.download_slice::<T>(src, &mut elements)?;
        Ok(elements)
    }

    /// Copies the elements of a buffer to a slice of the caller.
    ///
    /// ```
    /// use shard_device::Host;
    /// # fn main() -> Result<(), shard_device::DeviceError> {
    /// let host = Host::new();
    /// let mut rows = [0.0f32; 2];
    /// for row in [[1.0f32, 2.0], [3.0, 4.0]] {
    ///     host.download_slice(&host.upload_slice(&row)?, &mut rows)?;
    ///     assert_eq!(rows, row);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Device::download_into`]; [`DeviceError::Invalid`] if `T` is not the element type.
    pub fn download_slice<T: Element>(&self, src: &Buffer, to: &mut [T]) -> Result<()> {
        if T::DTYPE != src.dtype() {
            return Err(DeviceError::dtype("download", src.dtype(), T::DTYPE));
        }
        self.download_into(src, bytemuck::cast_slice_mut(to))
    }
}

/// Bytes of one device instance.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MemoryStats {
    /// Bytes of elements in buffers now.
    pub live: usize,
    /// Most bytes live at once since the last [`Device::reset_peak`].
    pub peak: usize,
    /// Bytes kept for reuse.
    pub cached: usize,
    /// Buffers asked for.
    pub requests: u64,
    /// Of those, how many were served from the cache.
    pub reused: u64,
}

/// Resizes with both copies in memory: the way for memory that cannot be resized.
pub(crate) fn resize_by_copy<D: Device + ?Sized>(
    device: &D,
    buffer: BufferMut,
    len: usize,
) -> Result<BufferMut> {
    let kept = Strided::contiguous(&[len.min(buffer.len())]);
    let mut resized = device.alloc(buffer.dtype(), len)?;
    device.copy(&buffer.freeze(), &kept, &mut resized, &kept)?;
    Ok(resized)
}
