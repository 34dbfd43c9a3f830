//! The part of a process' segment that elements are laid into, for others to read them there.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use super::board::Book;
use super::memory::Memory;

/// Which parts of this process' arena are in use.
#[derive(Debug)]
pub(super) struct Arena {
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

impl Arena {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::super::board::Place;
    use super::*;

    /// Room is given to one use at a time, and again when every member has read what was there.
    #[test]
    fn room_is_used_again() {
        let memory = Memory::of_one(2, 64 + 1024);
        let arena = Arena::new(64, 1024);
        let places = [Place::new(0, 0, 1), Place::new(1, 0, 1)];
        let book = Rc::new(Book::new(places[..].into(), [0, 0][..].into(), 0));
        let has_read = |member: usize, count: u64| {
            let word = memory.word(member, 0);
            word.store(places[member].stamp(count), Ordering::Release);
        };
        let take = |sequence, len| arena.take(&memory, &book, sequence, len);
        assert_eq!(take(0, 100), Some(64));
        // The next line after it.
        assert_eq!(take(1, 512), Some(64 + 128));
        assert_eq!(take(2, 512), None, "there are 384 left");
        assert_eq!(take(2, 384), Some(64 + 640));
        has_read(0, 2);
        assert_eq!(take(3, 64), None, "the other may still read");
        has_read(1, 1);
        assert_eq!(take(3, 129), None, "of the first operation there are 128");
        assert_eq!(take(3, 128), Some(64));
        has_read(1, 2);
        assert_eq!(take(4, 512), Some(64 + 128));
        assert_eq!(take(5, 1), None);
        // A member that uses its area for another group has read everything.
        for (member, place) in [Place::new(0, 0, 2), Place::new(1, 0, 2)]
            .iter()
            .enumerate()
        {
            let word = memory.word(member, 0);
            word.store(place.stamp(0), Ordering::Release);
        }
        assert_eq!(take(6, 1024), Some(64));
        assert_eq!(take(7, 1), Some(64));
        arena.tidy(&memory);
        assert_eq!(Rc::strong_count(&book), 1);
    }
}
