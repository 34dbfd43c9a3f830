//! Records: what every rank tells of its part in an operation. Fingerprints of what must agree, and its elements if they are few.

use std::rc::Rc;

use super::all_gather::AllGather;
use super::raw::failure;
use super::summary::Summary;
use super::tags::Tags;
use super::wire::Wire;
use crate::Request;
use crate::Result;
use crate::fingerprint::Fingerprint;

/// Sources of at most this many bytes travel with the fingerprints, and need no message of their own.
pub(super) const INLINE: usize = 32;

/// The size of a record: a fingerprint and a balance of two words each, two bytes described below, and the bytes of a source.
pub(super) const RECORD: usize = SOURCE + INLINE;

/// The offset of the byte that holds one more than the number of source bytes, or zero if no source travels along.
const LENGTH: usize = 32;

/// The offset of the byte that says whether this rank computes checksums for its peers.
const SUMMED: usize = 33;

/// The offset of the source bytes.
const SOURCE: usize = 40;

/// One rank's record.
pub(super) struct Record(pub(super) [u8; RECORD]);

impl Record {
    /// Whether the rank's source travels along.
    pub(super) fn carries(&self) -> bool {
        self.0[LENGTH] > 0
    }

    /// What this record alone comes to.
    pub(super) fn summary(&self) -> Summary {
        let words = |at: usize| [word(&self.0, at), word(&self.0, at + 8)];
        Summary {
            print: words(0),
            balance: words(16),
            alike: true,
            summed: self.0[SUMMED] > 0,
        }
    }
}

/// This rank's record; its source travels `along` if it is small.
pub(super) fn record(
    tags: &Tags,
    request: &Request,
    wires: &[Rc<Wire>],
    along: bool,
) -> Result<Record> {
    let mut print = Fingerprint::new();
    print.word(tags.sequence);
    print.word(request.guard.turn.map_or(0, |turn| turn.wrapping_add(1)));
    print.text(request.argument.map_or("", |a| a.0));
    print.wide(request.argument.map_or(0, |a| a.1));
    print.word(
        request
            .past
            .as_ref()
            .map_or(0, |past| past.print().wrapping_add(1)),
    );
    print.word(request.dtype.map_or(0, |t| t as u64 + 1));
    let mut balance = [0_u64; 2];
    for (at, wire) in wires.iter().enumerate() {
        print.print(wire.print);
        // Each exchange has a weight of its own, so that an imbalance in one cannot be cancelled by another.
        for (sum, part) in balance.iter_mut().zip(wire.balance) {
            *sum = sum.wrapping_add(part.wrapping_mul(2 * at as u64 + 1));
        }
    }
    if request.status.is_err() {
        // Differs from everybody's, so that all ranks exchange the details.
        print.word(!(tags.index as u64));
        print.text("error");
    }
    let mut record = [0; RECORD];
    let words = print.done().into_iter().chain(balance);
    for (bytes, word) in record.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    if along
        && request.status.is_ok()
        && !request.is_elsewhere()
        && let [source] = &request.sources[..]
        && source.bytes() <= INLINE
    {
        record[LENGTH] = 1 + source.bytes() as u8;
        record[SOURCE..SOURCE + source.bytes()].copy_from_slice(source.as_bytes()?);
    }
    record[SUMMED] = u8::from(request.guard.sums.is_some());
    Ok(Record(record))
}

/// Whether all fingerprints are equal and all pairs balanced.
pub(super) fn agree(records: &AllGather, tags: &Tags) -> bool {
    let first = records.record(tags, 0);
    let mut sums = [0_u64; 2];
    for r in 0..tags.members.len() {
        let record = records.record(tags, r);
        if record.len() != RECORD || record[..16] != first[..16] {
            return false;
        }
        for (sum, bytes) in sums.iter_mut().zip(record[16..LENGTH].chunks_exact(8)) {
            *sum = sum.wrapping_add(word(bytes, 0));
        }
    }
    sums == [0; 2]
}

/// Whether any rank computes checksums for its peers.
pub(super) fn any_sums(records: &AllGather, tags: &Tags) -> bool {
    (0..tags.members.len()).any(|r| records.record(tags, r)[SUMMED] > 0)
}

/// The bytes that came with a record, if any did.
pub(super) fn carried(record: &[u8]) -> Result<Option<&[u8]>> {
    let Some(bytes) = usize::from(record[LENGTH]).checked_sub(1) else {
        return Ok(None);
    };
    let source = record.get(SOURCE..SOURCE + bytes);
    source
        .map(Some)
        .ok_or_else(|| failure("record", "a length beyond its end"))
}

/// The word that begins at a byte.
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
