//! One exchange on a stream: packing, the library's calls, and unpacking or combining what they bring.

use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use super::library::{Batch, Call, Data, Sink, Source};
use super::options::Order;
use super::wire::{Way, Wire, library_op};
use crate::guard::{PeerSums, sum_at};
use crate::plan::Shape;
use crate::run::{self, fill_all};
use crate::{Buffer, BufferMut, DType, DeviceRef, Event, ExchangePlan, PieceRef, Result, Strided};
use crate::{Stage, Target};

/// Staging buffers: memory that pieces are packed into before they leave, and where they arrive.
#[derive(Debug, Default)]
pub(super) struct Staging {
    out: Option<BufferMut>,
    coming: Option<BufferMut>,
}

impl Staging {
    /// The memory of one exchange.
    ///
    /// # Errors
    /// [`CommError::OutOfMemory`](crate::CommError::OutOfMemory).
    pub(super) fn new(stream: &DeviceRef, wire: &Wire, dtype: DType) -> Result<Self> {
        let some = |len: usize| (len > 0).then(|| stream.alloc(dtype, len)).transpose();
        Ok(Self {
            out: some(wire.packed_out)?,
            coming: some(wire.packed_in)?,
        })
    }
}

/// The part of a group that an exchange needs to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) stream: &'a DeviceRef,
    /// This rank's number in the plan, and the number of participants.
    pub(super) me: usize,
    pub(super) size: usize,
    /// The places of the plan's participants in the library's group, where these differ from their numbers in the plan.
    pub(super) ranks: Option<&'a [usize]>,
    pub(super) order: Order,
    /// Whether what arrives is compared with what was sent.
    pub(super) checked: bool,
}

impl Place<'_> {
    fn rank_of(&self, peer: usize) -> usize {
        self.ranks.map_or(peer, |ranks| ranks[peer])
    }
}

/// An exchange whose calls are in a batch.
#[derive(Debug)]
pub(super) struct Landing {
    plan: Arc<ExchangePlan>,
    sources: SmallVec<[Buffer; 1]>,
    target: Where,
    /// Whether the library itself completes the result.
    whole: bool,
}

#[derive(Debug)]
enum Where {
    Known(Option<Buffer>),
    /// Places in a batch: that of the destination, and that of the staging buffer for pieces that belong into it.
    Batch {
        dst: usize,
        coming: Option<usize>,
    },
}

impl Landing {
    /// Packs what leaves, and adds the calls of an exchange to a batch.
    pub(super) fn new(
        place: &Place<'_>,
        stage: Stage,
        wire: &Wire,
        staging: Staging,
        sources: SmallVec<[Buffer; 1]>,
        batch: &mut Batch,
    ) -> Result<Self> {
        let Stage { plan, target } = stage;
        let whole = by_library(place, &plan, &target, &sources);
        if whole.is_none() {
            send(place, &plan, wire, staging.out, &sources, batch)?;
        }
        let target = match target {
            Target::Keep(result) => Where::Known(Some(result)),
            Target::Same => Where::Known(sources.first().cloned()),
            Target::Nothing | Target::Elsewhere => Where::Known(None),
            Target::Write(mut dst) => {
                let mut coming = staging.coming;
                if whole.is_none() {
                    let own = Own {
                        place,
                        plan: &plan,
                        wire,
                        sources: &sources,
                    };
                    own.place(&mut dst, coming.as_mut())?;
                }
                let dst = batch.write(dst);
                let coming = coming.map(|coming| batch.write(coming));
                if whole.is_none() {
                    receive(place, wire, dst, coming, batch);
                }
                Where::Batch { dst, coming }
            }
        };
        let is_whole = whole.is_some();
        if let Some(call) = whole {
            let reads = sources.first().cloned();
            if let Some(source) = reads {
                batch.read(source);
            }
            batch.calls.push(call);
        }
        Ok(Self {
            plan,
            sources,
            target,
            whole: is_whole,
        })
    }

    /// The sources of the exchange.
    pub(super) fn sources(&self) -> &SmallVec<[Buffer; 1]> {
        &self.sources
    }

