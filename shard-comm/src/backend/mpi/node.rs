//! Memory that the processes of a node share: each writes its records to a segment of its own, where the others read them. So ranks
//! of one node agree, and few elements reach them, without a message.
//!
//! The *board* of a group is an area of each member's segment, with a few slots that its operations use in turn. A member
//! writes its record to a slot, and then the operation's number to the slot's flag. It writes to the slot again only when every
//! member has read what was there before, which each tells by a count of its own.
//!
//! Areas are used by one group after the other. A salt, greater from use to use, is part of every number in an area, so that what an
//! earlier group left there says nothing to a later one.

use std::cell::{Cell, RefCell};
use std::cmp;
use std::ffi::c_int;
use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mpi::ffi;
use smallvec::SmallVec;

use super::raw::{check, failure};
use super::record::{HEADER, READ, length_of};
use crate::Result;

/// How many bytes the segments of a node may take together, and the most that a slot has for elements.
const BUDGET: usize = 32 << 20;
const MOST: usize = 64 << 10;

/// How many bytes of all members together it pays to bring to each of them in one round.
const AT_ONCE: usize = 512 << 10;

/// How many operations of a group may have their records in a segment at once. Later ones begin when earlier ones were read.
const DEPTH: u64 = 4;

/// A process can be in this many groups at once that share its segment; others agree by messages.
const AREAS: usize = 16;

/// The areas of the groups of all ranks: runs use them in turn.
const WORLDS: usize = 4;

const LINE: usize = 64;

/// How a segment is divided: areas, of a line for the count of what was read and [`DEPTH`] slots each.
#[derive(Clone, Copy, Debug)]
struct Division {
    /// The most bytes of elements that a slot holds beside the header of a record.
    most: usize,
    slot: usize,
}

impl Division {
    /// The division of the segments of a node with this many processes.
    fn new(processes: usize) -> Self {
        let share = BUDGET / (processes.max(1) * AREAS * DEPTH as usize);
        let most = match share.checked_ilog2() {
            Some(bits) => MOST.min(1 << bits),
            None => 0,
        };
        Self {
            most,
            slot: (8 + HEADER + most).next_multiple_of(LINE),
        }
    }

    fn area(self) -> usize {
        LINE + DEPTH as usize * self.slot
    }

    fn bytes(self) -> usize {
        AREAS * self.area()
    }

    /// Where the slot of an operation begins in an area.
    fn at(self, sequence: u64) -> usize {
        LINE + (sequence % DEPTH) as usize * self.slot
    }
}

/// The bits of a count, enough for years; the bits above are the salt. An area whose salts are used up is not used any more.
const COUNT_BITS: u32 = 46;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
const LAST_SALT: u64 = u64::MAX >> COUNT_BITS;

/// How often a process looks for a record before it does something else, where each process has a core.
const SPINS: u32 = 24;

/// The segments of the processes of this node. They stay where they are until the process ends.
pub(super) struct Node {
    /// Where the segment of each process of the job begins; null if it is on another node.
    segments: Box<[*mut u8]>,
    division: Division,
    me: usize,
    /// Whether there are fewer cores than processes.
    crowded: bool,
    /// The last group that used each area of this process' segment.
    areas: RefCell<[Option<Rc<Book>>; AREAS]>,
    window: ffi::MPI_Win,
    _thread: PhantomData<Rc<()>>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({} processes)", self.size())
    }
}

impl Node {
    /// The first process on the node of each process of the job. All processes call this, once.
    pub(super) fn first_of(comm: ffi::MPI_Comm, me: usize, size: usize) -> Result<Rc<[usize]>> {
        let mut first = me as i32;
        let mut all = vec![0_i32; size];
        // SAFETY: as in `open`.
        unsafe {
            let mut near = ffi::RSMPI_COMM_NULL;
            let (kind, info) = (ffi::RSMPI_COMM_TYPE_SHARED, ffi::RSMPI_INFO_NULL);
            let code = ffi::MPI_Comm_split_type(comm, kind, 0, info, &raw mut near);
            check(code, "MPI_Comm_split_type")?;
            let number = ffi::RSMPI_INT32_T;
            let code = ffi::MPI_Bcast((&raw mut first).cast(), 1, number, 0, near);
            check(code, "MPI_Bcast")?;
            ffi::MPI_Comm_free(&raw mut near);
            let (from, to) = ((&raw const first).cast(), all.as_mut_ptr().cast());
            let code = ffi::MPI_Allgather(from, 1, number, to, 1, number, comm);
            check(code, "MPI_Allgather")?;
        }
        let number = |n: i32| usize::try_from(n).unwrap_or(0);
        Ok(all.into_iter().map(number).collect())
    }

