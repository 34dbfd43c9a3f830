//! The records of a group's operations, and what its members lay for each other, as one member sees them.

use std::cell::Cell;
use std::cmp;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::super::codes::failure;
use super::super::record::{Accord, HEADER, Header, LAID, READ, accord, length_of};
use super::memory::Memory;
use super::{AT_ONCE, DEPTH, EXCHANGES, LINE, Node, SPINS};
use crate::Result;

/// The bits of a count, enough for years; the bits above are the salt. An area whose salts are used up is not used any more.
const COUNT_BITS: u32 = 46;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
pub(super) const LAST_SALT: u64 = u64::MAX >> COUNT_BITS;

/// At most so many bytes of elements are asked for before they are read, and asked back before they are written to again.
const EAGER: usize = 1 << 10;

/// Where a member of a group has its records: an area of its segment, and the salt of this use of it.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Place {
    pub(in super::super) process: usize,
    pub(super) area: usize,
    salt: u64,
}

impl Place {
    pub(super) fn new(process: usize, area: usize, salt: u64) -> Self {
        Self {
            process,
            area,
            salt,
        }
    }

    /// As a number that is not zero, for the other members.
    pub(in super::super) fn to_note(self) -> i64 {
        ((self.salt << 8) | (self.area as u64 + 1)).cast_signed()
    }

    /// From the number that a process told; none if it has no place.
    pub(in super::super) fn from_note(process: usize, note: i64) -> Option<Self> {
        let note = note.cast_unsigned();
        let area = (note & 0xff).checked_sub(1)?;
        Some(Self::new(process, area as usize, note >> 8))
    }

    pub(super) fn stamp(&self, count: u64) -> u64 {
        self.salt << COUNT_BITS | count & COUNT
    }

    /// What the flag of a slot says if the process does not take part.
    pub(super) fn never(&self) -> u64 {
        self.stamp(COUNT)
    }

    /// How much the member has read, by its word: nothing before it has joined the group, all if it uses its area for another one
    /// already.
    fn count(&self, memory: &Memory, at: usize) -> u64 {
        let word = memory.word(self.process, at).load(Ordering::Acquire);
        match (word >> COUNT_BITS).cmp(&self.salt) {
            cmp::Ordering::Less => 0,
            cmp::Ordering::Equal => word & COUNT,
            cmp::Ordering::Greater => u64::MAX,
        }
    }
}

/// The use of an area by a group.
#[derive(Debug)]
pub(super) struct Book {
    salt: u64,
    places: SmallVec<[Place; 8]>,
    /// Where the members' areas begin in their segments: with the counts of what they have read.
    areas: SmallVec<[usize; 8]>,
    /// How many records this process has written.
    posted: Cell<u64>,
    /// All members are known to have read the records of all operations before this one.
    known: Cell<u64>,
}

impl Book {
    /// The use of an area by a group with these places.
    pub(super) fn new(
        places: SmallVec<[Place; 8]>,
        areas: SmallVec<[usize; 8]>,
        me: usize,
    ) -> Self {
        Self {
            salt: places[me].salt,
            places,
            areas,
            posted: Cell::new(0),
            known: Cell::new(0),
        }
    }

    /// The use of an area by a group that is not made yet.
    pub(super) fn empty(salt: u64) -> Self {
        Self {
            salt,
            places: SmallVec::new(),
            areas: SmallVec::new(),
            posted: Cell::new(0),
            known: Cell::new(0),
        }
    }

    pub(super) fn salt(&self) -> u64 {
        self.salt
    }

    /// Whether the area cannot be used again.
    pub(super) fn is_used_up(&self) -> bool {
        self.salt >= LAST_SALT
    }

    /// How much each member has read.
    fn read(&self, memory: &Memory) -> impl Iterator<Item = (usize, u64)> {
        let places = self.places.iter().zip(&self.areas);
        places.map(|(place, &at)| (place.process, place.count(memory, at)))
    }

    /// Whether every member has read the records of this many operations.
    pub(super) fn is_read(&self, memory: &Memory, need: u64) -> bool {
        if self.known.get() < need {
            let least = self.read(memory).map(|(_, count)| count).min();
            self.known.set(least.unwrap_or(u64::MAX));
        }
        self.known.get() >= need
    }

