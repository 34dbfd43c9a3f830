//! What a device does for this workspace: memory, strided copies and folds, host jobs, and order between queues.

use std::any::Any;
use std::fmt::{self, Debug};
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use crate::plan::steps_apart;
use crate::view::{reach, span_within};
use crate::{
    Buffer, BufferMut, CommError, DType, Element, HostJob, Monoid, Result, Scalar, Spent, Strided,
    kernel,
};

/// A shared device.
pub type DeviceRef = Arc<dyn Device>;

/// The kinds of device a buffer can live on. Written and read, as on command lines, as `host`, `test`, `cuda` and
/// `emulated-cuda`.
///
/// ```
/// use shard_comm::DeviceKind;
/// assert_eq!("cuda".parse(), Ok(DeviceKind::Cuda));
/// assert_eq!(DeviceKind::EmulatedCuda.to_string(), "emulated-cuda");
/// assert!("gpu".parse::<DeviceKind>().unwrap_err().to_string().contains("cuda"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The memory of this process; see [`Host`](crate::Host).
    Host,
    /// The stand-in for an accelerator; see [`TestDevice`](crate::TestDevice).
    Test,
    /// Counts bytes and holds no data; see [`simulated`](crate::simulated).
    Phantom,
    /// A GPU of NVIDIA; see the module `cuda`, which the feature of that name brings.
    Cuda,
    /// The stand-in for one whose kernels run on the host; see `Cuda::emulated` in the same module.
    EmulatedCuda,
}

impl DeviceKind {
    /// Those that a program can be told to run on. A [phantom](Self::Phantom) runs nothing.
    const RUNNABLE: [Self; 4] = [Self::Host, Self::Test, Self::Cuda, Self::EmulatedCuda];

    /// Whether kernels of GPUs run there, on one or on its stand-in.
    pub fn is_cuda(self) -> bool {
        matches!(self, Self::Cuda | Self::EmulatedCuda)
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Host => "host",
            Self::Test => "test",
            Self::Phantom => "phantom",
            Self::Cuda => "cuda",
            Self::EmulatedCuda => "emulated-cuda",
        })
    }
}

/// That a text names no [`DeviceKind`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no device: expected host, test, cuda or emulated-cuda")]
pub struct UnknownDevice(String);

impl FromStr for DeviceKind {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> std::result::Result<Self, UnknownDevice> {
        let named = |kind: &Self| kind.to_string() == text;
        let found = Self::RUNNABLE.into_iter().find(named);
        found.ok_or_else(|| UnknownDevice(text.to_owned()))
    }
}

/// A new device of a kind, for the process's rank of this number: GPUs are shared out in turn.
///
/// # Errors
/// [`CommError::Backend`] if there is no such device here, or this was built without what it needs.
pub fn device_of(kind: DeviceKind, rank: usize) -> Result<DeviceRef> {
    match kind {
        DeviceKind::Host => Ok(crate::Host::new()),
        DeviceKind::Test => Ok(crate::TestDevice::new()),
        DeviceKind::Phantom => Ok(crate::simulated::idle_device()),
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda => crate::cuda::Cuda::of_rank(rank),
        #[cfg(not(feature = "cuda"))]
        DeviceKind::Cuda => Err(built_without("cuda", rank)),
        #[cfg(feature = "cuda-emulated")]
        DeviceKind::EmulatedCuda => crate::cuda::Cuda::emulated(),
        #[cfg(not(feature = "cuda-emulated"))]
        DeviceKind::EmulatedCuda => Err(built_without("cuda-emulated", rank)),
    }
}

#[cfg(not(feature = "cuda-emulated"))]
fn built_without(feature: &str, rank: usize) -> CommError {
    CommError::Backend {
        backend: "cuda",
        call: "device_of",
        cause: format!("rank {rank} asks for a device that needs the feature {feature}").into(),
    }
}

/// The memory and the work queue of one rank's device. No kernels: those are jobs of the crates above.
///
/// All work of one device happens in the order it was submitted. Work may be *queued*: a call returns before its
/// effect is in memory, and only [`Device::synchronize`], [`Device::download`] or an [`Event`] make it certain.
/// Every method checks its views against the buffers before anything is queued.
pub trait Device: Any + Debug + Send + Sync {
    /// What kind of device this is.
    fn kind(&self) -> DeviceKind;

    /// A name for messages.
    fn name(&self) -> String;

    /// Memory for `len` elements, from the caching pool. Its contents are unspecified but initialised.
    ///
    /// # Errors
    /// [`CommError::OutOfMemory`].
    fn alloc(&self, dtype: DType, len: usize) -> Result<BufferMut>;

    /// Writes `value` to every element of a view.
    ///
    /// # Errors
    /// [`CommError::Invalid`] if the view does not fit.
    fn fill(&self, dst: &mut BufferMut, view: &Strided, value: Scalar) -> Result<()>;

