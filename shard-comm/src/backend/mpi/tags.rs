//! The tags of messages: which group, which operation, which part of it. Operations of several groups are in flight at once
//! and make progress in any order, so two messages between the same two processes that are in flight at once must not have the
//! same tag. Each MPI decides how many tags there are, at least 2^15. If a group has more operations in flight than its tags can
//! tell apart, the later ones [wait](Tags::last_gone).

use std::cell::RefCell;
use std::ffi::c_int;
use std::rc::Rc;

use super::node::Board;

/// The smallest value that an MPI may have for its greatest tag.
pub(super) const LEAST: c_int = (1 << 15) - 1;

/// The most groups that a process can be a member of at once, with as many tags as can be used.
pub(super) const CONTEXTS: usize = 1 << CONTEXT_BITS;
const CONTEXT_BITS: u32 = 10;

/// The logarithm of the most operations of a group that may be in flight at once.
const SEQUENCE_BITS: u32 = 12;

/// The bits for the parts of an operation.
const PART_BITS: u32 = 5;

/// How many exchanges of an operation have a part of their own. All later ones share the last one: a rank begins an exchange when
/// it has done with the one before, so messages of a pair arrive in the order in which they are received.
const STAGES: usize = (1 << PART_BITS) - FIRST_STAGE as usize;
const FIRST_STAGE: u32 = 16;

/// The tag of notices of failures: no group has the number 0.
pub(super) const NEWS: c_int = 0;

/// How the bits of a tag encode groups, operations and their parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TagBits {
    contexts: u32,
    sequences: u32,
}

impl TagBits {
    /// The division of tags from 0 to the greatest one, which is at least [`LEAST`].
    pub(super) fn new(greatest: c_int) -> Self {
        let tags = u64::from(greatest.max(LEAST).cast_unsigned()) + 1;
        let bits = tags.ilog2() - PART_BITS;
        let contexts = (bits * 3 / 5).min(CONTEXT_BITS);
        Self {
            contexts,
            sequences: (bits - contexts).min(SEQUENCE_BITS),
        }
    }

    /// How many context numbers there are, including 0, which no group has.
    pub(super) fn contexts(self) -> usize {
        1 << self.contexts
    }

    /// How many operations of a group, or messages of a pair, may be in flight at once.
    pub(super) fn sequences(self) -> u64 {
        1 << self.sequences
    }

    fn tag(self, context: u32, sequence: u64, part: u32) -> c_int {
        let operation = (context << self.sequences) + (sequence % self.sequences()) as u32;
        ((operation << PART_BITS) + part).cast_signed()
    }
}

/// The context numbers that are taken in this process.
#[derive(Debug)]
pub(super) struct Contexts {
    bits: TagBits,
    taken: RefCell<[bool; CONTEXTS]>,
}

impl Contexts {
    /// All numbers, free.
    pub(super) fn new(bits: TagBits) -> Rc<Self> {
        let taken = std::array::from_fn(|at| at == 0 || at >= bits.contexts());
        Rc::new(Self {
            bits,
            taken: RefCell::new(taken),
        })
    }

    pub(super) fn bits(&self) -> TagBits {
        self.bits
    }

    /// The numbers that are free, as bits.
    pub(super) fn free(&self) -> [u64; CONTEXTS / 64] {
        let taken = self.taken.borrow();
        std::array::from_fn(|word| {
            let bits = (0..64).filter(|bit| !taken[word * 64 + bit]);
            bits.fold(0, |sum, bit| sum | 1 << bit)
        })
    }

    /// Takes a number.
    pub(super) fn take(self: &Rc<Self>, number: u32) -> Rc<Context> {
        self.taken.borrow_mut()[number as usize] = true;
        Rc::new(Context {
            number,
            all: Rc::clone(self),
        })
    }
}

/// A group's context number. It stays in use as long as the group, or an operation of it, is alive: otherwise messages of that
/// operation could be taken for those of a later group.
#[derive(Debug)]
pub(super) struct Context {
    number: u32,
    all: Rc<Contexts>,
}

