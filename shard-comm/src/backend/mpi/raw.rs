//! The calls to MPI, made safe: the one place with `unsafe` code.
//!
//! Three rules keep it sound. Every handle is `!Send`, and made on the one thread that may call MPI, which
//! [`initialize`] checks. A [`Mail`] owns the memory that its messages in flight read and write, gives nobody access to
//! it meanwhile, and leaks it rather than free it under them. A message is only posted after its datatype's true
//! extent was found to lie inside its buffer.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use mpi::ffi;
use smallvec::SmallVec;

use super::codes::{check, failure};
use super::node::Node;
use crate::{Buffer, BufferMut, Result};

/// Set when this process cannot leave MPI in good order: it ends the whole job instead.
static BROKEN: AtomicBool = AtomicBool::new(false);

/// A communicator of all processes of the job, used by this library alone.
#[derive(Clone, Debug)]
pub(super) struct World {
    comm: ffi::MPI_Comm,
    rank: usize,
    size: usize,
    greatest_tag: c_int,
    /// The memory that the processes of this node share, if they do.
    node: Option<Rc<Node>>,
    /// The first process on the node of each.
    nodes: Rc<[usize]>,
    _thread: PhantomData<Rc<()>>,
}

/// Initializes MPI, if this process has not done so, for calls from this thread only, and arranges for MPI to be finalized
/// when the process ends.
pub(super) fn initialize() -> Result<World> {
    let (mut begun, mut ended, mut provided, mut main) = (0, 0, 0, 0);
    // SAFETY: these two may be called at any time.
    unsafe {
        check(ffi::MPI_Initialized(&raw mut begun), "MPI_Initialized")?;
        check(ffi::MPI_Finalized(&raw mut ended), "MPI_Finalized")?;
    }
    if ended != 0 || is_broken() {
        let cause = "an earlier launch of this job failed, or the job is over";
        return Err(failure("MPI_Init_thread", cause));
    }
    // SAFETY: MPI is initialized once, before every other call, without arguments, which MPI-2 allows. All pointers are
    // to variables of the right type.
    let comm = unsafe {
        if begun == 0 {
            let code = ffi::MPI_Init_thread(
                ptr::null_mut(),
                ptr::null_mut(),
                ffi::RSMPI_THREAD_FUNNELED,
                &raw mut provided,
            );
            check(code, "MPI_Init_thread")?;
            libc::atexit(leave);
        }
        check(ffi::MPI_Query_thread(&raw mut provided), "MPI_Query_thread")?;
        check(ffi::MPI_Is_thread_main(&raw mut main), "MPI_Is_thread_main")?;
        if provided < ffi::RSMPI_THREAD_FUNNELED || main == 0 {
            let cause = "needs thread level FUNNELED and calls from the thread that entered MPI, \
                         usually the main one";
            return Err(failure("MPI_Init_thread", cause));
        }
        let mut comm = ffi::RSMPI_COMM_NULL;
        let errors = ffi::RSMPI_ERRORS_RETURN;
        let world = ffi::RSMPI_COMM_WORLD;
        check(
            ffi::MPI_Comm_set_errhandler(world, errors),
            "MPI_Comm_set_errhandler",
        )?;
        check(ffi::MPI_Comm_dup(world, &raw mut comm), "MPI_Comm_dup")?;
        check(
            ffi::MPI_Comm_set_errhandler(comm, errors),
            "MPI_Comm_set_errhandler",
        )?;
        comm
    };
    let (mut rank, mut size) = (0, 0);
    // SAFETY: the communicator was just made; the pointers are to variables of the right type.
    unsafe {
        check(ffi::MPI_Comm_rank(comm, &raw mut rank), "MPI_Comm_rank")?;
        check(ffi::MPI_Comm_size(comm, &raw mut size), "MPI_Comm_size")?;
    }
    let number = |n: c_int| usize::try_from(n).unwrap_or(0);
    let (rank, size) = (number(rank), number(size));
    let world = World {
        comm,
        rank,
        size,
        greatest_tag: greatest_tag()?,
        nodes: Node::first_of(comm, rank, size)?,
        node: Node::open(comm, rank, size)?,
        _thread: PhantomData,
    };
    drop(LAST.set(Last(world.clone())));
    Ok(world)
}

