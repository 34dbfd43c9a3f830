//! The tags of messages: which group, which operation, which part of it. Operations of several groups fly at once
//! and go on in any order, so no two messages between two processes that fly at once may have the same. How many tags there
//! are, each MPI says: from 2^15 on. Where a group has more operations in flight than its tags can tell apart, the later ones
//! [wait](Tags::last_gone).

use std::cell::RefCell;
use std::ffi::c_int;
use std::rc::Rc;

/// The least greatest tag that an MPI may have.
pub(super) const LEAST: c_int = (1 << 15) - 1;

/// How many groups a process can be a member of at once, at most: as many as any number of tags gives.
pub(super) const CONTEXTS: usize = 1 << CONTEXT_BITS;
const CONTEXT_BITS: u32 = 10;

/// How many operations of a group may fly at once, at most.
const SEQUENCE_BITS: u32 = 12;

/// How many parts an operation has.
const PART_BITS: u32 = 5;

/// How many exchanges an operation can have.
pub(super) const STAGES: usize = (1 << PART_BITS) - FIRST_STAGE as usize;
const FIRST_STAGE: u32 = 16;

/// The tag of notices of failures: no group has the number 0.
pub(super) const NEWS: c_int = 0;

/// How the tags that there are stand for groups, operations and their parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TagBits {
    contexts: u32,
    sequences: u32,
}

impl TagBits {
    /// Of tags from 0 to the greatest one, which is at least [`LEAST`].
    pub(super) fn new(greatest: c_int) -> Self {
        let tags = u64::from(greatest.max(LEAST).cast_unsigned()) + 1;
        let bits = tags.ilog2() - PART_BITS;
        let contexts = (bits * 3 / 5).min(CONTEXT_BITS);
        Self {
            contexts,
            sequences: (bits - contexts).min(SEQUENCE_BITS),
        }
    }

    /// How many numbers of groups there are, 0 included, which none has.
    pub(super) fn contexts(self) -> usize {
        1 << self.contexts
    }

    /// How many operations of a group, or messages of a pair, may fly at once.
    pub(super) fn sequences(self) -> u64 {
        1 << self.sequences
    }

    fn tag(self, context: u32, sequence: u64, part: u32) -> c_int {
        let operation = (context << self.sequences) + (sequence % self.sequences()) as u32;
        ((operation << PART_BITS) + part).cast_signed()
    }
}

/// Which groups' numbers are taken in this process.
#[derive(Debug)]
pub(super) struct Contexts {
    bits: TagBits,
    taken: RefCell<[bool; CONTEXTS]>,
}

impl Contexts {
    /// All are free.
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

    /// Numbers that are free, as bits.
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

/// A group's number. It is in use as long as the group is, or an operation of it: messages of that could be taken for those
/// of a later group.
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

/// Who takes part in an operation, and how its messages are told from others.
#[derive(Clone, Debug)]
pub(super) struct Tags {
    /// Processes, by participant.
    pub(super) members: Rc<[usize]>,
    /// Which participant this is.
    pub(super) index: usize,
    pub(super) context: Rc<Context>,
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
        self.sequence < other.sequence
            && self.lane == other.lane
            && Rc::ptr_eq(&self.context, &other.context)
            && self.members == other.members
    }

    /// The first operation, counted from 0, that must not be in flight any more when this one begins: it and all before it
    /// have tags that this one or a later one has too. `None` if there is none.
    pub(super) fn last_gone(&self) -> Option<u64> {
        self.sequence.checked_sub(self.context.all.bits.sequences())
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
        let Context { number, all } = &*self.context;
        all.bits.tag(*number, self.sequence, part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The greatest tags of Open MPI, of Open MPI over UCX, of Cray's and Intel's MPI, and what the standard grants.
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