    /// Whether every member has read all records.
    pub(super) fn is_all_read(&self, memory: &Memory) -> bool {
        self.is_read(memory, self.posted.get())
    }

    /// Whether every member is known to have read all of an operation.
    pub(super) fn is_known_read(&self, sequence: u64) -> bool {
        self.known.get() > sequence
    }

    fn learn(&self, known: u64) {
        self.known.set(self.known.get().max(known));
    }
}

/// Elements that a member has laid into its arena for others: where in its segment, and which bytes of its source these are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Parcel {
    at: usize,
    /// The first byte's place in the source.
    pub(in super::super) start: usize,
    len: usize,
}

/// What a member tells about its elements for an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Whereabouts {
    /// Nothing yet.
    Nothing,
    /// They come by messages.
    Sent,
    /// They are here.
    Laid(Parcel),
}

/// A group's places, as one member sees them.
#[derive(Debug)]
pub(in super::super) struct Board {
    node: Rc<Node>,
    book: Rc<Book>,
    me: usize,
    /// This process has read the records of all operations before this one, and of those after it that have a bit in `ahead`.
    read: Cell<u64>,
    ahead: Cell<u64>,
    /// How much of its slot this process wrote last: others are likely to have written as much, and it is to write as much next.
    recent: Cell<usize>,
}

impl Board {
    pub(super) fn new(node: Rc<Node>, book: Rc<Book>, me: usize) -> Self {
        let board = Self {
            node,
            book,
            me,
            read: Cell::new(0),
            ahead: Cell::new(0),
            recent: Cell::new(0),
        };
        board.tell_read();
        board
    }

    /// The most bytes of elements that a record has room for.
    pub(in super::super) fn little(&self) -> usize {
        self.node.division.little
    }

    /// The most bytes of a source of which parts are laid although others read little of them.
    pub(in super::super) fn most(&self) -> usize {
        self.node.division.most()
    }

    /// The most bytes that may be laid into the arena at a time.
    pub(in super::super) fn most_laid(&self) -> usize {
        self.node.division.most_laid()
    }

    /// Up to this many bytes of each member it is best to bring to all of them in one round.
    pub(in super::super) fn at_once(&self) -> usize {
        self.most().min(AT_ONCE / self.book.places.len())
    }

    /// Whether an operation may write its record: those that used its slot before have been read.
    pub(in super::super) fn has_room(&self, sequence: u64) -> bool {
        let need = (sequence + 1).saturating_sub(DEPTH);
        self.book.is_read(&self.node.memory, need)
    }

    /// The processes that have not read what an operation waits for.
    pub(in super::super) fn behind(&self, sequence: u64) -> Vec<usize> {
        let need = (sequence + 1).saturating_sub(DEPTH);
        let behind = (self.book.read(&self.node.memory)).filter(|&(_, count)| count < need);
        behind.map(|(process, _)| process).collect()
    }

    /// Lays bytes of this member's source, from `start` on, for the others to read in an operation. Nothing if there is no room.
    pub(in super::super) fn lay(
        &self,
        sequence: u64,
        start: usize,
        bytes: &[u8],
    ) -> Option<Parcel> {
        if bytes.len() > self.most_laid() {
            return None;
        }
        let memory = &self.node.memory;
        let len = bytes.len();
        let at = (self.node.arena).take(memory, &self.book, sequence, len)?;
        // SAFETY: the arena has no other use for these bytes, and no process reads them before it is told where they are.
        unsafe { memory.write(at, bytes) };
        Some(Parcel { at, start, len })
    }

