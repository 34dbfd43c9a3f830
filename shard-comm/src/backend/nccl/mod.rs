//! Ranks that have a GPU of NVIDIA each, on one node or many, over NVIDIA's NCCL, which is loaded at run time.
//!
//! Ranks are threads of one process ([`run`]), or processes that found each other otherwise: [`NcclComm::over`] takes any
//! communicator over memory of the host.
//!
//! ```no_run
//! use shard_comm::nccl::{self, NcclOptions};
//! use shard_comm::{CommError, Communicator, Monoid};
//!
//! let sums = nccl::run(2, &NcclOptions::default(), |comm| -> Result<f64, CommError> {
//!     let mine = comm.device().upload_slice(&[comm.rank() as f64])?;
//!     Ok(comm.all_reduce(&mine, Monoid::SUM)?.to_vec::<f64>()?[0])
//! })?;
//! println!("{sums:?}");
//! # Ok::<(), shard_comm::LaunchError>(())
//! ```
//!
//! # How an operation goes
//!
//! Ranks agree over the *control* communicator, and only there: it compares what they are about to do, tells everybody the
//! same error, knows who is a member of what, and hears of failures. It moves none of the elements. While they agree, their
//! GPUs go on. Then elements are packed where they do not lie in a row (one launch), moved by one group of sends and receives,
//! and put where they belong or combined in the order of the plan (one launch): all of it queued at once on a stream of its
//! own, which waits for the rank's own stream where it has to and else goes on beside it, so halos and rings fly while
//! kernels run. Bits are those of the other backends. Where parts are equal and the library has a collective that gives the
//! same bits, that is called instead: all-gathers, broadcasts, and reductions of integers; with [`Order::Any`] also sums and
//! products of floats.
//!
//! The library connects ranks when they first need it, inside the calls that do, which then take until the other ranks come to
//! them. No rank waits for that: it asks whether they are queued when it carries its operations on. For messages each rank is
//! connected with every other one when they join, as two ranks may see different messages first.
//!
//! [`Handle::wait`](crate::Handle::wait) returns when the elements are there, so it waits for the rank's own stream too; what is
//! returned is what was sent, or an error.
//!
//! # What is to be posted in one order
//!
//! Operations of different groups too must be posted in an order that is the same on all ranks that share them, which a
//! program that is the same on all ranks does by itself: the library runs them one after the other. Messages between two ranks
//! may be posted in any, where ranks are threads. Processes hear at different times that both ends of a message are there, so
//! large messages that cross in a circle at once could be queued in orders that wait for each other until time is over: there,
//! use an exchange instead.
//!
//! # What goes wrong
//!
//! The library's communicators do not block. While a rank waits it asks the library and the control communicator what has gone
//! wrong, and its clock how long it has waited ([`NcclOptions::timeout`]). A rank that fails tells the others over the control
//! communicator; each aborts its own communicators, which ends what is queued, and gets the same cause. Among threads a
//! deadlock of programs is found exactly, as the control communicator finds it; a wait for elements ends by time.
//!
//! With [`checked`](crate::checked)`(.., checksums)`, checksums travel with the agreement, and of an all-reduce in two exchanges
//! the first is compared.
//!
//! # What it was tried on
//!
//! It has **not yet run on a GPU**. With the feature `cuda-emulated` threads play the library
//! (`DeviceKind::EmulatedCuda`): the same contract and faults as for other backends are run on that, on streams that are
//! threads. They serve one process, so a control communicator of processes cannot be tried without GPUs, and has not been.
//! Nor can they show whether NCCL's own functions are called as they want to be: `xtests/gpu/run.sh` will. NCCL 2.18.1 is the
//! oldest that has what is called.
//!
//! `member.rs` has the communicator, `progress.rs` what is in flight, `op.rs` one operation, `course.rs` its exchanges as they
//! are queued, `landing.rs` one exchange, `wire.rs` what is packed, `library.rs` what is asked of NCCL, `nvidia.rs` the calls to it, `functions.rs` where they are, `group.rs` groups of calls.

mod course;
#[cfg(feature = "cuda-emulated")]
mod emulated;
mod functions;
mod group;
mod landing;
mod library;
mod member;
mod nvidia;
mod op;
mod options;
mod progress;
mod wire;

