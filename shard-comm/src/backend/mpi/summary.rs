//! What the records of all ranks come to: whether they are alike, and what they add up to. Ranks of large groups agree by this,
//! in messages and bytes that grow with the logarithm of their number.
//!
//! A participant knows the summary of those from itself on, `held` of them, and asks those that lie 1 to 7 times that number of
//! places after it for theirs: so it knows eight times as many. No participant may count twice, and few groups have a power of
//! eight members. So a second summary is kept, of as many participants as the digits of the group's size so far stand for, and
//! the last round makes it that of all.

use super::raw::{Mail, World};
use super::tags::{Phase, Tags};
use crate::Result;

/// By which factor each round multiplies the number of participants that are summed up.
const FACTOR: usize = 8;

/// What some participants' records come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Summary {
    /// The fingerprint of one of them.
    pub(super) print: [u64; 2],
    /// What they send minus what they expect.
    pub(super) balance: [u64; 2],
    /// Whether they have equal fingerprints.
    pub(super) alike: bool,
    /// Whether any computes checksums for its peers.
    pub(super) summed: bool,
}

/// Bytes of a summary in a message.
const SIZE: usize = 40;

impl Summary {
    /// The summary of both together.
    fn with(self, other: Self) -> Self {
        let [a, b] = [self.balance, other.balance];
        Self {
            print: self.print,
            balance: [a[0].wrapping_add(b[0]), a[1].wrapping_add(b[1])],
            alike: self.alike && other.alike && self.print == other.print,
            summed: self.summed || other.summed,
        }
    }

    /// Whether these ranks, if they are all, may go on: their fingerprints are equal, and every pair balanced.
    pub(super) fn agrees(&self) -> bool {
        self.alike && self.balance == [0; 2]
    }

    fn to_bytes(self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        let words = self.print.into_iter().chain(self.balance);
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        bytes[32] = u8::from(self.alike);
        bytes[33] = u8::from(self.summed);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * at..8 * at + 8]);
            u64::from_le_bytes(word)
        };
        Self {
            print: [word(0), word(1)],
            balance: [word(2), word(3)],
            alike: bytes[32] == 1,
            summed: bytes[33] == 1,
        }
    }
}

/// One participant's state: pure, so that it can be tested without processes.
#[derive(Clone, Copy, Debug)]
struct Folding {
    /// Of `held` participants, this one first.
    whole: Summary,
    held: usize,
    /// Of `ranks % held` participants, this one first.
    rest: Option<Summary>,
}

impl Folding {
    fn new(own: Summary) -> Self {
        Self {
            whole: own,
            held: 1,
            rest: None,
        }
    }

    /// How many others this participant hears in this round: those 1, 2, ... times `held` places after it.
    fn others(&self, ranks: usize) -> usize {
        let digit = ranks / self.held % FACTOR;
        match ranks / self.held / FACTOR {
            0 if self.rest.is_none() => digit.saturating_sub(1),
            0 => digit,
            _ => FACTOR - 1,
        }
    }

    /// The next state, given what the others have.
    fn next(&self, ranks: usize, others: &[Self]) -> Self {
        let digit = ranks / self.held % FACTOR;
        let sum = |first: Summary, rest: &[Self]| {
            let wholes = rest.iter().map(|o| o.whole);
            wholes.fold(first, Summary::with)
        };
        let rest = match digit {
            0 => self.rest,
            _ => {
                let whole = sum(self.whole, &others[..digit - 1]);
                let last = others.get(digit - 1).and_then(|o| o.rest);
                Some(last.map_or(whole, |last| whole.with(last)))
            }
        };
        Self {
            whole: sum(self.whole, others),
            held: self.held * FACTOR,
            rest,
        }
    }

    /// The summary of all, once it is there.
    fn done(&self, ranks: usize) -> Option<Summary> {
        self.rest.filter(|_| self.held > ranks)
    }

    fn to_bytes(self) -> [u8; 2 * SIZE] {
        let mut bytes = [0; 2 * SIZE];
        bytes[..SIZE].copy_from_slice(&self.whole.to_bytes());
        if let Some(rest) = self.rest {
            bytes[SIZE..].copy_from_slice(&rest.to_bytes());
            bytes[SIZE + 34] = 1;
        }
        bytes
    }

    fn from_bytes(bytes: &[u8], held: usize) -> Self {
        let (whole, rest) = bytes.split_at(SIZE);
        Self {
            whole: Summary::from_bytes(whole),
            held,
            rest: (rest[34] == 1).then(|| Summary::from_bytes(rest)),
        }
    }
}

/// The summary of all participants' records, on its way.
#[derive(Debug)]
pub(super) struct Summing {
    /// This participant's state, and after it those of the others that it hears.
    mail: Mail,
    state: Folding,
    /// Messages received so far.
    heard: usize,
}

impl Summing {
    /// Begins with this participant's record.
    pub(super) fn new(world: &World, tags: &Tags, own: Summary) -> Result<Self> {
        let mut summing = Self {
            mail: Mail::default(),
            state: Folding::new(own),
            heard: 0,
        };
        summing.begin_round(world, tags)?;
        Ok(summing)
    }