    /// Makes the segments; none if the processes of this node cannot share memory, or there is one only. All processes of the job
    /// call this, once.
    pub(super) fn open(comm: ffi::MPI_Comm, me: usize, size: usize) -> Result<Option<Rc<Self>>> {
        let mut segments = vec![ptr::null_mut(); size].into_boxed_slice();
        // SAFETY: constants of the library.
        let (mut near, mut window) = unsafe { (ffi::RSMPI_COMM_NULL, ffi::RSMPI_WIN_NULL) };
        let (mut number, mut made) = (0, 0);
        let (here, division, cores);
        let mut base: *mut u8 = ptr::null_mut();
        // SAFETY: all processes make these calls, in this order. Pointers are to variables of the right types. A window is only
        // used if every process of the node has got it.
        unsafe {
            let (kind, info) = (ffi::RSMPI_COMM_TYPE_SHARED, ffi::RSMPI_INFO_NULL);
            check(
                ffi::MPI_Comm_split_type(comm, kind, 0, info, &raw mut near),
                "MPI_Comm_split_type",
            )?;
            check(
                ffi::MPI_Comm_set_errhandler(near, ffi::RSMPI_ERRORS_RETURN),
                "MPI_Comm_set_errhandler",
            )?;
            check(ffi::MPI_Comm_size(near, &raw mut number), "MPI_Comm_size")?;
            here = usize::try_from(number).unwrap_or(0);
            if here < 2 {
                ffi::MPI_Comm_free(&raw mut near);
                return Ok(None);
            }
            cores = cores_of(near)?;
            division = Division::new(here);
            let code = ffi::MPI_Win_allocate_shared(
                division.bytes() as ffi::MPI_Aint,
                1,
                info,
                near,
                (&raw mut base).cast(),
                &raw mut window,
            );
            let found = match code == ffi::MPI_SUCCESS as c_int {
                true => found(window, here, division.bytes()),
                false => None,
            };
            let mine = i32::from(found.is_some() && !base.is_null());
            check(
                ffi::MPI_Allreduce(
                    (&raw const mine).cast(),
                    (&raw mut made).cast(),
                    1,
                    ffi::RSMPI_INT32_T,
                    ffi::RSMPI_MIN,
                    near,
                ),
                "MPI_Allreduce",
            )?;
            let Some(found) = found.filter(|_| made > 0) else {
                return Ok(None);
            };
            let mut ranks = vec![0_i32; here];
            let own = me as i32;
            check(
                ffi::MPI_Allgather(
                    (&raw const own).cast(),
                    1,
                    ffi::RSMPI_INT32_T,
                    ranks.as_mut_ptr().cast(),
                    1,
                    ffi::RSMPI_INT32_T,
                    near,
                ),
                "MPI_Allgather",
            )?;
            for (rank, segment) in ranks.into_iter().zip(found) {
                let rank = usize::try_from(rank).unwrap_or(usize::MAX);
                if let Some(known) = segments.get_mut(rank) {
                    *known = segment;
                }
            }
            // Pages of a new window are zeros, but MPI does not say so. No process reads before all have written.
            for area in 0..AREAS {
                for at in std::iter::once(0).chain((0..DEPTH).map(|k| division.at(k))) {
                    word(base, area * division.area() + at).store(0, Ordering::Relaxed);
                }
            }
            check(ffi::MPI_Barrier(near), "MPI_Barrier")?;
            ffi::MPI_Comm_free(&raw mut near);
        }
        Ok(Some(Rc::new(Self {
            segments,
            division,
            me,
            crowded: (1..here).contains(&cores),
            areas: RefCell::default(),
            window,
            _thread: PhantomData,
        })))
    }

    /// Gives the memory back, when all processes leave: nobody reads or writes it any more.
    pub(super) fn close(&self) {
        let mut window = self.window;
        // SAFETY: the window is this process' own; it is given back once, by all processes of the node, as they end.
        unsafe { ffi::MPI_Win_free(&raw mut window) };
    }

    /// Whether there are fewer cores than processes.
    pub(super) fn is_crowded(&self) -> bool {
        self.crowded
    }

    fn size(&self) -> usize {
        self.segments.iter().filter(|s| !s.is_null()).count()
    }

