//! One exchange on its way: messages go straight from the sources, and straight to where they belong if nothing else is
//! written there. Otherwise they go to packed memory, and the device moves them from there, in the order of the plan.

use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use super::progress::Rank;
use super::raw::{Mail, Region};
use super::sums::Found;
use super::tags::{Phase, Tags};
use super::wire::{Wire, WireMessage};
use crate::guard::sum_at;
use crate::run::{self, fill_all};
use crate::{Buffer, BufferMut, DType, DeviceRef, ExchangePlan, PieceRef, Result, Strided};
use crate::{Stage, Target};

/// An exchange whose messages are posted.
#[derive(Debug)]
pub(super) struct Moving {
    /// The messages that this rank sends; its result does not wait for them.
    out: Mail,
    mail: Mail,
    plan: Arc<ExchangePlan>,
    wire: Rc<Wire>,
    landing: Landing,
}

/// Where the result is when all messages are there.
#[derive(Debug)]
enum Landing {
    /// The result is known from the start.
    Known(Option<Buffer>),
    /// The messages are received into the result.
    Direct,
    /// The result is made of packed elements: those this rank has already, by peer, and those still to come, in the order of
    /// their messages.
    Packed {
        dst: BufferMut,
        here: Vec<Option<Buffer>>,
        coming: Vec<usize>,
    },
}

/// The inputs of an exchange.
pub(super) struct Start<'a> {
    pub(super) rank: &'a Rank,
    pub(super) tags: &'a Tags,
    pub(super) phase: Phase,
    /// The sources that this rank sends from, and reads itself.
    pub(super) own: &'a SmallVec<[Buffer; 1]>,
    /// The sources of other ranks that have come already, by participant.
    pub(super) inlined: Vec<Option<Buffer>>,
    /// The messages of this rank, if all has been sent already.
    pub(super) out: Option<Mail>,
}

impl Moving {
    /// Posts all messages.
    pub(super) fn new(mut start: Start<'_>, stage: Stage, wire: Rc<Wire>) -> Result<Self> {
        let Stage { plan, target } = stage;
        start.inlined.resize(start.tags.members.len(), None);
        let out = match start.out.take() {
            Some(out) => out,
            None => send(start.rank, start.tags, start.phase, start.own, &plan, &wire)?,
        };
        let (mail, landing) = match target {
            Target::Write(dst) if wire.packed.is_none() => start.receive(&plan, &wire, dst)?,
            Target::Write(dst) => start.receive_packed(&plan, &wire, dst)?,
            Target::Keep(result) => (Mail::default(), Landing::Known(Some(result))),
            Target::Same => (Mail::default(), Landing::Known(start.own.first().cloned())),
            Target::Nothing | Target::Elsewhere => (Mail::default(), Landing::Known(None)),
        };
        Ok(Self {
            out,
            mail,
            plan,
            wire,
            landing,
        })
    }

    /// Carries the messages on, and returns whether all are there.
    pub(super) fn is_there(&mut self) -> Result<bool> {
        self.mail.test()
    }

    /// The plan of the exchange.
    pub(super) fn plan(&self) -> &Arc<ExchangePlan> {
        &self.plan
    }

    /// The processes that this waits for.
    pub(super) fn peers(&self) -> Vec<usize> {
        self.mail.peers()
    }

    /// The result, once all messages are there, and the messages that are still leaving; if `summed`, also the checksums of what
    /// arrived.
    pub(super) fn finish(
        mut self,
        device: &DeviceRef,
        summed: bool,
    ) -> Result<(Option<Buffer>, Mail, Found)> {
        let mut received = self.mail.take_writes();
        let mut found = Found::new();
        let result = match self.landing {
            Landing::Known(result) => result,
            Landing::Direct => {
                let result = received.pop().map(BufferMut::freeze);
                if let Some(dst) = &result
                    && summed
                {
                    found = sums(device, &self.plan, &self.wire, |_| dst, |p, _| p.dst_view())?;
                }
                result
            }
            Landing::Packed {
                mut dst,
                mut here,
                coming,
            } => {
                for (peer, buffer) in coming.into_iter().zip(received) {
                    here[peer] = Some(buffer.freeze());
                }
                let nothing = device.alloc(dst.dtype(), 0)?.freeze();
                let source = |peer: usize| here[peer].as_ref().unwrap_or(&nothing);
                if summed {
                    let packed = |p: PieceRef<'_>, at| Strided::contiguous_at(at, p.shape);
                    found = sums(device, &self.plan, &self.wire, source, packed)?;
                }
                match &self.wire.packed {
                    None => None,
                    Some(plan) => {
                        run::run(device, plan, |peer, _| source(peer), &mut dst)?;
                        Some(dst.freeze())
                    }
                }
            }
        };
        Ok((result, self.out, found))
    }
}

/// Posts the messages that this rank sends in a phase.
pub(super) fn send(
    rank: &Rank,
    tags: &Tags,
    phase: Phase,
    own: &SmallVec<[Buffer; 1]>,
    plan: &ExchangePlan,
    wire: &Wire,
) -> Result<Mail> {
    let mut out = Mail::of_buffers(own.clone());
    let me = tags.index;
    let size = own.first().map_or(1, |source| source.dtype().size());
    for message in wire.outgoing.iter().filter(|message| message.peer != me) {
        let regions = message.sent(&plan.send, size)?;
        let parts: SmallVec<[_; 1]> = regions.iter().map(|(s, r)| (*s, r)).collect();
        let (to, tag) = (tags.members[message.peer], tags.of(phase, me));
        out.send(rank.world(), to, tag, &parts)?;
    }
    Ok(out)
}

