//! The memory that the processes of a node share: a segment of each, in one window of MPI.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use mpi::ffi;

use super::super::codes::check;
use super::LINE;
use crate::Result;

/// The segments of the processes of this node. They stay where they are until the process ends.
pub(super) struct Memory {
    /// Where the segment of each process of the job begins; null if it is on another node.
    segments: Box<[*mut u8]>,
    /// The length of each.
    bytes: usize,
    me: usize,
    /// Whether there are fewer cores than processes.
    crowded: bool,
    window: ffi::MPI_Win,
    _thread: PhantomData<Rc<()>>,
}

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

impl Memory {
    /// Makes the segments; none if the processes of this node cannot share memory, or there is one only. `shape` tells for a number of
    /// processes on a node, and the bytes that it has free for what they share, how long segments are, and how long the part is that
    /// begins with zeros; nothing if there is not enough for them. All processes of the job call this, once.
    pub(super) fn open(
        comm: ffi::MPI_Comm,
        me: usize,
        size: usize,
        shape: impl FnOnce(usize, usize) -> Option<(usize, usize)>,
    ) -> Result<Option<Self>> {
        let (mut near, here) = neighbours(comm)?;
        let opened = match here {
            0 | 1 => None,
            _ => Self::open_among(near, here, me, size, shape)?,
        };
        // SAFETY: the communicator was made above, and all processes of the node come here, or fail.
        unsafe { ffi::MPI_Comm_free(&raw mut near) };
        Ok(opened)
    }

    /// The segments of the processes of a node, `here` of them. All of them call this.
    fn open_among(
        near: ffi::MPI_Comm,
        here: usize,
        me: usize,
        size: usize,
        shape: impl FnOnce(usize, usize) -> Option<(usize, usize)>,
    ) -> Result<Option<Self>> {
        let cores = cores_of(near)?;
        // An MPI that finds too little room for a window may leave some of the processes waiting for ever.
        let Some((bytes, zeros)) = shape(here, free_of(near)?) else {
            return Ok(None);
        };
        let Some(made) = Allocated::new(near, here, bytes, zeros)? else {
            return Ok(None);
        };
        let segments = made.segments(near, me, size)?;
        // SAFETY: the part that begins with zeros lies in this process' own segment, which begins at a multiple of 8. Pages of a new window
        // are zeros, but MPI does not say so. No process reads before all have written. All processes of the node meet.
        unsafe {
            for at in (0..zeros).step_by(8) {
                AtomicU64::from_ptr(made.base.add(at).cast()).store(0, Ordering::Relaxed);
            }
            check(ffi::MPI_Barrier(near), "MPI_Barrier")?;
        }
        Ok(Some(Self {
            segments,
            bytes,
            me,
            crowded: (1..here).contains(&cores),
            window: made.window,
            _thread: PhantomData,
        }))
    }

    /// Segments of this many processes, all of them in this one.
    #[cfg(test)]
    pub(super) fn of_one(processes: usize, bytes: usize) -> Self {
        let segment = || Box::leak(vec![0_u64; bytes / 8].into_boxed_slice()).as_mut_ptr();
        Self {
            segments: (0..processes).map(|_| segment().cast()).collect(),
            bytes: bytes / 8 * 8,
            me: 0,
            crowded: false,
            // SAFETY: a constant of the library.
            window: unsafe { ffi::RSMPI_WIN_NULL },
            _thread: PhantomData,
        }
    }

    /// Gives the memory back, when all processes leave: nobody reads or writes it any more.
    pub(super) fn close(&self) {
        let mut window = self.window;
        // SAFETY: the window is this process' own; it is given back once, by all processes of the node, as they end.
        unsafe { ffi::MPI_Win_free(&raw mut window) };
    }

    /// This process.
    pub(super) fn me(&self) -> usize {
        self.me
    }

    /// Whether there are fewer cores than processes.
    pub(super) fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// How many processes the node has.
    pub(super) fn size(&self) -> usize {
        self.segments.iter().filter(|s| !s.is_null()).count()
    }

    /// Whether a process has a segment here.
    pub(super) fn has(&self, process: usize) -> bool {
        self.segments.get(process).is_some_and(|s| !s.is_null())
    }

    /// Where some bytes of a process' segment begin.
    fn at(&self, process: usize, at: usize, len: usize) -> *mut u8 {
        let segment = self.segments[process];
        let fits = at <= self.bytes && len <= self.bytes - at && !segment.is_null();
        assert!(fits, "bytes outside a segment");
        segment.wrapping_add(at)
    }

