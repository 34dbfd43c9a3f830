//! A stand-in for an accelerator: its memory cannot be read by the host, and its queue runs as late as possible.
//!
//! Submitting work only queues it; it runs when somebody downloads, synchronises, or waits for an event. Fresh memory holds NaN.
//! So a reader that forgot to wait for the writer reads NaN, every time, on a machine without any accelerator.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, Weak};

use crate::buffer::HostMemory;
use crate::check::{check_pair, check_room, check_terms, check_within, whole_elements};
use crate::device::resize_by_copy;
use crate::pool::Pool;
use crate::{
    Buffer, BufferMut, DType, Device, DeviceError, DeviceKind, DeviceRef, Event, EventState,
    HostJob, HostSlice, HostSliceMut, MemoryStats, Monoid, Result, Scalar, Strided, kernel,
};

/// A device on which tests can show, without any accelerator, that code does not depend on the host's memory.
///
/// The host cannot read its memory. Work is queued, and runs only when somebody downloads, synchronises or waits for
/// an event; fresh memory holds NaN. So code that reads before it has waited for the writer's event reads NaN, every time.
///
/// ```
/// use shard_device::{DType, Scalar, Strided, TestDevice};
/// # fn main() -> Result<(), shard_device::DeviceError> {
/// let device = TestDevice::new();
/// let mut a = device.alloc(DType::F32, 2)?;
/// device.fill(&mut a, &Strided::contiguous(&[2]), Scalar::F64(1.5))?;
/// let a = a.freeze();
/// assert!(a.as_slice::<f32>().is_err());
/// assert_eq!(a.to_vec::<f32>()?, [1.5, 1.5]);
/// # Ok(()) }
/// ```
pub struct TestDevice {
    this: Weak<Self>,
    pool: Arc<Pool>,
    queue: Arc<Queue>,
}

/// Bytes a test device keeps for reuse.
const CACHED: usize = 64 << 20;

impl TestDevice {
    /// A device with an empty queue.
    #[expect(
        clippy::new_ret_no_self,
        reason = "devices are used through shared references only"
    )]
    pub fn new() -> DeviceRef {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            pool: Arc::new(Pool::new(CACHED, true)),
            queue: Arc::default(),
        })
    }
}

impl fmt::Debug for TestDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TestDevice")
    }
}

