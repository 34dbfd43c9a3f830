//! A device that holds no data: it counts bytes, and adds the forecast time of work to its clock.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::clock::Clock;
use crate::check::{check_fold, check_pair, check_terms, check_within, whole_elements};
use crate::{
    Buffer, BufferMut, DType, Device, DeviceError, DeviceKind, DeviceRef, Event, HostJob,
    MemoryStats, Monoid, Scalar, Strided, Work, WorkStats,
};
use shard_device::Result;

const NAME: &str = "phantom";

/// Memory without contents. Every call is checked as on a host, takes its forecast time on the clock, and does nothing;
/// reading an element is [`DeviceError::NoData`].
pub(super) struct Phantom {
    this: Weak<Self>,
    clock: Arc<Clock>,
    memory: Arc<Account>,
}

/// Bytes in use.
#[derive(Default)]
struct Account {
    live: AtomicUsize,
    peak: AtomicUsize,
    requests: AtomicU64,
}

/// Bytes that count as in use until this is dropped.
struct Held {
    bytes: usize,
    account: Arc<Account>,
}

impl Held {
    fn new(account: &Arc<Account>, bytes: usize) -> Self {
        let live = account.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        account.peak.fetch_max(live, Ordering::Relaxed);
        account.requests.fetch_add(1, Ordering::Relaxed);
        Self {
            bytes,
            account: Arc::clone(account),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.account.live.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Phantom {
    pub(super) fn on(clock: &Arc<Clock>) -> DeviceRef {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            clock: Arc::clone(clock),
            memory: Arc::default(),
        })
    }

    fn no_data(&self, op: &'static str) -> DeviceError {
        DeviceError::NoData {
            op,
            device: self.name(),
        }
    }
}

impl Device for Phantom {
    fn kind(&self) -> DeviceKind {
        super::PHANTOM
    }

    fn name(&self) -> String {
        NAME.to_owned()
    }

    fn alloc(&self, dtype: DType, len: usize) -> Result<BufferMut> {
        let device = self
            .this
            .upgrade()
            .ok_or(DeviceError::Closed { op: "alloc" })?;
        let bytes = len.checked_mul(dtype.size());
        let bytes = bytes
            .filter(|&b| isize::try_from(b).is_ok())
            .ok_or_else(|| DeviceError::OutOfMemory {
                device: self.name(),
                bytes: usize::MAX,
                dtype,
                len,
            })?;
        let held = Arc::new(Held::new(&self.memory, bytes));
        Ok(BufferMut::from_opaque(device, dtype, len, held))
    }

    fn fill(&self, dst: &mut BufferMut, view: &Strided, _: Scalar) -> Result<()> {
        view.validate(dst.len())?;
        self.clock
            .compute("fill", Work::of_view(dst.dtype(), view, 1));
        Ok(())
    }

    fn copy(&self, src: &Buffer, sv: &Strided, dst: &mut BufferMut, dv: &Strided) -> Result<()> {
        check_pair("copy", src.len(), sv, dst.len(), dv)?;
        let work = Work::of_view(src.dtype(), sv, 1) + Work::of_view(dst.dtype(), dv, 1);
        self.clock.compute("copy", work);
        Ok(())
    }

    /// One job for all pieces, as on GPUs.
    fn copy_pieces(
        &self,
        pieces: &[(&Buffer, Strided, Strided)],
        dst: &mut BufferMut,
    ) -> Result<()> {
        let mut work = Work::default();
        for (src, sv, dv) in pieces {
            check_pair("copy", src.len(), sv, dst.len(), dv)?;
            let read = Work::of_view(src.dtype(), sv, 1);
            work = work + read + Work::of_view(dst.dtype(), dv, 1);
        }
        self.clock.compute("copy", work);
        Ok(())
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
        check_fold(op, src.dtype(), sv, dst.dtype(), dv)?;
        let work = Work::of_view(src.dtype(), sv, 1) + Work::of_view(dst.dtype(), dv, 2);
        self.clock.compute("fold", work);
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
        self.clock
            .compute("reduce", Work::of_view(dst.dtype(), dv, terms.len() + 1));
        Ok(())
    }

    fn copy_within(&self, buffer: &mut BufferMut, from: Range<usize>, to: usize) -> Result<()> {
        check_within(buffer.len(), &from, to)?;
        let work = Work::moving(2 * from.len() * buffer.dtype().size());
        self.clock.compute("copy", work);
        Ok(())
    }

    fn upload(&self, dtype: DType, bytes: &[u8]) -> Result<Buffer> {
        Ok(self.alloc(dtype, whole_elements(dtype, bytes)?)?.freeze())
    }

    fn download_into(&self, src: &Buffer, _: &mut [u8]) -> Result<()> {
        if src.is_empty() {
            return Ok(());
        }
        Err(self.no_data("download"))
    }

    fn submit(
        &self,
        _: Vec<Buffer>,
        outputs: Vec<BufferMut>,
        job: HostJob,
    ) -> Result<Vec<BufferMut>> {
        self.clock.compute(job.name(), job.work());
        Ok(outputs)
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
        MemoryStats {
            live: self.memory.live.load(Ordering::Relaxed),
            peak: self.memory.peak.load(Ordering::Relaxed),
            cached: 0,
            requests: self.memory.requests.load(Ordering::Relaxed),
            reused: 0,
        }
    }

    fn reset_peak(&self) {
        let live = self.memory.live.load(Ordering::Relaxed);
        self.memory.peak.store(live, Ordering::Relaxed);
    }

    fn raise_peak(&self, to: usize) {
        self.memory.peak.fetch_max(to, Ordering::Relaxed);
    }

    fn spent(&self) -> Vec<(&'static str, WorkStats)> {
        let spent = |(&name, time): (&&'static str, &super::OpTime)| {
            (time.calls > 0).then(|| {
                let (calls, work) = (time.calls, time.work);
                let time = Duration::from_secs_f64(time.computing);
                (name, WorkStats { calls, work, time })
            })
        };
        self.clock.read().ops.iter().filter_map(spent).collect()
    }

    fn reset_spent(&self) {
        self.clock.restart();
    }
}

impl fmt::Debug for Phantom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Phantom({} bytes)", self.memory().live)
    }
}
