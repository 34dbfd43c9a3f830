//! Ranks as threads of this process: the embedded default, and the proving ground for distributed code.
//!
//! Peers read each other's buffers directly, one copy per element. Every operation is a rendezvous that is checked
//! before anything moves. A rank that panics or returns early, and a program that can never go on, end in an error
//! that names the cause, on every rank, without any timeout. A rank that others wait for and that computes for ever, or waits for
//! something else than a communicator, looks like one that is slow: after 30 seconds of waiting a warning of `tracing` says who
//! waits where, and [`LocalOptions::timeout`] makes it an error.
//!
//! `slot.rs` has the rendezvous, `world.rs` what is known of every rank; `member.rs` one rank's communicator; `progress.rs`
//! its operations in flight, which `flights.rs` keeps; `watch.rs` waits that last too long; `baton.rs` ranks that run one at a time; `by_rank.rs` what they return; `sync.rs` what they
//! synchronise with. `README.md`, beside
//! them, says how they work together and why nothing hangs.

mod baton;
mod by_rank;
mod flights;
mod member;
mod progress;
mod slot;
mod sync;
mod watch;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock, mpsc};
use std::time::Duration;

pub use baton::Interleaving;
#[doc(hidden)]
pub use by_rank::ByRank;
pub use member::LocalComm;
#[doc(hidden)]
pub use watch::Patience;

use crate::{
    DeviceFactory, DeviceKind, DeviceRef, Host, HostOptions, LaunchError, device_of, panic_message,
};
use core_affinity::CoreId;
use progress::Rank;
use watch::Watch;
use world::World;

/// After how long a wait is told of.
const WARNING: Duration = Duration::from_secs(30);

/// How the ranks of a launch are set up.
///
/// ```
/// use shard_comm::{local, DeviceKind};
/// let options = local::LocalOptions { device: DeviceKind::Test, ..Default::default() };
/// let kinds = local::run_with(2, &options, |comm| comm.device().kind()).unwrap();
/// assert_eq!(kinds, [DeviceKind::Test, DeviceKind::Test]);
/// # use shard_comm::Communicator;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalOptions {
    /// The device of every rank, each its own instance.
    pub device: DeviceKind,
    /// Makes the devices, if they are to be others than [`device`](Self::device) names: devices of another crate, or
    /// different ones.
    pub make: Option<DeviceFactory>,
    /// How a host device keeps its memory.
    pub host: HostOptions,
    /// Stack bytes of each rank's thread; 8 MiB unless said otherwise.
    pub stack_size: usize,
    /// Whether all ranks run at once, or one at a time in an order that can be had again.
    pub interleaving: Interleaving,
    /// Where the ranks' threads run.
    pub binding: Binding,
    /// How long a rank of a [launch](run_with) waits for others before that is an error, on all ranks: for ranks that loop, or are
    /// held up by a lock that a waiting rank has. Unlike deadlocks these cannot be told from slow ones, so `None`, the default,
    /// waits for ever, with a warning after 30 seconds.
    pub timeout: Option<Duration>,
}

/// Where ranks run that are threads.
///
/// What `mpirun --bind-to` says for processes. On a machine that does nothing else, ranks that stay where they are meet in
/// steady time: left to itself the system sometimes puts two ranks on one core while another idles, for milliseconds at a
/// time (on a machine of two cores a barrier then took 1.7 us instead of 0.4). A machine that is shared, with
/// other launches of the same program for a start, is better left to the system.
///
/// ```
/// use shard_comm::local::{self, Binding, LocalOptions};
/// let options = LocalOptions { binding: Binding::Core, ..Default::default() };
/// let met = local::run_with(4, &options, |comm| comm.barrier().is_ok()).unwrap();
/// assert_eq!(met, [true; 4]);
/// # use shard_comm::Communicator;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Binding {
    /// Wherever the system puts them.
    #[default]
    None,
    /// Each on one core of those the process may use: a core for each rank, or neighbours together in equal shares. Where the
    /// system cannot do that, nothing is done.
    Core,
}

