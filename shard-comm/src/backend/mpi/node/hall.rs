//! The part of a process' segment that elements are laid into, for others to read them there.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use super::board::Book;
use super::memory::Memory;

/// Which parts of this process' hall are in use.
#[derive(Debug)]
pub(super) struct Hall {
    /// Where it begins in the segment.
    start: usize,
    /// How many bytes of it can be used: fewer once the system has refused some.
    len: Cell<usize>,
    /// How many bytes have pages.
    ready: Cell<usize>,
    /// The parts that others may still read, by place.
    kept: RefCell<Vec<Kept>>,
}

#[derive(Debug)]
struct Kept {
    range: Range<usize>,
    book: Rc<Book>,
    sequence: u64,
}

impl Hall {
    /// Parts begin at multiples of a line.
    const LINE: usize = 64;

    /// Pages are asked for so many bytes at a time.
    const STEP: usize = 256 << 10;

    pub(super) fn new(start: usize, len: usize) -> Self {
        Self {
            start,
            len: Cell::new(len),
            ready: Cell::new(0),
            kept: RefCell::default(),
        }
    }

    /// Takes room for bytes that the members of a group read in one of its operations; returns where it begins in the segment, or
    /// nothing if there is none. It is free again when all members have read everything of that operation.
    pub(super) fn take(
        &self,
        memory: &Memory,
        book: &Rc<Book>,
        sequence: u64,
        len: usize,
    ) -> Option<usize> {
        let mut kept = self.kept.borrow_mut();
        kept.retain(|part| !part.book.is_known_read(part.sequence));
        let mut found = self.gap(&kept, len);
        if found.is_none() {
            kept.retain(|part| !part.book.is_read(memory, part.sequence + 1));
            found = self.gap(&kept, len);
        }
        let (place, at) = found?;
        let range = at..at + len;
        if !self.make_ready(memory, range.end) {
            return None;
        }
        let book = Rc::clone(book);
        kept.insert(
            place,
            Kept {
                range,
                book,
                sequence,
            },
        );
        Some(self.start + at)
    }

    /// Forgets what all have read, so that nothing is kept for it.
    pub(super) fn tidy(&self, memory: &Memory) {
        let mut kept = self.kept.borrow_mut();
        kept.retain(|part| !part.book.is_read(memory, part.sequence + 1));
    }

    /// The first gap of so many bytes: its place in the list, and where it begins.
    fn gap(&self, kept: &[Kept], len: usize) -> Option<(usize, usize)> {
        let mut at = 0;
        for (place, part) in kept.iter().enumerate() {
            if at + len <= part.range.start {
                return Some((place, at));
            }
            at = part.range.end.next_multiple_of(Self::LINE);
        }
        (at.checked_add(len)? <= self.len.get()).then_some((kept.len(), at))
    }

    /// Whether there are pages up to there.
    fn make_ready(&self, memory: &Memory, end: usize) -> bool {
        let ready = self.ready.get();
        if end <= ready {
            return true;
        }
        let end = end.next_multiple_of(Self::STEP).min(self.len.get());
        let well = memory.is_ready(self.start + ready, end - ready);
        match well {
            true => self.ready.set(end),
            false => self.len.set(ready),
        }
        well
    }
}