    /// Copies a view onto a view of the same shape, converting between element types where they differ.
    ///
    /// # Errors
    /// [`CommError::Invalid`] if shapes differ or a view does not fit.
    fn copy(&self, src: &Buffer, sv: &Strided, dst: &mut BufferMut, dv: &Strided) -> Result<()>;

    /// [`copy`](Self::copy) of elements that lie side by side, to where `to` is the first.
    /// An empty range copies nothing.
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
    /// [`CommError::Invalid`] if shapes or types do not fit.
    fn fold(
        &self,
        op: Monoid,
        src: &Buffer,
        sv: &Strided,
        dst: &mut BufferMut,
        dv: &Strided,
    ) -> Result<()>;

    /// Sets a view to several views of its shape combined: `dst = terms[0] op terms[1] op ...`, element by element.
    ///
    /// A term is a buffer and the element where its view begins; all terms have the steps of `strides`. All buffers
    /// have one element type, and 16-bit floats are combined in `f32` and rounded once. The destination's view visits
    /// no element twice. Without terms nothing is done. For a monoid of width above one see [`Device::fold`].
    ///
    /// # Errors
    /// [`CommError::Invalid`] if shapes or types do not fit, or the destination's view overlaps itself.
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
    /// [`CommError::Invalid`] if a range does not fit.
    fn copy_within(&self, buffer: &mut BufferMut, from: Range<usize>, to: usize) -> Result<()>;

    /// Makes a buffer longer or shorter, keeping the elements that both lengths have; further ones are unspecified
    /// but initialised.
    ///
    /// Where the device can, without a second copy in memory: on [`Host`](crate::Host) the system's allocator is
    /// asked to resize in place, which on Linux remaps large memory (32 MiB and more, always) and may copy small
    /// memory. This default allocates, copies and frees, so that for a moment both are in memory, and so does a
    /// buffer that is part of another.
    ///
    /// # Errors
    /// [`CommError::OutOfMemory`]; the buffer is then lost.
    fn resize(&self, buffer: BufferMut, len: usize) -> Result<BufferMut> {
        resize_by_copy(self, buffer, len)
    }

    /// Elements from the host's memory.
    ///
    /// # Errors
    /// [`CommError::Invalid`] if the bytes are no whole number of elements; [`CommError::OutOfMemory`].
    fn upload(&self, dtype: DType, bytes: &[u8]) -> Result<Buffer>;

    /// The bytes of a buffer, after all work queued so far.
    ///
    /// # Errors
    /// [`CommError::Device`] if queued work failed.
    fn download(&self, src: &Buffer) -> Result<Vec<u8>>;

    /// Runs host code over these buffers, in order with the device's other work. The outputs come back at once;
    /// their contents when the job has run.
    ///
    /// [`Host`](crate::Host) runs it now, [`TestDevice`](crate::TestDevice) queues it, an accelerator whose memory
    /// the host cannot reach refuses.
    ///
    /// # Errors
    /// [`CommError::HostOnly`] if the host cannot reach a buffer.
    fn submit(
        &self,
        inputs: Vec<Buffer>,
        outputs: Vec<BufferMut>,
        job: HostJob,
    ) -> Result<Vec<BufferMut>>;

    /// A mark after all work submitted so far.
    fn record(&self) -> Event;

    /// Work submitted from now on starts after the event, which may belong to another device.
    ///
    /// # Errors
    /// [`CommError::Device`] if the work it stands for failed.
    fn wait(&self, event: &Event) -> Result<()>;

    /// Returns when all work submitted so far is done.
    ///
    /// # Errors
    /// [`CommError::Device`] if some of it failed.
    fn synchronize(&self) -> Result<()>;

    /// Bytes in use, at most in use, and cached.
    fn memory(&self) -> MemoryStats;

    /// Starts a new measurement of [`MemoryStats::peak`] at the present use.
    fn reset_peak(&self);

    /// What jobs, copies and folds took so far, by name, on a device that keeps such an account: a
    /// [metered](crate::HostOptions::meter) host measures, a [phantom](crate::simulated) forecasts, others say nothing.
    fn spent(&self) -> Vec<(&'static str, Spent)> {
        Vec::new()
    }

    /// Starts a new account of what is [spent](Device::spent).
    fn reset_spent(&self) {}

    /// Gives memory kept for reuse back to the system.
    fn trim(&self) {}
}

impl dyn Device + '_ {
    /// Elements from a slice.
    ///
    /// # Errors
    /// As [`Device::upload`].
    pub fn upload_slice<T: Element>(&self, values: &[T]) -> Result<Buffer> {
        self.upload(T::DTYPE, bytemuck::cast_slice(values))
    }

    /// The elements of a buffer as a vector.
    ///
    /// # Errors
    /// As [`Device::download`]; [`CommError::Invalid`] if `T` is not the element type.
    pub fn download_vec<T: Element>(&self, src: &Buffer) -> Result<Vec<T>> {
        if T::DTYPE != src.dtype() {
            return Err(CommError::dtype("download", src.dtype(), T::DTYPE));
        }
        let bytes = self.download(src)?;
        Ok(bytemuck::allocation::pod_collect_to_vec(&bytes))
    }
}

