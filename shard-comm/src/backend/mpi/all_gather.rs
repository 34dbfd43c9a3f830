//! An all-gather of records that uses only messages between two processes, so that it makes progress whenever the process
//! carries on its operations.
//!
//! In each round a participant passes all records it holds to seven others, which lie 1 to 7 times that number of places
//! before it: up to 8 participants need one round, up to 64 two.

use super::raw::{Mail, World};
use super::tags::{Phase, Tags};
use crate::Result;

/// By which factor each round multiplies the number of records.
pub(super) const FACTOR: usize = 8;

/// One exchange of records of equal size.
#[derive(Debug)]
pub(super) struct AllGather {
    /// Record `k` is the one of the participant `k` places after this one.
    mail: Mail,
    size: usize,
    /// The size of this participant's own record, if others may have another.
    sent: usize,
    held: usize,
    phase: Phase,
    flying: bool,
}

impl AllGather {
    /// Begins an all-gather with this participant's record.
    pub(super) fn new(world: &World, tags: &Tags, phase: Phase, record: &[u8]) -> Result<Self> {
        let mut all_gather = Self::idle();
        all_gather.begin(world, tags, phase, record)?;
        Ok(all_gather)
    }

    /// An all-gather that has not begun.
    pub(super) fn idle() -> Self {
        Self {
            mail: Mail::default(),
            size: 0,
            sent: 0,
            held: 1,
            phase: Phase::Records,
            flying: false,
        }
    }

    /// Begins with this participant's record; an all-gather that is done begins again.
    fn begin(&mut self, world: &World, tags: &Tags, phase: Phase, record: &[u8]) -> Result<()> {
        self.mail
            .set_bytes(&[record], record.len() * tags.members.len())?;
        (self.size, self.held, self.phase) = (record.len(), 1, phase);
        self.sent = record.len();
        self.begin_round(world, tags)
    }

    /// Begins with this participant's record of an operation, in parts; those of others may have any length up to `most`. One round
    /// must be enough: of records that are not as long as they can be no others are passed on.
    pub(super) fn begin_few(
        &mut self,
        world: &World,
        tags: &Tags,
        record: &[&[u8]],
        most: usize,
    ) -> Result<()> {
        self.mail.set_bytes(record, most * tags.members.len())?;
        (self.size, self.held, self.phase) = (most, 1, Phase::Records);
        self.sent = record.iter().map(|part| part.len()).sum();
        self.begin_round(world, tags)
    }

    fn begin_round(&mut self, world: &World, tags: &Tags) -> Result<()> {
        let (ranks, me, held, size) = (tags.members.len(), tags.index, self.held, self.size);
        for ahead in (held..ranks).step_by(held).take(FACTOR - 1) {
            let from = (me + ahead) % ranks;
            let count = held.min(ranks - ahead);
            let range = size * ahead..size * (ahead + count);
            let tag = tags.of(self.phase, from);
            self.mail
                .recv_bytes(world, Some(tags.members[from]), tag, range)?;
        }
        for ahead in (held..ranks).step_by(held).take(FACTOR - 1) {
            let to = (me + ranks - ahead) % ranks;
            let count = held.min(ranks - ahead);
            let bytes = if count == 1 { self.sent } else { size * count };
            let tag = tags.of(self.phase, me);
            self.mail
                .send_bytes(world, tags.members[to], tag, 0..bytes)?;
        }
        self.flying = held < ranks;
        Ok(())
    }

    /// Makes progress, and returns whether all records are there.
    pub(super) fn advance(&mut self, world: &World, tags: &Tags) -> Result<bool> {
        while self.flying {
            if !self.mail.test()? {
                return Ok(false);
            }
            self.held = (self.held * FACTOR).min(tags.members.len());
            self.begin_round(world, tags)?;
        }
        Ok(true)
    }

    /// The record of a participant, once all are there.
    pub(super) fn record(&self, tags: &Tags, participant: usize) -> &[u8] {
        let ahead = match participant.checked_sub(tags.index) {
            Some(ahead) => ahead,
            None => participant + tags.members.len() - tags.index,
        };
        let at = ahead * self.size;
        self.mail.bytes().get(at..at + self.size).unwrap_or(&[])
    }

    /// The processes whose messages are still missing.
    pub(super) fn peers(&self) -> Vec<usize> {
        self.mail.peers()
    }
}
