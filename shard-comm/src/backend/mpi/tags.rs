//! The tags of messages: which group, which operation, which part of it. Operations of several groups fly at once
//! and go on in any order, so no two messages between two processes that fly at once may have the same.

use std::ffi::c_int;
use std::rc::Rc;

/// How many groups a process can be a member of at once. The last number is for notices of failures.
pub(super) const CONTEXTS: usize = 1 << 10;

/// How many operations of a group may fly at once.
const SEQUENCES: u64 = 1 << 12;

/// How many parts an operation has.
const PARTS: u32 = 1 << 5;

/// How many exchanges an operation can have.
pub(super) const STAGES: usize = PARTS as usize - FIRST_STAGE as usize;
const FIRST_STAGE: u32 = 16;

/// The tag of notices of failures.
pub(super) const NEWS: c_int = tag(CONTEXTS as u32 - 1, 0, 0);

/// The greatest tag in use, which not every MPI may allow.
pub(super) const GREATEST: c_int = tag(CONTEXTS as u32 - 1, SEQUENCES - 1, PARTS - 1);

/// Who takes part in an operation, and how its messages are told from others.
#[derive(Clone, Debug)]
pub(super) struct Tags {
    /// Processes, by participant.
    pub(super) members: Rc<[usize]>,
    /// Which participant this is.
    pub(super) index: usize,
    pub(super) context: u32,
    pub(super) sequence: u64,
    pub(super) lane: Lane,
}

/// What operations are counted together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lane {
    /// Those of all ranks of a group.
    All,
    /// Messages from one rank of a group, participant 0, to another, or itself.
    Link,
}

/// A part of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// What every rank says of its part, as fingerprints.
    Records,
    /// How much there is to tell where those differ.
    Sizes,
    /// And all of that.
    Details,
    /// What peers should find.
    Sums,
    /// Whether they did.
    Verdicts,
    /// The elements, by exchange.
    Stage(usize),
}

impl Tags {
    /// Whether these are of an operation that ranks count before that of others: of the same group or pair.
    pub(super) fn is_before(&self, other: &Self) -> bool {
        (self.context, self.lane) == (other.context, other.lane)
            && self.sequence < other.sequence
            && self.members == other.members
    }

    /// Whether participants are the two ends of a message rather than a group.
    pub(super) fn is_link(&self) -> bool {
        self.lane == Lane::Link
    }

    /// The tag of what a participant sends.
    pub(super) fn of(&self, phase: Phase, participant: usize) -> c_int {
        let part = match (self.lane, phase) {
            (Lane::All, Phase::Records) => 0,
            (Lane::All, Phase::Sizes) => 1,
            (Lane::All, Phase::Details) => 2,
            (Lane::All, Phase::Sums) => 3,
            (Lane::All, Phase::Verdicts) => 4,
            (Lane::All, Phase::Stage(stage)) => FIRST_STAGE + stage.min(STAGES - 1) as u32,
            // A rank may write to itself: the two ends have tags of their own.
            (Lane::Link, Phase::Records) => 5 + participant as u32,
            (Lane::Link, Phase::Sizes) => 7 + participant as u32,
            (Lane::Link, Phase::Details) => 9 + participant as u32,
            (Lane::Link, Phase::Sums) => 11 + participant as u32,
            (Lane::Link, Phase::Verdicts) => 13 + participant as u32,
            (Lane::Link, Phase::Stage(_)) => 15,
        };
        tag(self.context, self.sequence % SEQUENCES, part)
    }
}

const fn tag(context: u32, sequence: u64, part: u32) -> c_int {
    ((context * SEQUENCES as u32 + sequence as u32) * PARTS + part) as c_int
}