/// The greatest tag a message may have.
fn greatest_tag() -> Result<c_int> {
    let (mut value, mut found) = (ptr::null_mut::<c_int>(), 0);
    // SAFETY: the communicator is MPI's own. Every MPI has the attribute there: a pointer to a number that lives as long as
    // MPI. Both pointers are to variables of the right type.
    let greatest = unsafe {
        let code = ffi::MPI_Comm_get_attr(
            ffi::RSMPI_COMM_WORLD,
            ffi::MPI_TAG_UB as c_int,
            (&raw mut value).cast(),
            &raw mut found,
        );
        check(code, "MPI_Comm_get_attr")?;
        (found != 0 && !value.is_null()).then(|| *value)
    };
    greatest.ok_or_else(|| failure("MPI_Comm_get_attr", "no greatest tag (MPI_TAG_UB) is known"))
}

/// The communicator that is used at the end of the process.
struct Last(World);

// SAFETY: only `leave` looks at it, which runs once, on the thread that ends the process, when everything else is done.
unsafe impl Send for Last {}
// SAFETY: as above.
unsafe impl Sync for Last {}

static LAST: OnceLock<Last> = OnceLock::new();

/// Messages of runs that are over, which leave when MPI is called again.
struct UnderWay(Vec<Mail>);

// SAFETY: only `have_left` looks at it, which calls MPI and so runs on the one thread that may.
unsafe impl Send for UnderWay {}

static UNDER_WAY: Mutex<UnderWay> = Mutex::new(UnderWay(Vec::new()));

/// Takes over messages of a run that is over, and returns whether all that were taken over have left.
pub(super) fn have_left(more: Vec<Mail>) -> Result<bool> {
    let mut under_way = UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner);
    under_way.0.extend(more);
    let mut tested = Ok(());
    under_way.0.retain_mut(|mail| match mail.test() {
        Ok(left) => !left,
        Err(error) => {
            tested = Err(error);
            true
        }
    });
    tested.map(|()| under_way.0.is_empty())
}

/// Sets whether this process ends the whole job when it ends.
pub(super) fn set_broken(broken: bool) {
    BROKEN.store(broken, Ordering::Relaxed);
}

/// Whether something has gone wrong that left messages under way.
pub(super) fn is_broken() -> bool {
    BROKEN.load(Ordering::Relaxed)
}

/// Runs when the process ends, in whatever way.
extern "C" fn leave() {
    let mut ended = 0;
    // SAFETY: registered after MPI was initialized, and run once. Ending the job from the thread that ends the process is
    // all that can be done about a broken one.
    unsafe {
        ffi::MPI_Finalized(&raw mut ended);
        if ended != 0 {
            return;
        }
        if is_broken() {
            ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, 1);
        }
        // Other processes that launch again would wait for this process.
        if let Some(Last(world)) = LAST.get() {
            drop(super::notice::part(world));
            if let Some(node) = &world.node {
                node.close();
            }
        }
        ffi::MPI_Finalize();
    }
}

impl World {
    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// The memory that the processes of this node share, if they do.
    pub(super) fn node(&self) -> Option<&Rc<Node>> {
        self.node.as_ref()
    }

    /// The first process on the node of each.
    pub(super) fn nodes(&self) -> &[usize] {
        &self.nodes
    }

    /// The greatest tag that a message may have: the same in all processes.
    pub(super) fn greatest_tag(&self) -> c_int {
        self.greatest_tag
    }
}

/// The elements of a buffer that a message consists of, in bytes from where the buffer begins.
#[derive(Debug)]
pub(super) struct Region {
    datatype: Datatype,
    count: c_int,
    start: isize,
    /// The range of bytes that the message touches.
    reach: Range<isize>,
}