    /// A word at a multiple of 8 of a process' segment, which all processes access as atomic one alone.
    pub(super) fn word(&self, process: usize, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8), "half a word");
        // SAFETY: the word lies in the segment, which begins at a multiple of 8.
        unsafe { AtomicU64::from_ptr(self.at(process, at, 8).cast()) }
    }

    /// Words at a multiple of 8 of a process' segment, which others write before they tell so by a word.
    #[inline]
    pub(super) fn words<const N: usize>(&self, process: usize, at: usize) -> [u64; N] {
        assert!(at.is_multiple_of(8), "half a word");
        let from: *mut u64 = self.at(process, at, 8 * N).cast();
        // SAFETY: the words lie in the segment, which begins at a multiple of 8; as atomic ones they may even be written meanwhile.
        std::array::from_fn(|k| unsafe { AtomicU64::from_ptr(from.add(k)) }.load(Ordering::Relaxed))
    }

    /// Makes sure that part of this process' own segment can be written: where the file system that has it is full, the system would
    /// end the process that writes there.
    pub(super) fn is_ready(&self, at: usize, len: usize) -> bool {
        populate(self.at(self.me, at, len), 0, len)
    }

    /// Asks for bytes of this process' own segment back from the caches of others that have read them, so that it need not wait for them
    /// when it writes there.
    pub(super) fn take_back(&self, at: usize, len: usize) {
        let start = self.at(self.me, at, len);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        for line in (0..len).step_by(LINE) {
            // SAFETY: a hint: it changes no byte, and where the processor has no such instruction it does nothing.
            unsafe {
                std::arch::asm!(
                    "prefetchw [{}]",
                    in(reg) start.wrapping_add(line),
                    options(nostack, preserves_flags, readonly)
                );
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = start;
    }

    /// Asks for bytes of a process' segment that are about to be read, all at once: one after the other each would be waited for.
    pub(super) fn fetch(&self, process: usize, at: usize, len: usize) {
        let start = self.at(process, at, len);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        for line in (0..len).step_by(LINE) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a hint, which reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line).cast()) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = start;
    }

    /// Writes to this process' own segment.
    ///
    /// # Safety
    /// No other process may read there before it is told so by a word.
    pub(super) unsafe fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.at(self.me, at, bytes.len());
        // SAFETY: the bytes lie in the segment, and nobody else uses them now.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// As [`Memory::write`], words at a multiple of 8: straight from registers, as they have just been computed.
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub(super) unsafe fn write_words<const N: usize>(&self, at: usize, words: [u64; N]) {
        assert!(at.is_multiple_of(8), "half a word");
        let to: *mut u64 = self.at(self.me, at, 8 * N).cast();
        for (k, word) in words.into_iter().enumerate() {
            // SAFETY: the words lie in the segment, which begins at a multiple of 8.
            unsafe { AtomicU64::from_ptr(to.add(k)) }.store(word, Ordering::Relaxed);
        }
    }

    /// Bytes of a process' segment.
    ///
    /// # Safety
    /// The process must have told by a word that they are written, and not write to them again while they are borrowed.
    pub(super) unsafe fn read(&self, process: usize, at: usize, len: usize) -> &[u8] {
        let from = self.at(process, at, len);
        // SAFETY: the bytes lie in the segment, and nobody writes to them now.
        unsafe { std::slice::from_raw_parts(from, len) }
    }
}

/// The processes of this node, and how many they are. All processes of the job call this.
fn neighbours(comm: ffi::MPI_Comm) -> Result<(ffi::MPI_Comm, usize)> {
    let mut number = 0;
    // SAFETY: all processes make these calls, in this order. Pointers are to variables of the right types.
    let near = unsafe {
        let (kind, info) = (ffi::RSMPI_COMM_TYPE_SHARED, ffi::RSMPI_INFO_NULL);
        let mut near = ffi::RSMPI_COMM_NULL;
        let code = ffi::MPI_Comm_split_type(comm, kind, 0, info, &raw mut near);
        check(code, "MPI_Comm_split_type")?;
        let code = ffi::MPI_Comm_set_errhandler(near, ffi::RSMPI_ERRORS_RETURN);
        check(code, "MPI_Comm_set_errhandler")?;
        check(ffi::MPI_Comm_size(near, &raw mut number), "MPI_Comm_size")?;
        near
    };
    Ok((near, usize::try_from(number).unwrap_or(0)))
}

/// A window that every process of a node has got.
struct Allocated {
    window: ffi::MPI_Win,
    /// The first line of this process' segment, and how far it is from where MPI had the segment begin.
    base: *mut u8,
    shift: usize,
    /// Where MPI had the segments begin, by the numbers of processes on this node.
    found: Vec<*mut u8>,
}

