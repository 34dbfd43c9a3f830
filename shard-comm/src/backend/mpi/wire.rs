//! A plan as messages: one per peer, with its pieces in an order that both sides know, described to MPI where they lie.

use std::cell::{OnceCell, RefCell};
use std::collections::VecDeque;
use std::ops::{Deref, Range};
use std::rc::Rc;
use std::sync::Arc;

use shard_device::view::span;
use smallvec::SmallVec;

use super::raw::{Datatype, Region};
use crate::fingerprint::Fingerprint;
use crate::plan::Collisions;
use crate::plan::{Message, messages_of};
use crate::{Buffer, ExchangePlan, PieceRef, Pieces, Result};

/// The messages of a plan; made once per plan and group.
#[derive(Debug)]
pub(super) struct Wire {
    /// A fingerprint of what must be equal on all ranks.
    pub(super) print: [u64; 2],
    /// What this rank sends minus what it expects, as hashes: if these do not add up to zero over all ranks, some pair disagrees.
    pub(super) balance: [u64; 2],
    pub(super) incoming: Vec<WireMessage>,
    pub(super) outgoing: Vec<WireMessage>,
    /// For pieces that cannot be received where they belong, because they are combined or overlap: the plan that reads
    /// them from the packed memory that they are received into.
    pub(super) packed: Option<ExchangePlan>,
}

/// The pieces between this rank and one other, or itself.
#[derive(Debug)]
pub(super) struct WireMessage {
    message: Message,
    /// The regions of each source, or of the one destination.
    regions: OnceCell<SmallVec<[(usize, Region); 1]>>,
    /// The elements of the one source from the first that is read to the last.
    span: OnceCell<Option<Range<usize>>>,
}

impl Wire {
    /// The messages of participant `me`.
    pub(super) fn new(plan: &ExchangePlan, me: usize) -> Self {
        let described = |pieces| {
            messages_of(pieces)
                .into_iter()
                .map(WireMessage::new)
                .collect::<Vec<_>>()
        };
        let (incoming, outgoing) = (described(&plan.recv), described(&plan.send));
        let mut print = Fingerprint::new();
        print.text(plan.name);
        print.text(plan.fold.map_or("", |fold| fold.name()));
        print.wide(plan.id);
        let mut balance = [0; 2];
        // A plan's fingerprint stands for all pairs.
        if plan.id == 0 {
            let pair = |from: usize, to: usize, message: &WireMessage| {
                let mut print = Fingerprint::new();
                print.numbers(&[from, to, message.elements, message.pieces.len()]);
                print.print(message.print);
                print.done()
            };
            for message in &outgoing {
                balance = add(balance, pair(me, message.peer, message));
            }
            for message in &incoming {
                balance = add(
                    balance,
                    pair(message.peer, me, message).map(u64::wrapping_neg),
                );
            }
        }
        let direct = plan.collisions() == Collisions::Disjoint
            && (plan.fold.is_none() || plan.fill.is_none());
        let packed = (!direct).then(|| {
            let order: Vec<usize> = incoming.iter().flat_map(|l| l.pieces.clone()).collect();
            plan.packed(&order)
        });
        Self {
            print: print.done(),
            balance,
            incoming,
            outgoing,
            packed,
        }
    }

    /// The bytes of this rank's one source that others read, if they are worth laying where all can read them: not more than `few`,
    /// or most of them are read.
    pub(super) fn lies(
        &self,
        plan: &ExchangePlan,
        me: usize,
        source: &Buffer,
        few: usize,
    ) -> Option<Range<usize>> {
        let mut all: Option<Range<usize>> = None;
        let mut sent = 0;
        for message in self.outgoing.iter().filter(|message| message.peer != me) {
            let span = message.span(&plan.send)?;
            sent += message.elements;
            all = Some(around(all, span));
        }
        let (all, size) = (all?, source.dtype().size());
        let pays = all.len() * size <= few || all.len() <= 2 * sent;
        (pays && all.end <= source.len()).then(|| all.start * size..all.end * size)
    }