    /// Writes this member's record of an operation for which there is room, with the elements of its source if they are few, or where
    /// they are laid.
    pub(in super::super) fn post(
        self: &Rc<Self>,
        sequence: u64,
        mut header: Header,
        source: &[u8],
        laid: Option<Parcel>,
    ) -> Result<Gathered> {
        let (node, division) = (&self.node, self.node.division);
        if source.len() > division.little || !self.has_room(sequence) {
            return Err(failure("record", "no room in the memory of the node"));
        }
        header[READ / 8] = self.read.get();
        let start = self.slot(self.me, sequence);
        if let Some(parcel) = laid {
            self.write_parcel(start + division.laid(0), parcel);
        }
        // Others look at the flag's line meanwhile, and take it away from this process' cache each time: what else is in it is written
        // last, at once with the flag.
        let (near, far) = source.split_at(source.len().min(LINE - 8 - HEADER));
        // SAFETY: the slot is in this process' own segment and as long as all of it together. No other process reads it now: all have
        // read the record before, and look at the flag before they read this one.
        unsafe {
            node.memory.write(start + LINE, far);
            node.memory.write_words(start + 8, header.map(u64::to_le));
            node.memory.write(start + 8 + HEADER, near);
        }
        self.raise(start, sequence);
        let posted = self.book.posted.get();
        self.book.posted.set(posted.max(sequence + 1));
        self.recent.set(8 + HEADER + source.len().min(EAGER));
        // The record takes a while to be seen: meanwhile what the next operation writes comes here.
        let next = self.slot(self.me, sequence + 1);
        node.memory.take_back(next, self.recent.get());
        Ok(Gathered {
            board: Rc::clone(self),
            sequence,
            slot: division.slot_of(sequence),
            missing: u64::MAX >> (u64::BITS as usize - self.book.places.len()),
            read: u64::MAX,
        })
    }

    /// Where the slot of an operation begins in a member's segment.
    fn slot(&self, member: usize, sequence: u64) -> usize {
        self.book.areas[member] + self.node.division.slot_of(sequence)
    }

    /// Says by a flag of this member that what it stands for is written.
    fn raise(&self, at: usize, sequence: u64) {
        let place = &self.book.places[self.me];
        let flag = self.node.memory.word(place.process, at);
        flag.store(place.stamp(sequence + 1), Ordering::Release);
    }

    fn write_parcel(&self, at: usize, parcel: Parcel) {
        let me = self.book.places[self.me].process;
        let words = [parcel.at, parcel.start, parcel.len];
        for (k, word) in words.into_iter().enumerate() {
            let to = self.node.memory.word(me, at + 8 + 8 * k);
            to.store(word as u64, Ordering::Relaxed);
        }
    }

    /// Notes that the records of an operation are not looked at any more.
    fn release(&self, sequence: u64) {
        let mut ahead = self.ahead.get() | 1 << (sequence - self.read.get());
        let done = ahead.trailing_ones();
        ahead >>= done;
        self.ahead.set(ahead);
        self.read.set(self.read.get() + u64::from(done));
        self.tell_read();
    }

    fn tell_read(&self) {
        let (place, at) = (&self.book.places[self.me], self.book.areas[self.me]);
        let word = self.node.memory.word(place.process, at);
        word.store(place.stamp(self.read.get()), Ordering::Release);
    }
}

/// The records of one operation, in the segments of its members, and what they have laid for it. All this stays there until this is
/// dropped.
#[derive(Debug)]
pub(in super::super) struct Gathered {
    board: Rc<Board>,
    sequence: u64,
    /// Where the operation's slot begins in the area of each member.
    slot: usize,
    /// A bit for each member whose record is not there yet.
    missing: u64,
    /// How much the members whose records are there had read when they wrote them: the least of them.
    read: u64,
}

impl Gathered {
    /// Looks for records, and returns whether all are there.
    pub(in super::super) fn advance(&mut self) -> Result<bool> {
        let spins = if self.board.node.is_crowded() {
            1
        } else {
            SPINS
        };
        for spin in 0..spins {
            if self.look()? {
                return Ok(true);
            }
            if spin + 1 < spins {
                std::hint::spin_loop();
            }
        }
        Ok(false)
    }

    fn look(&mut self) -> Result<bool> {
        let (board, memory) = (&self.board, &self.board.node.memory);
        while self.missing > 0 {
            let member = self.missing.trailing_zeros() as usize;
            let place = &board.book.places[member];
            let start = board.book.areas[member] + self.slot;
            let flag = memory.word(place.process, start);
            let flag = flag.load(Ordering::Acquire);
            if flag != place.stamp(self.sequence + 1) {
                if flag == place.never() {
                    let process = place.process;
                    let cause = format!(
                        "process {process} has not set MpiOptions::shared_memory, this one has"
                    );
                    return Err(failure("run", &cause));
                }
                return Ok(false);
            }
            let read = memory
                .word(place.process, start + 8 + READ)
                .load(Ordering::Relaxed);
            self.read = self.read.min(u64::from_le(read));
            if member != board.me {
                let likely = board.recent.get();
                memory.fetch(place.process, start, likely);
            }
            self.missing &= self.missing - 1;
        }
        Ok(true)
    }

