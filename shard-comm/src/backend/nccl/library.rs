//! What this backend asks of NCCL: the few calls it makes, safe to make.
//!
//! Two implementations: NCCL itself (`nvidia.rs`), and threads that play it (`emulated.rs`).

use std::fmt::{self, Debug};
use std::ops::Range;

use smallvec::SmallVec;

use crate::cuda::Cuda;
use crate::{Buffer, BufferMut, CommError, DType, DeviceRef, Result};

/// A version as NCCL counts: 22807 is 2.28.7.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version(pub i32);

impl Version {
    /// The oldest that has all that is called: communicators that do not block, and splits of them.
    pub const OLDEST: Self = Self(21801);

    /// The first in which several ranks may share a GPU, if `NCCL_MULTI_RANK_GPU_ENABLE=1` says so.
    pub const SHARES_GPUS: Self = Self(23000);
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(v) = self;
        write!(f, "{}.{}.{}", v / 10000, v / 100 % 100, v % 100)
    }
}

/// Whether to go on waiting: asked again and again while a call is under way.
pub(super) type Patience<'a> = &'a dyn Fn() -> Result<()>;

/// What starts a group.
#[derive(Clone, Debug)]
pub(super) struct Ticket(pub(super) Vec<u8>);

impl Ticket {
    /// Bytes of a ticket.
    pub(super) const BYTES: usize = 128;
}

/// The library.
pub(super) trait Library: Debug {
    /// What its version is.
    fn version(&self) -> Version;

    /// A ticket for one group, for all of its members.
    fn ticket(&self) -> Result<Ticket>;

    /// A number of this rank's GPU that no other one has.
    fn gpu(&self, stream: &Cuda) -> Result<[u8; 16]>;

    /// Joins the group of a ticket, on the GPU of a stream.
    ///
    /// # Collective
    /// All `size` ranks with the same ticket.
    fn join(
        &self,
        ticket: &Ticket,
        rank: usize,
        size: usize,
        stream: &Cuda,
        patience: Patience<'_>,
    ) -> Result<Box<dyn Clique>>;
}

/// One rank's membership of a group of NCCL's (an `ncclComm_t`). When it is dropped it is finished if that takes no time, else
/// aborted.
pub(super) trait Clique: Debug {
    /// Begins to queue calls on a stream, as one group of calls: they go on together. Until they are
    /// [queued](Self::is_queued), this rank may have to be connected with others first, nothing else is queued behind them, and
    /// what they read and write stays in use; also where this ends in an error.
    ///
    /// # Collective
    /// The ranks the calls concern, with the calls that match.
    fn begin(&self, batch: &mut Batch, stream: &Cuda) -> Result<()>;

    /// Carries on what was begun last, without waiting; whether it is queued on its stream.
    fn is_queued(&self, stream: &Cuda) -> Result<bool>;

    /// The ranks of one color, ordered by their keys. Whatever was queued is done.
    ///
    /// # Collective
    /// All ranks of the group; those without a color get nothing.
    fn split(
        &self,
        color: Option<usize>,
        key: usize,
        stream: &Cuda,
        patience: Patience<'_>,
    ) -> Result<Option<Box<dyn Clique>>>;

    /// What has gone wrong meanwhile.
    fn check(&self) -> Result<()>;

    /// Gives up: what is queued ends, nothing more can be called.
    fn abort(&self);
}

/// Calls to be queued together, and the memory they name by its place here.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) reads: SmallVec<[Buffer; 2]>,
    pub(super) writes: SmallVec<[Option<BufferMut>; 2]>,
    pub(super) calls: Vec<Call>,
}

/// A range of elements of a buffer that a batch reads.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Source {
    pub(super) read: usize,
    pub(super) range: Range<usize>,
}

/// A range of elements of a buffer that a batch writes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sink {
    pub(super) write: usize,
    pub(super) range: Range<usize>,
}

