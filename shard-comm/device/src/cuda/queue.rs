//! A queue on the host in place of a stream: a thread of its own does its work, in order, while other queues go on. If two
//! queues are not ordered where they should be, it shows as on a GPU.
#![expect(unsafe_code, reason = "launches what the emulation launches, later")]

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::KernelSource;
use super::driver::{Answer, Driver, Function, Mark, Refusal};
use super::emulated::Emulated;
use super::terms::{Convolution, Fourier, Gemm, Libraries};

type Job = Box<dyn FnOnce() -> Answer<()> + Send>;

/// A queue with a thread. When it is dropped, the thread ends after the work that is queued.
#[derive(Debug)]
pub(super) struct Queue {
    emulated: Emulated,
    jobs: Mutex<Sender<Job>>,
    /// The first refusal of a job.
    refused: Arc<Mutex<Option<Refusal>>>,
}

impl Queue {
    pub(super) fn new(emulated: Emulated) -> Answer<Self> {
        let (jobs, queued) = channel::<Job>();
        let refused = Arc::new(Mutex::new(None));
        let first = Arc::clone(&refused);
        std::thread::Builder::new()
            .name("emulated stream".to_owned())
            .spawn(move || {
                for job in queued {
                    if let Err(refusal) = job() {
                        lock(&first).get_or_insert(refusal);
                    }
                }
            })
            .map_err(|e| Refusal::new("thread", e.to_string()))?;
        Ok(Self {
            emulated,
            jobs: Mutex::new(jobs),
            refused,
        })
    }

    /// The emulated GPU that this is a queue of.
    pub(super) fn emulated(&self) -> &Emulated {
        &self.emulated
    }

    /// Runs a job after everything that is queued.
    pub(super) fn queue(&self, job: impl FnOnce() -> Answer<()> + Send + 'static) -> Answer<()> {
        let sent = lock(&self.jobs).send(Box::new(job));
        sent.map_err(|_| Refusal::new("queue", "its thread has ended"))
    }
}

impl Driver for Queue {
    fn name(&self) -> &str {
        "emulated"
    }

    fn alloc(&self, bytes: usize) -> Answer<u64> {
        self.emulated.alloc(bytes)
    }

    fn free(&self, address: u64) {
        let emulated = self.emulated.clone();
        let later = self.queue(move || {
            emulated.free(address);
            Ok(())
        });
        if later.is_err() {
            self.emulated.free(address);
        }
    }

    fn upload(&self, bytes: &[u8], to: u64) -> Answer<()> {
        let (emulated, bytes) = (self.emulated.clone(), bytes.to_vec());
        self.queue(move || emulated.upload(&bytes, to))
    }

    fn download(&self, from: u64, bytes: &mut [u8]) -> Answer<()> {
        self.synchronize()?;
        self.emulated.download(from, bytes)
    }

    fn alloc_pinned(&self, bytes: usize) -> Answer<u64> {
        self.emulated.alloc_pinned(bytes)
    }

    fn free_pinned(&self, address: u64) {
        self.emulated.free_pinned(address);
    }

    unsafe fn upload_pinned(&self, from: u64, to: u64, bytes: usize) -> Answer<()> {
        self.copy(from, to, bytes)
    }

    unsafe fn download_pinned(&self, from: u64, to: u64, bytes: usize) -> Answer<()> {
        self.copy(from, to, bytes)
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) -> Answer<()> {
        let emulated = self.emulated.clone();
        self.queue(move || emulated.copy(from, to, bytes))
    }

    fn reaches(&self, owner: &dyn Driver) -> Answer<bool> {
        self.emulated.reaches(owner)
    }

    fn fetch(&self, _: &dyn Driver, from: u64, to: u64, bytes: usize) -> Answer<()> {
        self.copy(from, to, bytes)
    }

    fn record(&self) -> Answer<Arc<dyn Mark>> {
        let point = Arc::new(Point::default());
        let reached = Arc::clone(&point);
        self.queue(move || {
            *lock(&reached.done) = true;
            reached.changed.notify_all();
            Ok(())
        })?;
        Ok(point)
    }

    fn wait(&self, mark: &Arc<dyn Mark>) -> Answer<()> {
        let mark = Arc::clone(mark);
        self.queue(move || mark.synchronize())
    }

    fn synchronize(&self) -> Answer<()> {
        self.record()?.synchronize()?;
        lock(&self.refused).clone().map_or(Ok(()), Err)
    }

    fn trim(&self) {}

    fn sibling(&self) -> Answer<Arc<dyn Driver>> {
        Ok(Arc::new(Self::new(self.emulated.clone())?))
    }

    fn kernel(&self, source: &KernelSource, defines: &str, name: &str) -> Answer<Function> {
        self.emulated.kernel(source, defines, name)
    }

    unsafe fn launch(
        &self,
        kernel: Function,
        blocks: [u32; 3],
        threads: [u32; 3],
        params: &[u8],
    ) -> Answer<()> {
        let (emulated, params) = (self.emulated.clone(), params.to_vec());
        // SAFETY: the caller's promise holds until the work queued here is done.
        self.queue(move || unsafe { emulated.launch(kernel, blocks, threads, &params) })
    }

    fn libraries(&self) -> Libraries {
        self.emulated.libraries()
    }

    fn plan_gemm(&self, gemm: &Gemm) -> Answer<Option<usize>> {
        self.emulated.plan_gemm(gemm)
    }

    unsafe fn gemm(&self, gemm: &Gemm, workspace: (u64, usize)) -> Answer<()> {
        let (emulated, gemm) = (self.emulated.clone(), *gemm);
        // SAFETY: the caller's promise holds until the work queued here is done.
        self.queue(move || unsafe { emulated.gemm(&gemm, workspace) })
    }

    fn plan_convolution(&self, call: &Convolution) -> Answer<Option<usize>> {
        self.emulated.plan_convolution(call)
    }

    unsafe fn convolve(&self, call: &Convolution, workspace: (u64, usize)) -> Answer<()> {
        let (emulated, call) = (self.emulated.clone(), call.clone());
        // SAFETY: the caller's promise holds until the work queued here is done.
        self.queue(move || unsafe { emulated.convolve(&call, workspace) })
    }

    fn plan_fourier(&self, call: &Fourier) -> Answer<Option<usize>> {
        self.emulated.plan_fourier(call)
    }

    unsafe fn fourier(&self, call: &Fourier, workspace: (u64, usize)) -> Answer<()> {
        let (emulated, call) = (self.emulated.clone(), *call);
        // SAFETY: the caller's promise holds until the work queued here is done.
        self.queue(move || unsafe { emulated.fourier(&call, workspace) })
    }
}

/// A point in a queue: a mark.
#[derive(Debug, Default)]
struct Point {
    done: Mutex<bool>,
    changed: Condvar,
}

impl Mark for Point {
    fn synchronize(&self) -> Answer<()> {
        let mut done = lock(&self.done);
        while !*done {
            done = (self.changed.wait(done)).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    fn is_done(&self) -> Answer<bool> {
        Ok(*lock(&self.done))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
