//! Ranks as processes, on one node or many, over MPI (Open MPI or MPICH) and host memory.
//!
//! A program that is started by `mpirun` or `srun` calls [`run`] once per process, each time with the same rank count.
//!
//! ```no_run
//! use shard_comm::{CommError, Communicator, Monoid, mpi};
//!
//! let sum = mpi::run(&mpi::MpiOptions::default(), |comm| -> Result<f64, CommError> {
//!     let mine = comm.device().upload_slice(&[comm.rank() as f64])?;
//!     Ok(comm.all_reduce(&mine, Monoid::SUM)?.as_slice::<f64>()?[0])
//! })?;
//! println!("{sum:?}");
//! # Ok::<(), shard_comm::LaunchError>(())
//! ```
//!
//! # How an operation goes
//!
//! Every rank has a record: 48 bytes of fingerprints of what must agree, and the rank's elements if they are few. Up to eight ranks of
//! one node write theirs to memory that they share, where the others read it, and lay the elements that others read there too
//! (`node/`). What all of them have read makes room for more; a rank that finds none there, or has more than a few MiB to lay, says so and
//! sends messages. So each exchange of an operation brings elements where they belong by a copy in and a copy out, and sums are formed
//! straight from what lies there. Up to eight ranks of several nodes send each other their records, with up to 32 bytes of elements, or up to
//! 4 KiB if every other rank reads all of them. More ranks tell each other what the records of more and more of them come to, 80
//! bytes at a time, so that messages and bytes grow with the logarithm of their number (`summary.rs`). If all records agree, each pair of
//! ranks that share other elements exchanges one message. MPI reads its pieces where they lie, by a datatype (nothing is packed by hand),
//! and receives them where they belong unless they are to be combined. If the records do not agree, all ranks exchange the details and
//! find the same error as the [`local`](crate::local) backend would, call sites included; and the group goes on. Results are the same
//! bits as there.
//!
//! Only messages between two processes are used, and that memory, with tags of their own per group and operation, so operations of any
//! groups make progress in any order whenever the process waits for one of them. Nothing moves while the process computes, except
//! what MPI moves by itself.
//!
//! # What goes wrong
//!
//! A rank that gives up ([`Communicator::fail`](crate::Communicator::fail), a panic, an error of MPI) tells all others,
//! who get [`PeerFailed`](crate::CommError::PeerFailed) while they wait. Ranks that wait for a rank that has ended, or whose
//! process leaves the job, get it too.
//! A deadlock is found by time only: a wait longer than [`MpiOptions::timeout`] is
//! [`TimedOut`](crate::CommError::TimedOut), with the last operations of the rank and the ranks it waited for. After a
//! failure messages may be left under way, so a process that ends then ends the whole job (`MPI_Abort`).
//!
//! # Threads
//!
//! MPI is entered at level `FUNNELED`, by the first call of this module. All calls must come from that thread; this is
//! checked, and communicators cannot leave the thread.
//!
//! Between polls a process that waits keeps its core, unless the node has fewer cores than processes.
//!
//! `member.rs` has the communicator, `short.rs` the beginning of an operation and `op.rs` the rest of it. `record.rs`,
//! `records.rs`, `node/`, `summary.rs`, `all_gather.rs` and `details.rs` are about how ranks agree, `wire.rs`, `sending.rs` and `moving.rs` about how
//! elements move, and `sums.rs` about checksums. `progress.rs` has the operations in flight, `raw.rs` the calls to MPI. What is unsafe is in
//! `raw.rs`, `codes.rs` and `node/`.

mod all_gather;
#[expect(unsafe_code, reason = "asks a C library for a text")]
mod codes;
mod details;
mod member;
mod moving;
#[expect(
    unsafe_code,
    reason = "memory that processes share, made safe in this one module"
)]
mod node;
mod notice;
mod op;
mod progress;
#[expect(
    unsafe_code,
    reason = "calls to a C library, made safe in this one module"
)]
mod raw;
mod record;
mod records;
mod sending;
mod short;
mod summary;
mod sums;
mod tags;
mod wire;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

pub use member::MpiComm;

use crate::panic_message;
use crate::{AgreedError, CommError, HostOptions, LaunchError, Past};
use progress::Rank;
use raw::World;

/// How the ranks of a job are set up. Must be equal in all processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MpiOptions {
    /// How many processes are ranks, counted from the first; `None` means all. The other processes do not take part.
    pub ranks: Option<usize>,
    /// How the host keeps its memory.
    pub host: HostOptions,
    /// How long a rank waits for others before it gives up; for ever if `None`.
    pub timeout: Option<Duration>,
    /// The greatest tag that messages may have, if it is to be less than what MPI grants; at least 2^15 - 1. With fewer tags
    /// there can be fewer groups at a time, from 1022 down to 62, and fewer operations of a group in flight: later ones begin
    /// when earlier ones are done.
    pub greatest_tag: Option<i32>,
    /// Whether up to eight ranks of one node agree, and bring each other up to a few MiB, in memory that they share (by default), or by
    /// messages as those of several nodes. Ranks of which only some share memory are told so by the first operation of all of them.
    pub shared_memory: bool,
}

impl MpiOptions {
    /// How long a rank waits for others by default.
    pub const TIMEOUT: Duration = Duration::from_secs(600);
}