    /// A word of a process' area: the count of what it has read, or the flag of a slot.
    fn word(&self, place: &Place, at: usize) -> &AtomicU64 {
        // SAFETY: places are of processes of this node, whose segments have `AREAS` areas; all callers pass 0 or the
        // beginning of a slot. Processes access these words as atomic ones alone.
        unsafe {
            word(
                self.segments[place.process],
                place.area * self.division.area() + at,
            )
        }
    }

    /// Takes an area for a group that may be made, if one is free.
    pub(super) fn offer(self: &Rc<Self>) -> Option<Offer> {
        let mut areas = self.areas.borrow_mut();
        let free = (WORLDS..AREAS).find(|&at| {
            let unused = |book: &Rc<Book>| {
                Rc::strong_count(book) == 1 && book.salt < LAST_SALT && book.is_read(self)
            };
            areas[at].as_ref().is_none_or(unused)
        })?;
        let salt = areas[free].as_ref().map_or(0, |book| book.salt) + 1;
        let book = Rc::new(Book::empty(salt));
        areas[free] = Some(Rc::clone(&book));
        Some(Offer {
            place: Place {
                process: self.me,
                area: free,
                salt,
            },
            _book: book,
        })
    }

    /// The board of the group of all ranks of a run. Waits until everybody has read what this process wrote to the same area runs ago,
    /// which those who are not in that run any more have.
    pub(super) fn of_run(self: &Rc<Self>, run: u64, members: &[usize]) -> Result<Option<Board>> {
        const NAP: Duration = Duration::from_micros(50);
        const MOST: Duration = Duration::from_secs(600);
        let (area, salt) = ((run % WORLDS as u64) as usize, run / WORLDS as u64 + 1);
        if salt > LAST_SALT {
            return Ok(None);
        }
        let before = self.areas.borrow()[area].clone();
        if let Some(before) = before {
            let start = Instant::now();
            while !before.is_read(self) {
                if start.elapsed() > MOST {
                    return Err(failure("run", "processes that never end an earlier run"));
                }
                std::thread::sleep(NAP);
            }
        }
        let places = members.iter().map(|&process| Place {
            process,
            area,
            salt,
        });
        Ok(self.board(places.collect()))
    }

    /// The board of a group, if all its members are on this node, have a place each, and are few.
    pub(super) fn board(self: &Rc<Self>, places: SmallVec<[Place; 8]>) -> Option<Board> {
        let near = |place: &Place| {
            self.segments
                .get(place.process)
                .is_some_and(|s| !s.is_null())
        };
        let fits = (2..=u64::BITS as usize).contains(&places.len());
        if !fits || !places.iter().all(|p| near(p) && p.area < AREAS) {
            return None;
        }
        let me = places.iter().position(|place| place.process == self.me)?;
        let (area, salt) = (places[me].area, places[me].salt);
        let book = Rc::new(Book {
            salt,
            places,
            posted: Cell::new(0),
        });
        self.areas.borrow_mut()[area] = Some(Rc::clone(&book));
        let board = Board {
            node: Rc::clone(self),
            book,
            me,
            read: Cell::new(0),
            ahead: Cell::new(0),
            known: Cell::new(0),
        };
        board.tell_read();
        Some(board)
    }
}

/// How many cores the processes of a group may run on, together: each may be bound to one.
fn cores_of(comm: ffi::MPI_Comm) -> Result<usize> {
    const WORDS: usize = 32;
    let mut own = [0_u64; WORDS];
    for core in core_affinity::get_core_ids().unwrap_or_default() {
        own[core.id / 64 % WORDS] |= 1 << (core.id % 64);
    }
    let mut all = [0_u64; WORDS];
    // SAFETY: both lists have as many numbers as the call says; all processes of the group make it.
    let code = unsafe {
        let (from, to) = (own.as_ptr().cast(), all.as_mut_ptr().cast());
        let (kind, op) = (ffi::RSMPI_UINT64_T, ffi::RSMPI_BOR);
        ffi::MPI_Allreduce(from, to, WORDS as c_int, kind, op, comm)
    };
    check(code, "MPI_Allreduce")?;
    Ok(all.iter().map(|word| word.count_ones() as usize).sum())
}