/// A datatype of MPI, not yet committed.
#[derive(Debug)]
pub(super) struct Datatype {
    handle: ffi::MPI_Datatype,
    owned: bool,
}

/// The greatest number that fits the counts of MPI.
const MOST: usize = c_int::MAX as usize;

/// A place or a distance in bytes, in the integer type that this MPI uses for addresses.
fn address<T: TryFrom<isize>>(at: isize) -> Result<T> {
    T::try_from(at).map_err(|_| failure("address", "more bytes than MPI can address"))
}

impl Datatype {
    /// One element of 1, 2, 4 or 8 bytes, whatever they mean.
    pub(super) fn element(size: usize) -> Self {
        // SAFETY: constants of the library, valid once it is initialized, which it is if there is a caller.
        let handle = unsafe {
            match size {
                8 => ffi::RSMPI_UINT64_T,
                4 => ffi::RSMPI_UINT32_T,
                2 => ffi::RSMPI_UINT16_T,
                _ => ffi::RSMPI_UINT8_T,
            }
        };
        Self {
            handle,
            owned: false,
        }
    }

    fn made(
        call: &'static str,
        make: impl FnOnce(*mut ffi::MPI_Datatype) -> c_int,
    ) -> Result<Self> {
        // SAFETY: a constant of the library.
        let mut handle = unsafe { ffi::RSMPI_DATATYPE_NULL };
        check(make(&raw mut handle), call)?;
        Ok(Self {
            handle,
            owned: true,
        })
    }

    /// `extent` copies of the type, `stride` bytes apart. More copies than fit a count are made of blocks.
    pub(super) fn repeat(&self, extent: usize, stride: isize) -> Result<Self> {
        self.repeat_in(extent, stride, MOST)
    }

    pub(super) fn repeat_in(&self, extent: usize, stride: isize, most: usize) -> Result<Self> {
        if extent <= most {
            let step = address(stride)?;
            return Self::made("MPI_Type_create_hvector", |new| {
                // SAFETY: the old type is valid, the count fits, and the pointer is to a variable of the right type.
                unsafe { ffi::MPI_Type_create_hvector(extent as c_int, 1, step, self.handle, new) }
            });
        }
        let (blocks, rest) = (extent / most, extent % most);
        let block_stride = (most as isize).saturating_mul(stride);
        let whole = self
            .repeat_in(most, stride, most)?
            .repeat_in(blocks, block_stride, most)?;
        let tail = self.repeat_in(rest, stride, most)?;
        Self::together(&[
            (0, &whole),
            (block_stride.saturating_mul(blocks as isize), &tail),
        ])
    }

    /// One copy of the type at each of these places, in bytes.
    pub(super) fn at(&self, places: &[isize]) -> Result<Self> {
        let places: Vec<_> = (places.iter().map(|&at| address(at))).collect::<Result<_>>()?;
        let count = places.len().min(MOST) as c_int;
        Self::made("MPI_Type_create_hindexed_block", |new| {
            // SAFETY: `places` has `count` numbers of the right type; the old type is valid.
            unsafe {
                let places = places.as_ptr();
                ffi::MPI_Type_create_hindexed_block(count, 1, places, self.handle, new)
            }
        })
    }

    /// Several types, each at its place in bytes.
    pub(super) fn together(parts: &[(isize, &Self)]) -> Result<Self> {
        let lengths = vec![1; parts.len()];
        let places: Vec<_> = (parts.iter().map(|p| address(p.0))).collect::<Result<_>>()?;
        let types: Vec<ffi::MPI_Datatype> = parts.iter().map(|p| p.1.handle).collect();
        let count = parts.len().min(MOST) as c_int;
        Self::made("MPI_Type_create_struct", |new| {
            let (lengths, places, types) = (lengths.as_ptr(), places.as_ptr(), types.as_ptr());
            // SAFETY: three lists of `count` entries of the right types; MPI keeps none of them.
            unsafe { ffi::MPI_Type_create_struct(count, lengths, places, types, new) }
        })
    }