impl Binding {
    /// The core of each rank.
    fn cores(self, ranks: usize) -> Vec<Option<CoreId>> {
        let cores = match self {
            Self::None => Vec::new(),
            Self::Core => core_affinity::get_core_ids().unwrap_or_default(),
        };
        let of = |rank| {
            let share = cores.len().min(ranks);
            cores.get(rank * share / ranks).copied()
        };
        (0..ranks).map(of).collect()
    }
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self {
            device: DeviceKind::Host,
            make: None,
            host: HostOptions::default(),
            stack_size: 8 << 20,
            interleaving: Interleaving::Free,
            binding: Binding::None,
            timeout: None,
        }
    }
}

impl LocalOptions {
    /// The devices of the ranks.
    fn devices(&self, ranks: usize) -> Result<Vec<DeviceRef>, LaunchError> {
        check_ranks(ranks)?;
        let device = |rank| match (&self.make, self.device) {
            (Some(factory), _) => factory.make(rank),
            (None, DeviceKind::Host) => Ok(Host::with_options(self.host)),
            (None, kind) => device_of(kind, rank),
        };
        let devices: Result<_, _> = (0..ranks).map(device).collect();
        devices.map_err(LaunchError::Device)
    }
}

/// Runs `f` on `ranks` ranks, each a thread, and returns their results in rank order. The threads are this process's, also where a
/// launcher such as `mpirun` has started several processes: each of them then has all ranks.
///
/// ```
/// use shard_comm::{local, Monoid};
/// let sums = local::run(4, |comm| -> Result<f64, shard_comm::CommError> {
///     let mine = comm.device().upload_slice(&[1.5f64])?;
///     Ok(comm.all_reduce(&mine, Monoid::SUM)?.as_slice::<f64>()?[0])
/// }).unwrap();
/// assert_eq!(sums, [Ok(6.0), Ok(6.0), Ok(6.0), Ok(6.0)]);
/// ```
///
/// # Errors
/// [`LaunchError::Panicked`] if a rank panicked, naming the first; [`LaunchError::Spawn`] if the system refuses a
/// thread; [`LaunchError::NoRanks`]; [`LaunchError::TooMany`].
pub fn run<T: Send>(
    ranks: usize,
    f: impl Fn(LocalComm) -> T + Sync,
) -> Result<Vec<T>, LaunchError> {
    run_with(ranks, &LocalOptions::default(), f)
}

/// [`run`] with options.
///
/// With a [`timeout`](LocalOptions::timeout) nothing hangs:
///
/// ```
/// use shard_comm::{CommError, local};
/// use std::{sync::Mutex, time::Duration};
/// let options = local::LocalOptions { timeout: Some(Duration::from_millis(50)), ..Default::default() };
/// let lock = Mutex::new(());
/// // Who has the lock waits for the other, and the other for the lock.
/// let errors = local::run_with(2, &options, |comm| {
///     let _held = lock.lock().unwrap_or_else(|e| e.into_inner());
///     comm.barrier().unwrap_err()
/// })
/// .unwrap();
/// let CommError::TimedOut(report) = &errors[0] else { panic!("{errors:?}") };
/// assert_eq!((report.wait.op, &report.wait.missing[..]), ("barrier", &[1 - report.wait.rank][..]));
/// assert!(report.to_string().contains("is not waiting; it has made no call"), "{report}");
/// ```
///
/// A rank that makes no call after a failure, for as long as the timeout again, cannot be stopped, and as `f` may borrow what
/// its caller has, it cannot be left behind either. Then the process prints the failure to its standard error and ends, with the
/// exit code 1, as the processes of a job do.
/// [Tickets](tickets) are for programs that would rather keep such a thread.
///
/// # Errors
/// As [`run`].
pub fn run_with<T: Send>(
    ranks: usize,
    options: &LocalOptions,
    f: impl Fn(LocalComm) -> T + Sync,
) -> Result<Vec<T>, LaunchError> {
    let patience = Patience {
        warning: WARNING,
        timeout: options.timeout,
        grace: options.timeout,
    };
    run_watched(ranks, options, patience, f)
}

