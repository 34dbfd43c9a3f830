//! The synchronisation primitives of ranks: the standard library's, or a model checker's stand-ins for them.
//!
//! Built with `--cfg shard_loom` or `--cfg shard_shuttle`, the very code of this module runs under loom or shuttle, which
//! try its interleavings (`tests/loom.rs`, `tests/shuttle.rs`). Reference counts stay the standard library's, because they are
//! not what is tested.

#[cfg(not(any(shard_loom, shard_shuttle)))]
mod real {
    pub(in crate::backend::local) use std::sync::atomic::{AtomicBool, AtomicUsize, fence};
    pub(in crate::backend::local) use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
    pub(in crate::backend::local) use std::thread::{Thread, current, park, yield_now};

    /// How often a waiting rank lets others run before it parks. Parking and waking costs tens of microseconds, a yield
    /// well under one; with more ranks than cores, the ranks that run meanwhile soon come to their own rendezvous. Builds with
    /// assertions are for tests, many at a time: there a rank that goes on yielding only takes the core from another test.
    pub(in crate::backend::local) const YIELDS: usize =
        if cfg!(debug_assertions) { 8 } else { 256 };

    /// How often a rank polls before that where every rank has a core, and how long it pauses in between: a few microseconds in
    /// all, the price of as many yields.
    pub(in crate::backend::local) const SPINS: usize = 32;
    pub(in crate::backend::local) const PAUSES: usize = 4;

    /// How long a rank has been waiting.
    pub(in crate::backend::local) struct Clock(std::time::Instant);

    impl Clock {
        pub(in crate::backend::local) fn start() -> Self {
            Self(std::time::Instant::now())
        }

        pub(in crate::backend::local) fn elapsed(&self) -> std::time::Duration {
            self.0.elapsed()
        }
    }
}

#[cfg(not(any(shard_loom, shard_shuttle)))]
pub(super) use real::*;

#[cfg(shard_loom)]
mod model {
    pub(in crate::backend::local) use loom::sync::atomic::{AtomicBool, AtomicUsize, fence};
    pub(in crate::backend::local) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(in crate::backend::local) use loom::thread::{Thread, current, park, yield_now};
}

#[cfg(shard_shuttle)]
mod model {
    pub(in crate::backend::local) use shuttle::sync::atomic::{AtomicBool, AtomicUsize, fence};
    pub(in crate::backend::local) use shuttle::sync::{Condvar, Mutex, MutexGuard};
    pub(in crate::backend::local) use shuttle::thread::{Thread, current, park, yield_now};
}

#[cfg(any(shard_loom, shard_shuttle))]
pub(super) use {model::*, substitutes::*};

/// Stand-ins for what model checkers lack.
#[cfg(any(shard_loom, shard_shuttle))]
mod substitutes {
    use super::model::{AtomicBool, Mutex};
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    /// A waiting rank parks soon, so that there are few interleavings and parking occurs in them.
    pub(in crate::backend::local) const YIELDS: usize = 1;
    pub(in crate::backend::local) const SPINS: usize = 0;
    pub(in crate::backend::local) const PAUSES: usize = 1;

    /// No time passes: the behaviour of ranks must follow from their order alone.
    pub(in crate::backend::local) struct Clock;

    impl Clock {
        pub(in crate::backend::local) fn start() -> Self {
            Self
        }

        pub(in crate::backend::local) fn elapsed(&self) -> Duration {
            Duration::ZERO
        }
    }

    /// A cell that is written once, and publishes everything its writer did before.
    #[derive(Debug)]
    pub(in crate::backend::local) struct OnceLock<T> {
        value: std::sync::OnceLock<T>,
        written: AtomicBool,
        /// Held by the writer: a rank that comes too late finds the value.
        writing: Mutex<()>,
    }

    impl<T> Default for OnceLock<T> {
        fn default() -> Self {
            Self {
                value: std::sync::OnceLock::new(),
                written: AtomicBool::new(false),
                writing: Mutex::new(()),
            }
        }
    }

    impl<T> OnceLock<T> {
        pub(in crate::backend::local) fn get(&self) -> Option<&T> {
            if !self.written.load(Ordering::Acquire) {
                return None;
            }
            self.value.get()
        }

        pub(in crate::backend::local) fn set(&self, value: T) -> Result<(), T> {
            let _writing = self.writing.lock();
            self.value.set(value)?;
            self.written.store(true, Ordering::Release);
            Ok(())
        }

        pub(in crate::backend::local) fn get_or_init(&self, value: impl FnOnce() -> T) -> &T {
            let _writing = self.writing.lock();
            let value = self.value.get_or_init(value);
            self.written.store(true, Ordering::Release);
            value
        }

        pub(in crate::backend::local) fn take(&mut self) -> Option<T> {
            self.value.take()
        }
    }
}