    /// Makes the type ready for messages.
    pub(super) fn commit(mut self) -> Result<Region> {
        let (mut low, mut extent) = (0, 0);
        // SAFETY: the type is valid, and the pointers are to variables of the right type.
        unsafe {
            check(
                ffi::MPI_Type_commit(&raw mut self.handle),
                "MPI_Type_commit",
            )?;
            let code = ffi::MPI_Type_get_true_extent_x(self.handle, &raw mut low, &raw mut extent);
            check(code, "MPI_Type_get_true_extent_x")?;
        }
        let low = low as isize;
        Ok(Region {
            datatype: self,
            count: 1,
            start: 0,
            reach: low..low.saturating_add(extent as isize),
        })
    }
}

impl Drop for Datatype {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: a type that this process made and frees once; messages in flight keep what they need of it.
            unsafe { ffi::MPI_Type_free(&raw mut self.handle) };
        }
    }
}

impl Region {
    /// `len` neighbouring elements of `size` bytes, from byte `start`.
    pub(super) fn run(size: usize, start: usize, len: usize) -> Result<Self> {
        let fits = |n: usize| isize::try_from(n).ok();
        let end = len
            .checked_mul(size)
            .and_then(|bytes| bytes.checked_add(start));
        let (Some(begin), Some(end)) = (fits(start), end.and_then(fits)) else {
            return Err(failure("region", "more bytes than can be addressed"));
        };
        if len <= MOST {
            return Ok(Self {
                datatype: Datatype::element(size),
                count: len as c_int,
                start: begin,
                reach: begin..end,
            });
        }
        let region = Datatype::element(size)
            .repeat(len, size as isize)?
            .commit()?;
        Ok(Self {
            start: begin,
            reach: begin..end,
            ..region
        })
    }

    fn check(&self, bytes: usize) -> Result<()> {
        let end = isize::try_from(bytes).unwrap_or(isize::MAX);
        if self.reach.is_empty() || self.reach.start >= 0 && self.reach.end <= end {
            return Ok(());
        }
        let cause = format!("bytes {:?} of a buffer of {bytes}", self.reach);
        Err(failure("region", &cause))
    }
}

/// Memory with messages in flight that read and write it.
#[derive(Debug, Default)]
pub(super) struct Mail {
    bytes: Vec<u8>,
    reads: SmallVec<[Buffer; 1]>,
    writes: SmallVec<[BufferMut; 1]>,
    requests: SmallVec<[ffi::MPI_Request; 4]>,
    /// The process at the other end of each request.
    peers: SmallVec<[usize; 4]>,
    _thread: PhantomData<Rc<()>>,
}

impl Mail {
    /// For messages that are sent from and received into these bytes.
    pub(super) fn of_bytes(bytes: Vec<u8>) -> Self {
        let mut mail = Self::default();
        mail.bytes = bytes;
        mail
    }

    /// For messages that read these buffers, which the host must be able to reach.
    pub(super) fn of_buffers(reads: SmallVec<[Buffer; 1]>) -> Self {
        let mut mail = Self::default();
        mail.reads = reads;
        mail
    }

    /// Adds a buffer for messages to write, and returns its number.
    pub(super) fn add_write(&mut self, buffer: BufferMut) -> usize {
        self.writes.push(buffer);
        self.writes.len() - 1
    }

    /// The bytes, while nothing is in flight.
    pub(super) fn bytes(&self) -> &[u8] {
        if self.requests.is_empty() {
            &self.bytes
        } else {
            &[]
        }
    }

    /// Sets the first bytes to these parts, and their number to `len`, while nothing is in flight. The rest is what it was, or zeros.
    pub(super) fn set_bytes(&mut self, parts: &[&[u8]], len: usize) -> Result<()> {
        if !self.requests.is_empty() {
            return Err(failure("message", "bytes that are still in flight"));
        }
        self.bytes.resize(len, 0);
        let mut at = 0;
        for part in parts {
            let place = self.bytes.get_mut(at..at + part.len());
            place
                .ok_or_else(|| failure("message", "parts beyond its bytes"))?
                .copy_from_slice(part);
            at += part.len();
        }
        Ok(())
    }

