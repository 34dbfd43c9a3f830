//! Ranks that have an NVIDIA GPU each, on one node or many, over NVIDIA's NCCL, which is loaded at run time.
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
//! Ranks agree over the *control* communicator, and only there: it compares what they are about to do, gives everybody the
//! same error, knows the members of each group, and learns of failures. It moves none of the elements. While ranks agree, their
//! GPUs go on working. Then elements that are not contiguous are packed (one launch), all are moved by one group of sends and
//! receives, and they are put where they belong or combined in the order of the plan (one launch). All of this is queued at once,
//! on a stream of its own, which waits for the rank's own stream where it has to and otherwise runs beside it, so halos and rings
//! move while kernels run. Bits are those of the other backends. Where parts are equal and the library has a collective that
//! gives the same bits, that is called instead: for all-gathers, broadcasts, and reductions of integers; with [`Order::Any`] also
//! for sums and products of floats.
//!
//! The library connects ranks inside the first calls that need it. Such a call is queued only when the other ranks make theirs
//! too. No rank waits for that: it asks whether its calls are queued whenever it carries its operations on. For messages all
//! pairs of ranks are connected when the ranks join, because two ranks may see different messages first.
//!
//! [`Handle::wait`](crate::Handle::wait) returns when the elements are there, so it waits for the rank's own stream too. It
//! returns the elements that were sent, or an error.
//!
//! # The order of posting
//!
//! The library runs operations one after the other. So operations, also those of different groups, must be posted in the same
//! order on all ranks that share them, which is so in a program that is the same on all ranks. Messages between two ranks
//! may be posted in any order if the ranks are threads. Processes learn at different times that both ends of a message are there,
//! so large messages that cross in a circle at once could be queued in orders that wait for each other until the timeout: use an
//! exchange instead.
//!
//! # What goes wrong
//!
//! The library's communicators do not block. While a rank waits it asks the library and the control communicator what has gone
//! wrong, and checks how long it has waited ([`NcclOptions::timeout`]). A rank that fails tells the others over the control
//! communicator; each aborts its own communicators, which ends the work that is queued, and returns the same cause. Among threads
//! the control communicator finds a deadlock of the program exactly; a wait for elements is ended by the timeout.
//!
//! With [`checked`](crate::checked)`(.., checksums)`, checksums travel with the agreement; of an all-reduce in two exchanges only
//! the first is compared.
//!
//! # How it was tested
//!
//! It has **not yet run on a GPU**. With the feature `cuda-emulated` threads emulate the library
//! (`DeviceKind::EmulatedCuda`): the same contract and faults as for other backends run on that, on streams that are
//! threads. The emulation works within one process, so a control communicator of processes cannot be tried without GPUs, and has
//! not been. Nor can it show whether NCCL's own functions are called as they require: `xtests/gpu/run.sh` will. NCCL 2.18.1 is
//! the oldest version that has all functions that are called.
//!
//! `member.rs` has the communicator, `progress.rs` the operations in flight, `op.rs` one operation, `course.rs` its exchanges
//! as they are queued, `landing.rs` one exchange, and `wire.rs` plans as calls. `library.rs` is the interface to NCCL,
//! `nvidia.rs` has the calls to it, `functions.rs` its functions, `group.rs` the groups of calls, `emulated.rs` the
//! emulation, and `breaking.rs` one that fails.

#[cfg(feature = "cuda-emulated")]
mod breaking;
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

use crate::local::{self, ByRank, Interleaving, LocalOptions};
use crate::{CommError, Communicator, DeviceKind, DeviceRef, LaunchError, Result, cuda, device_of};
use library::Library;

/// Whether a machine offers what ranks over NCCL need.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NcclAvailability {
    /// The library, and GPUs.
    Ready {
        /// How many GPUs.
        devices: usize,
        /// The library's version.
        version: Version,
    },
    /// There is no GPU to use.
    NoGpu(cuda::Availability),
    /// There is no library, or it is too old.
    NoLibrary {
        /// What is missing.
        cause: String,
    },
}

impl fmt::Display for NcclAvailability {
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
/// use shard_comm::nccl::{NcclAvailability, availability};
/// match availability() {
///     NcclAvailability::Ready { devices, .. } => assert!(devices > 0),
///     missing => println!("ranks over NCCL are not tried: {missing}"),
/// }
/// ```
pub fn availability() -> NcclAvailability {
    let devices = match cuda::availability() {
        cuda::Availability::Ready { devices } => devices,
        missing => return NcclAvailability::NoGpu(missing),
    };
    match nvidia::Nccl::load() {
        Ok(library) => NcclAvailability::Ready {
            devices,
            version: library.version(),
        },
        Err(CommError::Backend { cause, .. }) => NcclAvailability::NoLibrary {
            cause: cause.to_string(),
        },
        Err(error) => NcclAvailability::NoLibrary {
            cause: error.to_string(),
        },
    }
}

/// The library for ranks with this device.
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

/// Runs `f` on `ranks` ranks, each a thread with a GPU, and returns their results in rank order. GPUs are assigned in turn.
///
/// # Errors
/// [`LaunchError::Device`] if there are not enough GPUs, or no library; otherwise as [`local::run`].
pub fn run<T: Send>(
    ranks: usize,
    options: &NcclOptions,
    f: impl Fn(NcclComm) -> T + Sync,
) -> Result<Vec<T>, LaunchError> {
    run_with(ranks, options, &LocalOptions::default(), f)
}

/// [`run`], with options for the threads; their device is that of the control communicator. The threads must all run at once: one
/// that waits for elements would otherwise keep the others from sending them.
///
/// # Errors
/// As [`run`].
pub fn run_with<T: Send>(
    ranks: usize,
    options: &NcclOptions,
    threads: &LocalOptions,
    f: impl Fn(NcclComm) -> T + Sync,
) -> Result<Vec<T>, LaunchError> {
    let given = ByRank::default();
    run_each(ranks, options, threads, &|comm| {
        given.keep(comm.rank(), f(comm));
    })?;
    Ok(given.into_values())
}

/// [`run_with`], once for all programs.
fn run_each(
    ranks: usize,
    options: &NcclOptions,
    threads: &LocalOptions,
    f: &(dyn Fn(NcclComm) + Sync),
) -> Result<(), LaunchError> {
    local::check_ranks(ranks)?;
    let devices = (0..ranks)
        .map(|rank| device_of(options.device, rank))
        .collect::<Result<Vec<DeviceRef>, _>>()
        .map_err(LaunchError::Device)?;
    let threads = LocalOptions {
        interleaving: Interleaving::Free,
        ..threads.clone()
    };
    let results = local::run_with(ranks, &threads, |control| -> Result<()> {
        let device = &devices[control.rank()];
        let comm = NcclComm::over(Rc::new(control), device, options)?;
        f(comm.clone());
        // The program has received the errors of its operations already.
        drop(comm.finish());
        Ok(())
    })?;
    (results.into_iter())
        .collect::<Result<()>>()
        .map_err(LaunchError::Failed)
}

/// What the tests of this crate look at beside what is public.
#[cfg(feature = "cuda-emulated")]
#[doc(hidden)]
pub mod inside {
    pub use super::breaking::{Break, over_breaking};
    use crate::Handle;

    /// See [`Pending::rest`](crate::Pending::rest).
    pub fn rest(handle: &mut Handle) {
        handle.rest();
    }
}

#[cfg(test)]
mod found;
