//! Device memory and communicators: the exchange of pieces between ranks, in process and beyond.
//!
//! A group of *ranks* each own a part of something too big for one of them. This crate has what they need to work on
//! it together, and nothing that knows what it is: no layouts, no tensors, no kernels.
//!
//! - **Memory**: typed, shared, immutable [`Buffer`]s on a [`Device`]; [`BufferMut`] while they are written. [`Host`]
//!   is the memory of this process, [`TestDevice`] a stand-in for an accelerator that makes missing synchronisation
//!   visible. Freed memory is cached per device.
//! - **Moves**: an [`ExchangePlan`] lists the strided [`Piece`]s a rank reads from its peers, and how they are combined
//!   (a [`Monoid`]). Everything else, from broadcast to all-reduce, is such a plan.
//! - **Groups**: a [`Communicator`] runs plans. Every operation blocks, or starts and returns a [`Handle`]. The
//!   [`local`] backend runs ranks as threads of this process.
//! - **Forecasts**: [`simulated`] plays one rank of thousands, without data.
//! - **Accounts**: a [`Ledger`] counts every byte and message where it moves.
//!
//! # Four ranks
//!
//! ```
//! use shard_comm::{CommError, Communicator, Monoid, local};
//!
//! let results = local::run(4, |comm| -> Result<(Vec<f64>, f64), CommError> {
//!     // Rank r owns r values: uneven, and nothing at all on rank 0.
//!     let counts = [0, 1, 2, 3];
//!     let mine = vec![comm.rank() as f64; counts[comm.rank()]];
//!     let mine = comm.device().upload_slice(&mine)?;
//!
//!     // Start joining them, and sum something else meanwhile.
//!     let joined = comm.start_all_gather_v(&mine, &counts)?;
//!     let one = comm.device().upload_slice(&[1.0f64])?;
//!     let ranks = comm.all_reduce(&one, Monoid::SUM)?;
//!
//!     assert_eq!(comm.ledger().snapshot().op("all_reduce").messages, 3);
//!     Ok((joined.wait()?.to_vec()?, ranks.to_vec()?[0]))
//! })
//! .unwrap();
//!
//! for result in results {
//!     assert_eq!(result, Ok((vec![1.0, 2.0, 2.0, 3.0, 3.0, 3.0], 4.0)));
//! }
//! ```
//!
//! # What goes wrong, goes wrong alike
//!
//! Errors are typed ([`CommError`]) and of three classes ([`ErrorClass`]). Ranks that disagree get the same
//! [`Mismatch`], with both call sites, before anything moves; one rank's local error becomes everybody's; a rank that
//! dies, or a program that can never go on, fails all who wait for it, with the cause.
//!
//! ```
//! use shard_comm::{CommError, Communicator, Monoid, local};
//!
//! let errors = local::run(2, |comm| {
//!     let buffer = comm.device().upload_slice(&vec![0.0f32; 1 + comm.rank()]).unwrap();
//!     let error = comm.all_reduce(&buffer, Monoid::SUM).unwrap_err();
//!     comm.barrier().unwrap(); // the group is as good as before
//!     error
//! })
//! .unwrap();
//! assert_eq!(errors[0], errors[1]);
//! assert!(matches!(&errors[0], CommError::Mismatch(m) if m.field == "length"));
//! ```
//!
//! How to test what you build on it: [`guide::testing`].
//!
//! # Features
//!
//! - `contract-tests`: the programs every backend must run correctly, for the tests of backends.
//! - `mpi`: the backend `mpi`, ranks that are processes; needs an installed MPI and libclang to build.
//! - `cuda`: GPUs of NVIDIA as devices, with cuBLASLt and cuDNN where they are found; loaded at run time, needs nothing to
//!   build.
//! - `nccl`: the backend `nccl`, ranks with a GPU each over NVIDIA's library of that name, loaded at run time.
//! - `cuda-emulated`: their kernels and the library on the host, for tests; needs a C++ compiler at run time.
#![cfg_attr(not(any(feature = "mpi", feature = "cuda")), forbid(unsafe_code))]
#![cfg_attr(any(feature = "mpi", feature = "cuda"), deny(unsafe_code))]

pub use half;

mod buffer;
mod caller;
mod checked;
mod collectives;
mod communicator;
#[cfg(any(test, feature = "contract-tests"))]
pub mod contract;
#[cfg(feature = "cuda")]
pub mod cuda;
mod device;
mod dtype;
mod error;
mod exchange;
mod faulty;
mod guard;
pub mod guide;
mod host;
mod job;
mod kernel;
mod ledger;
mod link;
pub mod local;
mod lots;
mod mix;
mod monoid;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(feature = "nccl")]
pub mod nccl;
mod pieces;
mod plan;
mod pool;
mod precision;
pub mod simulated;
mod test_device;
mod validate;
mod view;

pub use buffer::{Buffer, BufferMut};
pub use caller::Calling;
pub use checked::{Checks, checked};
pub use collectives::{ONE_ROUND_BYTES, PlanCache, all_reduce_received};
pub use communicator::{Communicator, Handle, Link, LinkSide, Pending, Request, Stage, Target};
pub use device::{
    Device, DeviceKind, DeviceRef, Event, EventState, HostSlice, HostSliceMut, MemoryStats,
    UnknownDevice, device_of,
};
pub use dtype::{Bool, DType, Element, Scalar};
pub use error::{
    AgreedError, CommError, DeadlockReport, ErrorClass, LaunchError, Mismatch, Result, Site,
    SiteText, TimeoutReport, WaitLine,
};
pub use faulty::{Fault, FaultKind, Faulty, faulty};
pub use guard::{Guard, PeerSum};
pub use host::{Host, HostOptions};
pub use job::{HostJob, Spent, Work};
pub use ledger::{FlightRecord, Ledger, LedgerSnapshot, OpCount, Operation, TraceEvent};
pub use link::LinkCost;
pub use local::LocalComm;
pub use monoid::Monoid;
pub use pieces::{Piece, PieceRef, Pieces};
pub use plan::ExchangePlan;
pub use precision::MatmulPrecision;
pub use test_device::TestDevice;
pub use view::Strided;