use std::fmt;
use std::rc::Rc;

pub use library::Version;
pub use member::NcclComm;
pub use options::{NcclOptions, Order};

use crate::local::{self, LocalOptions, Schedule};
use crate::{CommError, DeviceKind, DeviceRef, LaunchError, Result, cuda, device_of};
use library::Library;

/// What a machine offers for ranks over NCCL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Availability {
    /// The library, and GPUs.
    Ready {
        /// How many GPUs.
        devices: usize,
        /// The library's version.
        version: Version,
    },
    /// There is no GPU to use.
    NoGpu(cuda::Availability),
    /// There is no library, or none that is new enough.
    NoLibrary {
        /// What is missing.
        cause: String,
    },
}

impl fmt::Display for Availability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready { devices, version } => write!(f, "{devices} GPUs and NCCL {version}"),
            Self::NoGpu(missing) => missing.fmt(f),
            Self::NoLibrary { cause } => f.write_str(cause),
        }
    }
}

/// Whether ranks can use NCCL here, and if not, why. Never panics.
///
/// ```
/// use shard_comm::nccl::{Availability, availability};
/// match availability() {
///     Availability::Ready { devices, .. } => assert!(devices > 0),
///     missing => println!("ranks over NCCL are not tried: {missing}"),
/// }
/// ```
pub fn availability() -> Availability {
    let devices = match cuda::availability() {
        cuda::Availability::Ready { devices } => devices,
        missing => return Availability::NoGpu(missing),
    };
    match nvidia::Nccl::load() {
        Ok(library) => Availability::Ready {
            devices,
            version: library.version(),
        },
        Err(CommError::Backend { cause, .. }) => Availability::NoLibrary {
            cause: cause.to_string(),
        },
        Err(error) => Availability::NoLibrary {
            cause: error.to_string(),
        },
    }
}

/// The library for ranks with a device.
fn library_of(device: &DeviceRef) -> Result<Rc<dyn Library>> {
    match device.kind() {
        #[cfg(feature = "cuda-emulated")]
        DeviceKind::EmulatedCuda => Ok(Rc::new(emulated::Emulated)),
        DeviceKind::Cuda => Ok(Rc::new(nvidia::Nccl::load()?)),
        _ => Err(CommError::invalid(
            "nccl",
            "a GPU of NVIDIA",
            device.name(),
            "give each rank a device of the kind Cuda",
        )),
    }
}

/// Runs `f` on `ranks` ranks, each a thread with a GPU, and returns their results in rank order. GPUs are shared out in turn.
///
/// # Errors
/// [`LaunchError::Device`] if there are not the GPUs, or not the library; else as [`local::run`].
pub fn run<T: Send>(
    ranks: usize,
    options: &NcclOptions,
    f: impl Fn(NcclComm) -> T + Sync,
) -> Result<Vec<T>, LaunchError> {
    run_with(ranks, options, &LocalOptions::default(), f)
}

/// [`run`], with options for the threads, whose device is that of the control communicator. They run all at once: one that
/// waits for elements would keep the others from sending them.
///
/// # Errors
/// As [`run`].
pub fn run_with<T: Send>(
    ranks: usize,
    options: &NcclOptions,
    threads: &LocalOptions,
    f: impl Fn(NcclComm) -> T + Sync,
) -> Result<Vec<T>, LaunchError> {
    local::check_ranks(ranks)?;
    let devices = (0..ranks)
        .map(|rank| device_of(options.device, rank))
        .collect::<Result<Vec<DeviceRef>, _>>()
        .map_err(LaunchError::Device)?;
    let threads = LocalOptions {
        schedule: Schedule::Free,
        ..threads.clone()
    };
    let results = local::run_with(ranks, &threads, |control| -> Result<T> {
        use crate::Communicator;
        let device = &devices[control.rank()];
        let comm = NcclComm::over(Rc::new(control), device, options)?;
        let result = f(comm.clone());
        // What went wrong on the way, the program has heard of.
        drop(comm.finish());
        Ok(result)
    })?;
    results
        .into_iter()
        .collect::<Result<Vec<T>>>()
        .map_err(LaunchError::Failed)
}

#[cfg(test)]
mod on_gpus;
#[cfg(all(test, feature = "cuda-emulated"))]
mod tests;
