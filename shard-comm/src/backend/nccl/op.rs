//! One operation on its way: the ranks agree, then its exchanges are queued on a stream, then they are done.

use std::cell::RefCell;
use std::rc::Rc;

use smallvec::SmallVec;

use super::course::Course;
use super::group::GroupHandle;
use super::landing::{Landed, Staging};
use super::wire::Wiring;
use crate::guard::PeerSums;
use crate::{Buffer, DType, Event, Handle, Result, Site};
use crate::{Stage, Target};

/// An operation in flight.
#[derive(Debug)]
pub(super) struct Op {
    /// The name of the operation, for accounts.
    pub(super) name: &'static str,
    /// What the user called, for messages.
    pub(super) called: &'static str,
    pub(super) site: Site,
    /// The number of the operation in its group, or of the message in its pair.
    pub(super) sequence: u64,
    /// The participants, as ranks of the launch; `index` is this rank's place among them.
    pub(super) members: Rc<[usize]>,
    pub(super) index: usize,
    /// For a message: the places of its two ends in the library's group of all ranks.
    pub(super) places: [usize; 2],
    pub(super) lane: Lane,
    pub(super) group: Rc<GroupHandle>,
    pub(super) dtype: Option<DType>,
    pub(super) wiring: Rc<Wiring>,
    pub(super) state: RefCell<State>,
}

/// The order that an operation belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lane {
    /// Operations of groups run in the order in which they are posted.
    Groups,
    /// Messages between two ranks.
    Messages,
    /// A message of this rank to itself.
    Myself,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) step: Step,
    /// The exchanges.
    pub(super) stages: SmallVec<[Stage; 1]>,
    /// The sources of the first exchange.
    pub(super) sources: SmallVec<[Buffer; 1]>,
    /// The point after which the sources are written, and destinations may be written.
    pub(super) posted: Event,
    /// The staging buffers of each exchange.
    pub(super) staging: SmallVec<[Staging; 1]>,
    pub(super) result: Option<Result<Option<Buffer>>>,
    pub(super) dropped: bool,
}

#[derive(Debug)]
pub(super) enum Step {
    /// The ranks tell each other what they are about to do.
    Meeting(Handle),
    /// All agree.
    Met(Option<PeerSums>),
    /// The operation's calls are being queued, one exchange after the other.
    Calling(Box<Course>),
    /// A message's calls are being queued, together with those of others.
    InBatch,
    /// Everything is queued.
    Queued(Box<Landed>),
    Done,
}

impl Op {
    /// Whether nothing moves and nothing is written at this rank.
    pub(super) fn is_silent(wiring: &Wiring, stages: &[Stage]) -> bool {
        let writes = |stage: &Stage| matches!(stage.target, Target::Write(_));
        let moves = wiring.wires.iter().any(|w| !w.outgoing.is_empty());
        !moves && !stages.iter().any(writes)
    }

    pub(super) fn is_done(&self) -> bool {
        self.state.borrow().result.is_some()
    }

    /// Whether all participants have joined the operation.
    pub(super) fn is_met(&self) -> bool {
        !matches!(self.state.borrow().step, Step::Meeting(_))
    }

    /// Whether the operation waits for elements that are on their way.
    pub(super) fn is_queued(&self) -> bool {
        matches!(self.state.borrow().step, Step::Queued(_))
    }

    /// Whether this rank has to do something, before the elements are there or when they are, that others may wait for.
    pub(super) fn needs_host(&self) -> bool {
        match &self.state.borrow().step {
            Step::Calling(_) | Step::InBatch => true,
            Step::Queued(landed) => landed.is_checked(),
            _ => false,
        }
    }

    /// Ends the operation.
    pub(super) fn end(&self, result: Result<Option<Buffer>>) {
        let mut state = self.state.borrow_mut();
        state.step = Step::Done;
        state.stages.clear();
        state.staging.clear();
        state.sources.clear();
        state.result.get_or_insert(result);
    }
}
