//! The clock of a rank that is played: when it computes, when its links are busy, and what it waits for.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Topology;
use crate::Work;

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
    state: Mutex<State>,
}

#[derive(Clone, Default, Debug)]
pub(super) struct State {
    /// The rank's present time.
    now: f64,
    /// The time at which its links are free again.
    links: f64,
    pub(super) ops: BTreeMap<&'static str, OpTime>,
    /// The time at which each wait was over, in program order: there ranks meet.
    pub(super) meetings: Vec<f64>,
}

impl State {
    pub(super) fn now(&self) -> f64 {
        self.now
    }
}

impl Clock {
    pub(super) fn new(topology: &Topology) -> Self {
        Self {
            topology: topology.clone(),
            state: Mutex::default(),
        }
    }

    pub(super) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The account since the clock was [restarted](Self::restart).
    pub(super) fn read(&self) -> State {
        self.lock().clone()
    }

    pub(super) fn restart(&self) {
        *self.lock() = State::default();
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
        state.meetings.push(over);
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