impl Device for TestDevice {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Test
    }

    fn name(&self) -> String {
        NAME.to_owned()
    }

    fn alloc(&self, dtype: DType, len: usize) -> Result<BufferMut> {
        let device = self
            .this
            .upgrade()
            .ok_or(DeviceError::Closed { op: "alloc" })?;
        let memory = len
            .checked_mul(dtype.size())
            .and_then(|bytes| HostMemory::take(&self.pool, bytes))
            .ok_or_else(|| DeviceError::OutOfMemory {
                device: self.name(),
                bytes: len.saturating_mul(dtype.size()),
                dtype,
                len,
            })?;
        Ok(BufferMut::from_opaque(
            device,
            dtype,
            len,
            Arc::new(Cell {
                memory: RwLock::new(memory),
                pool: Arc::clone(&self.pool),
            }),
        ))
    }

    fn fill(&self, dst: &mut BufferMut, view: &Strided, value: Scalar) -> Result<()> {
        view.validate(dst.len())?;
        let (mut writer, view) = (Writer::new(dst)?, view.clone());
        self.queue.submit(move || {
            let dtype = writer.dtype;
            writer.with(|bytes| kernel::fill(dtype, bytes, &view, value));
            Ok(())
        });
        Ok(())
    }

    fn copy(&self, src: &Buffer, sv: &Strided, dst: &mut BufferMut, dv: &Strided) -> Result<()> {
        check_pair("copy", src.len(), sv, dst.len(), dv)?;
        let (reader, mut writer) = (Reader::new(src)?, Writer::new(dst)?);
        let (sv, dv) = (sv.clone(), dv.clone());
        self.queue.submit(move || {
            let (from, to) = (reader.dtype(), writer.dtype);
            reader.with(|src| {
                writer.with(|dst| kernel::copy(from, src, &sv, to, dst, &dv));
            })
        });
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
        kernel::check_fold(op, src.dtype(), sv, dst.dtype(), dv)?;
        let (reader, mut writer) = (Reader::new(src)?, Writer::new(dst)?);
        let (sv, dv) = (sv.clone(), dv.clone());
        self.queue.submit(move || {
            let (from, to) = (reader.dtype(), writer.dtype);
            reader.with(|src| {
                writer.with(|dst| kernel::fold(op, from, src, &sv, to, dst, &dv));
            })
        });
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
        let readers = (terms.iter())
            .map(|(term, _)| Reader::new(term))
            .collect::<Result<Vec<_>>>()?;
        let starts: Vec<usize> = terms.iter().map(|t| t.1).collect();
        let (mut writer, strides, dv) = (Writer::new(dst)?, strides.to_vec(), dv.clone());
        self.queue.submit(move || {
            let (dtype, locked) = (writer.dtype, lock_all(&readers));
            let terms = (readers.iter().zip(&locked).zip(starts))
                .map(|((reader, memory), start)| Ok((reader.bytes(memory)?, start)))
                .collect::<Result<Vec<_>>>()?;
            writer.with(|dst| kernel::reduce(op, dtype, &terms, &strides, dst, &dv));
            Ok(())
        });
        Ok(())
    }

    fn copy_within(&self, buffer: &mut BufferMut, from: Range<usize>, to: usize) -> Result<()> {
        check_within(buffer.len(), &from, to)?;
        let (mut writer, size) = (Writer::new(buffer)?, buffer.dtype().size());
        self.queue.submit(move || {
            writer.with(|bytes| bytes.copy_within(from.start * size..from.end * size, to * size));
            Ok(())
        });
        Ok(())
    }

    fn resize(&self, buffer: BufferMut, len: usize) -> Result<BufferMut> {
        let (dtype, device) = (buffer.dtype(), Arc::clone(buffer.device()));
        let cell = cell(buffer.opaque())?;
        // The queued work expects the old size.
        self.synchronize()?;
        {
            let mut memory = cell.memory.write().unwrap_or_else(PoisonError::into_inner);
            if buffer.offset() > 0 || memory.bytes().len() != buffer.bytes() {
                drop(memory);
                return resize_by_copy(self, buffer, len);
            }
            let bytes = len.saturating_mul(dtype.size());
            if !memory.resize(&self.pool, bytes) {
                return Err(DeviceError::OutOfMemory {
                    device: self.name(),
                    bytes,
                    dtype,
                    len,
                });
            }
        }
        Ok(BufferMut::from_opaque(device, dtype, len, cell))
    }

    fn upload(&self, dtype: DType, bytes: &[u8]) -> Result<Buffer> {
        let buffer = self.alloc(dtype, whole_elements(dtype, bytes)?)?;
        let (mut writer, staged) = (Writer::new(&buffer)?, bytes.to_vec());
        self.queue.submit(move || {
            writer.with(|bytes| bytes.copy_from_slice(&staged));
            Ok(())
        });
        Ok(buffer.freeze())
    }

    fn download_into(&self, src: &Buffer, to: &mut [u8]) -> Result<()> {
        check_room(src.bytes(), to)?;
        let reader = Reader::new(src)?;
        self.synchronize()?;
        reader.with(|bytes| to.copy_from_slice(bytes))
    }

    fn submit(
        &self,
        inputs: Vec<Buffer>,
        outputs: Vec<BufferMut>,
        job: HostJob,
    ) -> Result<Vec<BufferMut>> {
        let readers = inputs.iter().map(Reader::new).collect::<Result<Vec<_>>>()?;
        let mut writers = outputs
            .iter()
            .map(Writer::new)
            .collect::<Result<Vec<_>>>()?;
        self.queue
            .submit(move || run_job(&readers, &mut writers, job));
        Ok(outputs)
    }

    fn record(&self) -> Event {
        let at = self.queue.lock().submitted;
        Event::new(Arc::new(Mark {
            queue: Arc::clone(&self.queue),
            at,
        }))
    }

    fn wait(&self, event: &Event) -> Result<()> {
        let Some(state) = event.state() else {
            return Ok(());
        };
        let any: &dyn Any = state.as_ref();
        if any
            .downcast_ref::<Mark>()
            .is_some_and(|m| Arc::ptr_eq(&m.queue, &self.queue))
        {
            // The queue runs in order, so the work before the event is done before later work.
            return Ok(());
        }
        let event = event.clone();
        self.queue.submit(move || event.synchronize());
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        let end = self.queue.lock().submitted;
        self.queue.drain(end)
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

    fn trim(&self) {
        self.pool.trim();
    }
}

const NAME: &str = "test device";

/// Memory behind a buffer of a test device.
struct Cell {
    memory: RwLock<HostMemory>,
    pool: Arc<Pool>,
}

impl Drop for Cell {
    fn drop(&mut self) {
        let memory = self.memory.get_mut();
        let memory = memory.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(memory).give(&self.pool);
    }
}

fn cell(opaque: Option<&Arc<dyn Any + Send + Sync>>) -> Result<Arc<Cell>> {
    opaque
        .and_then(|memory| Arc::clone(memory).downcast().ok())
        .ok_or_else(|| {
            DeviceError::invalid(
                NAME,
                "memory of a test device",
                "memory of another device",
                "upload the data to the device that works on it",
            )
        })
}

/// A buffer that queued work reads. Holding the buffer itself keeps its owner from writing to it meanwhile.
struct Reader {
    buffer: Buffer,
    cell: Option<Arc<Cell>>,
}

impl Reader {
    fn new(buffer: &Buffer) -> Result<Self> {
        let cell = buffer
            .opaque()
            .map(|memory| cell(Some(memory)))
            .transpose()?;
        Ok(Self {
            buffer: buffer.clone(),
            cell,
        })
    }

