//! The beginning of every operation, and the end of a short one. An operation of one exchange whose elements travel with
//! the records is done when the records are there. A call that waits for such an operation is spared the cost of a handle.

use std::rc::Rc;

use smallvec::SmallVec;

use super::progress::Rank;
use super::record::record;
use super::records::{Brought, Records};
use super::tags::Tags;
use super::wire::{Wire, WireCache};
use crate::plan::Collisions;
use crate::{Buffer, BufferMut, DType, ExchangePlan, Monoid, PieceRef, Result, kernel};
use crate::{Request, Stage, Target};

/// An operation that has begun: its record is under way, and nothing else.
pub(super) struct Begun {
    pub(super) wires: SmallVec<[Rc<Wire>; 1]>,
    /// Whether everything that this rank sends in the first exchange has gone with its record.
    pub(super) complete: bool,
    pub(super) records: Records,
}

impl Begun {
    /// Starts an operation: this rank sends its record.
    pub(super) fn new(
        rank: &Rank,
        tags: &Tags,
        request: &mut Request,
        wires: &WireCache,
    ) -> Result<Self> {
        let size = request.moves().map_or(1, DType::size);
        let wire = |stage: &Stage| wires.get(&stage.plan, size, tags.index);
        let wires: SmallVec<[Rc<Wire>; 1]> = request.stages.iter().map(wire).collect();
        let record = record(tags, request, &wires, Records::carriage(tags))?;
        let (complete, records) = (record.carries(), Records::begin(rank, tags, &record)?);
        Ok(Self {
            wires,
            complete,
            records,
        })
    }

    /// Whether all that others read has been sent, and this rank may find all that it reads in the records.
    pub(super) fn is_short(&self, tags: &Tags, request: &Request) -> bool {
        let [wire] = &self.wires[..] else {
            return false;
        };
        let mut outgoing = wire.outgoing.iter();
        if request.is_elsewhere() {
            return request.status.is_ok();
        }
        request.status.is_ok()
            && (self.complete || outgoing.all(|message| message.peer == tags.index))
    }

    /// Finishes an operation once all records are there, if it is a short one and nothing is wrong with it, and returns whether it did;
    /// its result goes to `result`.
    pub(super) fn finish(
        &self,
        rank: &Rank,
        tags: &Tags,
        request: &mut Request,
        result: &mut Option<Buffer>,
    ) -> Result<bool> {
        let records = &self.records;
        let moves = request.moves();
        let ([wire], Some(stage)) = (&self.wires[..], request.stages.last_mut()) else {
            return Ok(false);
        };
        let accord = records.accord(tags);
        if !accord.agrees || accord.summed {
            return Ok(false);
        }
        match &mut stage.target {
            Target::Elsewhere => return Ok(true),
            Target::Nothing => {}
            Target::Keep(kept) => *result = Some(kept.clone()),
            Target::Same => *result = request.sources.first().cloned(),
            Target::Write(dst) => {
                let own = &request.sources;
                let brought = |peer| records.brought(tags, 0, peer);
                if !rank.is_plain() || !run(&stage.plan, wire, brought, tags.index, own, dst)? {
                    return Ok(false);
                }
            }
        }
        (rank.ledger()).moved(stage.plan.name, &stage.plan, tags.index, moves);
        let target = request.stages.pop().map(|stage| stage.target);
        if let Some(Target::Write(dst)) = target {
            *result = Some(dst.freeze());
        }
        Ok(true)
    }
}

/// Runs a plan straight on the bytes that are here: this rank's own source, and those that `brought` finds of others. If the plan
/// needs more than that, does nothing and returns false.
pub(super) fn run<'a>(
    plan: &ExchangePlan,
    wire: &Wire,
    brought: impl Fn(usize) -> Result<Option<Brought<'a>>>,
    me: usize,
    own: &'a [Buffer],
    dst: &mut BufferMut,
) -> Result<bool> {
    let (dtype, overlap) = (dst.dtype(), plan.collisions());
    let (size, copies) = (
        dtype.size(),
        plan.fold.is_none() || overlap == Collisions::Disjoint,
    );
    if plan.fill.is_some() || overlap == Collisions::Mixed || !plan.covers(dst.len()) {
        return Ok(false);
    }
    let mut sources: SmallVec<[Lying<'_>; 8]> = SmallVec::new();
    for traffic in plan.incoming() {
        let found = match &own {
            [own] if traffic.peer == me => Some((own.as_bytes()?, 0)),
            _ if traffic.peer == me => None,
            _ => brought(traffic.peer)?.map(|part| (part.bytes, part.start)),
        };
        let Some((bytes, start)) = found else {
            return Ok(false);
        };
        let fits =
            |&(source, end): &(usize, usize)| source == 0 && end * size <= start + bytes.len();
        let begins = start == 0
            || (wire.from(traffic.peer))
                .and_then(|message| message.span(&plan.recv))
                .is_some_and(|span| start <= span.start * size);
        let aligned = (bytes.as_ptr().addr() | start).is_multiple_of(size);
        if !aligned || !begins || !traffic.extents.iter().all(fits) {
            return Ok(false);
        }
        sources.push((bytes, start / size));
    }
    let written = dst.as_mut_bytes()?;
    if copies {
        for piece in plan.recv.iter() {
            let (bytes, start) = lying(plan, &sources, piece.peer);
            let (mut from, to) = (piece.src_view(), piece.dst_view());
            from.offset -= start;
            kernel::copy(dtype, bytes, &from, dtype, written, &to);
        }
    } else if let Some(op) = plan.fold {
        fold(plan, op, dtype, &sources, written);
    }
    Ok(true)
}

/// Bytes of a source, and the place of the first of their elements in it.
type Lying<'a> = (&'a [u8], usize);

/// What is here of a peer's source, of one for each peer in the plan's order.
fn lying<'a>(plan: &ExchangePlan, sources: &[Lying<'a>], peer: usize) -> Lying<'a> {
    let at = plan.incoming().iter().position(|t| t.peer == peer);
    at.map_or((&[][..], 0), |at| sources[at])
}

/// Combines the pieces that come to the same place, stack by stack.
fn fold(plan: &ExchangePlan, op: Monoid, dtype: DType, sources: &[Lying<'_>], written: &mut [u8]) {
    for stack in plan.stacks() {
        let pieces = || stack.iter().filter_map(|&at| plan.recv.get(at));
        let term = |piece: PieceRef<'_>| {
            let (bytes, start) = lying(plan, sources, piece.peer);
            (bytes, piece.src_offset - start)
        };
        let terms: SmallVec<[_; 8]> = pieces().map(term).collect();
        if let Some(first) = pieces().next() {
            let to = first.dst_view();
            kernel::reduce(op, dtype, &terms, first.src_strides, written, &to);
        }
    }
}
