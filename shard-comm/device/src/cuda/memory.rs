//! Memory of a GPU, and its readers on other streams.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::driver::{Answer, Driver, Mark};
use crate::MemoryStats;

/// Memory in the order of the stream that asked for it. It is given back after all work queued on that stream so far, and after
/// the reads that other streams have queued.
pub(super) struct CudaMemory {
    /// 0 if there are no bytes.
    pub(super) address: u64,
    /// The stream.
    pub(super) driver: Arc<dyn Driver>,
    bytes: usize,
    usage: Arc<Usage>,
    readers: Mutex<Readers>,
}

/// Marks of other streams; after them those streams no longer read or write the memory.
#[derive(Default)]
struct Readers {
    marks: Vec<Arc<dyn Mark>>,
    /// When there are this many marks, those that are done are dropped.
    most: usize,
}

impl CudaMemory {
    pub(super) fn new(driver: &Arc<dyn Driver>, usage: &Arc<Usage>, bytes: usize) -> Answer<Self> {
        let address = match bytes {
            0 => 0,
            _ => driver.alloc(bytes)?,
        };
        usage.take(bytes);
        Ok(Self {
            address,
            driver: Arc::clone(driver),
            bytes,
            usage: Arc::clone(usage),
            readers: Mutex::default(),
        })
    }

    pub(super) fn add_reader(&self, mark: Arc<dyn Mark>) {
        /// The least number of marks at which they are checked.
        const SOME: usize = 16;
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        // Check again when there are twice as many as are in flight now.
        if readers.marks.len() >= readers.most.max(SOME) {
            readers
                .marks
                .retain(|mark| !matches!(mark.is_done(), Ok(true)));
            readers.most = 2 * readers.marks.len();
        }
        readers.marks.push(mark);
    }

    /// How many marks the memory waits for.
    #[cfg(test)]
    pub(super) fn readers(&self) -> usize {
        let readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.marks.len()
    }

    pub(super) fn take_readers(&self) -> Vec<Arc<dyn Mark>> {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut readers.marks)
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        self.usage.give(self.bytes);
        if self.bytes == 0 {
            return;
        }
        for mark in self.take_readers() {
            // If the stream cannot wait any more, the host waits; if that fails too, the device is lost.
            if self.driver.wait(&mark).is_err() {
                let _ = mark.synchronize();
            }
        }
        self.driver.free(self.address);
    }
}

impl fmt::Debug for CudaMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaMemory({} bytes at {:#x})", self.bytes, self.address)
    }
}

/// Bytes in use. The driver does not tell what it keeps for reuse.
#[derive(Debug, Default)]
pub(super) struct Usage {
    live: AtomicUsize,
    peak: AtomicUsize,
    requests: AtomicU64,
}

impl Usage {
    fn take(&self, bytes: usize) {
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(live, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    fn give(&self, bytes: usize) {
        self.live.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn stats(&self) -> MemoryStats {
        MemoryStats {
            live: self.live.load(Ordering::Relaxed),
            peak: self.peak.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
            ..MemoryStats::default()
        }
    }

    pub(super) fn reset_peak(&self) {
        self.peak
            .store(self.live.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(super) fn raise_peak(&self, to: usize) {
        self.peak.fetch_max(to, Ordering::Relaxed);
    }
}