impl Allocated {
    /// Segments of so many bytes; none if some process of the node has not got its own. All of them call this.
    fn new(near: ffi::MPI_Comm, here: usize, bytes: usize, zeros: usize) -> Result<Option<Self>> {
        let mut start: *mut u8 = ptr::null_mut();
        // SAFETY: all processes of the node make these calls, in this order. Pointers are to variables of the right types. A window is
        // only used if every process of the node has got it.
        unsafe {
            let mut window = ffi::RSMPI_WIN_NULL;
            // MPI aligns segments to words; a record of one line must not lie on two.
            let code = ffi::MPI_Win_allocate_shared(
                (bytes + LINE) as ffi::MPI_Aint,
                1,
                ffi::RSMPI_INFO_NULL,
                near,
                (&raw mut start).cast(),
                &raw mut window,
            );
            let found = match code == ffi::MPI_SUCCESS as c_int && !start.is_null() {
                true => found(window, here, bytes + LINE),
                false => None,
            };
            let shift = start.addr().next_multiple_of(LINE) - start.addr();
            let base = start.wrapping_add(shift);
            let found = found.filter(|_| populate(base, 0, zeros));
            let (mine, mut all) = (i32::from(found.is_some()), 0);
            let (from, to) = ((&raw const mine).cast(), (&raw mut all).cast());
            let (kind, op) = (ffi::RSMPI_INT32_T, ffi::RSMPI_MIN);
            let code = ffi::MPI_Allreduce(from, to, 1, kind, op, near);
            check(code, "MPI_Allreduce")?;
            Ok(found.filter(|_| all > 0).map(|found| Self {
                window,
                base,
                shift,
                found,
            }))
        }
    }

    /// The first line of the segment of each of `size` processes of the job, of which this is `me`; null for those of other nodes.
    /// All processes of the node call this.
    fn segments(&self, near: ffi::MPI_Comm, me: usize, size: usize) -> Result<Box<[*mut u8]>> {
        // Who has a segment, and where the first line in it begins.
        let mut told = vec![[0_i32; 2]; self.found.len()];
        let own = [me as i32, self.shift as i32];
        // SAFETY: every process of the node gives two numbers, for which there is room.
        let code = unsafe {
            let (from, to) = (own.as_ptr().cast(), told.as_mut_ptr().cast());
            let kind = ffi::RSMPI_INT32_T;
            ffi::MPI_Allgather(from, 2, kind, to, 2, kind, near)
        };
        check(code, "MPI_Allgather")?;
        let mut segments = vec![ptr::null_mut(); size].into_boxed_slice();
        for (told, segment) in told.into_iter().zip(&self.found) {
            let [rank, shift] = told.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
            if let Some(known) = segments.get_mut(rank) {
                *known = segment.wrapping_add(shift.min(LINE));
            }
        }
        Ok(segments)
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

/// How many bytes the file system has free in which the processes of a group share memory, where that is known.
fn free_of(comm: ffi::MPI_Comm) -> Result<usize> {
    let mut own = u64::MAX;
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    {
        // SAFETY: a path that ends with a zero, and a struct of numbers for the system to fill.
        unsafe {
            let mut found: libc::statvfs = std::mem::zeroed();
            if libc::statvfs(c"/dev/shm".as_ptr(), &raw mut found) == 0 {
                own = found.f_bavail.saturating_mul(found.f_frsize);
            }
        }
    }
    let mut least = 0_u64;
    // SAFETY: one number each; all processes of the group make this call.
    let code = unsafe {
        let (from, to) = ((&raw const own).cast(), (&raw mut least).cast());
        ffi::MPI_Allreduce(from, to, 1, ffi::RSMPI_UINT64_T, ffi::RSMPI_MIN, comm)
    };
    check(code, "MPI_Allreduce")?;
    Ok(usize::try_from(least).unwrap_or(usize::MAX))
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

/// Has the system find pages for `len` bytes that begin `at` bytes into a segment; false if there are none. Systems that cannot tell
/// before the first access are believed to have some.
fn populate(segment: *mut u8, at: usize, len: usize) -> bool {
    #[cfg(target_os = "linux")]
    {
        const PAGE: usize = 4096;
        let start = segment.addr() + at;
        let first = start / PAGE * PAGE;
        let bytes = start + len - first;
        let pages: *mut c_void = segment.with_addr(first).cast();
        // SAFETY: this changes no byte of the pages, of which the segment has at least one byte each.
        let refused = unsafe { libc::madvise(pages, bytes, libc::MADV_POPULATE_WRITE) } != 0;
        let unknown = std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL);
        !refused || unknown
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _: (*mut u8, usize, usize, *mut c_void) = (segment, at, len, ptr::null_mut());
        true
    }
}
