//! Ranks as threads of this process: the embedded default, and the proving ground for distributed code.
//!
//! Peers read each other's buffers directly, one copy per element. Every operation is a rendezvous that is checked
//! before anything moves. A rank that panics or returns early, and a program that can never go on, end in an error
//! that names the cause, on every rank: there are no timeouts, and nothing hangs.
//!
//! `slot.rs` has the rendezvous, `world.rs` what is known of every rank; `member.rs` one rank's communicator; `progress.rs`
//! its operations in flight; `baton.rs` ranks that run one at a time; `sync.rs` what they synchronise with. `README.md`, beside
//! them, says how they work together and why nothing hangs.

mod baton;
mod member;
mod progress;
mod slot;
mod sync;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

pub use baton::Schedule;
pub use member::LocalComm;

use crate::{
    DeviceFactory, DeviceKind, DeviceRef, Host, HostOptions, LaunchError, device_of, panic_message,
};
use core_affinity::CoreId;
use progress::Rank;
use world::World;

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
    pub schedule: Schedule,
    /// Where the ranks' threads run.
    pub binding: Binding,
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
            schedule: Schedule::Free,
            binding: Binding::None,
        }
    }
}

impl LocalOptions {
    /// The devices of the ranks.
    fn devices(&self, ranks: usize) -> Result<Vec<DeviceRef>, LaunchError> {
        let device = |rank| match (&self.make, self.device) {
            (Some(factory), _) => factory.make(rank),
            (None, DeviceKind::Host) => Ok(Host::with_options(self.host)),
            (None, kind) => device_of(kind, rank),
        };
        let devices: Result<_, _> = (0..ranks).map(device).collect();
        devices.map_err(LaunchError::Device)
    }
}

/// Runs `f` on `ranks` ranks, each a thread, and returns their results in rank order.
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
/// thread; [`LaunchError::NoRanks`].
pub fn run<T: Send>(
    ranks: usize,
    f: impl Fn(LocalComm) -> T + Sync,
) -> Result<Vec<T>, LaunchError> {
    run_with(ranks, &LocalOptions::default(), f)
}

/// [`run`] with options.
///
/// # Errors
/// As [`run`].
pub fn run_with<T: Send>(
    ranks: usize,
    options: &LocalOptions,
    f: impl Fn(LocalComm) -> T + Sync,
) -> Result<Vec<T>, LaunchError> {
    if ranks == 0 {
        return Err(LaunchError::NoRanks);
    }
    let devices = options.devices(ranks)?;
    let world = World::new(ranks, &options.schedule);
    let (mut refused, mut outcomes) = (None, Vec::with_capacity(ranks));
    std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(ranks);
        for ticket in tickets_of(&world, devices, options.binding) {
            let (rank, f) = (ticket.rank, &f);
            let thread = std::thread::Builder::new()
                .name(format!("rank {rank}"))
                .stack_size(options.stack_size)
                .spawn_scoped(scope, move || run_rank(ticket, f));
            match thread {
                Ok(thread) => threads.push(thread),
                // The ticket died with the closure, so the ranks already running hear of it.
                Err(source) => {
                    refused = Some(LaunchError::Spawn { rank, source });
                    break;
                }
            }
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
    let first = world.first_failure();
    let is_first = |rank: usize| first.is_none_or(|origin| origin == rank);
    let mut results = Vec::with_capacity(ranks);
    let mut panicked: Option<LaunchError> = None;
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(result) => results.push(result),
            Err(message) if panicked.is_none() || is_first(rank) => {
                panicked = Some(LaunchError::Panicked { rank, message });
            }
            Err(_) => {}
        }
    }
    panicked.map_or(Ok(results), Err)
}

fn run_rank<T>(ticket: Ticket, f: &impl Fn(LocalComm) -> T) -> Result<T, String> {
    let comm = ticket.claim();
    let rank = comm.rank_state();
    // Whatever the closure leaves behind is only dropped; what it shares with other ranks is the world, which is told.
    match catch_unwind(AssertUnwindSafe(|| f(comm))) {
        Ok(result) => {
            rank.finish();
            Ok(result)
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

/// One ticket per rank, in rank order.
pub fn tickets(ranks: usize) -> Vec<Ticket> {
    let devices = (0..ranks).map(|_| Host::new()).collect();
    tickets_of(&World::new(ranks, &Schedule::Free), devices, Binding::None)
}

/// [`tickets`] with options.
///
/// # Errors
/// [`LaunchError::Device`] if a rank cannot have its device.
pub fn tickets_with(ranks: usize, options: &LocalOptions) -> Result<Vec<Ticket>, LaunchError> {
    let devices = options.devices(ranks)?;
    let world = World::new(ranks, &options.schedule);
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

#[cfg(test)]
mod tests;
