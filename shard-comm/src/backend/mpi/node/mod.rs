//! Memory that the processes of a node share: each writes its records and its elements to a segment of its own, where the others read
//! them. So ranks of one node agree, and elements reach them, without a message.
//!
//! The *board* of a group is an area of each member's segment, with a few slots that its operations use in turn. A member
//! writes its record to a slot, and then the operation's number to the slot's flag. It writes to the slot again only when every
//! member has read what was there before, which each tells by a count of its own.
//!
//! The rest of a segment is the *arena*, which all groups use together. There a member lays what others read of it, and tells them in its
//! slot where: so much for each exchange of an operation. If there is no room it tells them that it sends messages instead, so nobody
//! ever waits for room. What all members have read makes room again.
//!
//! Areas are used by one group after the other. A salt, greater from use to use, is part of every number in an area, so that what an
//! earlier group left there says nothing to a later one.
//!
//! `memory.rs` has the segments, `board.rs` the records of a group's operations, and `arena.rs` tells which parts of the arena are in use.

mod arena;
mod board;
mod memory;

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mpi::ffi;
use smallvec::SmallVec;

use super::codes::failure;
use super::record::HEADER;
use crate::Result;
use arena::Arena;
use board::Book;
use memory::Memory;

pub(super) use board::{Board, Gathered, Parcel, Place, Whereabouts};

/// How many bytes the segments of a node may take together: not more than that, nor more than this part of what is free.
const BUDGET: usize = 32 << 20;
const PART: usize = 2;

/// The most bytes of elements that a slot has room for, beside the header of a record.
const LITTLE: usize = 8 << 10;

/// The most bytes of each member that it may be best to bring to all of them in one round, and of all members together.
const MOST: usize = 64 << 10;
const AT_ONCE: usize = 512 << 10;

/// The most bytes that an operation lays into the arena at a time: more go faster by messages.
const MOST_LAID: usize = 4 << 20;

/// How many operations of a group may have their records in a segment at once. Later ones begin when earlier ones were read.
const DEPTH: u64 = 4;

/// How many exchanges of an operation may find their elements in the arena. Later ones send messages.
const EXCHANGES: usize = 8;

/// A process can be in this many groups at once that share its segment; others agree by messages.
const AREAS: usize = 16;

/// The areas of the groups of all ranks: runs use them in turn.
const WORLDS: usize = 4;

const LINE: usize = 64;

/// By so many lines a segment is shorter than it could be: if the same elements of all members were at the same places of their pages,
/// they would get in each other's way in caches.
const STAGGER: usize = 73;

/// How a segment is divided: areas, of a line for the count of what was read and [`DEPTH`] slots each; and the arena.
#[derive(Clone, Copy, Debug)]
struct Division {
    /// The most bytes of elements that a slot holds beside the header of a record.
    little: usize,
    /// The bytes of a slot.
    slot: usize,
    /// The bytes of the arena.
    arena: usize,
}

impl Division {
    /// The division of the segments of a node with this many processes and bytes to share.
    fn new(processes: usize, free: usize) -> Self {
        let share = BUDGET.min(free / PART) / processes.max(1);
        // Slots take half of a small segment, and a small part of a large one.
        let little = share / (2 * AREAS * DEPTH as usize);
        let little = match little.checked_ilog2() {
            Some(bits) => LITTLE.min(1 << bits),
            None => 0,
        };
        let mut division = Self {
            little,
            slot: 0,
            arena: 0,
        };
        division.slot = (division.laid(EXCHANGES)).next_multiple_of(LINE);
        let lines = (share / LINE).saturating_sub(STAGGER);
        division.arena = (lines * LINE).saturating_sub(division.areas());
        division
    }

    fn area(self) -> usize {
        LINE + DEPTH as usize * self.slot
    }

    fn areas(self) -> usize {
        AREAS * self.area()
    }

    /// Where the slot of an operation begins in a segment.
    fn at(self, area: usize, sequence: u64) -> usize {
        area * self.area() + self.slot_of(sequence)
    }

    /// Where the slot of an operation begins in an area.
    fn slot_of(self, sequence: u64) -> usize {
        LINE + (sequence % DEPTH) as usize * self.slot
    }

    /// Where a slot has the words about what is laid for an exchange: a flag, place, start and length. For the first exchange, which needs
    /// no flag of its own, these are where elements would be that travel with the record.
    fn laid(self, exchange: usize) -> usize {
        match exchange.checked_sub(1) {
            None => HEADER,
            Some(later) => (8 + HEADER + self.little.max(24)).next_multiple_of(LINE) + 32 * later,
        }
    }

    /// The most bytes of a source that travel with the record if all members read all of it.
    fn most(self) -> usize {
        match (self.arena / 8).checked_ilog2() {
            Some(bits) => MOST.min(1 << bits).max(self.little),
            None => self.little,
        }
    }

    /// The most bytes that are laid into the arena at a time: two operations in flight find room.
    fn most_laid(self) -> usize {
        MOST_LAID.min(self.arena / 3)
    }
}

/// How often a process looks for a record before it does something else, where each process has a core.
const SPINS: u32 = 24;

/// The memory of the processes of this node.
pub(super) struct Node {
    memory: Memory,
    division: Division,
    /// The last group that used each area of this process' segment.
    areas: RefCell<[Option<Rc<Book>>; AREAS]>,
    arena: Arena,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({} processes)", self.memory.size())
    }
}

impl Node {
    /// The first process on the node of each process of the job. All processes call this, once.
    pub(super) fn first_of(comm: ffi::MPI_Comm, me: usize, size: usize) -> Result<Rc<[usize]>> {
        memory::first_of(comm, me, size)
    }