/// The segments of a window's processes; none if some are not as they should be.
fn found(window: ffi::MPI_Win, count: usize, least: usize) -> Option<Vec<*mut u8>> {
    let segment = |at: usize| {
        let (mut bytes, mut unit) = (0, 0);
        let mut segment: *mut u8 = ptr::null_mut();
        // SAFETY: the window was just made, by as many processes; the pointers are to variables of the right types.
        let code = unsafe {
            let (bytes, unit) = (&raw mut bytes, &raw mut unit);
            ffi::MPI_Win_shared_query(window, at as c_int, bytes, unit, (&raw mut segment).cast())
        };
        let well = code == ffi::MPI_SUCCESS as c_int && bytes >= least as ffi::MPI_Aint;
        let aligned = !segment.is_null() && segment.addr().is_multiple_of(align_of::<u64>());
        (well && aligned).then_some(segment)
    };
    (0..count).map(segment).collect()
}

/// The word at a place in a segment.
///
/// # Safety
/// The segment must be one of a window, longer than that, and the place a multiple of 8.
unsafe fn word<'a>(segment: *mut u8, at: usize) -> &'a AtomicU64 {
    // SAFETY: as the caller promises; segments begin at a multiple of 64, and live until the process ends.
    unsafe { AtomicU64::from_ptr(segment.wrapping_add(at).cast()) }
}

/// Where a member of a group has its records: an area of its segment, and the salt of this use of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) process: usize,
    area: usize,
    salt: u64,
}

impl Place {
    /// As a number that is not zero, for the other members.
    pub(super) fn to_note(self) -> i64 {
        ((self.salt << 8) | (self.area as u64 + 1)).cast_signed()
    }

    /// From the number that a process told; none if it has no place.
    pub(super) fn from_note(process: usize, note: i64) -> Option<Self> {
        let note = note.cast_unsigned();
        let area = (note & 0xff).checked_sub(1)?;
        Some(Self {
            process,
            area: area as usize,
            salt: note >> 8,
        })
    }

    fn stamp(&self, count: u64) -> u64 {
        self.salt << COUNT_BITS | count & COUNT
    }

    /// How much the member has read, by its word: nothing before it has joined the group, all if it uses its area for another one
    /// already.
    fn count(&self, word: u64) -> u64 {
        match (word >> COUNT_BITS).cmp(&self.salt) {
            cmp::Ordering::Less => 0,
            cmp::Ordering::Equal => word & COUNT,
            cmp::Ordering::Greater => u64::MAX,
        }
    }
}

/// An area that this process takes for a group if one is made.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) place: Place,
    /// Keeps the area from being taken again meanwhile.
    _book: Rc<Book>,
}

/// The use of an area by a group.
#[derive(Debug)]
struct Book {
    salt: u64,
    places: SmallVec<[Place; 8]>,
    /// How many records this process has written.
    posted: Cell<u64>,
}

impl Book {
    fn empty(salt: u64) -> Self {
        Self {
            salt,
            places: SmallVec::new(),
            posted: Cell::new(0),
        }
    }

    /// Whether every member has read all records.
    fn is_read(&self, node: &Node) -> bool {
        let posted = self.posted.get();
        let count = |place: &Place| place.count(node.word(place, 0).load(Ordering::Acquire));
        self.places.iter().all(|place| count(place) >= posted)
    }
}

/// A group's places, as one member sees them.
#[derive(Debug)]
pub(super) struct Board {
    node: Rc<Node>,
    book: Rc<Book>,
    me: usize,
    /// This process has read the records of all operations before this one, and of those after it that have a bit in `ahead`.
    read: Cell<u64>,
    ahead: Cell<u64>,
    /// All members are known to have read the records of all operations before this one.
    known: Cell<u64>,
}

impl Board {
    /// The most bytes of elements that travel with a record.
    pub(super) fn most(&self) -> usize {
        self.node.division.most
    }

    /// Up to this many bytes of each member it is best to bring to all of them in one round.
    pub(super) fn at_once(&self) -> usize {
        self.most().min(AT_ONCE / self.book.places.len())
    }

    /// Whether an operation may write its record: those that used its slot before have been read.
    pub(super) fn has_room(&self, sequence: u64) -> bool {
        let need = (sequence + 1).saturating_sub(DEPTH);
        if self.known.get() >= need {
            return true;
        }
        let counts = self.book.places.iter().map(|place| self.count(place));
        self.known.set(counts.min().unwrap_or(0));
        self.known.get() >= need
    }

    fn count(&self, place: &Place) -> u64 {
        place.count(self.node.word(place, 0).load(Ordering::Acquire))
    }