    /// Puts what has arrived where it belongs, once the batch is queued.
    pub(super) fn finish(
        self,
        place: &Place<'_>,
        wire: &Wire,
        batch: &mut Batch,
    ) -> Result<Arrived> {
        let Where::Batch { dst, coming } = self.target else {
            let Where::Known(result) = self.target else {
                return Ok(Arrived::default());
            };
            return Ok(Arrived {
                result,
                coming: None,
            });
        };
        let mut dst = batch.take(dst)?;
        let coming = coming.map(|at| batch.take(at)).transpose()?;
        let coming = coming.map(BufferMut::freeze);
        if self.whole {
            return Ok(Arrived {
                result: Some(dst.freeze()),
                coming,
            });
        }
        let nothing = || place.stream.alloc(dst.dtype(), 0).map(BufferMut::freeze);
        match &wire.packed {
            None => {
                if let Some(coming) = &coming {
                    let mut pieces = Vec::new();
                    for received in &wire.incoming {
                        let Way::Packed(start) = received.way else {
                            continue;
                        };
                        let mut at = start;
                        for piece in received.message.of(&self.plan.recv) {
                            let from = Strided::contiguous_at(at, piece.shape);
                            pieces.push((coming, from, piece.dst_view()));
                            at += piece.numel();
                        }
                    }
                    place.stream.copy_pieces(&pieces, &mut dst)?;
                }
            }
            Some(packed) => {
                let mut parts = vec![nothing()?; place.size];
                for received in &wire.incoming {
                    let len = received.message.elements;
                    parts[received.message.peer] = match (received.way, &coming) {
                        (Way::Packed(at), Some(coming)) => coming.try_slice(at..at + len)?,
                        (Way::Lie { source, at }, _) => match self.sources.get(source) {
                            Some(source) => source.try_slice(at..at + len)?,
                            None => continue,
                        },
                        _ => continue,
                    };
                }
                run::run(place.stream, packed, |peer, _| &parts[peer], &mut dst)?;
            }
        }
        Ok(Arrived {
            result: Some(dst.freeze()),
            coming,
        })
    }
}

/// The outcome of an exchange.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    pub(super) result: Option<Buffer>,
    pub(super) coming: Option<Buffer>,
}

/// The library's own collective for an exchange, where it has one that gives the same bits.
fn by_library(
    place: &Place<'_>,
    plan: &ExchangePlan,
    target: &Target,
    sources: &[Buffer],
) -> Option<Call> {
    if place.size < 2 || place.ranks.is_some() || !plan.moves_anything() {
        return None;
    }
    let all = |buffer: usize| Source {
        read: 0,
        range: 0..buffer,
    };
    let into = |len: usize| Sink {
        write: 0,
        range: 0..len,
    };
    let length = |target: &Target| match target {
        Target::Write(dst) => Some(dst.len()),
        _ => None,
    };
    match plan.shape()? {
        Shape::AllGather => {
            let len = length(target)?;
            let source = sources.first().filter(|s| s.len() * place.size == len)?;
            Some(Call::AllGather {
                from: all(source.len()),
                into: into(len),
            })
        }
        Shape::Broadcast { root } => {
            let data = match target {
                Target::Keep(data) if root == place.me => Data::Source(all(data.len())),
                Target::Write(dst) => Data::Sink(into(dst.len())),
                _ => return None,
            };
            Some(Call::Broadcast { root, data })
        }
        shape @ (Shape::ReduceScatter | Shape::AllReduce) => {
            let len = length(target)?;
            let source = sources.first()?;
            let op = library_op(plan.fold, source.dtype(), place.order)?;
            if place.checked {
                return None;
            }
            let (from, into) = (all(source.len()), into(len));
            match shape {
                Shape::ReduceScatter if source.len() == len * place.size => {
                    Some(Call::ReduceScatter { op, from, into })
                }
                Shape::AllReduce if source.len() == len => Some(Call::AllReduce { op, from, into }),
                _ => None,
            }
        }
    }
}

/// Packs messages whose elements are not contiguous, and sends all messages.
fn send(
    place: &Place<'_>,
    plan: &ExchangePlan,
    wire: &Wire,
    out: Option<BufferMut>,
    sources: &[Buffer],
    batch: &mut Batch,
) -> Result<()> {
    let mut packed = None;
    if let Some(mut out) = out {
        let mut pieces = Vec::new();
        for sent in &wire.outgoing {
            let Way::Packed(start) = sent.way else {
                continue;
            };
            let mut at = start;
            for piece in sent.message.of(&plan.send) {
                let to = Strided::contiguous_at(at, piece.shape);
                pieces.push((&sources[piece.source], piece.src_view(), to));
                at += piece.numel();
            }
        }
        place.stream.copy_pieces(&pieces, &mut out)?;
        packed = Some(batch.read(out.freeze()));
    }
    for sent in &wire.outgoing {
        let len = sent.message.elements;
        let from = match (sent.way, packed) {
            (Way::Packed(at), Some(read)) => Source {
                read,
                range: at..at + len,
            },
            (Way::Lie { source, at }, _) => Source {
                read: batch.read(sources[source].clone()),
                range: at..at + len,
            },
            _ => continue,
        };
        let to = place.rank_of(sent.message.peer);
        batch.calls.push(Call::Send { to, from });
    }
    Ok(())
}

