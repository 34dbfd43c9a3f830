//! Copies between the host and a GPU through page-locked memory. Only this kind of host memory is one that a GPU reads and
//! writes by itself while the host goes on.
#![expect(
    unsafe_code,
    reason = "page-locked memory is the driver's, behind an address"
)]

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::driver::{Answer, Driver, Mark};

/// Transfers of fewer bytes go straight: the driver copies them aside at once.
pub(super) const DIRECT: usize = 64 << 10;
/// Bytes of a block. Longer transfers go block by block.
pub(super) const BLOCK: usize = 1 << 20;
/// The most blocks of a pool: 32 MiB.
pub(super) const MOST: usize = 32;
/// How many blocks the GPU may fill while the host empties another.
const AHEAD: usize = 4;

/// Blocks of page-locked memory that all streams of a rank's device use in turn. A block is used again once its last transfer
/// has ended.
#[derive(Default)]
pub(super) struct Staging {
    /// The blocks that nobody holds, in the order in which they were last used.
    idle: Mutex<VecDeque<Block>>,
    /// How many blocks there are, held or not.
    made: Arc<AtomicUsize>,
}

/// A block, and the mark after which nothing reads or writes it any more.
struct Block {
    memory: Pinned,
    busy: Option<Arc<dyn Mark>>,
}

impl Staging {
    /// Copies from the host's memory, which may change once this returns. It does not wait for the transfer itself, unless all
    /// blocks are in use.
    pub(super) fn upload(&self, driver: &Arc<dyn Driver>, bytes: &[u8], to: u64) -> Answer<()> {
        if bytes.len() < DIRECT {
            return driver.upload(bytes, to);
        }
        for (k, part) in bytes.chunks(BLOCK).enumerate() {
            let to = to + (k * BLOCK) as u64;
            let Some(mut block) = self.take(driver)? else {
                driver.upload(part, to)?;
                continue;
            };
            block.memory.write(part);
            // SAFETY: the block holds these bytes, and is not written before the mark that is recorded next.
            unsafe { driver.upload_pinned(block.memory.address, to, part.len()) }?;
            self.give(driver, block)?;
        }
        Ok(())
    }

    /// Copies to the host's memory once the work queued so far is done: while the host empties one block, the GPU fills the next.
    pub(super) fn download(
        &self,
        driver: &Arc<dyn Driver>,
        from: u64,
        bytes: &mut [u8],
    ) -> Answer<()> {
        if bytes.len() < DIRECT {
            return driver.download(from, bytes);
        }
        let mut filling = VecDeque::with_capacity(AHEAD);
        for (k, part) in bytes.chunks_mut(BLOCK).enumerate() {
            if filling.len() == AHEAD {
                self.empty(&mut filling)?;
            }
            let from = from + (k * BLOCK) as u64;
            let Some(mut block) = self.take(driver)? else {
                driver.download(from, part)?;
                continue;
            };
            // SAFETY: the block has room for these bytes, and is not read before the mark recorded next.
            unsafe { driver.download_pinned(from, block.memory.address, part.len()) }?;
            block.busy = Some(driver.record()?);
            filling.push_back((block, part));
        }
        while !filling.is_empty() {
            self.empty(&mut filling)?;
        }
        Ok(())
    }

    /// Copies out of the first block, once it is filled.
    fn empty(&self, filling: &mut VecDeque<(Block, &mut [u8])>) -> Answer<()> {
        let Some((mut block, part)) = filling.pop_front() else {
            return Ok(());
        };
        if let Some(filled) = &block.busy {
            filled.synchronize()?;
        }
        block.memory.read(part);
        block.busy = None;
        // This block may be used at once, so it goes before those that are still busy.
        self.lock().push_front(block);
        Ok(())
    }

    /// A block that nothing uses any more: one that is idle, a new one, or the first to become idle. `None` if all blocks are
    /// held, or if there are none and the system has no such memory.
    fn take(&self, driver: &Arc<dyn Driver>) -> Answer<Option<Block>> {
        let mut idle = self.lock();
        let first_is_free = match idle.front().map(|block| &block.busy) {
            Some(Some(mark)) => mark.is_done()?,
            Some(None) => true,
            None => false,
        };
        if !first_is_free && let Some(memory) = Pinned::new(driver, &self.made) {
            return Ok(Some(Block { memory, busy: None }));
        }
        let first = idle.pop_front();
        drop(idle);
        if let Some(mark) = first.as_ref().and_then(|block| block.busy.as_ref()) {
            mark.synchronize()?;
        }
        Ok(first)
    }

    /// Gives a block back, to be used again after the work queued so far.
    fn give(&self, driver: &Arc<dyn Driver>, mut block: Block) -> Answer<()> {
        block.busy = Some(driver.record()?);
        self.lock().push_back(block);
        Ok(())
    }

    /// How many blocks there are.
    #[cfg(test)]
    pub(super) fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Block>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Staging({} blocks)", self.made.load(Ordering::Relaxed))
    }
}

impl Drop for Block {
    /// If a refusal came between a transfer and its mark, the end of the transfer is not known: then this waits for the whole
    /// stream.
    fn drop(&mut self) {
        let _ = match &self.busy {
            Some(mark) => mark.synchronize(),
            None => self.memory.driver.synchronize(),
        };
    }
}

/// A block's memory.
struct Pinned {
    address: u64,
    driver: Arc<dyn Driver>,
    /// How many blocks there are in the pool.
    made: Arc<AtomicUsize>,
}

impl Pinned {
    /// Another block's memory, if the pool may grow and the system has the memory.
    fn new(driver: &Arc<dyn Driver>, made: &Arc<AtomicUsize>) -> Option<Self> {
        if made.fetch_add(1, Ordering::Relaxed) >= MOST {
            made.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        match driver.alloc_pinned(BLOCK) {
            Ok(address) => Some(Self {
                address,
                driver: Arc::clone(driver),
                made: Arc::clone(made),
            }),
            Err(_) => {
                made.fetch_sub(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Writes the first bytes: at most as many as a block holds.
    fn write(&mut self, bytes: &[u8]) {
        let count = bytes.len().min(BLOCK);
        // SAFETY: the memory is this one's alone, of `BLOCK` bytes, and no transfer uses it: `take` saw to that.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address as *mut u8, count) };
    }

    /// Reads the first bytes, written by a transfer that has ended.
    fn read(&self, into: &mut [u8]) {
        let count = into.len().min(BLOCK);
        // SAFETY: as above.
        unsafe {
            std::ptr::copy_nonoverlapping(self.address as *const u8, into.as_mut_ptr(), count);
        };
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.driver.free_pinned(self.address);
        self.made.fetch_sub(1, Ordering::Relaxed);
    }
}