    fn begin_round(&mut self, world: &World, tags: &Tags) -> Result<()> {
        const BOTH: usize = 2 * SIZE;
        let (ranks, me) = (tags.members.len(), tags.index);
        let (others, held) = (self.state.others(ranks), self.state.held);
        self.mail
            .set_bytes(&[&self.state.to_bytes()], BOTH * (1 + others))?;
        for k in 1..=others {
            let from = (me + k * held) % ranks;
            let tag = tags.of(Phase::Records, from);
            let range = BOTH * k..BOTH * (k + 1);
            self.mail
                .recv_bytes(world, Some(tags.members[from]), tag, range)?;
        }
        for k in 1..=others {
            let to = (me + ranks - k * held) % ranks;
            let tag = tags.of(Phase::Records, me);
            self.mail
                .send_bytes(world, tags.members[to], tag, 0..BOTH)?;
        }
        Ok(())
    }

    /// Makes progress, and returns the summary of all once it is there.
    pub(super) fn advance(&mut self, world: &World, tags: &Tags) -> Result<Option<Summary>> {
        let ranks = tags.members.len();
        loop {
            if let Some(all) = self.state.done(ranks) {
                return Ok(Some(all));
            }
            if !self.mail.test()? {
                return Ok(None);
            }
            let heard = self.mail.bytes()[2 * SIZE..].chunks_exact(2 * SIZE);
            let held = self.state.held;
            self.heard += heard.len();
            let heard: smallvec::SmallVec<[Folding; FACTOR - 1]> = heard
                .map(|bytes| Folding::from_bytes(bytes, held))
                .collect();
            self.state = self.state.next(ranks, &heard);
            if self.state.done(ranks).is_none() {
                self.begin_round(world, tags)?;
            }
        }
    }

    /// How many messages have come.
    pub(super) fn heard(&self) -> usize {
        self.heard
    }

    /// The processes whose messages are still missing.
    pub(super) fn peers(&self) -> Vec<usize> {
        self.mail.peers()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(rank: usize) -> Summary {
        Summary {
            print: [7, 9],
            balance: [1 << rank.min(63), rank as u64],
            alike: true,
            summed: false,
        }
    }

    /// All participants' states round by round, and how many messages each sends and receives.
    fn fold(records: &[Summary]) -> (Vec<Summary>, usize) {
        let ranks = records.len();
        let mut states: Vec<Folding> = records.iter().map(|&r| Folding::new(r)).collect();
        let mut messages = 0;
        while states[0].done(ranks).is_none() {
            let others = states[0].others(ranks);
            messages += others;
            states = (0..ranks)
                .map(|me| {
                    let held = states[me].held;
                    let heard: Vec<Folding> = (1..=others)
                        .map(|k| {
                            let sent = states[(me + k * held) % ranks].to_bytes();
                            Folding::from_bytes(&sent, held)
                        })
                        .collect();
                    states[me].next(ranks, &heard)
                })
                .collect();
        }
        let done = states.iter().filter_map(|s| s.done(ranks)).collect();
        (done, messages)
    }

    /// Every record counts once, whatever the number of ranks, and all ranks get the same.
    #[test]
    fn every_record_counts_once() {
        for ranks in (1..140).chain([511, 512, 513, 577, 4095, 4096]) {
            let records: Vec<Summary> = (0..ranks).map(own).collect();
            let (all, _) = fold(&records);
            let sum = |k: usize| {
                let parts = records.iter().map(|r| r.balance[k]);
                parts.fold(0, u64::wrapping_add)
            };
            assert_eq!(all.len(), ranks);
            for got in all {
                assert_eq!(
                    (got.balance, got.alike),
                    ([sum(0), sum(1)], true),
                    "{ranks}"
                );
            }
        }
    }

    /// One rank that differs, wherever it is, is heard of by all.
    #[test]
    fn one_that_differs_is_heard_of_by_all() {
        for ranks in [2, 3, 9, 16, 17, 63, 64, 65, 100] {
            for odd in 0..ranks {
                let mut records = vec![own(0); ranks];
                records[odd].print[1] = 10;
                records[(odd + 1) % ranks].summed = true;
                let (all, _) = fold(&records);
                assert_eq!(all.len(), ranks);
                assert!(all.iter().all(|s| !s.alike && s.summed), "{odd} of {ranks}");
            }
        }
    }

    /// The messages of an agreement grow with the logarithm of the number of ranks.
    #[test]
    fn messages_are_few() {
        let messages = |ranks: usize| {
            let (mut state, mut messages) = (Folding::new(own(0)), 0);
            while state.done(ranks).is_none() {
                let others = state.others(ranks);
                messages += others;
                // What the others know does not matter for how many there are.
                state = state.next(ranks, &vec![state; others]);
            }
            messages
        };
        for ranks in 2..=16_384_usize {
            let most = 4 * ranks.next_power_of_two().ilog2() as usize;
            assert!(messages(ranks) <= most, "{} of {ranks}", messages(ranks));
        }
        assert_eq!((messages(64), messages(16_384)), (14, 31));
    }
}
