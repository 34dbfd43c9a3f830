//! The clock of a rank that is played: when it computes, when its links are busy, and what it waits for. Of a rank that is
//! rehearsed it takes what lies between two calls from the system's own clock.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::Topology;
use crate::{Work, WorkStats};

/// The cost of one op on a rank.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct OpTime {
    /// Kernel calls, copies and folds.
    pub calls: u64,
    /// The work of all of them together.
    pub work: Work,
    /// Seconds that they take.
    pub computing: f64,
    /// Seconds that the rank's links are busy.
    pub moving: f64,
    /// The part of these seconds in which the rank has nothing else to do.
    pub waiting: f64,
}

/// The clock of one rank. Its device and its communicators share it.
#[derive(Debug)]
pub(super) struct Clock {
    topology: Topology,
    /// Whether the rank does its work, which then takes as long as it takes.
    rehearses: bool,
    state: Mutex<State>,
}

/// A wait for others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meeting {
    /// The time at which it was over.
    pub(super) over: f64,
    /// How long it took.
    pub(super) waited: f64,
}

#[derive(Clone, Default, Debug)]
pub(super) struct State {
    /// The rank's present time.
    now: f64,
    /// The time at which its links are free again.
    links: f64,
    /// When the rank that is rehearsed went on with its program; `None` within a call of a communicator.
    went_on: Option<Instant>,
    pub(super) ops: BTreeMap<&'static str, OpTime>,
    /// The waits, in program order: there ranks meet.
    pub(super) meetings: Vec<Meeting>,
}

impl State {
    pub(super) fn now(&self) -> f64 {
        self.now
    }

    /// What a device that did the work says of it.
    pub(super) fn worked(&mut self, spent: &[(&'static str, WorkStats)]) {
        for (op, spent) in spent {
            let time = self.ops.entry(op).or_default();
            time.calls += spent.calls;
            time.work += spent.work;
            time.computing += spent.time.as_secs_f64();
        }
    }

    /// The time up to here counts.
    fn catch_up(&mut self) {
        if let Some(went_on) = self.went_on.take() {
            self.now += went_on.elapsed().as_secs_f64();
        }
    }
}

/// A call of a communicator, which the clock does not see: what it takes is what the topology says.
pub(super) struct Off<'a>(&'a Clock);

impl Drop for Off<'_> {
    fn drop(&mut self) {
        self.0.lock().went_on = self.0.rehearses.then(Instant::now);
    }
}

impl Clock {
    pub(super) fn new(topology: &Topology, rehearses: bool) -> Self {
        Self {
            topology: topology.clone(),
            rehearses,
            state: Mutex::default(),
        }
    }

    pub(super) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The account since the clock was [restarted](Self::restart).
    pub(super) fn read(&self) -> State {
        let mut state = self.lock().clone();
        state.catch_up();
        state
    }

    pub(super) fn restart(&self) {
        let mut state = self.lock();
        *state = State::default();
        state.went_on = self.rehearses.then(Instant::now);
    }

    /// Begins a call of a communicator.
    pub(super) fn off(&self) -> Off<'_> {
        self.lock().catch_up();
        Off(self)
    }

    /// The rank works.
    pub(super) fn compute(&self, op: &'static str, work: Work) {
        let seconds = self.topology.machine().time(op, work);
        let mut state = self.lock();
        state.now += seconds;
        let time = state.ops.entry(op).or_default();
        time.calls += 1;
        time.work += work;
        time.computing += seconds;
    }

    /// The rank posts an operation that occupies its links for `seconds`; returns when it will be over. Where ranks share
    /// memory, the operation only begins when the rank waits for it.
    pub(super) fn post(&self, op: &'static str, seconds: f64) -> Travel {
        let mut state = self.lock();
        state.ops.entry(op).or_default().moving += seconds;
        if !self.topology.flies() {
            return Travel::Takes(seconds);
        }
        state.links = state.links.max(state.now) + seconds;
        Travel::Until(state.links)
    }

    /// The rank waits for an operation to be over.
    pub(super) fn wait(&self, op: &'static str, travel: Travel) {
        let mut state = self.lock();
        let over = match travel {
            Travel::Takes(seconds) => state.now + seconds,
            Travel::Until(time) => time.max(state.now),
        };
        let waited = over - state.now;
        state.ops.entry(op).or_default().waiting += waited;
        state.now = over;
        state.meetings.push(Meeting { over, waited });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation that was posted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Travel {
    /// It is over at this time.
    Until(f64),
    /// It takes this many seconds from when it is waited for.
    Takes(f64),
}
