//! What ranks synchronise with: the standard library, or a model checker's stand-ins for it.
//!
//! Built with `--cfg shard_loom` or `--cfg shard_shuttle`, the very code of this module runs under loom or shuttle, which
//! try its interleavings (`tests/loom.rs`, `tests/shuttle.rs`). Reference counts stay the standard library's: what they
//! promise is not at stake.

#[cfg(not(any(shard_loom, shard_shuttle)))]
mod real {
    pub(in crate::local) use std::sync::atomic::{AtomicBool, AtomicUsize, fence};
    pub(in crate::local) use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
    pub(in crate::local) use std::thread::{Thread, current, park, yield_now};

    /// How often a waiting rank lets others run before it parks. A park and wake costs tens of microseconds, a yield
    /// well under one; with more ranks than cores the ones that yield are soon at their own rendezvous.
    pub(in crate::local) const YIELDS: usize = 256;

    /// How often it looks before that where every rank has a core: about a microsecond, the price of two yields.
    pub(in crate::local) const SPINS: usize = 64;
}

#[cfg(not(any(shard_loom, shard_shuttle)))]
pub(super) use real::*;

#[cfg(shard_loom)]
mod model {
    pub(in crate::local) use loom::sync::atomic::{AtomicBool, AtomicUsize, fence};
    pub(in crate::local) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(in crate::local) use loom::thread::{Thread, current, park, yield_now};
}

#[cfg(shard_shuttle)]
mod model {
    pub(in crate::local) use shuttle::sync::atomic::{AtomicBool, AtomicUsize, fence};
    pub(in crate::local) use shuttle::sync::{Condvar, Mutex, MutexGuard};
    pub(in crate::local) use shuttle::thread::{Thread, current, park, yield_now};
}

#[cfg(any(shard_loom, shard_shuttle))]
pub(super) use {model::*, once::OnceLock, once::SPINS, once::YIELDS};

/// What model checkers lack.
#[cfg(any(shard_loom, shard_shuttle))]
mod once {
    use super::model::AtomicBool;
    use std::sync::atomic::Ordering;

    /// A waiting rank soon parks, so that there are few interleavings and parking is among them.
    pub(in crate::local) const YIELDS: usize = 1;
    pub(in crate::local) const SPINS: usize = 0;

    /// A cell that is written once, and publishes what its writer did before.
    #[derive(Debug)]
    pub(in crate::local) struct OnceLock<T> {
        value: std::sync::OnceLock<T>,
        written: AtomicBool,
        /// Stands for the value where loom looks for reads that no order puts after the write.
        #[cfg(shard_loom)]
        access: loom::cell::UnsafeCell<()>,
    }

    impl<T> Default for OnceLock<T> {
        fn default() -> Self {
            Self {
                value: std::sync::OnceLock::new(),
                written: AtomicBool::new(false),
                #[cfg(shard_loom)]
                access: loom::cell::UnsafeCell::new(()),
            }
        }
    }

    impl<T> OnceLock<T> {
        pub(in crate::local) fn get(&self) -> Option<&T> {
            if !self.written.load(Ordering::Acquire) {
                return None;
            }
            #[cfg(shard_loom)]
            self.access.with(|_| ());
            self.value.get()
        }

        pub(in crate::local) fn set(&self, value: T) -> Result<(), T> {
            self.value.set(value)?;
            #[cfg(shard_loom)]
            self.access.with_mut(|_| ());
            self.written.store(true, Ordering::Release);
            Ok(())
        }
    }
}
