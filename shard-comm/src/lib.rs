//! Device memory and communicators: the exchange of pieces between ranks, in process and beyond.
#![forbid(unsafe_code)]

pub use half;

mod buffer;
mod collectives;
mod communicator;
#[cfg(any(test, feature = "contract-tests"))]
pub mod contract;
mod device;
mod dtype;
mod error;
mod exchange;
mod host;
mod kernel;
mod ledger;
pub mod local;
mod monoid;
mod plan;
mod pool;
mod test_device;
mod view;

pub use buffer::{Buffer, BufferMut};
pub use collectives::{ONE_ROUND_BYTES, PlanCache, all_reduce_received};
pub use communicator::{Communicator, Handle, Link, LinkSide, Pending, Request, Stage, Target};
pub use device::{
    Device, DeviceKind, DeviceRef, Event, EventState, HostJob, HostSlice, HostSliceMut, MemoryStats,
};
pub use dtype::{Bool, DType, Element, Scalar};
pub use error::{
    AgreedError, CommError, DeadlockReport, ErrorClass, LaunchError, Mismatch, Result, Site,
    SiteText, WaitLine,
};
pub use host::{Host, HostOptions};
pub use ledger::{Ledger, LedgerSnapshot, OpCount, Operation, TraceEvent};
pub use local::LocalComm;
pub use monoid::Monoid;
pub use plan::{ExchangePlan, Piece};
pub use test_device::TestDevice;
pub use view::Strided;
