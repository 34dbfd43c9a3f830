//! Communicators: the exchange of pieces between ranks, within a process and between processes.
//!
//! The *ranks* of a group each own a part of something too big for one of them. This crate has what they need to work on
//! it together, and does not know what it is: there are no layouts, tensors or kernels here.
//!
//! - **Memory**: typed, shared, immutable [`Buffer`]s on a [`Device`], from the crate [`shard_device`], whose items are
//!   all here too.
//! - **Moves**: an [`ExchangePlan`] lists the strided [`Piece`]s a rank reads from its peers, and how they are combined
//!   (a [`Monoid`]). Everything else, from broadcast to all-reduce, is such a plan.
//! - **Groups**: a [`Communicator`] runs plans. Every operation blocks, or starts and returns a [`Handle`]. The
//!   [`local`] backend runs ranks as threads of this process; [`backend`] says what a backend of your own needs.
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
//! # Errors are the same on all ranks
//!
//! Errors are typed ([`CommError`]) and of three classes ([`ErrorClass`]). Ranks that disagree get the same
//! [`Mismatch`], with both call sites, before anything moves. One rank's local error becomes everybody's. If a rank
//! dies, or if the program can never go on, all ranks that wait fail with the cause.
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
//! [`guide::testing`] explains how to test programs built on this crate.
//!
//! # Features
//!
//! - `contract-tests`: the programs that every backend must run correctly, for the tests of backends.
//! - `mpi`: the backend `mpi`, ranks that are processes; needs an installed MPI and libclang to build.
//! - `cuda`: NVIDIA GPUs as devices, with cuBLASLt, cuDNN and cuFFT where they are found; loaded at run time, nothing is needed to
//!   build.
//! - `nccl`: the backend `nccl`, ranks with a GPU each over NVIDIA's library of that name, which is loaded at run time.
//! - `cuda-emulated`: GPU kernels and NVIDIA's libraries emulated on the host, for tests; needs a C++ compiler at run time.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(any(feature = "mpi", feature = "nccl")), forbid(unsafe_code))]
#![cfg_attr(any(feature = "mpi", feature = "nccl"), deny(unsafe_code))]

pub use shard_device::*;

/// The program of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod backend;
mod caller;
mod collectives;
mod communicator;
#[cfg(feature = "contract-tests")]
pub mod contract;
mod decorator;
mod devices;
mod error;
mod fingerprint;
mod guard;
pub mod guide;
mod handle;
mod history;
mod ledger;
mod nodes;
mod plan;
mod request;
mod run;
mod topology;
mod validate;

#[cfg(feature = "mpi")]
pub use backend::mpi;
#[cfg(feature = "nccl")]
pub use backend::nccl;
pub use backend::{local, simulated};
pub use caller::Calling;
pub use collectives::{
    Moves, ONE_ROUND_BYTES, all_reduce_received, all_reduce_seconds, staged_all_reduce,
};
pub use communicator::Communicator;
pub use decorator::{Checks, Fault, FaultKind, Faulty, checked, faulty};
pub use devices::{DeviceFactory, device_of};
pub use error::{
    AgreedError, CommError, DeadlockReport, LaunchError, Mismatch, Result, Site, SiteText,
    TimeoutReport, WaitLine, Whereabouts,
};
pub use guard::{Guard, PeerSum};
pub use handle::{Handle, Pending};
pub use history::{Call, History, Past, Told};
pub use ledger::{FlightRecord, Ledger, LedgerSnapshot, OpCount, Operation, TraceEvent};
pub use local::LocalComm;
pub use nodes::Nodes;
pub use plan::{ExchangePlan, Piece, PieceRef, Pieces, PlanCache};
pub use request::{Direct, Link, LinkSide, Request, Stage, Target};
pub use topology::{LinkCost, Machine, Reductions, Topology};