    /// The messages from a participant.
    pub(super) fn from(&self, peer: usize) -> Option<&WireMessage> {
        let at = self
            .incoming
            .binary_search_by_key(&peer, |message| message.peer);
        at.ok().map(|at| &self.incoming[at])
    }
}

impl Deref for WireMessage {
    type Target = Message;

    fn deref(&self) -> &Message {
        &self.message
    }
}

impl WireMessage {
    fn new(message: Message) -> Self {
        Self {
            message,
            regions: OnceCell::new(),
            span: OnceCell::new(),
        }
    }

    /// The elements of the sender's one source from the first that is read to the last; nothing if there are several sources.
    pub(super) fn span(&self, pieces: &Pieces) -> Option<Range<usize>> {
        let span = self.span.get_or_init(|| {
            let mut all: Option<Range<usize>> = None;
            for piece in self.of(pieces).filter(|piece| piece.numel() > 0) {
                if piece.source > 0 {
                    return None;
                }
                let one = span(piece.src_offset, piece.shape, piece.src_strides).ok()?;
                all = Some(around(all, one));
            }
            all
        });
        span.clone()
    }

    /// The regions to send, by source: where the pieces are read.
    pub(super) fn sent(&self, pieces: &Pieces, size: usize) -> Result<&[(usize, Region)]> {
        self.regions(|| {
            let mut regions = SmallVec::new();
            let all: Vec<PieceRef<'_>> = self.of(pieces).collect();
            for part in all.chunk_by(|a, b| a.source == b.source) {
                let views = part.iter().map(|p| (p.src_offset, p.shape, p.src_strides));
                regions.push((part[0].source, region(views, size)?));
            }
            Ok(regions)
        })
    }

    /// The region to receive into: where the pieces are written, in the one destination.
    pub(super) fn received(&self, pieces: &Pieces, size: usize) -> Result<&[(usize, Region)]> {
        self.regions(|| {
            let views = self
                .of(pieces)
                .map(|p| (p.dst_offset, p.shape, p.dst_strides));
            Ok(std::iter::once((0, region(views, size)?)).collect())
        })
    }

    fn regions(
        &self,
        make: impl FnOnce() -> Result<SmallVec<[(usize, Region); 1]>>,
    ) -> Result<&[(usize, Region)]> {
        if self.regions.get().is_none() {
            drop(self.regions.set(make()?));
        }
        Ok(self.regions.get().map_or(&[], |r| &r[..]))
    }
}

/// The least range that has both.
fn around(a: Option<Range<usize>>, b: Range<usize>) -> Range<usize> {
    match a {
        None => b,
        Some(a) => a.start.min(b.start)..a.end.max(b.end),
    }
}

fn add(a: [u64; 2], b: [u64; 2]) -> [u64; 2] {
    [a[0].wrapping_add(b[0]), a[1].wrapping_add(b[1])]
}

type View<'a> = (usize, &'a [usize], &'a [isize]);

/// Views of elements of `size` bytes, one after the other.
fn region<'a>(views: impl Iterator<Item = View<'a>>, size: usize) -> Result<Region> {
    let views: Vec<View<'a>> = views.collect();
    let bytes = |elements: usize| (elements * size) as isize;
    if let [(offset, shape, strides)] = views[..]
        && let [] | [(_, 1)] = simplify(shape, strides)[..]
    {
        return Region::run(size, offset * size, shape.iter().product());
    }
    // Views that differ only in where they begin share a datatype.
    let alike = views.chunk_by(|a, b| (a.1, a.2) == (b.1, b.2));
    let mut blocks = Vec::new();
    for views in alike {
        let (_, shape, strides) = views[0];
        let one = block(shape, strides, size)?;
        let places: Vec<isize> = views.iter().map(|v| bytes(v.0)).collect();
        blocks.push(one.at(&places)?);
    }
    let parts: Vec<(isize, &Datatype)> = blocks.iter().map(|b| (0, b)).collect();
    match blocks.len() {
        1 => blocks.swap_remove(0).commit(),
        _ => Datatype::together(&parts)?.commit(),
    }
}

