//! Errors of memory and devices, and who learns of them.

use std::any::Any;
use std::sync::Arc;

use crate::DType;

/// Shorthand for results of this crate.
pub type Result<T, E = DeviceError> = std::result::Result<T, E>;

/// Who learns of an error, and what is left of the group of ranks afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ErrorClass {
    /// Decided from arguments, and so the same on every rank; nothing was sent, and the group stays usable.
    Uniform,
    /// A fact that only one rank could see, told to all ranks before any payload moved; the group stays usable.
    Agreed,
    /// A rank, a link or the device died; the group is poisoned and every later call fails alike.
    Failure,
}

/// An error of a buffer or a device.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The arguments of one call contradict each other.
    #[error("{op}: expected {expected}, got {got}; {remedy}")]
    Invalid {
        /// The call.
        op: &'static str,
        /// What it accepts.
        expected: String,
        /// What it was given.
        got: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The host asked for memory that only a device can read.
    #[error(
        "{op}: the host cannot read memory of {device}; download it, or submit a job to the device"
    )]
    HostOnly {
        /// The call.
        op: &'static str,
        /// The device that holds the memory.
        device: String,
    },
    /// A call asked for the elements of memory that holds none: results that depend on data cannot be simulated.
    #[error(
        "{op}: {device} memory has no elements; run the program on ranks, or leave out what reads values"
    )]
    NoData {
        /// The call.
        op: &'static str,
        /// The device.
        device: String,
    },
    /// The device has no memory left for this.
    ///
    /// Operations that communicate tell all ranks of it, as an agreed error, before anything moves. Of an op that does not
    /// communicate no other rank hears: it is a failure.
    #[error("{device}: out of memory for {bytes} bytes ({dtype} x {len})")]
    OutOfMemory {
        /// The device.
        device: String,
        /// Bytes asked for.
        bytes: usize,
        /// Element type asked for.
        dtype: DType,
        /// Elements asked for.
        len: usize,
    },
    /// The device has been shut down.
    #[error("{op}: this device is closed; make the call before its rank ends")]
    Closed {
        /// The call that came too late.
        op: &'static str,
    },
    /// A call to the driver or to a library failed, or the library is missing.
    #[error("{library}: {call} failed: {cause}")]
    Library {
        /// The library.
        library: &'static str,
        /// Its function.
        call: &'static str,
        /// Its message.
        cause: Arc<str>,
    },
    /// Work queued on a device failed when it ran.
    #[error("{device}: queued work failed: {cause}")]
    Queued {
        /// The device.
        device: String,
        /// What happened; the message of the panic if there was one.
        cause: Arc<str>,
    },
}

impl DeviceError {
    /// Who learns of this error, and what is left of the group of ranks.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Invalid { .. } | Self::HostOnly { .. } | Self::NoData { .. } => {
                ErrorClass::Uniform
            }
            // A fact of one rank that no other hears of, unless an operation tells it as an agreed error.
            Self::OutOfMemory { .. }
            | Self::Closed { .. }
            | Self::Library { .. }
            | Self::Queued { .. } => ErrorClass::Failure,
        }
    }

    /// An [`Invalid`](Self::Invalid) call: what the call accepts, what it was given, and what to do about it.
    pub fn invalid(
        op: &'static str,
        expected: impl Into<String>,
        got: impl Into<String>,
        remedy: &'static str,
    ) -> Self {
        Self::Invalid {
            op,
            expected: expected.into(),
            got: got.into(),
            remedy,
        }
    }

    /// An [`Invalid`](Self::Invalid) call because of its element types.
    pub fn dtype(op: &'static str, expected: DType, got: DType) -> Self {
        Self::invalid(
            op,
            expected.name(),
            got.name(),
            "pass buffers of one element type, or convert first",
        )
    }
}

/// The message of a panic, if it has one.
///
/// ```
/// let caught = std::panic::catch_unwind(|| panic!("boom")).unwrap_err();
/// assert_eq!(shard_device::panic_message(&*caught), "boom");
/// ```
pub fn panic_message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
