//! An operation in flight.

use std::fmt::{self, Debug};
use std::sync::Arc;

use crate::{Buffer, CommError, DType, DeviceRef, History, Ledger, Result};
use tracing::level_filters::LevelFilter;
use tracing::span::EnteredSpan;

/// An operation in flight.
///
/// Between starting and waiting, do other work. Handles may be waited for in any order. If a handle is dropped, the
/// communicator finishes the operation during later calls.
///
/// ```
/// use shard_comm::{local, Monoid};
/// let sums = local::run(3, |comm| {
///     let mine = comm.device().upload_slice(&[comm.rank() as f64]).unwrap();
///     let sum = comm.start_all_reduce(&mine, Monoid::SUM).unwrap();
///     // ... work that does not need the sum ...
///     sum.wait().unwrap().to_vec::<f64>().unwrap()[0]
/// }).unwrap();
/// assert_eq!(sums, [3.0, 3.0, 3.0]);
/// ```
#[must_use = "an operation completes when its handle is waited for"]
pub struct Handle {
    pending: Option<Box<dyn Pending>>,
    /// Forgotten when ranks turn out to disagree.
    history: Option<History>,
}

/// A backend's own part of a [`Handle`].
pub trait Pending {
    /// Finishes the operation and returns its result, if it has one on this rank.
    ///
    /// # Errors
    /// Whatever went wrong, alike on all ranks.
    fn wait(&mut self) -> Result<Option<Buffer>>;

    /// Carries the operation on without waiting, and returns whether [`wait`](Self::wait) will return at once. If the ranks
    /// that the operation waits for have failed or ended, it may stay undone: [`rest`](Self::rest) finds that out.
    fn is_done(&mut self) -> bool;

    /// Returns when this operation, or any other one of the rank on this communicator and its splits, may have made progress: for
    /// callers that wait for several. A rank that rests waits for all of them, so that deadlocks are found as in
    /// [`wait`](Self::wait). It does not rest while some operation is done whose handle has not been waited for.
    fn rest(&mut self) {
        std::thread::yield_now();
    }

    /// The device of the rank.
    fn device(&self) -> &DeviceRef;

    /// The ledger of the rank, whose flight recorder is told of failures.
    fn ledger(&self) -> Option<&Ledger> {
        None
    }

    /// Called when the handle is dropped without a wait: the backend has to finish the operation by itself.
    fn park(&mut self);
}

impl Handle {
    /// A handle over a backend's operation.
    pub fn new(pending: Box<dyn Pending>) -> Self {
        Self {
            pending: Some(pending),
            history: None,
        }
    }

    /// A handle of an operation that needs no other rank and is done.
    pub fn ready(device: &DeviceRef, result: Option<Buffer>) -> Self {
        Self::new(Box::new(Ready {
            device: Arc::clone(device),
            result,
        }))
    }

    /// The same operation, whose ranks start this [history](History::forget) anew when they hear that they disagree.
    pub fn heard_by(mut self, history: &History) -> Self {
        self.history = Some(history.clone());
        self
    }

    /// See [`Pending::is_done`].
    pub fn is_done(&mut self) -> bool {
        (self.pending.as_mut()).is_none_or(|pending| pending.is_done())
    }

    /// See [`Pending::rest`].
    #[cfg(feature = "nccl")]
    pub(crate) fn rest(&mut self) {
        if let Some(pending) = &mut self.pending {
            pending.rest();
        }
    }

    /// Completes this rank's own reads and returns the result, an empty buffer if the operation has none on this rank.
    /// Never waits for other ranks to read from this one.
    ///
    /// # Errors
    /// Whatever went wrong, alike on all ranks: [`Mismatch`](CommError::Mismatch), [`Agreed`](CommError::Agreed), or
    /// a failure.
    pub fn wait(mut self) -> Result<Buffer> {
        let Some(mut pending) = self.pending.take() else {
            return Err(CommError::Closed { op: "wait" });
        };
        match self.finish(&mut *pending)? {
            Some(result) => Ok(result),
            None => Ok(pending.device().alloc(DType::U8, 0)?.freeze()),
        }
    }

    /// As [`Handle::wait`], with `None` if this rank has no result.
    ///
    /// # Errors
    /// As [`Handle::wait`].
    pub fn wait_optional(mut self) -> Result<Option<Buffer>> {
        match self.pending.take() {
            Some(mut pending) => self.finish(&mut *pending),
            None => Err(CommError::Closed { op: "wait" }),
        }
    }

    /// Waits, and tells the flight recorder of a failure.
    fn finish(&self, pending: &mut dyn Pending) -> Result<Option<Buffer>> {
        let _span = waiting();
        let result = pending.wait();
        let result = match &self.history {
            Some(history) => history.heard(result),
            None => result,
        };
        result.inspect_err(|error| {
            if let Some(ledger) = pending.ledger() {
                ledger.failed(error);
            }
        })
    }
}

/// The span `wait`, in which a rank waits for others and takes what arrives from them. There is none where nobody listens, since
/// spans cost some time even then.
#[inline]
pub(crate) fn waiting() -> Option<EnteredSpan> {
    (LevelFilter::current() == LevelFilter::TRACE)
        .then(|| tracing::trace_span!(target: "shard_comm", "wait").entered())
}

/// An operation that was done when it was started.
struct Ready {
    device: DeviceRef,
    result: Option<Buffer>,
}

impl Pending for Ready {
    fn wait(&mut self) -> Result<Option<Buffer>> {
        Ok(self.result.take())
    }

    fn is_done(&mut self) -> bool {
        true
    }

    fn device(&self) -> &DeviceRef {
        &self.device
    }

    fn park(&mut self) {}
}

impl Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle")
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(mut pending) = self.pending.take() {
            pending.park();
        }
    }
}