    /// Makes the segments; none if the processes of this node cannot share memory, or there is one only. All processes of the job
    /// call this, once.
    pub(super) fn open(comm: ffi::MPI_Comm, me: usize, size: usize) -> Result<Option<Rc<Self>>> {
        let mut chosen = None;
        let shape = |processes: usize, free: usize| {
            let division = Division::new(processes, free);
            chosen = Some(division);
            let bytes = division.areas() + division.arena;
            (bytes * processes <= free / PART).then_some((bytes, division.areas()))
        };
        let memory = Memory::open(comm, me, size, shape)?;
        let (Some(memory), Some(division)) = (memory, chosen) else {
            return Ok(None);
        };
        Ok(Some(Rc::new(Self {
            memory,
            division,
            areas: RefCell::default(),
            arena: Arena::new(division.areas(), division.arena),
        })))
    }

    /// Gives the memory back, when all processes leave: nobody reads or writes it any more.
    pub(super) fn close(&self) {
        self.memory.close();
    }

    /// Whether there are fewer cores than processes.
    pub(super) fn is_crowded(&self) -> bool {
        self.memory.is_crowded()
    }

    /// Takes an area for a group that may be made, if one is free.
    pub(super) fn offer(self: &Rc<Self>) -> Option<Offer> {
        self.arena.tidy(&self.memory);
        let mut areas = self.areas.borrow_mut();
        let free = (WORLDS..AREAS).find(|&at| {
            let unused = |book: &Rc<Book>| {
                Rc::strong_count(book) == 1 && !book.is_used_up() && book.is_all_read(&self.memory)
            };
            areas[at].as_ref().is_none_or(unused)
        })?;
        let salt = areas[free].as_ref().map_or(0, |book| book.salt()) + 1;
        let book = Rc::new(Book::empty(salt));
        areas[free] = Some(Rc::clone(&book));
        Some(Offer {
            place: Place::new(self.memory.me(), free, salt),
            _book: book,
        })
    }

    /// The board of the group of all ranks of a run. Waits until everybody has read what this process wrote to the same area runs ago,
    /// which those who are not in that run any more have.
    pub(super) fn of_run(self: &Rc<Self>, run: u64, members: &[usize]) -> Result<Option<Board>> {
        let Some((area, salt)) = self.world(run)? else {
            return Ok(None);
        };
        let places = members
            .iter()
            .map(|&process| Place::new(process, area, salt));
        Ok(self.board(places.collect()))
    }

    /// Tells the ranks of a run that this one does not share memory, in case they wait for it there.
    pub(super) fn stay_out(&self, run: u64) -> Result<()> {
        if let Some((area, salt)) = self.world(run)? {
            let place = Place::new(self.memory.me(), area, salt);
            let flag = self.memory.word(place.process, self.division.at(area, 0));
            flag.store(place.never(), Ordering::Release);
        }
        Ok(())
    }

    /// The area of a run, and the salt of its use; nothing if its salts are used up.
    fn world(&self, run: u64) -> Result<Option<(usize, u64)>> {
        const NAP: Duration = Duration::from_micros(50);
        const MOST: Duration = Duration::from_secs(600);
        let (area, salt) = ((run % WORLDS as u64) as usize, run / WORLDS as u64 + 1);
        if salt > board::LAST_SALT {
            return Ok(None);
        }
        let before = self.areas.borrow()[area].clone();
        if let Some(before) = before {
            let start = Instant::now();
            while !before.is_all_read(&self.memory) {
                if start.elapsed() > MOST {
                    return Err(failure("run", "processes that never end an earlier run"));
                }
                std::thread::sleep(NAP);
            }
        }
        Ok(Some((area, salt)))
    }

    /// The board of a group, if all its members are on this node, have a place each, and are few.
    pub(super) fn board(self: &Rc<Self>, places: SmallVec<[Place; 8]>) -> Option<Board> {
        let near = |place: &Place| self.memory.has(place.process) && place.area < AREAS;
        let fits = (2..=u64::BITS as usize).contains(&places.len());
        if !fits || !places.iter().all(near) {
            return None;
        }
        let me = (places.iter()).position(|place| place.process == self.memory.me())?;
        let area = places[me].area;
        let areas = places.iter().map(|p| p.area * self.division.area());
        let areas = areas.collect();
        let book = Rc::new(Book::new(places, areas, me));
        self.areas.borrow_mut()[area] = Some(Rc::clone(&book));
        Some(Board::new(Rc::clone(self), book, me))
    }
}

/// An area that this process takes for a group if one is made.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) place: Place,
    /// Keeps the area from being taken again meanwhile.
    _book: Rc<Book>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_stay_within_the_budget() {
        for processes in 2..=2048 {
            for free in [1 << 20, 64 << 20, usize::MAX] {
                let division = Division::new(processes, free);
                let bytes = division.areas() + division.arena;
                if free == usize::MAX && processes <= 256 {
                    assert!(bytes * processes <= BUDGET, "{processes}: {division:?}");
                }
                assert!(division.most_laid() * 3 <= division.arena, "{processes}");
                assert!(division.at(AREAS - 1, DEPTH - 1) + division.slot <= division.areas());
                assert!(division.laid(EXCHANGES) <= division.slot);
                assert!(division.laid(0) + 32 <= division.laid(1));
            }
        }
        // What containers have by default is enough.
        let eight = Division::new(8, 64 << 20);
        assert_eq!((eight.little, eight.most()), (LITTLE, MOST));
        assert!(eight.most_laid() >= 1 << 20, "{eight:?}");
    }
}
