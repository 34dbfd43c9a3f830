//! A device whose memory gives out.

use shard_comm::{
    Buffer, BufferMut, DType, Device, DeviceError, DeviceKind, DeviceRef, Event, Host, HostJob,
    MemoryStats, Monoid, Scalar, Strided,
};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

type Result<T> = std::result::Result<T, DeviceError>;

/// Memory of the host, of which a rank gets no more than so many elements at once.
#[derive(Debug)]
pub(crate) struct Scarce {
    host: DeviceRef,
    most: AtomicUsize,
}

impl Scarce {
    /// One that has enough.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            host: Host::new(),
            most: AtomicUsize::new(usize::MAX),
        })
    }

    /// From now on at most so many elements at once.
    pub(crate) fn give_at_most(device: &DeviceRef, most: usize) {
        let device: &dyn Any = device.as_ref();
        let scarce: &Self = device.downcast_ref().unwrap();
        scarce.most.store(most, Ordering::Relaxed);
    }
}

impl Device for Scarce {
    fn kind(&self) -> DeviceKind {
        self.host.kind()
    }

    fn name(&self) -> String {
        "scarce".to_owned()
    }

    fn alloc(&self, dtype: DType, len: usize) -> Result<BufferMut> {
        if len <= self.most.load(Ordering::Relaxed) {
            return self.host.alloc(dtype, len);
        }
        Err(DeviceError::OutOfMemory {
            device: self.name(),
            bytes: len * dtype.size(),
            dtype,
            len,
        })
    }

    fn fill(&self, dst: &mut BufferMut, view: &Strided, value: Scalar) -> Result<()> {
        self.host.fill(dst, view, value)
    }

    fn copy(&self, src: &Buffer, sv: &Strided, dst: &mut BufferMut, dv: &Strided) -> Result<()> {
        self.host.copy(src, sv, dst, dv)
    }

    fn fold(
        &self,
        op: Monoid,
        src: &Buffer,
        sv: &Strided,
        dst: &mut BufferMut,
        dv: &Strided,
    ) -> Result<()> {
        self.host.fold(op, src, sv, dst, dv)
    }

    fn reduce(
        &self,
        op: Monoid,
        terms: &[(&Buffer, usize)],
        strides: &[isize],
        dst: &mut BufferMut,
        dv: &Strided,
    ) -> Result<()> {
        self.host.reduce(op, terms, strides, dst, dv)
    }

    fn copy_within(&self, buffer: &mut BufferMut, from: Range<usize>, to: usize) -> Result<()> {
        self.host.copy_within(buffer, from, to)
    }

    fn resize(&self, buffer: BufferMut, len: usize) -> Result<BufferMut> {
        self.host.resize(buffer, len)
    }

    fn upload(&self, dtype: DType, bytes: &[u8]) -> Result<Buffer> {
        self.host.upload(dtype, bytes)
    }

    fn download_into(&self, src: &Buffer, to: &mut [u8]) -> Result<()> {
        self.host.download_into(src, to)
    }

    fn submit(
        &self,
        inputs: Vec<Buffer>,
        outputs: Vec<BufferMut>,
        job: HostJob,
    ) -> Result<Vec<BufferMut>> {
        self.host.submit(inputs, outputs, job)
    }

    fn record(&self) -> Event {
        self.host.record()
    }

    fn wait(&self, event: &Event) -> Result<()> {
        self.host.wait(event)
    }

    fn synchronize(&self) -> Result<()> {
        self.host.synchronize()
    }

    fn memory(&self) -> MemoryStats {
        self.host.memory()
    }

    fn reset_peak(&self) {
        self.host.reset_peak();
    }
}