    fn dtype(&self) -> DType {
        self.buffer.dtype()
    }

    fn with(&self, use_bytes: impl FnOnce(&[u8])) -> Result<()> {
        use_bytes(self.bytes(&self.lock())?);
        Ok(())
    }

    /// Locks the memory to read from, if it is a test device's.
    fn lock(&self) -> Locked<'_> {
        let cell = self.cell.as_ref()?;
        Some(cell.memory.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The elements, in memory that [`Reader::lock`] gave.
    fn bytes<'a>(&'a self, memory: &'a Locked<'_>) -> Result<&'a [u8]> {
        let Some(memory) = memory else {
            return self.buffer.as_bytes();
        };
        let start = self.buffer.offset() * self.buffer.dtype().size();
        Ok(&memory.bytes()[start..start + self.buffer.bytes()])
    }
}

type Locked<'a> = Option<RwLockReadGuard<'a, HostMemory>>;

fn lock_all(readers: &[Reader]) -> Vec<Locked<'_>> {
    readers.iter().map(Reader::lock).collect()
}

/// A destination that queued work writes. The `BufferMut` is the memory's only other owner, and never reads.
struct Writer {
    cell: Arc<Cell>,
    dtype: DType,
    start: usize,
    bytes: usize,
}

impl Writer {
    fn new(buffer: &BufferMut) -> Result<Self> {
        Ok(Self {
            cell: cell(buffer.opaque())?,
            dtype: buffer.dtype(),
            start: buffer.offset() * buffer.dtype().size(),
            bytes: buffer.bytes(),
        })
    }

    fn with(&mut self, use_bytes: impl FnOnce(&mut [u8])) {
        let mut memory = self
            .cell
            .memory
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        use_bytes(&mut memory.bytes_mut()[self.start..self.start + self.bytes]);
    }
}

/// Locks all memories of a job, with one stack frame for each, and runs the job.
fn run_job(readers: &[Reader], writers: &mut [Writer], job: HostJob) -> Result<()> {
    let read = lock_all(readers);
    let mut written: Vec<_> = writers
        .iter()
        .map(|w| {
            w.cell
                .memory
                .write()
                .unwrap_or_else(PoisonError::into_inner)
        })
        .collect();
    let inputs = readers
        .iter()
        .zip(&read)
        .map(|(reader, memory)| Ok(HostSlice::new(reader.dtype(), reader.bytes(memory)?)))
        .collect::<Result<Vec<_>>>()?;
    let mut outputs: Vec<_> = writers
        .iter()
        .zip(&mut written)
        .map(|(writer, memory)| {
            HostSliceMut::new(
                writer.dtype,
                &mut memory.bytes_mut()[writer.start..writer.start + writer.bytes],
            )
        })
        .collect();
    job.run(&inputs, &mut outputs);
    Ok(())
}

/// The work of one device. It runs in order, on the thread of whoever needs a result.
#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    moved: Condvar,
}

#[derive(Default)]
struct QueueState {
    pending: VecDeque<Box<dyn FnOnce() -> Result<()> + Send>>,
    submitted: u64,
    completed: u64,
    /// Some thread is running the work after `completed`.
    running: bool,
    /// The first failure; everything after it is skipped.
    failure: Option<DeviceError>,
}

impl Queue {
    fn submit(&self, work: impl FnOnce() -> Result<()> + Send + 'static) {
        let mut state = self.lock();
        state.pending.push_back(Box::new(work));
        state.submitted += 1;
    }

    /// Returns when all work up to `target` has run.
    ///
    /// Several threads may drain one queue, and work may drain other queues. Nobody holds a lock while running work;
    /// a thread that finds a queue busy waits for the count it needs, not for the queue to be idle, so two queues
    /// whose work waits for each other's earlier work cannot block one another.
    fn drain(&self, target: u64) -> Result<()> {
        let mut state = self.lock();
        while state.completed < target {
            if state.running {
                state = self
                    .moved
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let Some(work) = state.pending.pop_front() else {
                break;
            };
            state.running = true;
            let skip = state.failure.is_some();
            drop(state);
            let outcome = if skip { Ok(()) } else { guarded(work) };
            state = self.lock();
            state.running = false;
            state.completed += 1;
            if let Err(failure) = outcome {
                state.failure.get_or_insert(failure);
            }
            self.moved.notify_all();
        }
        state.failure.clone().map_or(Ok(()), Err)
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        write!(f, "Queue({} of {} done)", state.completed, state.submitted)
    }
}

/// Runs work and turns a panic into an error, because the thread that runs it may be another rank's.
fn guarded(work: Box<dyn FnOnce() -> Result<()> + Send>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        Err(DeviceError::Queued {
            device: NAME.to_owned(),
            cause: crate::panic_message(payload.as_ref()).into(),
        })
    })
}

/// A point in a queue.
#[derive(Debug)]
struct Mark {
    queue: Arc<Queue>,
    at: u64,
}

impl EventState for Mark {
    fn synchronize(&self) -> Result<()> {
        self.queue.drain(self.at)
    }
}