    /// The buffers that were written, once nothing is in flight.
    pub(super) fn take_writes(&mut self) -> SmallVec<[BufferMut; 1]> {
        if self.requests.is_empty() {
            std::mem::take(&mut self.writes)
        } else {
            SmallVec::new()
        }
    }

    /// The processes with which messages are in flight.
    pub(super) fn peers(&self) -> Vec<usize> {
        // SAFETY: a constant of the library.
        let done = unsafe { ffi::RSMPI_REQUEST_NULL };
        let open = self.peers.iter().zip(&self.requests);
        let mut peers: Vec<usize> = open.filter(|r| *r.1 != done).map(|r| *r.0).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// Sends a range of the bytes.
    pub(super) fn send_bytes(
        &mut self,
        world: &World,
        peer: usize,
        tag: c_int,
        range: Range<usize>,
    ) -> Result<()> {
        let (at, count) = self.place(&range)?;
        self.request(peer, "MPI_Isend", |request| {
            // SAFETY: `place` found the range inside the bytes, which live until the request is done.
            unsafe {
                let byte = ffi::RSMPI_UINT8_T;
                ffi::MPI_Isend(
                    at.cast(),
                    count,
                    byte,
                    peer as c_int,
                    tag,
                    world.comm,
                    request,
                )
            }
        })
    }

    /// Receives into a range of the bytes, from any process if there is no `peer`.
    pub(super) fn recv_bytes(
        &mut self,
        world: &World,
        peer: Option<usize>,
        tag: c_int,
        range: Range<usize>,
    ) -> Result<()> {
        let (at, count) = self.place(&range)?;
        // SAFETY: a constant of the library.
        let from = peer.map_or(unsafe { ffi::RSMPI_ANY_SOURCE }, |p| p as c_int);
        self.request(peer.unwrap_or(world.rank), "MPI_Irecv", |request| {
            // SAFETY: `place` found the range inside the bytes, which live until the request is done.
            unsafe {
                let byte = ffi::RSMPI_UINT8_T;
                ffi::MPI_Irecv(at.cast(), count, byte, from, tag, world.comm, request)
            }
        })
    }

    fn place(&mut self, range: &Range<usize>) -> Result<(*mut u8, c_int)> {
        let count = c_int::try_from(range.len());
        match count {
            Ok(count) if range.end <= self.bytes.len() => {
                // The pointer is into the heap memory of the bytes, which stays in place when this struct is moved.
                Ok((self.bytes.as_mut_ptr().wrapping_add(range.start), count))
            }
            _ => Err(failure("message", "a range outside its bytes")),
        }
    }

    /// Sends regions of sources as one message, in their order.
    pub(super) fn send(
        &mut self,
        world: &World,
        peer: usize,
        tag: c_int,
        parts: &[(usize, &Region)],
    ) -> Result<()> {
        let mut bases: SmallVec<[*const u8; 1]> = SmallVec::new();
        for (source, region) in parts {
            let Some(source) = self.reads.get(*source) else {
                return Err(failure("message", "a source that does not exist"));
            };
            let bytes = source.as_bytes()?;
            region.check(bytes.len())?;
            bases.push(bytes.as_ptr().wrapping_offset(region.start));
        }
        let joined;
        let (base, count, datatype) = match (parts, &bases[..]) {
            (&[(_, region)], &[base]) => (base, region.count, region.datatype.handle),
            (_, &[first, ..]) => {
                let counted = parts
                    .iter()
                    .map(|(_, r)| r.datatype.at_count(r.count))
                    .collect::<Result<Vec<_>>>()?;
                let places = bases.iter().map(|base| (*base as isize) - (first as isize));
                let placed: Vec<_> = places.zip(&counted).collect();
                joined = Datatype::together(&placed)?.commit()?;
                (first, 1, joined.datatype.handle)
            }
            _ => return Ok(()),
        };
        self.request(peer, "MPI_Isend", |request| {
            // SAFETY: every region was found inside its source, and the sources live until the request is done.
            unsafe {
                ffi::MPI_Isend(
                    base.cast(),
                    count,
                    datatype,
                    peer as c_int,
                    tag,
                    world.comm,
                    request,
                )
            }
        })
    }

    /// Receives a region of the buffer numbered `write`.
    pub(super) fn recv(
        &mut self,
        world: &World,
        peer: usize,
        tag: c_int,
        write: usize,
        region: &Region,
    ) -> Result<()> {
        let Some(buffer) = self.writes.get_mut(write) else {
            return Err(failure("message", "a destination that does not exist"));
        };
        let bytes = buffer.as_mut_bytes()?;
        region.check(bytes.len())?;
        let base: *mut c_void = bytes.as_mut_ptr().wrapping_offset(region.start).cast();
        self.request(peer, "MPI_Irecv", |request| {
            let (count, datatype) = (region.count, region.datatype.handle);
            // SAFETY: the region was found inside the buffer, which nobody else can reach until the request is done.
            unsafe {
                ffi::MPI_Irecv(
                    base,
                    count,
                    datatype,
                    peer as c_int,
                    tag,
                    world.comm,
                    request,
                )
            }
        })
    }

    fn request(
        &mut self,
        peer: usize,
        call: &'static str,
        post: impl FnOnce(*mut ffi::MPI_Request) -> c_int,
    ) -> Result<()> {
        // SAFETY: a constant of the library.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        check(post(&raw mut request), call)?;
        self.requests.push(request);
        self.peers.push(peer);
        Ok(())
    }

    /// Carries the messages on, and returns whether all are done.
    pub(super) fn test(&mut self) -> Result<bool> {
        let mut done = 0;
        if self.requests.is_empty() {
            return Ok(true);
        }
        // SAFETY: the requests are this process' own, as many as the call says; statuses are not wanted.
        let code = unsafe {
            let requests = self.requests.as_mut_ptr();
            let count = self.requests.len() as c_int;
            ffi::MPI_Testall(count, requests, &raw mut done, ffi::RSMPI_STATUSES_IGNORE)
        };
        check(code, "MPI_Testall")?;
        if done == 0 {
            return Ok(false);
        }
        self.requests.clear();
        self.peers.clear();
        Ok(true)
    }

    /// Cancels receives that nothing has come for, and returns whether all were cancelled in time.
    pub(super) fn cancel(&mut self) -> bool {
        let mut all = true;
        for request in &mut self.requests {
            let mut cancelled = 0;
            // SAFETY: requests of this process that are not done; a cancelled receive completes, and says in its status
            // whether it was in time.
            unsafe {
                let mut status = std::mem::zeroed();
                ffi::MPI_Cancel(request);
                ffi::MPI_Wait(request, &raw mut status);
                ffi::MPI_Test_cancelled(&raw const status, &raw mut cancelled);
            }
            all &= cancelled != 0;
        }
        self.requests.clear();
        self.peers.clear();
        all
    }
}

impl Datatype {
    fn at_count(&self, count: c_int) -> Result<Self> {
        Self::made("MPI_Type_contiguous", |new| {
            // SAFETY: the old type is valid, and the pointer is to a variable of the right type.
            unsafe { ffi::MPI_Type_contiguous(count, self.handle, new) }
        })
    }
}

impl Drop for Mail {
    fn drop(&mut self) {
        if !self.requests.is_empty() {
            // MPI may still write: memory that is never freed cannot be used for anything else.
            std::mem::forget(std::mem::take(&mut self.bytes));
            std::mem::forget(std::mem::take(&mut self.reads));
            std::mem::forget(std::mem::take(&mut self.writes));
            set_broken(true);
        }
    }
}
