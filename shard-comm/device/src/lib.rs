//! Device memory: element types, buffers, strided views, and the devices that copy, convert and fold them.
//!
//! - **Memory**: typed, shared, immutable [`Buffer`]s on a [`Device`]; [`BufferMut`] while they are written. Freed memory is
//!   cached per device.
//! - **Views**: a [`Strided`] box of elements inside a buffer; steps may be zero or negative.
//! - **Devices**: [`Host`] is the memory of this process, [`TestDevice`] a stand-in for an accelerator that makes missing
//!   synchronisation visible, and `cuda::Cuda` (feature `cuda`) is a stream of an NVIDIA GPU. A device copies, converts and
//!   folds views; everything else is computed by a [`HostJob`] or a kernel of the crates above.
//! - **Folds**: a [`Monoid`] says how elements are combined, from sums to (count, mean, M2).
//!
//! Nothing here knows of ranks, communicators or layouts.
//!
//! # Features
//!
//! - `cuda`: NVIDIA GPUs, with cuBLASLt, cuDNN and cuFFT where they are found; loaded at run time, nothing is needed to build.
//! - `cuda-emulated`: the kernels and libraries of the above on the host, for tests; needs a C++ compiler at run time.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

pub use half;

/// The program of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod buffer;
pub mod check;
#[cfg(feature = "cuda")]
pub mod cuda;
mod device;
mod dtype;
mod error;
mod event;
mod host;
mod host_slice;
mod job;
pub mod kernel;
mod kind;
mod monoid;
mod pool;
mod precision;
mod test_device;
pub mod view;

pub use buffer::{Buffer, BufferMut};
pub use device::{Device, DeviceRef, HostRun, MemoryStats};
pub use dtype::{Bool, DType, Element, Scalar};
pub use error::{DeviceError, ErrorClass, Result, panic_message};
pub use event::{Event, EventState};
pub use host::{Host, HostOptions};
pub use host_slice::{HostSlice, HostSliceMut};
pub use job::{HostJob, Work, WorkStats};
pub use kernel::by_tree;
pub use kind::{DeviceKind, UnknownDevice};
pub use monoid::Monoid;
pub use precision::MatmulPrecision;
pub use test_device::TestDevice;
pub use view::Strided;