/// One call of NCCL.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Call {
    /// `ncclSend`.
    Send { to: usize, from: Source },
    /// `ncclRecv`.
    Recv { from: usize, into: Sink },
    /// `ncclAllGather`: `into` has as many parts of `from`'s length as there are ranks.
    AllGather { from: Source, into: Sink },
    /// `ncclBroadcast`: the root reads, the others write.
    Broadcast { root: usize, data: Data },
    /// `ncclReduceScatter`: `from` has as many parts of `into`'s length as there are ranks.
    ReduceScatter { op: Op, from: Source, into: Sink },
    /// `ncclAllReduce`.
    AllReduce { op: Op, from: Source, into: Sink },
}

/// One side of a broadcast.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Data {
    Source(Source),
    Sink(Sink),
}

/// How elements combine, in whatever order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Op {
    Sum,
    Prod,
    Max,
    Min,
}

impl Batch {
    /// Adds a buffer to read; its place.
    pub(super) fn read(&mut self, buffer: Buffer) -> usize {
        self.reads.push(buffer);
        self.reads.len() - 1
    }

    /// Adds a buffer to write; its place.
    pub(super) fn write(&mut self, buffer: BufferMut) -> usize {
        self.writes.push(Some(buffer));
        self.writes.len() - 1
    }

    /// Takes a buffer back once everything is queued.
    pub(super) fn take(&mut self, write: usize) -> Result<BufferMut> {
        let buffer = self.writes.get_mut(write).and_then(Option::take);
        buffer.ok_or_else(|| failed("batch", "a buffer taken twice"))
    }

    /// Where a range begins that is read: its address, its elements and their type.
    pub(super) fn source(&self, cuda: &Cuda, from: &Source) -> Result<Place> {
        let missing = || failed("batch", "a read of no buffer");
        let buffer = self.reads.get(from.read).ok_or_else(missing)?;
        let part = buffer.try_slice(from.range.clone())?;
        Ok(Place {
            address: cuda.address(&part)?,
            elements: part.len(),
            dtype: part.dtype(),
        })
    }

    /// Where a range begins that is written.
    pub(super) fn destination(&mut self, cuda: &Cuda, into: &Sink) -> Result<Place> {
        let missing = || failed("batch", "a write to no buffer");
        let buffer = self.writes.get_mut(into.write).and_then(Option::as_mut);
        let buffer = buffer.ok_or_else(missing)?;
        if into.range.start > into.range.end || into.range.end > buffer.len() {
            return Err(failed("batch", "a write outside its buffer"));
        }
        let dtype = buffer.dtype();
        Ok(Place {
            address: cuda.address_mut(buffer)? + (into.range.start * dtype.size()) as u64,
            elements: into.range.len(),
            dtype,
        })
    }

    /// Says that a stream uses all buffers from now on until it has done what is queued.
    pub(super) fn in_use(&self, stream: &Cuda) -> Result<()> {
        let reads: SmallVec<[&Buffer; 4]> = self.reads.iter().collect();
        stream.uses(&reads)?;
        for buffer in self.writes.iter().flatten() {
            stream.writes(buffer)?;
        }
        Ok(())
    }
}

/// A stream as the device it is.
pub(super) fn cuda(stream: &DeviceRef) -> Result<&Cuda> {
    Cuda::of(&**stream).ok_or_else(|| {
        CommError::invalid(
            "nccl",
            "a GPU of NVIDIA",
            stream.name(),
            "give each rank a device of the kind Cuda",
        )
    })
}

/// Elements in a GPU's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) address: u64,
    pub(super) elements: usize,
    pub(super) dtype: DType,
}

impl Place {
    pub(super) fn bytes(&self) -> usize {
        self.elements * self.dtype.size()
    }
}

/// An error of the library.
pub(super) fn failed(call: &'static str, cause: &str) -> CommError {
    CommError::Backend {
        backend: "nccl",
        call,
        cause: cause.into(),
    }
}

/// An error where a part is not as long as its number of ranks and the whole say.
pub(super) fn check_parts(
    call: &'static str,
    part: usize,
    whole: usize,
    ranks: usize,
) -> Result<()> {
    if part.checked_mul(ranks) == Some(whole) {
        return Ok(());
    }
    Err(failed(call, "a whole that is not one part for each rank"))
}