/// As [`run_with`], with what the tests of this crate look at beside what is public: how long ranks may wait before it is told of, and
/// how long after a failure. The options' timeout is not looked at.
#[doc(hidden)]
pub fn run_watched<T: Send>(
    ranks: usize,
    options: &LocalOptions,
    patience: Patience,
    f: impl Fn(LocalComm) -> T + Sync,
) -> Result<Vec<T>, LaunchError> {
    let results = ByRank::default();
    run_all(ranks, options, patience, &|comm| {
        let rank = comm.rank();
        results.keep(rank, f(comm));
    })?;
    Ok(results.into_values())
}

/// Runs all ranks to their ends. Not generic: programs are many, and each would compile it for each of theirs.
fn run_all(
    ranks: usize,
    options: &LocalOptions,
    patience: Patience,
    f: &(dyn Fn(LocalComm) + Sync),
) -> Result<(), LaunchError> {
    if ranks == 0 {
        return Err(LaunchError::NoRanks);
    }
    let devices = options.devices(ranks)?;
    let world = World::new(ranks, &options.interleaving);
    let mut watch = Watch::new(&world, patience);
    let (mut refused, mut outcomes) = (None, Vec::with_capacity(ranks));
    std::thread::scope(|scope| {
        // Who still has the one end is not done yet.
        let (alive, all) = mpsc::channel();
        let mut threads = Vec::with_capacity(ranks);
        for ticket in tickets_of(&world, devices, options.binding) {
            let (rank, alive) = (ticket.rank, alive.clone());
            let thread = std::thread::Builder::new()
                .name(format!("rank {rank}"))
                .stack_size(options.stack_size)
                .spawn_scoped(scope, move || {
                    let _alive = alive;
                    run_rank(ticket, f)
                });
            match thread {
                Ok(thread) => threads.push(thread),
                // The ticket died with the closure, so the ranks already running hear of it.
                Err(source) => {
                    refused = Some(LaunchError::Spawn { rank, source });
                    break;
                }
            }
        }
        drop(alive);
        if !watch.until_gone(&all) {
            end_without(&world, threads.iter().map(|thread| !thread.is_finished()));
        }
        outcomes.extend(
            threads
                .into_iter()
                .map(|t| t.join().unwrap_or_else(|p| Err(panic_message(p.as_ref())))),
        );
    });
    if let Some(error) = refused {
        return Err(error);
    }
    panicked(outcomes, world.first_failure())
}

/// The panic of the rank that failed first, if one did, or else of the lowest.
fn panicked(outcomes: Vec<Result<(), String>>, first: Option<usize>) -> Result<(), LaunchError> {
    let is_first = |rank: usize| first.is_none_or(|origin| origin == rank);
    let mut panicked = Ok(());
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Err(message) if panicked.is_ok() || is_first(rank) => {
                panicked = Err(LaunchError::Panicked { rank, message });
            }
            _ => {}
        }
    }
    panicked
}

/// Ends the process, because some ranks do not return.
fn end_without(world: &World, running: impl Iterator<Item = bool>) -> ! {
    let lost: Vec<usize> = (running.enumerate())
        .filter_map(|(rank, runs)| runs.then_some(rank))
        .collect();
    let cause = world
        .root()
        .map_or_else(String::new, |root| root.to_string());
    eprintln!("{cause}\nranks {lost:?} made no call since and cannot be stopped; the process ends");
    std::process::exit(1)
}

fn run_rank(ticket: Ticket, f: &dyn Fn(LocalComm)) -> Result<(), String> {
    let comm = ticket.claim();
    let rank = comm.rank_state();
    // Whatever the closure leaves behind is only dropped; what it shares with other ranks is the world, which is told.
    match catch_unwind(AssertUnwindSafe(|| f(comm))) {
        Ok(()) => {
            rank.finish();
            Ok(())
        }
        Err(payload) => {
            let message = panic_message(payload.as_ref());
            rank.panicked(&message);
            Err(message)
        }
    }
}

