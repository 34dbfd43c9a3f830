//! The host as a device: it has the memory of this process, and does its work when it is asked for.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Instant;

use smallvec::SmallVec;

use crate::buffer::HostMemory;
use crate::check::{check_pair, check_room, check_terms, check_within, whole_elements};
use crate::device::resize_by_copy;
use crate::job::Meter;
use crate::pool::Pool;
use crate::{
    Buffer, BufferMut, DType, Device, DeviceError, DeviceKind, DeviceRef, Event, HostJob, HostRun,
    HostSlice, HostSliceMut, MemoryStats, Monoid, Result, Scalar, Strided, Work, WorkStats, kernel,
};

/// The memory of this process, with a caching pool of its own. Every call does its work before it returns.
///
/// ```
/// use shard_device::{Host, Strided};
/// # fn main() -> Result<(), shard_device::DeviceError> {
/// let host = Host::new();
/// let rows = host.upload_slice(&[1i32, 2, 3, 4, 5, 6])?;
/// let mut columns = host.alloc(rows.dtype(), 6)?;
/// let transposed = Strided::new(0, [3, 2][..].into(), [1, 3][..].into());
/// host.copy(&rows, &transposed, &mut columns, &Strided::contiguous(&[3, 2]))?;
/// assert_eq!(columns.freeze().to_vec::<i32>()?, [1, 4, 2, 5, 3, 6]);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Host {
    this: Weak<Self>,
    pool: Pool,
    meter: Option<Meter>,
}

/// How a [`Host`] keeps its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostOptions {
    /// Most bytes kept for reuse; 1 GiB unless said otherwise.
    pub cached_bytes: usize,
    /// Overwrite memory with NaN, and integers near the greatest, before handing it out, so that elements that were never written
    /// show. On in builds with debug assertions, as in tests, and off in others.
    pub poison: bool,
    /// Measure the time of every job, copy and fold; see [`Device::spent`]. Costs about 0.1 µs each.
    pub meter: bool,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            cached_bytes: 1 << 30,
            poison: cfg!(debug_assertions),
            meter: false,
        }
    }
}

/// Bytes of a copy to memory of the caller at a time. The C library's copy of more than the caches hold is slower than many of less.
const RUN: usize = 64 << 10;

impl Host {
    /// A host with default options.
    #[expect(
        clippy::new_ret_no_self,
        reason = "devices are used through shared references only"
    )]
    pub fn new() -> DeviceRef {
        Self::with_options(HostOptions::default())
    }

    /// A host with options.
    pub fn with_options(options: HostOptions) -> DeviceRef {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            pool: Pool::new(options.cached_bytes, options.poison),
            meter: options.meter.then(Meter::default),
        })
    }

    /// Takes back memory of which the last holder is gone.
    pub(crate) fn take_back(&self, memory: HostMemory) {
        memory.give(&self.pool);
    }

    /// Runs `f` and, if the host is metered, adds its work and time to the account.
    fn metered<T>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> Work,
        f: impl FnOnce() -> T,
    ) -> T {
        let Some(meter) = &self.meter else {
            return f();
        };
        let start = Instant::now();
        let done = f();
        meter.add(name, work(), start.elapsed());
        done
    }

    /// Any copy, of any views and types, accounted for.
    #[inline(never)]
    fn copy_in_loops(
        &self,
        src: &Buffer,
        sv: &Strided,
        dst: &mut BufferMut,
        dv: &Strided,
    ) -> Result<()> {
        check_pair("copy", src.len(), sv, dst.len(), dv)?;
        let to = dst.dtype();
        self.metered(
            "copy",
            || work_of_copy(src.dtype(), sv, to, dv),
            || copy_unaccounted(src, sv, dst, dv),
        )
    }

    #[cold]
    fn out_of_memory(&self, dtype: DType, len: usize) -> DeviceError {
        let bytes = len.saturating_mul(dtype.size());
        DeviceError::OutOfMemory {
            device: self.name(),
            bytes,
            dtype,
            len,
        }
    }
}

fn work_of_copy(from: DType, sv: &Strided, to: DType, dv: &Strided) -> Work {
    Work::of_view(from, sv, 1) + Work::of_view(to, dv, 1)
}

/// A copy between views that fit.
fn copy_unaccounted(src: &Buffer, sv: &Strided, dst: &mut BufferMut, dv: &Strided) -> Result<()> {
    let (from, to, read) = (src.dtype(), dst.dtype(), src.as_bytes()?);
    kernel::copy(from, read, sv, to, dst.as_mut_bytes()?, dv);
    Ok(())
}

