//! The interface to NCCL: the few calls that this backend makes, made safe.
//!
//! It has two implementations: NCCL itself (`nvidia.rs`), and an emulation by threads (`emulated.rs`).

use std::fmt::{self, Debug};
use std::ops::Range;

use smallvec::SmallVec;

use crate::cuda::Cuda;
use crate::{Buffer, BufferMut, CommError, DType, DeviceRef, Result};

/// A version in NCCL's own numbering: 22807 is 2.28.7.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version(pub i32);

impl Version {
    /// The oldest version that has all functions that are called: communicators that do not block, and splits of them.
    pub const OLDEST: Self = Self(21801);

    /// The first version in which several ranks may share a GPU, if `NCCL_MULTI_RANK_GPU_ENABLE=1` is set.
    pub const SHARES_GPUS: Self = Self(23000);
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(v) = self;
        write!(f, "{}.{}.{}", v / 10000, v / 100 % 100, v % 100)
    }
}

/// Decides whether to go on waiting, by an error if not; called again and again while a call is under way.
pub(super) type Patience<'a> = &'a dyn Fn() -> Result<()>;

/// The identifier from which a group is started.
#[derive(Clone, Debug)]
pub(super) struct Ticket(pub(super) Vec<u8>);

impl Ticket {
    /// Bytes of a ticket.
    pub(super) const BYTES: usize = 128;
}

/// The library.
pub(super) trait Library: Debug {
    /// The library's version.
    fn version(&self) -> Version;

    /// A ticket for one group, to be shared by all of its members.
    fn ticket(&self) -> Result<Ticket>;

    /// The unique identifier of this rank's GPU.
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

/// One rank's membership of a group of NCCL (an `ncclComm_t`). When it is dropped, it is finished if that takes little time, and
/// otherwise aborted.
pub(super) trait Clique: Debug {
    /// Begins to queue calls on a stream, as one group of calls, which make progress together. Until they are
    /// [queued](Self::is_queued), which may first require that this rank is connected with others, nothing else is queued behind
    /// them, and the memory that they read and write stays in use. That also holds if this returns an error.
    ///
    /// # Collective
    /// The ranks the calls concern, with the calls that match.
    fn begin(&self, batch: &mut Batch, stream: &Cuda) -> Result<()>;

    /// Carries on the calls that were begun last, without waiting, and returns whether they are queued on their stream.
    fn is_queued(&self, stream: &Cuda) -> Result<bool>;

    /// The group of the ranks of one color, ordered by their keys. Everything that was queued is done.
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

    /// Returns an error if something has gone wrong since the last call.
    fn check(&self) -> Result<()>;

    /// Gives up: ends what is queued; nothing more can be called.
    fn abort(&self);
}

/// Calls to be queued together. They name memory by its place in the lists here.
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
    /// `ncclAllGather`: `into` holds as many parts of `from`'s length as there are ranks.
    AllGather { from: Source, into: Sink },
    /// `ncclBroadcast`: the root reads, the others write.
    Broadcast { root: usize, data: Data },
    /// `ncclReduceScatter`: `from` holds as many parts of `into`'s length as there are ranks.
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

/// How elements combine, in any order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Op {
    Sum,
    Prod,
    Max,
    Min,
}

impl Batch {
    /// Adds a buffer to read, and returns its place.
    pub(super) fn read(&mut self, buffer: Buffer) -> usize {
        self.reads.push(buffer);
        self.reads.len() - 1
    }

    /// Adds a buffer to write, and returns its place.
    pub(super) fn write(&mut self, buffer: BufferMut) -> usize {
        self.writes.push(Some(buffer));
        self.writes.len() - 1
    }

    /// Takes a buffer back once everything is queued.
    pub(super) fn take(&mut self, write: usize) -> Result<BufferMut> {
        let buffer = self.writes.get_mut(write).and_then(Option::take);
        buffer.ok_or_else(|| failed("batch", "a buffer taken twice"))
    }

    /// The address, length and type of a range that is read.
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

    /// The address, length and type of a range that is written.
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

    /// Records that a stream uses all buffers from now until it has done the work that is queued.
    pub(super) fn in_use(&self, stream: &Cuda) -> Result<()> {
        let reads: SmallVec<[&Buffer; 4]> = self.reads.iter().collect();
        stream.uses(&reads)?;
        for buffer in self.writes.iter().flatten() {
            stream.writes(buffer)?;
        }
        Ok(())
    }
}

/// A stream as the CUDA device it is.
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

/// Returns an error if the length of a part, times the number of ranks, is not that of the whole.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A library would read or write beyond a buffer that is too short.
    #[test]
    fn a_whole_has_one_part_for_each_rank() {
        for (part, ranks) in [(0, 3), (5, 1), (7, 3)] {
            check_parts("ncclAllGather", part, part * ranks, ranks).unwrap();
        }
        for (part, whole, ranks) in [(7, 20, 3), (7, 22, 3), (usize::MAX, usize::MAX - 2, 3)] {
            let refused = check_parts("ncclAllGather", part, whole, ranks).unwrap_err();
            assert!(refused.to_string().contains("ncclAllGather"), "{refused}");
        }
    }
}