impl Drop for Context {
    fn drop(&mut self) {
        self.all.taken.borrow_mut()[self.number as usize] = false;
    }
}

/// The participants of an operation, and the parts of its tags.
#[derive(Clone, Debug)]
pub(super) struct Tags {
    /// Processes, by participant.
    pub(super) members: Rc<[usize]>,
    /// This rank's index among the participants.
    pub(super) index: usize,
    pub(super) context: Rc<Context>,
    pub(super) sequence: u64,
    pub(super) lane: Lane,
    /// Where the members' records are, if they share memory.
    pub(super) board: Option<Rc<Board>>,
}

/// Which operations are counted together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lane {
    /// Operations of all ranks of a group.
    All,
    /// Messages from one rank of a group, participant 0, to another rank or to itself.
    Link,
}

/// A part of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// The record of every rank, as fingerprints.
    Records,
    /// The sizes of the details, if fingerprints differ.
    Sizes,
    /// The details themselves.
    Details,
    /// The checksums that peers should find.
    Sums,
    /// Whether they found them.
    Verdicts,
    /// The elements, by exchange.
    Stage(usize),
}

impl Tags {
    /// Whether this is an earlier operation than `other`, of the same group or pair.
    pub(super) fn is_before(&self, other: &Self) -> bool {
        self.sequence < other.sequence
            && self.lane == other.lane
            && Rc::ptr_eq(&self.context, &other.context)
            && self.members == other.members
    }

    /// The last operation, counted from 0, that must be done before this one begins: it, and those before it, share tags with
    /// this operation or a later one. `None` if there is none.
    pub(super) fn last_gone(&self) -> Option<u64> {
        self.sequence.checked_sub(self.context.all.bits.sequences())
    }

    /// Whether the participants are the two ends of a message rather than a group.
    pub(super) fn is_link(&self) -> bool {
        self.lane == Lane::Link
    }

    /// The tag of a message that a participant sends.
    pub(super) fn of(&self, phase: Phase, participant: usize) -> c_int {
        let part = match (self.lane, phase) {
            (Lane::All, Phase::Records) => 0,
            (Lane::All, Phase::Sizes) => 1,
            (Lane::All, Phase::Details) => 2,
            (Lane::All, Phase::Sums) => 3,
            (Lane::All, Phase::Verdicts) => 4,
            (Lane::All, Phase::Stage(stage)) => FIRST_STAGE + stage.min(STAGES - 1) as u32,
            // A rank may send to itself, so the two ends have tags of their own.
            (Lane::Link, Phase::Records) => 5 + participant as u32,
            (Lane::Link, Phase::Sizes) => 7 + participant as u32,
            (Lane::Link, Phase::Details) => 9 + participant as u32,
            (Lane::Link, Phase::Sums) => 11 + participant as u32,
            (Lane::Link, Phase::Verdicts) => 13 + participant as u32,
            (Lane::Link, Phase::Stage(_)) => 15,
        };
        let Context { number, all } = &*self.context;
        all.bits.tag(*number, self.sequence, part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The greatest tags of Open MPI, of Open MPI over UCX, of Cray's and Intel's MPI, and the least that the standard grants.
    #[test]
    fn tags_are_those_that_there_are() {
        for bits in [31, 23, 21, 19, 15] {
            let greatest = ((1_u64 << bits) - 1) as c_int;
            let cut = TagBits::new(greatest);
            let last = cut.tag(
                cut.contexts() as u32 - 1,
                cut.sequences() - 1,
                (1 << PART_BITS) - 1,
            );
            assert!(last <= greatest, "{last} of {greatest}");
            assert!(cut.contexts() >= 64 && cut.sequences() >= 16, "{cut:?}");
            assert_ne!(cut.tag(1, 0, 0), NEWS);
        }
        assert_eq!(TagBits::new(1 << 30).contexts(), CONTEXTS);
    }
}
