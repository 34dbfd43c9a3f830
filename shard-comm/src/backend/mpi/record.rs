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

/// The header of a record, as words of which the least byte is first.
pub(super) type Header = [u64; HEADER / 8];

/// One rank's record.
pub(super) struct Record<'a> {
    pub(super) header: Header,
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
        let [a, b, c, d, ..] = self.header;
        Summary {
            print: [a, b],
            balance: [c, d],
            alike: true,
            summed: self.header[SUMMED / 8] & byte(SUMMED, 1) > 0,
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
    let [a, b] = print_of(tags, request, wires);
    let [c, d] = balance_of(wires);
    let mut header = [a, b, c, d, 0, 0];
    header[SUMMED / 8] |= byte(SUMMED, u8::from(request.guard.sums.is_some()));
    let (mut along, mut laid) = (None, None);
    if request.status.is_ok()
        && !request.is_elsewhere()
        && let [source] = &request.sources[..]
    {
        if source.bytes() <= most_carried(tags, wires, carriage, source.len()) {
            header[LENGTH / 8] |= 1 + source.bytes() as u64;
            along = Some(source.as_bytes()?);
        } else if let (Some(board), Some(wire), Some(stage)) =
            (&tags.board, wires.first(), request.stages.first())
            && let Some(range) = wire.lies(&stage.plan, tags.index, source, board.most())
        {
            let bytes = &source.as_bytes()?[range.clone()];
            laid = board.lay(tags.sequence, range.start, bytes);
        }
    }
    header[LAID / 8] |= byte(LAID, u8::from(laid.is_some()));
    Ok(Record {
        header,
        source: along,
        laid,
    })
}

/// The fingerprint of what must be equal on all ranks.
fn print_of(tags: &Tags, request: &Request, wires: &[Rc<Wire>]) -> [u64; 2] {
    let mut print = Fingerprint::new();
    print.word(tags.sequence);
    // What an operation has of these, and then those that it has: most have few.
    let Request {
        guard,
        argument,
        past,
        ..
    } = request;
    let has = [guard.turn.is_some(), argument.is_some(), past.is_some()];
    let has = has.iter().fold(0, |word, &has| word << 1 | u64::from(has));
    print.word(has << 8 | request.dtype.map_or(0, |t| t as u64 + 1));
    if let Some(turn) = guard.turn {
        print.word(turn);
    }
    if let Some((name, value)) = *argument {
        print.text(name);
        print.wide(value);
    }
    if let Some(past) = past {
        print.word(past.print());
    }
    for wire in wires {
        print.print(wire.print);
    }
    if request.status.is_err() {
        // Differs from everybody's, so that all ranks exchange the details.
        print.word(!(tags.index as u64));
        print.text("error");
    }
    print.done()
}

/// What all ranks' sum to zero of, where what each sends is what the others expect.
fn balance_of(wires: &[Rc<Wire>]) -> [u64; 2] {
    let mut balance = [0_u64; 2];
    for (at, wire) in wires.iter().enumerate() {
        // Each exchange has a weight of its own, so that an imbalance in one cannot be cancelled by another.
        for (sum, part) in balance.iter_mut().zip(wire.balance) {
            *sum = sum.wrapping_add(part.wrapping_mul(2 * at as u64 + 1));
        }
    }
    balance
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

/// What the records of all ranks come to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accord {
    /// Whether all fingerprints are equal and all pairs balanced.
    pub(super) agrees: bool,
    /// Whether any rank computes checksums for its peers.
    pub(super) summed: bool,
}

/// What records come to, by their headers; a record that is none agrees with no other.
#[inline]
pub(super) fn accord(headers: impl Iterator<Item = Option<Header>>) -> Accord {
    let mut first: Option<[u64; 2]> = None;
    let mut sums = [0_u64; 2];
    let (mut alike, mut summed) = (true, false);
    for header in headers {
        let Some([a, b, c, d, more, _]) = header else {
            alike = false;
            continue;
        };
        alike &= *first.get_or_insert([a, b]) == [a, b];
        sums = [sums[0].wrapping_add(c), sums[1].wrapping_add(d)];
        summed |= more & byte(SUMMED, u8::MAX) > 0;
    }
    Accord {
        agrees: alike && sums == [0; 2],
        summed,
    }
}

/// The header with which a record begins.
pub(super) fn header_of(record: &[u8]) -> Option<Header> {
    let (words, _) = record.first_chunk::<HEADER>()?.as_chunks::<8>();
    let mut header = Header::default();
    for (word, bytes) in header.iter_mut().zip(words) {
        *word = u64::from_le_bytes(*bytes);
    }
    Some(header)
}

/// A byte of a header, where it lies in its word.
const fn byte(at: usize, value: u8) -> u64 {
    (value as u64) << (8 * (at % 8))
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