impl Device for Host {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Host
    }

    fn name(&self) -> String {
        "host".to_owned()
    }

    fn alloc(&self, dtype: DType, len: usize) -> Result<BufferMut> {
        let Some(device) = self.this.upgrade() else {
            return Err(DeviceError::Closed { op: "alloc" });
        };
        let bytes = len.checked_mul(dtype.size());
        match bytes.and_then(|bytes| HostMemory::take(&self.pool, bytes)) {
            Some(memory) => Ok(BufferMut::from_host(device, dtype, len, memory)),
            None => Err(self.out_of_memory(dtype, len)),
        }
    }

    fn fill(&self, dst: &mut BufferMut, view: &Strided, value: Scalar) -> Result<()> {
        view.validate(dst.len())?;
        let (dtype, bytes) = (dst.dtype(), dst.as_mut_bytes()?);
        self.metered(
            "fill",
            || Work::of_view(dtype, view, 1),
            || {
                kernel::fill(dtype, bytes, view, value);
            },
        );
        Ok(())
    }

    fn copy(&self, src: &Buffer, sv: &Strided, dst: &mut BufferMut, dv: &Strided) -> Result<()> {
        // Most copies are of one run, and most runs are short: planning loops would cost more than the copy.
        if sv.shape == dv.shape
            && let Some(from) = sv.run_within(src.len())
            && let Some(to) = dv.run_within(dst.len())
        {
            if src.dtype() == dst.dtype() {
                return self.copy_run(src, from, dst, to.start);
            }
            if self.meter.is_none() {
                let (read, written) = ((src.dtype(), src.as_bytes()?), dst.dtype());
                let written = (written, dst.as_mut_bytes()?);
                kernel::convert_run(read, written, [from.start, to.start], from.len());
                return Ok(());
            }
        }
        self.copy_in_loops(src, sv, dst, dv)
    }

    fn copy_run(
        &self,
        src: &Buffer,
        from: Range<usize>,
        dst: &mut BufferMut,
        to: usize,
    ) -> Result<()> {
        let (start, len) = (from.start, from.len());
        let fits = to.checked_add(len).is_some_and(|end| end <= dst.len());
        // A range may also be empty, even reversed: then there is nothing to slice.
        let cut = !from.is_empty() && fits && from.end <= src.len() && src.dtype() == dst.dtype();
        if cut && self.meter.is_none() {
            let all = dst.bytes();
            let written = dst.bytes_of_mut("copy", to..to + len)?;
            kernel::copy_run(all, written, src.bytes_of("copy", from)?);
            return Ok(());
        }
        let (sv, dv) = (Strided::run_at(start, len), Strided::run_at(to, len));
        self.copy_in_loops(src, &sv, dst, &dv)
    }

    /// Accounted for as one copy, which it is on GPUs.
    fn copy_pieces(
        &self,
        pieces: &[(&Buffer, Strided, Strided)],
        dst: &mut BufferMut,
    ) -> Result<()> {
        if self.meter.is_none() {
            return (pieces.iter()).try_for_each(|(src, sv, dv)| self.copy(src, sv, dst, dv));
        }
        for (src, sv, dv) in pieces {
            check_pair("copy", src.len(), sv, dst.len(), dv)?;
        }
        let to = dst.dtype();
        let works = (pieces.iter()).map(|(src, sv, dv)| work_of_copy(src.dtype(), sv, to, dv));
        self.metered(
            "copy",
            || works.sum(),
            || (pieces.iter()).try_for_each(|(src, sv, dv)| copy_unaccounted(src, sv, dst, dv)),
        )
    }

    fn fold(
        &self,
        op: Monoid,
        src: &Buffer,
        sv: &Strided,
        dst: &mut BufferMut,
        dv: &Strided,
    ) -> Result<()> {
        check_pair("fold", src.len(), sv, dst.len(), dv)?;
        kernel::check_fold(op, src.dtype(), sv, dst.dtype(), dv)?;
        let (from, to, read, written) = (
            src.dtype(),
            dst.dtype(),
            src.as_bytes()?,
            dst.as_mut_bytes()?,
        );
        self.metered(
            "fold",
            || Work::of_view(from, sv, 1) + Work::of_view(to, dv, 2),
            || {
                kernel::fold(op, from, read, sv, to, written, dv);
            },
        );
        Ok(())
    }

    fn reduce(
        &self,
        op: Monoid,
        terms: &[(&Buffer, usize)],
        strides: &[isize],
        dst: &mut BufferMut,
        dv: &Strided,
    ) -> Result<()> {
        check_terms(op, terms, strides, dst, dv)?;
        let mut read = SmallVec::<[(&[u8], usize); 8]>::with_capacity(terms.len());
        for (term, at) in terms {
            read.push((term.as_bytes()?, *at));
        }
        let (dtype, written) = (dst.dtype(), dst.as_mut_bytes()?);
        self.metered(
            "reduce",
            || Work::of_view(dtype, dv, terms.len() + 1),
            || {
                kernel::reduce(op, dtype, &read, strides, written, dv);
            },
        );
        Ok(())
    }

    fn copy_within(&self, buffer: &mut BufferMut, from: Range<usize>, to: usize) -> Result<()> {
        check_within(buffer.len(), &from, to)?;
        let size = buffer.dtype().size();
        let bytes = buffer.as_mut_bytes()?;
        bytes.copy_within(from.start * size..from.end * size, to * size);
        Ok(())
    }

    fn resize(&self, mut buffer: BufferMut, len: usize) -> Result<BufferMut> {
        let dtype = buffer.dtype();
        match buffer.resize_host(&self.pool, len) {
            Ok(true) => Ok(buffer),
            Ok(false) => resize_by_copy(self, buffer, len),
            Err(_) => Err(self.out_of_memory(dtype, len)),
        }
    }

    fn upload(&self, dtype: DType, bytes: &[u8]) -> Result<Buffer> {
        let mut buffer = self.alloc(dtype, whole_elements(dtype, bytes)?)?;
        buffer.as_mut_bytes()?.copy_from_slice(bytes);
        Ok(buffer.freeze())
    }

    fn download_into(&self, src: &Buffer, to: &mut [u8]) -> Result<()> {
        let from = src.as_bytes()?;
        check_room(from.len(), to)?;
        // Not past the caches: the caller reads it next, and its pages may be fresh.
        for (to, from) in to.chunks_mut(RUN).zip(from.chunks(RUN)) {
            to.copy_from_slice(from);
        }
        Ok(())
    }

    fn submit(
        &self,
        inputs: Vec<Buffer>,
        mut outputs: Vec<BufferMut>,
        job: HostJob,
    ) -> Result<Vec<BufferMut>> {
        let reads: SmallVec<[&Buffer; 6]> = inputs.iter().collect();
        let (name, work, mut job) = (job.name(), job.work(), Some(job));
        self.run_now(name, work, &reads, &mut outputs, &mut |reads, writes| {
            if let Some(job) = job.take() {
                job.run(reads, writes);
            }
        })?;
        Ok(outputs)
    }

    fn run_now(
        &self,
        name: &'static str,
        work: Work,
        inputs: &[&Buffer],
        outputs: &mut [BufferMut],
        run: HostRun<'_>,
    ) -> Result<bool> {
        // Small jobs are as common as large ones, so their lists stay on the stack.
        let mut reads: SmallVec<[HostSlice<'_>; 6]> = SmallVec::new();
        for b in inputs {
            reads.push(HostSlice::new(b.dtype(), b.as_bytes()?));
        }
        let mut writes: SmallVec<[HostSliceMut<'_>; 4]> = SmallVec::new();
        for b in outputs {
            writes.push(HostSliceMut::new(b.dtype(), b.as_mut_bytes()?));
        }
        self.metered(name, || work, || run(&reads, &mut writes));
        Ok(true)
    }

    fn record(&self) -> Event {
        Event::ready()
    }

    fn wait(&self, event: &Event) -> Result<()> {
        event.synchronize()
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn memory(&self) -> MemoryStats {
        self.pool.stats()
    }

    fn reset_peak(&self) {
        self.pool.reset_peak();
    }

    fn raise_peak(&self, to: usize) {
        self.pool.raise_peak(to);
    }

    fn spent(&self) -> Vec<(&'static str, WorkStats)> {
        self.meter.as_ref().map(Meter::read).unwrap_or_default()
    }

    fn reset_spent(&self) {
        if let Some(meter) = &self.meter {
            meter.clear();
        }
    }

    fn trim(&self) {
        self.pool.trim();
    }
}
