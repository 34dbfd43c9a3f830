//! Any number of ranks on a laptop: one rank of a group is *played*, on a device that holds no data, and a clock says when it
//! would compute and what it would wait for.
//!
//! The program that runs is the real one: the same layouts, plans, strategies and kernel calls as on the ranks themselves,
//! because all of these are functions of shapes and never of data. The part that is not real is [`Topology`]: how fast a rank
//! computes, and what the links between ranks cost. So bytes, messages, rounds and peak memory are exact, and times are as good
//! as the topology; `CostModel::measure` and [`Machine::calibrated`] derive it from a machine at hand.
//!
//! ```
//! use shard_comm::{Communicator, LinkCost, Machine, Monoid, Topology};
//! use shard_comm::simulated::SimulatedComm;
//! // 2048 nodes of eight: what does an all-reduce of 64 MiB cost rank 5?
//! let machine = Machine::new(60e12, 3e12);
//! let cluster = Topology::network(16_384, machine, LinkCost::new(1e-6, 450e9)).nodes_of(8, LinkCost::new(2e-6, 50e9));
//! let comm = SimulatedComm::new(&cluster, 5)?;
//! let mine = comm.device().alloc(shard_comm::DType::F32, 1 << 24)?.freeze();
//! let sum = comm.all_reduce(&mine, Monoid::SUM)?;
//! assert_eq!(sum.len(), 1 << 24);
//!
//! let played = comm.played();
//! assert_eq!(played.moved.bytes, 2 * 16_383 * 4096);
//! // Halves to and from one rank after the other, and back the same way.
//! assert_eq!(played.moved.messages, 2 * 14);
//! // There is nothing to read.
//! assert!(sum.to_vec::<f32>().is_err());
//! # Ok::<(), shard_comm::CommError>(())
//! ```
//!
//! Things that one rank cannot know by itself are not simulated: ranks that disagree, and sizes that depend on the data, which
//! give [`NoData`](crate::DeviceError::NoData) where they are read. Other ranks are assumed to be where this one is; to see the
//! busiest rank, play several and put them [together](Played::in_step).

mod clock;
mod member;
mod phantom;

use std::fmt;
use std::sync::Arc;

pub use clock::OpTime;
pub use member::SimulatedComm;

use crate::{DeviceKind, DeviceRef, LedgerSnapshot, LinkCost, Machine, Topology};
use clock::{Clock, Meeting, State};
use phantom::Phantom;

/// The kind of device that counts bytes and holds no data.
pub const PHANTOM: DeviceKind = DeviceKind::Other("phantom");

/// A phantom device without a clock, for ranks that are threads: bytes are counted, nothing takes time.
pub(crate) fn idle_device() -> DeviceRef {
    let machine = Machine::new(f64::INFINITY, f64::INFINITY);
    let link = LinkCost::new(0.0, f64::INFINITY);
    let clock = Clock::new(&Topology::shared_memory(1, machine, link), false);
    Phantom::on(&Arc::new(clock))
}

/// The account of a rank that was played.
#[derive(Clone, Debug)]
pub struct Played {
    /// The rank.
    pub rank: usize,
    /// Seconds that its program takes.
    pub seconds: f64,
    /// The most bytes that it held.
    pub peak: usize,
    /// What it sent and received.
    pub moved: LedgerSnapshot,
    /// Bytes that it received from ranks of other nodes.
    pub crossed: u64,
    /// The cost of each op, by name.
    pub ops: Vec<(&'static str, OpTime)>,
    meetings: Vec<Meeting>,
}

impl Played {
    fn new(rank: usize, state: State, peak: usize, moved: LedgerSnapshot, crossed: u64) -> Self {
        Self {
            rank,
            seconds: state.now(),
            peak,
            moved,
            crossed,
            ops: state.ops.into_iter().collect(),
            meetings: state.meetings,
        }
    }

    /// All ops together.
    pub fn total(&self) -> OpTime {
        let add = |sum: OpTime, (_, op): &(&str, OpTime)| OpTime {
            calls: sum.calls + op.calls,
            work: sum.work + op.work,
            computing: sum.computing + op.computing,
            moving: sum.moving + op.moving,
            waiting: sum.waiting + op.waiting,
        };
        self.ops.iter().fold(OpTime::default(), add)
    }

    /// Seconds of the program if these ranks wait for each other wherever they communicate: between two such places the one
    /// that takes longest determines the time. That is at least what each takes alone, and more where different ranks are the
    /// busiest in turn. If the ranks do not communicate at the same places, it is the longest time of a rank alone.
    pub fn in_step(played: &[Self]) -> f64 {
        Self::in_turns(played, 0.0)
    }

    /// As [`in_step`](Self::in_step), of ranks that take turns on cores, so many on each. Between two places where they meet, a core
    /// has the work of all of its ranks to do, of which those that were played are an example; waiting takes them no longer than
    /// one, since it is measured with all of them at it.
    pub fn in_turns(played: &[Self], ranks_per_core: f64) -> f64 {
        let most = |f: &dyn Fn(&Self) -> f64| played.iter().map(f).fold(0.0, f64::max);
        let legs = |took: &dyn Fn(&Self) -> f64, waited: &dyn Fn(&Self) -> f64| {
            let works: f64 = played.iter().map(|p| took(p) - waited(p)).sum();
            let in_turns = works / played.len() as f64 * ranks_per_core + most(waited);
            most(took).max(in_turns)
        };
        let Some(first) = played.first() else {
            return 0.0;
        };
        let places = first.meetings.len();
        if played.iter().any(|p| p.meetings.len() != places) {
            return legs(&|p| p.seconds, &|p| p.total().waiting);
        }
        let end = |p: &Self, i: usize| p.meetings.get(i).map_or(p.seconds, |m| m.over);
        let leg = |i: usize| {
            let took = |p: &Self| end(p, i) - i.checked_sub(1).map_or(0.0, |before| end(p, before));
            legs(&took, &|p| p.meetings.get(i).map_or(0.0, |m| m.waited))
        };
        (0..=places).map(leg).sum()
    }
}

impl fmt::Display for Played {
    /// A line per op, the longest first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ops = self.ops.clone();
        ops.sort_by(|a, b| {
            let time = |op: &OpTime| op.computing + op.waiting;
            time(&b.1).total_cmp(&time(&a.1))
        });
        writeln!(
            f,
            "rank {}: {:.3} ms, {} bytes at most, {} bytes in {} messages and {} rounds",
            self.rank,
            1e3 * self.seconds,
            self.peak,
            self.moved.bytes,
            self.moved.messages,
            self.moved.rounds
        )?;
        writeln!(
            f,
            "{:<24} {:>6} {:>12} {:>10} {:>10}",
            "op", "calls", "compute ms", "move ms", "wait ms"
        )?;
        for (name, op) in ops {
            writeln!(
                f,
                "{name:<24} {:>6} {:>12.3} {:>10.3} {:>10.3}",
                op.calls,
                1e3 * op.computing,
                1e3 * op.moving,
                1e3 * op.waiting
            )?;
        }
        Ok(())
    }
}