/// Receives everything that comes from others.
fn receive(place: &Place<'_>, wire: &Wire, dst: usize, coming: Option<usize>, batch: &mut Batch) {
    for received in wire.incoming.iter().filter(|r| r.message.peer != place.me) {
        let len = received.message.elements;
        let into = match (received.way, coming) {
            (Way::Packed(at), Some(write)) => Sink {
                write,
                range: at..at + len,
            },
            (Way::Lie { at, .. }, _) => Sink {
                write: dst,
                range: at..at + len,
            },
            _ => continue,
        };
        let from = place.rank_of(received.message.peer);
        batch.calls.push(Call::Recv { from, into });
    }
}

/// The part that needs no call: this rank's own pieces, and elements that no piece writes.
struct Own<'a> {
    place: &'a Place<'a>,
    plan: &'a ExchangePlan,
    wire: &'a Wire,
    sources: &'a [Buffer],
}

impl Own<'_> {
    fn place(&self, dst: &mut BufferMut, coming: Option<&mut BufferMut>) -> Result<()> {
        let (stream, me) = (self.place.stream, self.place.me);
        if self.wire.packed.is_none() && !self.plan.covers(dst.len()) {
            match (self.plan.fill, self.plan.fold) {
                (Some(fill), _) => fill_all(stream, dst, &[fill])?,
                (None, Some(fold)) => fill_all(stream, dst, fold.identity(dst.dtype()))?,
                (None, None) => {}
            }
        }
        let Some(own) = self.wire.incoming.iter().find(|r| r.message.peer == me) else {
            return Ok(());
        };
        let pieces = own.message.of(&self.plan.recv);
        match (own.way, coming) {
            (Way::Copied, _) => {
                let views = pieces.map(|p| (&self.sources[p.source], p.src_view(), p.dst_view()));
                Ok(stream.copy_pieces(&views.collect::<Vec<_>>(), dst)?)
            }
            (Way::Packed(start), Some(coming)) => {
                let mut at = start;
                let mut view = |p: PieceRef<'_>| {
                    let to = Strided::contiguous_at(at, p.shape);
                    at += p.numel();
                    (&self.sources[p.source], p.src_view(), to)
                };
                let views: Vec<_> = pieces.map(&mut view).collect();
                Ok(stream.copy_pieces(&views, coming)?)
            }
            _ => Ok(()),
        }
    }
}

/// An operation whose exchanges are all queued.
#[derive(Debug)]
pub(super) struct Landed {
    pub(super) event: Event,
    pub(super) result: Option<Buffer>,
    /// Buffers that are read until the event; they are given back after it.
    pub(super) kept: Vec<Buffer>,
    pub(super) check: Option<Check>,
}

impl Landed {
    pub(super) fn is_checked(&self) -> bool {
        self.check.is_some()
    }
}

/// The data for checking the first exchange once it has arrived.
#[derive(Debug)]
pub(super) struct Check {
    pub(super) sums: PeerSums,
    pub(super) plan: Arc<ExchangePlan>,
    pub(super) wiring: Rc<super::wire::Wiring>,
    pub(super) sources: SmallVec<[Buffer; 1]>,
    pub(super) arrived: Arrived,
    pub(super) me: usize,
}

impl Check {
    /// The first peer whose elements do not have the checksum that it told.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn first_wrong(&self, device: &DeviceRef) -> Result<Option<usize>> {
        let Some(wire) = self.wiring.wires.first() else {
            return Ok(None);
        };
        for received in &wire.incoming {
            let peer = received.message.peer;
            let Some(expected) = self.sums.expected(peer, self.me) else {
                continue;
            };
            let mut at = match received.way {
                Way::Packed(at) => at,
                Way::Lie { .. } | Way::Copied => 0,
            };
            let mut found = 0_u64;
            for piece in received.message.of(&self.plan.recv) {
                let (buffer, view) = match received.way {
                    _ if peer == self.me => (self.sources.get(piece.source), piece.src_view()),
                    Way::Packed(_) => (
                        self.arrived.coming.as_ref(),
                        Strided::contiguous_at(at, piece.shape),
                    ),
                    Way::Lie { .. } | Way::Copied => {
                        (self.arrived.result.as_ref(), piece.dst_view())
                    }
                };
                if let Some(buffer) = buffer {
                    found = found.wrapping_add(sum_at(device, piece, buffer, &view)?);
                }
                at += piece.numel();
            }
            if found != expected {
                return Ok(Some(peer));
            }
        }
        Ok(None)
    }
}