/// The right to be one rank, to be claimed inside that rank's thread.
///
/// For programs that own their threads; [`run`] does all this by itself. A rank ends when its last communicator and
/// handle are dropped; a ticket dropped unclaimed ends its rank too.
///
/// ```
/// use shard_comm::local;
/// let threads: Vec<_> = local::tickets(2)
///     .into_iter()
///     .map(|ticket| std::thread::spawn(move || ticket.claim().barrier().is_ok()))
///     .collect();
/// assert!(threads.into_iter().all(|t| t.join().unwrap()));
/// ```
#[derive(Debug)]
pub struct Ticket {
    world: Arc<World>,
    rank: usize,
    device: DeviceRef,
    core: Option<CoreId>,
    claimed: bool,
}

/// One ticket per rank, in rank order: as many as there are to be threads. Who is told the number by somebody else asks
/// [`tickets_with`], which says if they are too many.
pub fn tickets(ranks: usize) -> Vec<Ticket> {
    let devices = (0..ranks).map(|_| Host::new()).collect();
    tickets_of(
        &World::new(ranks, &Interleaving::Free),
        devices,
        Binding::None,
    )
}

/// [`tickets`] with options.
///
/// # Errors
/// [`LaunchError::Device`] if a rank cannot have its device; [`LaunchError::TooMany`].
pub fn tickets_with(ranks: usize, options: &LocalOptions) -> Result<Vec<Ticket>, LaunchError> {
    let devices = options.devices(ranks)?;
    let world = World::new(ranks, &options.interleaving);
    Ok(tickets_of(&world, devices, options.binding))
}

fn tickets_of(world: &Arc<World>, devices: Vec<DeviceRef>, binding: Binding) -> Vec<Ticket> {
    let cores = binding.cores(devices.len());
    let ticket = |(rank, (device, core))| Ticket {
        world: Arc::clone(world),
        rank,
        device,
        core,
        claimed: false,
    };
    let parts = devices.into_iter().zip(cores);
    parts.enumerate().map(ticket).collect()
}

impl Ticket {
    /// The rank this is.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Becomes that rank, on this thread, which is bound to a core if the options say so.
    pub fn claim(mut self) -> LocalComm {
        self.claimed = true;
        if let Some(core) = self.core {
            // A wish: where it cannot be had, the rank runs wherever the system puts it.
            core_affinity::set_for_current(core);
        }
        self.world.begin(self.rank);
        let rank = Rank::new(Arc::clone(&self.world), self.rank, Arc::clone(&self.device));
        LocalComm::world(rank)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.claimed {
            self.world.end(self.rank);
        }
    }
}

/// Whether this process has threads for so many ranks.
///
/// # Errors
/// [`LaunchError::TooMany`].
pub(crate) fn check_ranks(ranks: usize) -> Result<(), LaunchError> {
    match *MOST_THREADS {
        most if ranks > most => Err(LaunchError::TooMany { ranks, most }),
        _ => Ok(()),
    }
}

/// How many ranks this process has threads for. Where the system refuses a thread the memory around its stack, it ends the
/// process instead of reporting an error, so that is not tried. Read once.
static MOST_THREADS: LazyLock<usize> = LazyLock::new(|| {
    /// Pieces of memory that a thread maps: its stack, one for signals, and a guard before each.
    const MAPPED: usize = 4;
    /// Where the system does not tell.
    const USUAL: usize = 8192;
    let limit = |path: &str| {
        std::fs::read_to_string(path)
            .ok()?
            .trim()
            .parse::<usize>()
            .ok()
    };
    let mapped = limit("/proc/sys/vm/max_map_count").map(|n| n / MAPPED);
    let threads = limit("/proc/sys/kernel/threads-max");
    (mapped.into_iter().chain(threads).min()).map_or(USUAL, |most| most / 8 * 7)
});