/// The datatype of a view.
fn block(shape: &[usize], strides: &[isize], size: usize) -> Result<Datatype> {
    let mut block = Datatype::element(size);
    for &(extent, stride) in simplify(shape, strides).iter().rev() {
        block = block.repeat(extent, stride * size as isize)?;
    }
    Ok(block)
}

/// Extents and strides without dims of extent 1, and with neighbouring dims joined where one stride serves both.
fn simplify(shape: &[usize], strides: &[isize]) -> SmallVec<[(usize, isize); 6]> {
    let mut dims: SmallVec<[(usize, isize); 6]> = SmallVec::new();
    for (&extent, &stride) in shape.iter().zip(strides).filter(|d| *d.0 != 1) {
        match dims.last_mut() {
            Some(outer) if outer.1 == stride * extent as isize => {
                *outer = (outer.0 * extent, stride);
            }
            _ => dims.push((extent, stride)),
        }
    }
    dims
}

/// The messages of the plans that a group used last.
#[derive(Debug, Default)]
pub(super) struct WireCache(RefCell<VecDeque<Known>>);

/// A plan, the size of its elements, and its messages.
type Known = (Arc<ExchangePlan>, usize, Rc<Wire>);

impl WireCache {
    /// How many plans are kept.
    const CAPACITY: usize = 64;

    /// The messages of a plan for elements of `size` bytes.
    pub(super) fn get(&self, plan: &Arc<ExchangePlan>, size: usize, me: usize) -> Rc<Wire> {
        let mut known = self.0.borrow_mut();
        let found = known
            .iter()
            .position(|(p, s, _)| Arc::ptr_eq(p, plan) && *s == size);
        if let Some(at) = found {
            if at > 8
                && let Some(entry) = known.remove(at)
            {
                known.push_front(entry);
                return Rc::clone(&known[0].2);
            }
            return Rc::clone(&known[at].2);
        }
        let wire = Rc::new(Wire::new(plan, me));
        if known.len() == Self::CAPACITY {
            known.pop_back();
        }
        known.push_front((Arc::clone(plan), size, Rc::clone(&wire)));
        wire
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Piece;

    #[test]
    fn dims_are_joined() {
        assert_eq!(simplify(&[4, 1, 3], &[3, 7, 1])[..], [(12, 1)]);
        assert_eq!(simplify(&[4, 3], &[5, 1])[..], [(4, 5), (3, 1)]);
        assert!(simplify(&[1, 1], &[9, 9]).is_empty());
    }

    /// The balances of all ranks of an exchange add up to zero exactly if both sides of each pair list the same reads.
    #[test]
    fn balances_tell_whether_pairs_agree() {
        let plan = |recv: Vec<Piece>, send: Vec<Piece>| {
            ExchangePlan::new("t", 0, recv.into(), send.into(), None, None)
        };
        let sum = |plans: [&ExchangePlan; 2]| {
            let wires = [0, 1].map(|me| Wire::new(plans[me], me).balance);
            add(wires[0], wires[1])
        };
        let (a, b) = (Piece::run(0, 0, 3, 4, 9), Piece::run(0, 0, 2, 1, 2));
        let to = |p: &Piece| Piece {
            peer: 1,
            ..p.clone()
        };
        let reader = plan(vec![a.clone(), b.clone()], vec![]);
        assert_eq!(sum([&plan(vec![], vec![to(&b), to(&a)]), &reader]), [0, 0]);
        for wrong in [
            vec![to(&a)],
            vec![to(&b), to(&b)],
            vec![to(&a), to(&b), to(&b)],
        ] {
            assert_ne!(sum([&plan(vec![], wrong), &reader]), [0, 0]);
        }
        // The same reads, listed in another order of destinations.
        let swapped = [(&a, 2), (&b, 9)].map(|(p, at)| Piece {
            dst_offset: at,
            ..to(p)
        });
        assert_ne!(sum([&plan(vec![], swapped.to_vec()), &reader]), [0, 0]);
    }
}
