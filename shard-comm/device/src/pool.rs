//! The caching pool. Freed memory is handed out again, because fresh pages cost more than most kernels.
//!
//! One pool belongs to one device instance, so one rank. Whichever thread drops a buffer, its memory returns to the
//! pool it came from. Sizes are rounded up to classes, four per doubling, so at most a quarter is wasted.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::MemoryStats;

/// The unit of memory. Its alignment is the one that the system's allocator gives anyway: for a greater alignment the allocator
/// can neither hand out fresh zeroed pages without writing them nor resize in place.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(16))]
pub(crate) struct Block([u8; BLOCK]);

/// Bytes in a [`Block`], and the alignment of elements: a cache line, and the widest vector register.
pub(crate) const BLOCK: usize = 64;

/// What fresh memory holds when the pool poisons: a NaN of every float type, an integer near the greatest of its type, so
/// that neither passes for a result or an index.
const POISON: [u8; BLOCK] = {
    let mut bytes = [0xFD; BLOCK];
    let mut i = 1;
    while i < BLOCK {
        bytes[i] = 0x7F;
        i += 2;
    }
    bytes
};

/// Overwrites memory that begins at an even address of its buffer, or holds single bytes.
pub(crate) fn poison(bytes: &mut [u8]) {
    for part in bytes.chunks_mut(BLOCK) {
        part.copy_from_slice(&POISON[..part.len()]);
    }
}

/// Memory of one device instance: counters of what is in use, and memory that waits to be used again.
#[derive(Debug)]
pub(crate) struct Pool {
    inner: Mutex<Inner>,
    /// Most bytes kept for reuse.
    cap: usize,
    /// Overwrite memory before handing it out, so that reading before writing shows.
    poison: bool,
}

#[derive(Default)]
struct Inner {
    /// Per size class, memory free for reuse.
    free: Vec<Vec<Vec<Block>>>,
    stats: MemoryStats,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stats.fmt(f)
    }
}

impl Pool {
    pub(crate) fn new(cap: usize, poison: bool) -> Self {
        Self {
            inner: Mutex::default(),
            cap,
            poison,
        }
    }

    /// Whether fresh memory is overwritten before it is handed out.
    pub(crate) fn poisons(&self) -> bool {
        self.poison
    }

    /// Initialised memory of at least `bytes` bytes behind any start aligned to [`BLOCK`], or `None` if the system
    /// has no more.
    pub(crate) fn take(&self, bytes: usize) -> Option<Vec<Block>> {
        if bytes == 0 {
            return Some(Vec::new());
        }
        let (class, blocks) = class_of(bytes.div_ceil(BLOCK));
        let reused = {
            let mut inner = self.lock();
            let reused = inner.free.get_mut(class).and_then(Vec::pop);
            if let Some(memory) = &reused {
                inner.stats.cached -= usable(memory);
            }
            inner.stats.requests += 1;
            inner.stats.reused += u64::from(reused.is_some());
            inner.stats.live += bytes;
            inner.stats.peak = inner.stats.peak.max(inner.stats.live);
            reused
        };
        let memory = match reused {
            Some(memory) => Ok(memory),
            None => bytemuck::allocation::try_zeroed_vec(blocks + ALIGNING),
        };
        match memory {
            Ok(mut memory) => {
                if self.poison {
                    poison(bytemuck::cast_slice_mut(&mut memory));
                }
                Some(memory)
            }
            Err(()) => {
                self.lock().stats.live -= bytes;
                None
            }
        }
    }

    /// Takes back memory that [`Pool::take`] gave for `bytes` bytes.
    pub(crate) fn give(&self, memory: Vec<Block>, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let size = usable(&memory);
        // Resized memory may be larger than its class.
        let class = match class_of(size / BLOCK) {
            (class, blocks) if blocks * BLOCK > size => class - 1,
            (class, _) => class,
        };
        let mut inner = self.lock();
        inner.stats.live -= bytes;
        if inner.stats.cached + size > self.cap {
            // Returning pages to the system takes a while, so the lock is released first.
            drop(inner);
            drop(memory);
            return;
        }
        inner.stats.cached += size;
        if inner.free.len() <= class {
            inner.free.resize_with(class + 1, Vec::new);
        }
        inner.free[class].push(memory);
    }

    /// Resizes memory that [`Pool::take`] gave for `old` bytes to hold `new` bytes, in place if the system's allocator can.
    /// Returns false, and changes nothing, if the system has no more memory.
    ///
    /// Bypasses the cache and its size classes, so that only pages that are asked for are touched.
    pub(crate) fn resize(&self, memory: &mut Vec<Block>, old: usize, new: usize) -> bool {
        if old == 0 || new == 0 {
            let Some(fresh) = self.take(new) else {
                return false;
            };
            self.give(std::mem::replace(memory, fresh), old);
            return true;
        }
        self.recount(old, new);
        let want = new.div_ceil(BLOCK) + ALIGNING;
        let more = want.saturating_sub(memory.len());
        if memory.try_reserve_exact(more).is_err() {
            self.recount(new, old);
            return false;
        }
        memory.resize(want, Block([0; BLOCK]));
        memory.shrink_to_fit();
        true
    }

