//! One exchange on its way: messages straight from sources, and straight to where they belong if nothing else is
//! written there; else to packed memory, and from there by the device, in the order of the plan.

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
    /// What this rank sends, which its result does not wait for.
    out: Mail,
    mail: Mail,
    plan: Arc<ExchangePlan>,
    wire: Rc<Wire>,
    landing: Landing,
}

/// Where its result is to be found when all messages are there.
#[derive(Debug)]
enum Landing {
    /// It is what it was.
    Known(Option<Buffer>),
    /// It is being received into.
    Direct,
    /// It is made of packed elements: those this rank has, by peer, and those that come, in the order of their messages.
    Packed {
        dst: BufferMut,
        here: Vec<Option<Buffer>>,
        coming: Vec<usize>,
    },
}

impl Moving {
    /// Posts everything. `inlined` has the sources that have come already, by participant; `silent` if this rank's own
    /// has gone already.
    #[expect(
        clippy::too_many_arguments,
        reason = "called once, by what has them all"
    )]
    pub(super) fn new(
        rank: &Rank,
        tags: &Tags,
        phase: Phase,
        stage: Stage,
        wire: Rc<Wire>,
        sources: &SmallVec<[Buffer; 1]>,
        mut inlined: Vec<Option<Buffer>>,
        silent: bool,
    ) -> Result<Self> {
        let Stage { plan, target } = stage;
        let (world, me, device) = (rank.world(), tags.index, rank.device());
        inlined.resize(tags.members.len(), None);
        let mut out = Mail::of_buffers(sources.clone());
        let mut mail = Mail::default();
        if !silent {
            let size = sources.first().map_or(1, |s| s.dtype().size());
            for message in wire.outgoing.iter().filter(|message| message.peer != me) {
                let parts: SmallVec<[_; 1]> = message
                    .sent(&plan.send, size)?
                    .iter()
                    .map(|(s, r)| (*s, r))
                    .collect();
                out.send(
                    world,
                    tags.members[message.peer],
                    tags.of(phase, me),
                    &parts,
                )?;
            }
        }
        let mut dst = match target {
            Target::Write(dst) => dst,
            Target::Nothing | Target::Elsewhere | Target::Keep(_) => {
                let result = match target {
                    Target::Keep(result) => Some(result),
                    _ => None,
                };
                return Ok(Self {
                    out,
                    mail,
                    plan,
                    wire,
                    landing: Landing::Known(result),
                });
            }
        };
        let dtype = dst.dtype();
        let read = Read {
            device,
            plan: &plan,
            me,
            own: sources,
            inlined: &inlined,
        };
        let remote = |message: &&WireMessage| message.peer != me && inlined[message.peer].is_none();
        let receive = |mail: &mut Mail, message: &WireMessage, write, region: &Region| {
            let tag = tags.of(phase, message.peer);
            mail.recv(world, tags.members[message.peer], tag, write, region)
        };
        if wire.packed.is_none() {
            // What is here goes first: nobody may touch the destination while messages are under way to it.
            read.prepare(&mut dst)?;
            for message in wire.incoming.iter().filter(|message| !remote(message)) {
                read.place(message, &mut dst)?;
            }
            let write = mail.add_write(dst);
            for message in wire.incoming.iter().filter(remote) {
                for (_, region) in message.received(&plan.recv, dtype.size())? {
                    receive(&mut mail, message, write, region)?;
                }
            }
            return Ok(Self {
                out,
                mail,
                plan,
                wire,
                landing: Landing::Direct,
            });
        }
        let mut here = vec![None; tags.members.len()];
        let mut coming = Vec::new();
        for message in &wire.incoming {
            if remote(&message) {
                let write = mail.add_write(device.alloc(dtype, message.elements)?);
                let all = Region::run(dtype.size(), 0, message.elements)?;
                receive(&mut mail, message, write, &all)?;
                coming.push(message.peer);
            } else {
                here[message.peer] = Some(read.pack(message, dtype)?);
            }
        }
        Ok(Self {
            out,
            mail,
            plan,
            wire,
            landing: Landing::Packed { dst, here, coming },
        })
    }

    /// Carries messages on; whether all are there.
    pub(super) fn is_there(&mut self) -> Result<bool> {
        self.mail.test()
    }

    /// What moves.
    pub(super) fn plan(&self) -> &Arc<ExchangePlan> {
        &self.plan
    }

    /// The processes it waits for.
    pub(super) fn peers(&self) -> Vec<usize> {
        self.mail.peers()
    }

    /// The result, once all messages are there, and those that are still leaving; if asked, with checksums of what was
    /// found.
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

/// Checksums of what came from each peer. `at` says where a piece is now, given how many elements of its peer come
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

/// What is read without messages: this rank's own elements, and those that came with records.
struct Read<'a> {
    device: &'a DeviceRef,
    plan: &'a Arc<ExchangePlan>,
    me: usize,
    own: &'a [Buffer],
    inlined: &'a [Option<Buffer>],
}

impl Read<'_> {
    /// Fills a destination that its pieces do not cover.
    fn prepare(&self, dst: &mut BufferMut) -> Result<()> {
        if self.plan.covers(dst.len()) {
            return Ok(());
        }
        match (self.plan.fill, self.plan.fold) {
            (Some(fill), _) => fill_all(self.device, dst, &[fill])?,
            (None, Some(fold)) => fill_all(self.device, dst, fold.identity(dst.dtype()))?,
            (None, None) => {}
        }
        Ok(())
    }

    fn source(&self, peer: usize, source: usize) -> Option<&Buffer> {
        if peer == self.me {
            self.own.get(source)
        } else {
            self.inlined.get(peer)?.as_ref().filter(|_| source == 0)
        }
    }

    /// Copies pieces to where they belong.
    fn place(&self, message: &WireMessage, dst: &mut BufferMut) -> Result<()> {
        for piece in message.of(&self.plan.recv) {
            if let Some(source) = self.source(message.peer, piece.source) {
                let (from, to) = (piece.src_view(), piece.dst_view());
                self.device.copy(source, &from, dst, &to)?;
            }
        }
        Ok(())
    }

    /// Pieces one after the other, as messages bring them.
    fn pack(&self, message: &WireMessage, dtype: DType) -> Result<Buffer> {
        if let [at] = message.pieces[..]
            && let Some(piece) = self.plan.recv.get(at)
            && let Some(source) = self.source(message.peer, piece.source)
            && piece.src_view().is_contiguous()
        {
            let run = piece.src_offset..piece.src_offset + piece.numel();
            return Ok(source.try_slice(run)?);
        }
        let mut packed = self.device.alloc(dtype, message.elements)?;
        let mut at = 0;
        for piece in message.of(&self.plan.recv) {
            if let Some(source) = self.source(message.peer, piece.source) {
                let to = Strided::contiguous_at(at, piece.shape);
                self.device
                    .copy(source, &piece.src_view(), &mut packed, &to)?;
            }
            at += piece.numel();
        }
        Ok(packed.freeze())
    }
}
