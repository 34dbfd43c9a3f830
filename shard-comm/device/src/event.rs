//! Points in a device's queue.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use crate::Result;

/// A point in a device's queue that others can wait for.
#[derive(Clone, Debug)]
pub struct Event(Option<Arc<dyn EventState>>);

impl Event {
    /// An event that has happened: nothing to wait for.
    pub fn ready() -> Self {
        Self(None)
    }

    /// An event of a device with a queue; for implementations of devices.
    pub fn new(state: Arc<dyn EventState>) -> Self {
        Self(Some(state))
    }

    /// Returns when the event has happened, making it happen if its device runs work lazily.
    ///
    /// # Errors
    /// [`DeviceError::Queued`](crate::DeviceError::Queued) if the work it stands for failed.
    pub fn synchronize(&self) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |state| state.synchronize())
    }

    /// Whether the event has happened, without waiting.
    ///
    /// # Errors
    /// [`DeviceError::Queued`](crate::DeviceError::Queued) if the work it stands for failed.
    pub fn is_done(&self) -> Result<bool> {
        self.0.as_ref().map_or(Ok(true), |state| state.is_done())
    }

    /// The device's own state, `None` for [`Event::ready`]; for implementations of devices.
    pub fn state(&self) -> Option<&Arc<dyn EventState>> {
        self.0.as_ref()
    }
}

/// A device's own state behind an [`Event`].
pub trait EventState: Any + Debug + Send + Sync {
    /// Returns when the event has happened; callable from any thread.
    ///
    /// # Errors
    /// [`DeviceError::Queued`](crate::DeviceError::Queued) if the work it stands for failed.
    fn synchronize(&self) -> Result<()>;

    /// Whether the event has happened. A device that cannot tell waits for it.
    ///
    /// # Errors
    /// As [`synchronize`](Self::synchronize).
    fn is_done(&self) -> Result<bool> {
        self.synchronize().map(|()| true)
    }
}