    /// The processes that have not read what an operation waits for.
    pub(super) fn behind(&self, sequence: u64) -> Vec<usize> {
        let need = (sequence + 1).saturating_sub(DEPTH);
        let behind = self
            .book
            .places
            .iter()
            .filter(|place| self.count(place) < need);
        behind.map(|place| place.process).collect()
    }

    /// Writes this member's record of an operation for which there is room.
    pub(super) fn post(
        self: &Rc<Self>,
        sequence: u64,
        header: &[u8; HEADER],
        source: &[u8],
    ) -> Result<Gathered> {
        let division = self.node.division;
        if source.len() > division.most || !self.has_room(sequence) {
            return Err(failure("record", "no room in the memory of the node"));
        }
        let place = &self.book.places[self.me];
        let start = division.at(sequence);
        let mut header = *header;
        header[READ..READ + 8].copy_from_slice(&self.read.get().to_le_bytes());
        // SAFETY: the slot is in this process' own segment and as long as both together. No other process reads it now: all have
        // read the record before, and look at the flag before they read this one.
        unsafe {
            let segment = self.node.segments[place.process];
            let to = segment.add(place.area * division.area() + start + 8);
            ptr::copy_nonoverlapping(header.as_ptr(), to, HEADER);
            ptr::copy_nonoverlapping(source.as_ptr(), to.add(HEADER), source.len());
        }
        let flag = self.node.word(place, start);
        flag.store(place.stamp(sequence + 1), Ordering::Release);
        self.book
            .posted
            .set(self.book.posted.get().max(sequence + 1));
        Ok(Gathered {
            board: Rc::clone(self),
            sequence,
            missing: u64::MAX >> (u64::BITS as usize - self.book.places.len()),
        })
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
        let place = &self.book.places[self.me];
        let word = self.node.word(place, 0);
        word.store(place.stamp(self.read.get()), Ordering::Release);
    }
}

/// The records of one operation, in the segments of its members. They stay there until this is dropped.
#[derive(Debug)]
pub(super) struct Gathered {
    board: Rc<Board>,
    sequence: u64,
    /// A bit for each member whose record is not there yet.
    missing: u64,
}

impl Gathered {
    /// Looks for records, and returns whether all are there.
    pub(super) fn advance(&mut self) -> bool {
        let spins = if self.board.node.crowded { 1 } else { SPINS };
        for spin in 0..spins {
            if self.look() {
                return true;
            }
            if spin + 1 < spins {
                std::hint::spin_loop();
            }
        }
        false
    }

    fn look(&mut self) -> bool {
        while self.missing > 0 {
            let member = self.missing.trailing_zeros() as usize;
            let place = &self.board.book.places[member];
            let start = self.board.node.division.at(self.sequence);
            let flag = self.board.node.word(place, start);
            if flag.load(Ordering::Acquire) != place.stamp(self.sequence + 1) {
                return false;
            }
            self.missing &= self.missing - 1;
        }
        true
    }

    /// The record of a member, once all are there.
    pub(super) fn record(&self, member: usize) -> &[u8] {
        let places = &self.board.book.places;
        let Some(place) = places.get(member).filter(|_| self.missing == 0) else {
            return &[];
        };
        let division = self.board.node.division;
        let start = place.area * division.area() + division.at(self.sequence) + 8;
        let segment = self.board.node.segments[place.process];
        // SAFETY: the slot lies in the segment, and its flag said that the record is complete. Its owner writes to it again only when
        // this member has told that it has read it, which it does when this struct is dropped.
        unsafe {
            let header = std::slice::from_raw_parts(segment.add(start), HEADER);
            let length = length_of(header).unwrap_or(0).min(division.most);
            std::slice::from_raw_parts(segment.add(start), HEADER + length)
        }
    }

    /// The processes whose records are still missing.
    pub(super) fn peers(&self) -> Vec<usize> {
        let places = self.board.book.places.iter().enumerate();
        let missing = places.filter(|(member, _)| self.missing >> member & 1 == 1);
        missing.map(|(_, place)| place.process).collect()
    }
}

impl Drop for Gathered {
    fn drop(&mut self) {
        // What all members have read when they wrote this: mostly enough for the next operations to begin.
        if self.missing == 0 {
            let read = |member: usize| {
                let mut word = [0; 8];
                word.copy_from_slice(&self.record(member)[READ..READ + 8]);
                u64::from_le_bytes(word)
            };
            let all = (0..self.board.book.places.len()).map(read).min();
            let known = self.board.known.get();
            self.board.known.set(known.max(all.unwrap_or(0)));
        }
        self.board.release(self.sequence);
    }
}
