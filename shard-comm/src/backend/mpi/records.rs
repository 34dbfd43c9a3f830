//! How the ranks of an operation agree: few ranks get every record, with which small elements travel; more of them get the summary.

use super::all_gather::AllGather;
use super::progress::Rank;
use super::record::{RECORD, Record, carried};
use super::summary::{Summary, Summing};
use super::tags::{Phase, Tags};
use crate::Result;

/// Up to this many ranks get every record, in one round.
pub(super) const FEW: usize = 8;

/// The agreement of all ranks, on its way or done.
#[derive(Debug)]
pub(super) enum Records {
    /// Every rank's record.
    Each(Box<AllGather>),
    /// What they come to, once that is known.
    Summary(Box<Summing>, Option<Summary>),
}

impl Records {
    /// Whether small elements travel with the records of these participants.
    pub(super) fn carry(tags: &Tags) -> bool {
        tags.members.len() <= FEW
    }

    /// Begins with this rank's record.
    pub(super) fn begin(rank: &Rank, tags: &Tags, record: &Record) -> Result<Self> {
        let world = rank.world();
        if Self::carry(tags) {
            let mut all = rank.spare();
            all.begin(world, tags, Phase::Records, &record.0)?;
            rank.ledger().heard(tags.members.len() - 1);
            return Ok(Self::Each(all));
        }
        let summing = Summing::new(world, tags, record.summary())?;
        Ok(Self::Summary(Box::new(summing), None))
    }

    /// Makes progress, and returns whether the ranks have heard of each other.
    pub(super) fn advance(&mut self, rank: &Rank, tags: &Tags) -> Result<bool> {
        match self {
            Self::Each(all) => all.advance(rank.world(), tags),
            Self::Summary(summing, all) => {
                if all.is_none() {
                    *all = summing.advance(rank.world(), tags)?;
                    if all.is_some() {
                        rank.ledger().heard(summing.heard());
                    }
                }
                Ok(all.is_some())
            }
        }
    }

    /// Whether all fingerprints are equal and all pairs balanced.
    pub(super) fn agree(&self, tags: &Tags) -> bool {
        match self {
            Self::Each(all) => super::record::agree(all, tags),
            Self::Summary(_, all) => all.is_some_and(|all| all.agrees()),
        }
    }

    /// Whether any rank computes checksums for its peers.
    pub(super) fn any_sums(&self, tags: &Tags) -> bool {
        match self {
            Self::Each(all) => super::record::any_sums(all, tags),
            Self::Summary(_, all) => all.is_some_and(|all| all.summed),
        }
    }

    /// The bytes that came with a participant's record, if any did.
    pub(super) fn carried(&self, tags: &Tags, participant: usize) -> Result<Option<&[u8]>> {
        match self {
            Self::Each(all) => {
                let record = all.record(tags, participant);
                match record.len() == RECORD {
                    true => carried(record),
                    false => Ok(None),
                }
            }
            Self::Summary(..) => Ok(None),
        }
    }

    /// The processes that this waits for.
    pub(super) fn peers(&self) -> Vec<usize> {
        match self {
            Self::Each(all) => all.peers(),
            Self::Summary(summing, _) => summing.peers(),
        }
    }

    /// Gives back what can be used again.
    pub(super) fn keep(self, rank: &Rank) {
        if let Self::Each(all) = self {
            rank.keep_spare(all);
        }
    }
}