    /// Updates the counters for memory in use that changed its size.
    fn recount(&self, old: usize, new: usize) {
        let mut inner = self.lock();
        inner.stats.live = inner.stats.live - old + new;
        inner.stats.peak = inner.stats.peak.max(inner.stats.live);
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        self.lock().stats
    }

    pub(crate) fn reset_peak(&self) {
        let mut inner = self.lock();
        inner.stats.peak = inner.stats.live;
    }

    pub(crate) fn raise_peak(&self, to: usize) {
        let mut inner = self.lock();
        inner.stats.peak = inner.stats.peak.max(to);
    }

    /// Gives everything cached back to the system.
    pub(crate) fn trim(&self) {
        let freed = {
            let mut inner = self.lock();
            inner.stats.cached = 0;
            std::mem::take(&mut inner.free)
        };
        drop(freed);
    }

    /// Takes the lock even if a thread panicked while holding it: the counters are consistent whenever the lock is free.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Extra blocks beyond those asked for, so that an aligned start can be chosen.
const ALIGNING: usize = 1;

/// Bytes that the memory has after its aligned start.
fn usable(memory: &[Block]) -> usize {
    memory.len().saturating_sub(ALIGNING) * BLOCK
}

/// The size class that holds `blocks > 0` blocks: its index and its size in blocks.
fn class_of(blocks: usize) -> (usize, usize) {
    if blocks <= 4 {
        return (blocks - 1, blocks);
    }
    // Between 2^k and 2^(k+1) lie four classes, 2^(k-2) apart; `blocks - 1` makes the upper end inclusive.
    let k = (blocks - 1).ilog2() as usize;
    let step = 1usize << (k - 2);
    let quarter = (blocks - 1 - (1 << k)) / step;
    (4 + (k - 2) * 4 + quarter, (1 << k) + (quarter + 1) * step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poison_is_no_number_and_no_index() {
        let mut bytes = [0; 8];
        poison(&mut bytes);
        assert!(f64::from_le_bytes(bytes).is_nan());
        assert!(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).is_nan());
        assert!(half::f16::from_le_bytes([bytes[0], bytes[1]]).is_nan());
        assert!(half::bf16::from_le_bytes([bytes[0], bytes[1]]).is_nan());
        assert!(i64::from_le_bytes(bytes) > i64::MAX - (1 << 52));
        assert!(
            i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) > i32::MAX - (1 << 20)
        );
    }

    #[test]
    fn classes_are_ordered_and_waste_at_most_a_quarter() {
        let (mut last_class, mut last_size) = (0, 0);
        for blocks in 1..5000 {
            let (class, size) = class_of(blocks);
            assert!(
                size >= blocks && size * 4 <= blocks * 5 + 3,
                "{blocks} -> {size}"
            );
            assert!(class == last_class && size == last_size || blocks == last_size + 1);
            assert!(class == last_class || class == last_class + 1);
            (last_class, last_size) = (class, size);
        }
    }

    #[test]
    fn memory_comes_back_and_is_counted() {
        let pool = Pool::new(1 << 20, false);
        let a = pool.take(1000).unwrap();
        let address = a.as_ptr();
        assert_eq!(pool.stats().live, 1000);
        pool.give(a, 1000);
        assert_eq!(
            (pool.stats().live, pool.stats().peak, pool.stats().cached),
            (0, 1000, 1024)
        );
        let b = pool.take(1020).unwrap();
        assert_eq!(b.as_ptr(), address);
        assert_eq!((pool.stats().reused, pool.stats().cached), (1, 0));
    }

    #[test]
    fn cached_bytes_are_capped() {
        let pool = Pool::new(2048, false);
        let taken: Vec<_> = (0..4).map(|_| pool.take(1024).unwrap()).collect();
        for memory in taken {
            pool.give(memory, 1024);
        }
        assert_eq!(pool.stats().cached, 2048);
        pool.trim();
        assert_eq!(pool.stats().cached, 0);
    }

    #[test]
    fn resized_memory_has_no_block_too_many_and_is_used_again() {
        let pool = Pool::new(1 << 20, false);
        let mut a = pool.take(1000).unwrap();
        a[0] = Block([7; BLOCK]);
        for (old, new, blocks) in [
            (1000, 70_000, 1094),
            (70_000, 10, 1),
            (10, 0, 0),
            (0, 128, 2),
        ] {
            assert!(pool.resize(&mut a, old, new));
            assert_eq!(a.len(), blocks + usize::from(blocks > 0) * ALIGNING);
            assert_eq!(pool.stats().live, new);
            assert!(new == 0 || old == 0 || a[0].0 == [7; BLOCK]);
        }
        assert!(pool.resize(&mut a, 128, 700));
        pool.give(a, 700);
        assert_eq!((pool.stats().live, pool.stats().peak), (0, 70_000));
        // Eleven blocks are more than the class of ten blocks holds, and fewer than that of twelve.
        assert_eq!(pool.stats().cached, 12 * BLOCK);
        pool.give(pool.take(10 * BLOCK).unwrap(), 10 * BLOCK);
        assert_eq!((pool.stats().reused, pool.stats().cached), (1, 12 * BLOCK));
        assert!(!pool.resize(&mut pool.take(64).unwrap(), 64, isize::MAX as usize));
        assert_eq!(pool.stats().live, 64);
    }
}