    /// What the records come to, once all are there.
    pub(in super::super) fn accord(&self) -> Accord {
        let members = self.board.book.places.iter().zip(&self.board.book.areas);
        accord(members.map(|(place, area)| {
            let start = area + self.slot + 8;
            let header = || {
                let words = self.board.node.memory.words(place.process, start);
                words.map(u64::from_le)
            };
            (self.missing == 0).then(header)
        }))
    }

    /// The record of a member, once all are there.
    pub(in super::super) fn record(&self, member: usize) -> &[u8] {
        let board = &self.board;
        let Some(place) = (board.book.places.get(member)).filter(|_| self.missing == 0) else {
            return &[];
        };
        let start = board.book.areas[member] + self.slot + 8;
        let little = board.node.division.little;
        // SAFETY: the slot's flag said that the record is complete. Its owner writes to it again only when this member has told that it
        // has read it, which it does when this struct is dropped.
        let record = unsafe { (board.node.memory).read(place.process, start, HEADER + little) };
        let length = length_of(record).unwrap_or(0).min(little);
        &record[..HEADER + length]
    }

    /// Tells the others how this member's elements for an exchange after the first get to them.
    pub(in super::super) fn tell(&self, exchange: usize, laid: Option<Parcel>) {
        if !(1..EXCHANGES).contains(&exchange) {
            return;
        }
        let board = &self.board;
        let at = board.slot(board.me, self.sequence) + board.node.division.laid(exchange);
        // A place of zero is in no arena, as segments begin with areas.
        let none = Parcel {
            at: 0,
            start: 0,
            len: 0,
        };
        board.write_parcel(at, laid.unwrap_or(none));
        board.raise(at, self.sequence);
    }

    /// Lays bytes for this operation.
    pub(in super::super) fn lay(
        &self,
        exchange: usize,
        start: usize,
        bytes: &[u8],
    ) -> Option<Parcel> {
        (exchange < EXCHANGES).then(|| self.board.lay(self.sequence, start, bytes))?
    }

    /// What a member has told about its elements for an exchange. Before all records are there: nothing.
    pub(in super::super) fn told(&self, member: usize, exchange: usize) -> Whereabouts {
        let board = &self.board;
        let Some(place) = (board.book.places.get(member)).filter(|_| self.missing == 0) else {
            return Whereabouts::Nothing;
        };
        if exchange >= EXCHANGES {
            return Whereabouts::Sent;
        }
        let (node, start) = (&board.node, board.book.areas[member] + self.slot);
        let at = start + node.division.laid(exchange);
        let word = |k: usize| node.memory.word(place.process, at + 8 * k);
        let laid = match exchange {
            0 => self.record(member).get(LAID) == Some(&1),
            _ if word(0).load(Ordering::Acquire) != place.stamp(self.sequence + 1) => {
                return Whereabouts::Nothing;
            }
            _ => word(1).load(Ordering::Relaxed) > 0,
        };
        if !laid {
            return Whereabouts::Sent;
        }
        let [at, start, len] = [1, 2, 3].map(|k| word(k).load(Ordering::Relaxed) as usize);
        Whereabouts::Laid(Parcel { at, start, len })
    }

    /// What a member has laid.
    pub(in super::super) fn laid(&self, member: usize, parcel: Parcel) -> &[u8] {
        let (board, Parcel { at, len, .. }) = (&self.board, parcel);
        let Some(place) = board.book.places.get(member) else {
            return &[];
        };
        // SAFETY: the member told that the bytes are written before it told where they are. It writes there again only when this member
        // has told that it has read them, which it does when this struct is dropped.
        unsafe { board.node.memory.read(place.process, at, len) }
    }

    /// The processes whose records are still missing.
    pub(in super::super) fn peers(&self) -> Vec<usize> {
        let places = self.board.book.places.iter().enumerate();
        let missing = places.filter(|(member, _)| self.missing >> member & 1 == 1);
        missing.map(|(_, place)| place.process).collect()
    }
}

impl Drop for Gathered {
    fn drop(&mut self) {
        // What all members have read when they wrote this: mostly enough for the next operations to begin.
        if self.missing == 0 {
            self.board.book.learn(self.read);
        }
        self.board.release(self.sequence);
    }
}
