//! Records: what every rank tells of its part in an operation. Fingerprints of what must agree, and its elements if they are few.

use std::rc::Rc;

use super::codes::failure;
use super::node::Parcel;
use super::summary::Summary;
use super::tags::Tags;
use super::wire::Wire;
use crate::fingerprint::Fingerprint;
use crate::{ONE_ROUND_BYTES, Request, Result};

/// The size of the header of a record: a fingerprint and a balance of two words each, and the numbers described below. The bytes of
/// the rank's source follow it, if they travel along.
pub(super) const HEADER: usize = 48;

/// The offset of the number that is one more than the number of source bytes, or zero if no source travels along.
const LENGTH: usize = 32;

/// The offset of the byte that says whether this rank computes checksums for its peers.
const SUMMED: usize = 36;

/// The offset of the byte that says whether parts of the rank's source lie in the memory of the node.
pub(super) const LAID: usize = 37;

/// The offset of a count that records in the memory of a node have.
pub(super) const READ: usize = 40;

/// Sources of at most this many bytes travel with every record that is sent, and need no message of their own.
const LITTLE: usize = 32;

/// Sources of at most this many bytes travel with records that are sent if every other rank reads all of them.
pub(super) const MOST_SENT: usize = ONE_ROUND_BYTES;

/// One rank's record.
pub(super) struct Record<'a> {
    pub(super) header: [u8; HEADER],
    /// The bytes of the rank's source, if they travel along.
    pub(super) source: Option<&'a [u8]>,
    /// Where those that others read lie in the memory of the node, if they do.
    pub(super) laid: Option<Parcel>,
}

impl Record<'_> {
    /// Whether others have all that they read of the rank's source when they have the record.
    pub(super) fn carries(&self) -> bool {
        self.source.is_some() || self.laid.is_some()
    }

    /// What this record alone comes to.
    pub(super) fn summary(&self) -> Summary {
        let words = |at: usize| [word(&self.header, at), word(&self.header, at + 8)];
        Summary {
            print: words(0),
            balance: words(16),
            alike: true,
            summed: self.header[SUMMED] > 0,
        }
    }
}

/// How a record gets to the others, and so which sources travel along.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Carriage {
    /// Only what it comes to.
    None,
    /// By a message to each.
    Mail,
    /// In memory that all of them read.
    Node,
}

/// This rank's record.
pub(super) fn record<'a>(
    tags: &Tags,
    request: &'a Request,
    wires: &[Rc<Wire>],
    carriage: Carriage,
) -> Result<Record<'a>> {
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
    let mut header = [0; HEADER];
    let words = print.done().into_iter().chain(balance);
    for (bytes, word) in header.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let (mut along, mut laid) = (None, None);
    if request.status.is_ok()
        && !request.is_elsewhere()
        && let [source] = &request.sources[..]
    {
        if source.bytes() <= most_carried(tags, wires, carriage, source.len()) {
            let length = 1 + source.bytes() as u32;
            header[LENGTH..LENGTH + 4].copy_from_slice(&length.to_le_bytes());
            along = Some(source.as_bytes()?);
        } else if let (Some(board), Some(wire), Some(stage)) =
            (&tags.board, wires.first(), request.stages.first())
            && let Some(range) = wire.lies(&stage.plan, tags.index, source, board.most())
        {
            let bytes = &source.as_bytes()?[range.clone()];
            laid = board.lay(tags.sequence, range.start, bytes);
        }
    }
    header[SUMMED] = u8::from(request.guard.sums.is_some());
    Ok(Record {
        header,
        source: along,
        laid,
    })
}

/// The most bytes that travel with the record of a rank whose source has `len` elements.
fn most_carried(tags: &Tags, wires: &[Rc<Wire>], carriage: Carriage, len: usize) -> usize {
    match carriage {
        Carriage::None => 0,
        Carriage::Node => tags.board.as_ref().map_or(0, |board| board.little()),
        // As many elements as the exchange sends in any case.
        Carriage::Mail => {
            let outgoing = wires.first().map_or(&[][..], |wire| &wire.outgoing);
            let others = outgoing.iter().filter(|m| m.peer != tags.index);
            let sent: usize = others.map(|m| m.elements).sum();
            match sent >= (tags.members.len() - 1) * len {
                true => MOST_SENT,
                false => LITTLE,
            }
        }
    }
}

/// Whether all records' fingerprints are equal and all pairs balanced.
pub(super) fn agree<'a>(mut records: impl Iterator<Item = &'a [u8]>) -> bool {
    let mut first: Option<&[u8]> = None;
    let mut sums = [0_u64; 2];
    let alike = records.all(|record| {
        if record.len() < HEADER || record[..16] != first.get_or_insert(record)[..16] {
            return false;
        }
        for (sum, bytes) in sums.iter_mut().zip(record[16..LENGTH].chunks_exact(8)) {
            *sum = sum.wrapping_add(word(bytes, 0));
        }
        true
    });
    alike && sums == [0; 2]
}

/// Whether the rank of a record computes checksums for its peers.
pub(super) fn is_summed(record: &[u8]) -> bool {
    record.get(SUMMED).is_some_and(|&summed| summed > 0)
}

/// How many source bytes follow a header, if a source does.
pub(super) fn length_of(header: &[u8]) -> Option<usize> {
    let mut length = [0; 4];
    length.copy_from_slice(header.get(LENGTH..LENGTH + 4)?);
    (u32::from_le_bytes(length) as usize).checked_sub(1)
}

/// The bytes that came with a record, if any did.
pub(super) fn carried(record: &[u8]) -> Result<Option<&[u8]>> {
    let Some(bytes) = length_of(record) else {
        return Ok(None);
    };
    let source = record.get(HEADER..HEADER + bytes);
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