/// Checksums of what came from each peer. `at` tells where a piece is now, given how many elements of its peer come
/// before it.
fn sums<'a>(
    device: &DeviceRef,
    plan: &ExchangePlan,
    wire: &Wire,
    buffer: impl Fn(usize) -> &'a Buffer,
    at: impl Fn(PieceRef<'_>, usize) -> Strided,
) -> Result<Found> {
    let of_message = |message: &WireMessage| {
        let (mut sum, mut before) = (0_u64, 0);
        for piece in message.of(&plan.recv) {
            let place = at(piece, before);
            sum = sum.wrapping_add(sum_at(device, piece, buffer(message.peer), &place)?);
            before += piece.numel();
        }
        Ok((message.peer, sum))
    };
    wire.incoming.iter().map(of_message).collect()
}

impl Start<'_> {
    /// Posts receives straight into the destination.
    fn receive(
        &self,
        plan: &ExchangePlan,
        wire: &Wire,
        mut dst: BufferMut,
    ) -> Result<(Mail, Landing)> {
        // Elements that are here are placed first: nobody may touch the destination while messages are under way to it.
        self.prepare(plan, &mut dst)?;
        for message in wire.incoming.iter().filter(|m| self.is_here(m)) {
            self.place(plan, message, &mut dst)?;
        }
        let size = dst.dtype().size();
        let mut mail = Mail::default();
        let write = mail.add_write(dst);
        for message in wire.incoming.iter().filter(|m| !self.is_here(m)) {
            for (_, region) in message.received(&plan.recv, size)? {
                self.post(&mut mail, message, write, region)?;
            }
        }
        Ok((mail, Landing::Direct))
    }

    /// Posts receives into packed memory, and packs the elements that are here.
    fn receive_packed(
        &self,
        plan: &ExchangePlan,
        wire: &Wire,
        dst: BufferMut,
    ) -> Result<(Mail, Landing)> {
        let dtype = dst.dtype();
        let mut mail = Mail::default();
        let mut here = vec![None; self.tags.members.len()];
        let mut coming = Vec::new();
        for message in &wire.incoming {
            if self.is_here(message) {
                here[message.peer] = Some(self.pack(plan, message, dtype)?);
            } else {
                let write = mail.add_write(self.device().alloc(dtype, message.elements)?);
                let all = Region::run(dtype.size(), 0, message.elements)?;
                self.post(&mut mail, message, write, &all)?;
                coming.push(message.peer);
            }
        }
        Ok((mail, Landing::Packed { dst, here, coming }))
    }

    fn post(
        &self,
        mail: &mut Mail,
        message: &WireMessage,
        write: usize,
        region: &Region,
    ) -> Result<()> {
        let (from, tag) = (
            self.tags.members[message.peer],
            self.tags.of(self.phase, message.peer),
        );
        mail.recv(self.rank.world(), from, tag, write, region)
    }

    fn device(&self) -> &DeviceRef {
        self.rank.device()
    }

    /// Whether the elements need no message: this rank's own, and those that came with records.
    fn is_here(&self, message: &WireMessage) -> bool {
        message.peer == self.tags.index || self.inlined[message.peer].is_some()
    }

    /// Fills a destination that its pieces do not cover.
    fn prepare(&self, plan: &ExchangePlan, dst: &mut BufferMut) -> Result<()> {
        if plan.covers(dst.len()) {
            return Ok(());
        }
        match (plan.fill, plan.fold) {
            (Some(fill), _) => fill_all(self.device(), dst, &[fill])?,
            (None, Some(fold)) => fill_all(self.device(), dst, fold.identity(dst.dtype()))?,
            (None, None) => {}
        }
        Ok(())
    }

    fn source(&self, peer: usize, source: usize) -> Option<&Buffer> {
        if peer == self.tags.index {
            self.own.get(source)
        } else {
            self.inlined.get(peer)?.as_ref().filter(|_| source == 0)
        }
    }

    /// Copies pieces to where they belong.
    fn place(&self, plan: &ExchangePlan, message: &WireMessage, dst: &mut BufferMut) -> Result<()> {
        for piece in message.of(&plan.recv) {
            if let Some(source) = self.source(message.peer, piece.source) {
                let (from, to) = (piece.src_view(), piece.dst_view());
                self.device().copy(source, &from, dst, &to)?;
            }
        }
        Ok(())
    }

    /// Packs pieces one after the other, as a message brings them.
    fn pack(&self, plan: &ExchangePlan, message: &WireMessage, dtype: DType) -> Result<Buffer> {
        if let [at] = message.pieces[..]
            && let Some(piece) = plan.recv.get(at)
            && let Some(source) = self.source(message.peer, piece.source)
            && piece.src_view().is_contiguous()
        {
            let run = piece.src_offset..piece.src_offset + piece.numel();
            return Ok(source.try_slice(run)?);
        }
        let mut packed = self.device().alloc(dtype, message.elements)?;
        let mut at = 0;
        for piece in message.of(&plan.recv) {
            if let Some(source) = self.source(message.peer, piece.source) {
                let to = Strided::contiguous_at(at, piece.shape);
                self.device()
                    .copy(source, &piece.src_view(), &mut packed, &to)?;
            }
            at += piece.numel();
        }
        Ok(packed.freeze())
    }
}