impl Default for MpiOptions {
    fn default() -> Self {
        Self {
            ranks: None,
            host: HostOptions::default(),
            timeout: Some(Self::TIMEOUT),
            greatest_tag: None,
            shared_memory: true,
        }
    }
}

/// A process' place among those started together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its number.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
}

/// This process' place among those of the job. Enters MPI.
///
/// # Collective
/// The first call: all processes of the job.
///
/// # Errors
/// [`LaunchError::Processes`] if MPI cannot be used from this thread, or no longer.
pub fn process() -> Result<Process, LaunchError> {
    let world = world()?;
    Ok(Process {
        rank: world.rank(),
        size: world.size(),
    })
}

/// Runs `f` in every process that is a rank, and returns its result; `None` in the others.
///
/// # Collective
/// All processes of the job.
///
/// # Errors
/// [`LaunchError::Panicked`] if this rank panicked, [`LaunchError::Failed`] if another one failed or the ranks did not end
/// alike, [`LaunchError::Processes`] if MPI cannot be used or there are fewer processes than ranks.
pub fn run<T>(
    options: &MpiOptions,
    f: impl FnOnce(MpiComm) -> T,
) -> Result<Option<T>, LaunchError> {
    let session = Session::start(options)?;
    let Some(comm) = session.comm() else {
        return Ok(None);
    };
    let result = session.catch(|| f(comm))?;
    session.end(Ok(()), &[])?;
    Ok(Some(result))
}

/// One run of a program, from its start to its end: for programs that need more than [`run`].
#[derive(Debug)]
pub struct Session {
    rank: Option<(Rc<Rank>, MpiComm)>,
}

impl Session {
    /// Begins a run.
    ///
    /// # Collective
    /// All processes of the job.
    ///
    /// # Errors
    /// [`LaunchError::Processes`], [`LaunchError::NoRanks`].
    pub fn start(options: &MpiOptions) -> Result<Self, LaunchError> {
        let world = world()?;
        // All processes count the runs alike, because each of them starts every run.
        let run = RUNS.get();
        RUNS.set(run + 1);
        let ranks = options.ranks.unwrap_or(world.size());
        if ranks == 0 {
            return Err(LaunchError::NoRanks);
        }
        if ranks > world.size() {
            return Err(LaunchError::Processes {
                cause: format!("{ranks} ranks and {} processes", world.size()),
                remedy: "start as many processes as ranks, as with mpirun -n",
            });
        }
        if world.rank() >= ranks {
            return Ok(Self { rank: None });
        }
        let rank = Rank::new(world, ranks, options, run).map_err(|e| refused(&e))?;
        let comm = MpiComm::world(&rank, run).map_err(|e| refused(&e))?;
        Ok(Self {
            rank: Some((rank, comm)),
        })
    }

    /// The communicator of all ranks, if this process is a rank.
    pub fn comm(&self) -> Option<MpiComm> {
        self.rank.as_ref().map(|(_, comm)| comm.clone())
    }

    /// Runs part of the program. If it panics, all other ranks are told.
    ///
    /// # Errors
    /// [`LaunchError::Panicked`].
    pub fn catch<T>(&self, f: impl FnOnce() -> T) -> Result<T, LaunchError> {
        // What the closure leaves behind is only dropped; the ranks that it shared something with are told.
        catch_unwind(AssertUnwindSafe(f)).map_err(|payload| {
            let message = panic_message(payload.as_ref());
            if let Some((rank, _)) = &self.rank {
                rank.fail(&format!("panicked: {message}"));
            }
            LaunchError::Panicked {
                rank: self.rank.as_ref().map_or(0, |(r, _)| r.world().rank()),
                message,
            }
        })
    }

    /// Ends the run: finishes what is in flight and meets the other ranks, which learn of this rank's error, if it has one
    /// that they do not know yet. Returns every rank's error.
    ///
    /// If no rank has one, what they did is compared on each mesh, by a number that all know it by: on the 64 meshes of the
    /// highest numbers. A rank tells of those that it is a member of. Costs a round in which each rank receives 512 bytes of
    /// each other.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// [`LaunchError::Failed`] with the first failure, or with the [`Mismatch`](CommError::Mismatch) of
    /// [`Past::compare`].
    pub fn end(
        self,
        status: Result<(), AgreedError>,
        did: &[(usize, Past)],
    ) -> Result<Vec<Option<AgreedError>>, LaunchError> {
        let Some((rank, comm)) = &self.rank else {
            return Ok(Vec::new());
        };
        (rank.finish(comm.group(), status, did)).map_err(LaunchError::Failed)
    }
}

/// Marks the job as failed: when this process ends, it ends the whole job.
pub fn abandon() {
    raw::set_broken(true);
}

thread_local! {
    /// How many runs of the job have begun.
    static RUNS: Cell<u64> = const { Cell::new(0) };
}

/// The communicator of the process, made once.
fn world() -> Result<World, LaunchError> {
    thread_local! {
        static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
    }
    WORLD.with_borrow_mut(|known| match known {
        Some(world) if !raw::is_broken() => Ok(world.clone()),
        _ => {
            let world = raw::initialize().map_err(|e| refused(&e))?;
            Ok(known.insert(world).clone())
        }
    })
}

fn refused(error: &CommError) -> LaunchError {
    LaunchError::Processes {
        cause: error.to_string(),
        remedy: "start the program with mpirun or srun, and call from the main thread",
    }
}