/// A buffer's elements as a [`HostJob`] sees them.
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

    /// The elements.
    ///
    /// # Errors
    /// [`CommError::Invalid`] if `T` is not the element type.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T]> {
        if T::DTYPE != self.dtype {
            return Err(CommError::dtype("as_slice", self.dtype, T::DTYPE));
        }
        bytemuck::try_cast_slice(self.bytes).map_err(|e| misaligned(&e))
    }
}

/// A buffer's elements as a [`HostJob`] writes them.
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

    /// The elements.
    ///
    /// # Errors
    /// [`CommError::Invalid`] if `T` is not the element type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        if T::DTYPE != self.dtype {
            return Err(CommError::dtype("as_mut_slice", self.dtype, T::DTYPE));
        }
        bytemuck::try_cast_slice_mut(self.bytes).map_err(|e| misaligned(&e))
    }
}

fn misaligned(error: &bytemuck::PodCastError) -> CommError {
    CommError::invalid(
        "host slice",
        "aligned whole elements",
        error.to_string(),
        "construct it from a whole buffer",
    )
}

/// A point in a device's queue that others can wait for.
#[derive(Clone, Debug)]
pub struct Event(Option<Arc<dyn EventState>>);

impl Event {
    /// An event that has happened: nothing to wait for.
    pub fn ready() -> Self {
        Self(None)
    }

    /// An event of a device with a queue; for implementations of devices.
    pub fn new(state: Arc<dyn EventState>) -> Self {
        Self(Some(state))
    }

    /// Returns when the event has happened, making it happen if its device runs work lazily.
    ///
    /// # Errors
    /// [`CommError::Device`] if the work it stands for failed.
    pub fn synchronize(&self) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |state| state.synchronize())
    }

    /// Whether it has happened, without waiting.
    ///
    /// # Errors
    /// [`CommError::Device`] if the work it stands for failed.
    pub fn is_done(&self) -> Result<bool> {
        self.0.as_ref().map_or(Ok(true), |state| state.is_done())
    }

    /// The device's own state, `None` for [`Event::ready`]; for implementations of devices.
    pub fn state(&self) -> Option<&Arc<dyn EventState>> {
        self.0.as_ref()
    }
}

/// What a device puts behind an [`Event`].
pub trait EventState: Any + Debug + Send + Sync {
    /// Returns when the event has happened; callable from any thread.
    ///
    /// # Errors
    /// [`CommError::Device`] if the work it stands for failed.
    fn synchronize(&self) -> Result<()>;

    /// Whether the event has happened. A device that cannot tell waits for it.
    ///
    /// # Errors
    /// As [`synchronize`](Self::synchronize).
    fn is_done(&self) -> Result<bool> {
        self.synchronize().map(|()| true)
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

/// Resizes with both copies in memory: what is left where memory cannot be resized.
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

/// What every device checks before it copies within a buffer.
pub(crate) fn check_within(len: usize, from: &Range<usize>, to: usize) -> Result<()> {
    let fits = from.start <= from.end && from.end <= len && to <= len - (from.end - from.start);
    if fits {
        return Ok(());
    }
    Err(CommError::invalid(
        "copy_within",
        format!("ranges inside 0..{len}"),
        format!("{from:?} to {to}"),
        "check the ranges against the length",
    ))
}

/// What every device checks before it copies or folds.
pub(crate) fn check_pair(
    op: &'static str,
    src_len: usize,
    sv: &Strided,
    dst_len: usize,
    dv: &Strided,
) -> Result<()> {
    if sv.shape != dv.shape {
        return Err(CommError::invalid(
            op,
            format!("views of one shape (destination {:?})", dv.shape.as_slice()),
            format!("source {:?}", sv.shape.as_slice()),
            "broadcast with a zero stride, or slice the larger view",
        ));
    }
    sv.validate(src_len)?;
    dv.validate(dst_len)
}

/// What every device checks before it reduces.
pub(crate) fn check_terms(
    op: Monoid,
    terms: &[(&Buffer, usize)],
    strides: &[isize],
    dst: &BufferMut,
    dv: &Strided,
) -> Result<()> {
    if !steps_apart(&dv.shape, &dv.strides) {
        return Err(CommError::invalid(
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
    kernel::check_fold(op, dst.dtype(), &sv, dst.dtype(), dv)?;
    // All terms reach equally far from where they begin.
    let reach = reach(&dv.shape, strides);
    for (term, offset) in terms {
        if term.dtype() != dst.dtype() {
            return Err(CommError::dtype("reduce", dst.dtype(), term.dtype()));
        }
        let end = span_within(*offset, &dv.shape, strides, reach)?.end;
        if end > term.len() {
            return Err(CommError::invalid(
                "reduce",
                format!("a term of at least {end} elements"),
                format!("{}", term.len()),
                "check offsets, shape and strides against the buffers",
            ));
        }
    }
    Ok(())
}
