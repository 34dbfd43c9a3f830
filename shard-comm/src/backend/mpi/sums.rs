//! Checksums of what moves: each rank tells its peers what they should find, and all ranks learn whether they did.
//!
//! Checksums and verdicts are rounds of their own, before and after every exchange of an operation whose ranks use checksums.
//! That way all ranks end with the same error, in the same operation.

use std::sync::Arc;

use super::all_gather::AllGather;
use super::raw::World;
use super::tags::{Phase, Tags};
use crate::guard::{Guard, PeerSum};
use crate::{CommError, Result};

/// Bytes of a verdict: the rank whose elements were not found as sent, and a sentence about it.
const VERDICT: usize = 1024;
const WORD: usize = 8;

/// The checksums of what an exchange read from each peer, by participant.
pub(super) type Found = Vec<(usize, u64)>;

/// Sends all ranks the checksums of what they should find, if this rank computes them.
pub(super) fn tell(world: &World, tags: &Tags, sums: Option<&Arc<[PeerSum]>>) -> Result<AllGather> {
    let mut record = vec![0; WORD * (1 + tags.members.len())];
    record[0] = u8::from(sums.is_some());
    for sum in sums.into_iter().flat_map(|sums| sums.iter()) {
        let start = WORD * (1 + sum.peer);
        if let Some(place) = record.get_mut(start..start + WORD) {
            place.copy_from_slice(&sum.sum.to_le_bytes());
        }
    }
    AllGather::new(world, tags, Phase::Sums, &record)
}

/// The checksums of all ranks, as guards.
pub(super) fn guards(sums: &AllGather, tags: &Tags) -> Vec<Guard> {
    let ranks = tags.members.len();
    let guard = |r: usize| {
        let record = sums.record(tags, r);
        let sum = |peer: usize| PeerSum {
            peer,
            sum: word(record, WORD * (1 + peer)),
        };
        Guard {
            turn: None,
            sums: (record.first() == Some(&1)).then(|| (0..ranks).map(sum).collect()),
        }
    };
    (0..ranks).map(guard).collect()
}

/// The first peer whose elements had another checksum here than the peer told.
pub(super) fn first_wrong(sums: &AllGather, tags: &Tags, found: &Found) -> Option<usize> {
    let expected = |peer: usize| {
        let record = sums.record(tags, peer);
        let at = WORD * (1 + tags.index);
        (record.first() == Some(&1)).then(|| word(record, at))
    };
    let differs = |&&(peer, sum): &&(usize, u64)| expected(peer).is_some_and(|e| e != sum);
    found.iter().find(differs).map(|&(peer, _)| peer)
}

/// Tells all ranks whether this rank found what was sent; if not, who sent it, and a sentence about it.
pub(super) fn judge(
    world: &World,
    tags: &Tags,
    wrong: Option<(usize, String)>,
) -> Result<AllGather> {
    let mut record = vec![0; VERDICT];
    if let Some((sender, text)) = wrong {
        record[..WORD].copy_from_slice(&(1 + sender as u64).to_le_bytes());
        let len = text.len().min(VERDICT - WORD);
        record[WORD..WORD + len].copy_from_slice(&text.as_bytes()[..len]);
    }
    AllGather::new(world, tags, Phase::Verdicts, &record)
}

/// The error of the first rank that found something wrong: the same on all ranks.
pub(super) fn verdict(all: &AllGather, tags: &Tags) -> Option<CommError> {
    (0..tags.members.len()).find_map(|reader| {
        let record = all.record(tags, reader);
        let sender = usize::try_from(word(record, 0)).ok()?.checked_sub(1)?;
        let text = String::from_utf8_lossy(record.get(WORD..)?);
        Some(CommError::PeerFailed {
            origin: *tags.members.get(sender)?,
            cause: text
                .trim_end_matches(['\0', char::REPLACEMENT_CHARACTER])
                .into(),
        })
    })
}

fn word(record: &[u8], at: usize) -> u64 {
    let mut word = [0; WORD];
    if let Some(bytes) = record.get(at..at + WORD) {
        word.copy_from_slice(bytes);
    }
    u64::from_le_bytes(word)
}
