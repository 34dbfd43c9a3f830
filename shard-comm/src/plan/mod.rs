//! Exchange plans: which pieces of which sources go where, and everything that can be computed from them beforehand.

mod cache;
mod collisions;
mod messages;
mod pieces;
mod traffic;

pub use cache::PlanCache;
pub(crate) use collisions::{Collisions, Stack};
#[cfg(any(feature = "mpi", feature = "nccl"))]
pub(crate) use messages::Message;
pub(crate) use messages::messages_of;
pub use pieces::{Piece, PieceRef, Pieces};
pub use traffic::Traffic;
pub(crate) use traffic::traffic_with;

use shard_device::view::{reach, span_within, steps_apart};
use smallvec::SmallVec;
use std::sync::OnceLock;

use crate::ledger::Moved;
use crate::{CommError, DType, Monoid, Result, Scalar};
use collisions::{are_disjoint, stacks};
use traffic::{elements_of, traffic, widen_extent};

/// One rank's part of an exchange: what it reads from whom, and what others read from it.
///
/// A plan is built once and run often. Without `fold`, pieces are copied in order; with it, each piece is combined
/// into the destination in order. Elements that no piece writes hold `fill`, or with a `fold` and no `fill` its identity;
/// without either, the pieces must write every element.
///
/// ```
/// use shard_comm::{ExchangePlan, Piece};
/// // Rank 0 of two: keep my 3 elements, and append the 2 of rank 1, which wants none of mine.
/// let plan = ExchangePlan::new(
///     "append",
///     7,
///     [Piece::run(0, 0, 3, 0, 0), Piece::run(1, 0, 2, 0, 3)].into(),
///     [Piece::run(0, 0, 3, 0, 0)].into(),
///     None,
///     None,
/// );
/// assert_eq!(plan.received_from(1), 2);
/// assert_eq!((plan.remote_messages(0), plan.remote_elements(0)), (1, 2));
/// ```
#[derive(Clone, Debug)]
pub struct ExchangePlan {
    /// The name of the operation, for errors and ledgers; equal on all ranks.
    pub name: &'static str,
    /// A fingerprint of the whole plan, that is of what every rank reads from every other. If ranks have equal fingerprints,
    /// their pieces are not compared pair by pair. Zero says nothing about the plan: then every pair is compared, how many elements
    /// go and where they are read from.
    pub id: u128,
    /// What this rank reads, in fold order.
    pub recv: Pieces,
    /// What others read from this rank.
    pub send: Pieces,
    /// How pieces are combined with what is in the destination; `None` overwrites.
    pub fold: Option<Monoid>,
    /// What the destination holds before the first piece.
    pub fill: Option<Scalar>,
    /// Whether every rank receives the same.
    alike: bool,
    /// The collective that the whole plan is, if this crate made it as one: a library may run that in a way of its own.
    #[cfg_attr(
        not(feature = "nccl"),
        expect(dead_code, reason = "only libraries with collectives of their own ask")
    )]
    shape: Option<Shape>,
    /// Computed when first asked for, so that a plan that is not run costs no more than its pieces.
    sums: OnceLock<Sums>,
    /// The buffers that the plan was first found to fit, which are mostly those it is used with.
    fits: OnceLock<Fit>,
    /// The traffic of the plan at the first participant that asked, which is mostly the only one.
    share: OnceLock<Share>,
}

/// The facts that a plan is checked against before it runs with one source and one destination of one type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fit {
    /// Ranks of the group.
    pub(crate) group: usize,
    pub(crate) dtype: DType,
    /// Lengths.
    pub(crate) source: usize,
    pub(crate) dst: usize,
}

/// The traffic of a plan at one participant.
#[derive(Clone, Debug)]
struct Share {
    me: usize,
    messages: usize,
    sent_messages: usize,
    /// Elements.
    received: usize,
    sent: usize,
    kept: usize,
}

/// Facts that follow from the pieces.
#[derive(Clone, Debug)]
struct Sums {
    incoming: Vec<Traffic>,
    outgoing: Vec<Traffic>,
    /// Elements of all of them.
    received: usize,
    sent: usize,
    /// One more than the greatest peer.
    peers_end: usize,
    /// For each source that others read: its index, and the least length that it must have.
    extents: SmallVec<[(usize, usize); 1]>,
    dst_end: usize,
    written: usize,
    overlap: Collisions,
    stacks: Vec<Stack>,
    fault: Option<CommError>,
}

/// A collective that libraries offer, with equal counts on all ranks and the ranks' parts in rank order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// Every rank gets all parts.
    AllGather,
    /// Every rank gets the root's elements.
    Broadcast {
        /// The root.
        root: usize,
    },
    /// Every rank gets its part of the combination.
    ReduceScatter,
    /// Every rank gets the whole combination.
    AllReduce,
}

impl ExchangePlan {
    /// A plan of these pieces.
    ///
    /// A piece that no buffer could satisfy (a negative index, a wrong number of strides) becomes the agreed error
    /// of every exchange that uses the plan.
    pub fn new(
        name: &'static str,
        id: u128,
        recv: Pieces,
        send: Pieces,
        fold: Option<Monoid>,
        fill: Option<Scalar>,
    ) -> Self {
        Self {
            name,
            id,
            recv,
            send,
            fold,
            fill,
            alike: false,
            shape: None,
            sums: OnceLock::new(),
            fits: OnceLock::new(),
            share: OnceLock::new(),
        }
    }

    /// Whether the plan is known to fit.
    pub(crate) fn fits(&self, fit: &Fit) -> bool {
        self.fits.get() == Some(fit)
    }

    /// Remembers what the plan fits; only the first call counts.
    pub(crate) fn remember(&self, fit: Fit) {
        self.fits.get_or_init(|| fit);
    }

    /// The plan with the promise that every rank receives the same into a destination of the same length, so that the result of
    /// one rank is everybody's result.
    pub(crate) fn alike(self) -> Self {
        Self {
            alike: true,
            ..self
        }
    }

    pub(crate) fn is_alike(&self) -> bool {
        self.alike
    }

    /// The plan, marked as a whole collective of this crate.
    pub(crate) fn shaped(self, shape: Shape) -> Self {
        Self {
            shape: Some(shape),
            ..self
        }
    }

    /// Whether this rank sends or receives anything.
    #[cfg(feature = "nccl")]
    pub(crate) fn moves_anything(&self) -> bool {
        !self.recv.is_empty() || !self.send.is_empty()
    }

    /// How many sources without elements the agreement has, to tell which collective the whole plan is: if one rank calls the
    /// library for it, all have to.
    #[cfg(feature = "nccl")]
    pub(crate) fn stand_ins(&self) -> usize {
        match self.shape {
            None => 0,
            Some(Shape::AllGather) => 1,
            Some(Shape::Broadcast { .. }) => 2,
            Some(Shape::ReduceScatter) => 3,
            Some(Shape::AllReduce) => 4,
        }
    }

    #[cfg(feature = "nccl")]
    pub(crate) fn shape(&self) -> Option<Shape> {
        self.shape
    }

    /// The plan that ranks agree on before they run these exchanges, of which each reads the result of the one before. It has the
    /// pieces of all of them. Its sources are, in this order: [as many](Self::stand_ins) as tell which collective it is, then
    /// results, then those of the first exchange.
    #[cfg(feature = "nccl")]
    pub(crate) fn agreement(stages: &[&Self]) -> Self {
        let name = stages.first().map_or("nothing", |plan| plan.name);
        let fold = stages.first().and_then(|plan| plan.fold);
        let (mut recv, mut send, mut id) = (Pieces::new(), Pieces::new(), 0_u128);
        let stand_ins = stages.first().map_or(0, |plan| plan.stand_ins());
        for (at, plan) in stages.iter().enumerate() {
            let first = stand_ins + at.checked_sub(1).unwrap_or(stages.len() - 1);
            for (all, pieces) in [(&mut recv, &plan.recv), (&mut send, &plan.send)] {
                for piece in pieces.iter() {
                    let source = first + piece.source;
                    all.push(PieceRef { source, ..piece });
                }
            }
            id = id.rotate_left(7) ^ plan.id;
        }
        id = match stages.iter().any(|plan| plan.id == 0) {
            true => 0,
            false => id ^ (stand_ins as u128) << 96,
        };
        Self::new(name, id, recv, send, fold, None)
    }

    /// A plan that moves nothing: for barriers, and for a rank that has only an error to tell.
    pub fn empty(name: &'static str) -> Self {
        Self::new(name, 0, Pieces::new(), Pieces::new(), None, None)
    }

    /// As [`ExchangePlan::empty`], with a fingerprint: the plan is the same on all ranks, which need not compare what they send.
    pub(crate) fn silent(name: &'static str) -> Self {
        Self::new(name, 1, Pieces::new(), Pieces::new(), None, None)
    }

    /// Whether the plan moves nothing and leaves the destination as it is.
    pub(crate) fn is_silent(&self) -> bool {
        self.recv.is_empty() && self.send.is_empty() && self.fold.is_none()
    }

    /// Elements this rank receives from a peer of the group, itself included.
    pub fn received_from(&self, peer: usize) -> usize {
        elements_of(self.incoming(), peer)
    }

    /// Elements this rank sends to a peer of the group, itself included.
    pub fn sent_to(&self, peer: usize) -> usize {
        elements_of(self.outgoing(), peer)
    }

    /// From how many other ranks `rank` receives something: its messages in the ledger.
    pub fn remote_messages(&self, rank: usize) -> usize {
        let peers = || self.recv.iter().map(|p| p.peer);
        if peers().is_sorted() {
            // Plans of thousands of pieces have them sorted: then peers are counted without summing up the pieces first.
            let others = peers().filter(|&p| p != rank);
            return others
                .clone()
                .zip(others.skip(1))
                .filter(|(a, b)| a != b)
                .count()
                + usize::from(peers().any(|p| p != rank));
        }
        self.incoming().iter().filter(|t| t.peer != rank).count()
    }

    /// Elements that `rank` receives from other ranks; this times the element size is its bytes in the ledger.
    pub fn remote_elements(&self, rank: usize) -> usize {
        let remote = self.recv.iter().filter(|p| p.peer != rank);
        remote.map(|p| p.numel()).sum()
    }

    /// Whether running the plan forms sums of this type in a wider copy of the destination and rounds them once. That is so
    /// only if the sums begin with a fill, or if pieces overlap in parts.
    pub fn widens(&self, dtype: DType) -> bool {
        let sums = self.fold.is_some_and(Monoid::accumulates);
        sums && dtype.is_half() && (self.fill.is_some() || self.collisions() == Collisions::Mixed)
    }

    /// The least length a destination must have.
    pub fn destination_len(&self) -> usize {
        self.sums().dst_end
    }

    /// What this rank receives, by peer, in peer order.
    pub fn incoming(&self) -> &[Traffic] {
        &self.sums().incoming
    }

    /// What this rank sends, by peer, in peer order.
    pub fn outgoing(&self) -> &[Traffic] {
        &self.sums().outgoing
    }

    /// The same pieces in the same order, each read from packed elements: source 0 of a peer has the elements of that peer's
    /// pieces one after the other, in the order in which `order` lists their positions. Results are bit for bit those of this
    /// plan.
    #[cfg(any(feature = "mpi", feature = "nccl"))]
    pub(crate) fn packed(&self, order: &[usize]) -> Self {
        let mut offsets = vec![0; self.recv.len()];
        let mut filled = std::collections::HashMap::<usize, usize>::new();
        for &at in order {
            if let Some(piece) = self.recv.get(at) {
                let end = filled.entry(piece.peer).or_default();
                offsets[at] = *end;
                *end += piece.numel();
            }
        }
        let mut recv = Pieces::new();
        for (piece, offset) in self.recv.iter().zip(offsets) {
            let strides = shard_spec::row_major_strides(piece.shape);
            recv.push(PieceRef {
                source: 0,
                src_offset: offset,
                src_strides: &strides,
                ..piece
            });
        }
        let packed = Self::new(
            self.name,
            self.id,
            recv,
            Pieces::new(),
            self.fold,
            self.fill,
        );
        // How pieces combine depends on how their destinations overlap, and must not depend on where they are read from.
        drop(packed.sums.set(self.sums().clone()));
        packed
    }

    /// The traffic of the plan at participant `me`.
    pub(crate) fn moved(&self, me: usize, dtype: Option<DType>) -> Moved {
        let size = dtype.map_or(0, DType::size);
        let bytes = |elements: usize| (elements * size) as u64;
        let moved = |share: &Share| Moved {
            messages: share.messages as u64,
            bytes: bytes(share.received),
            sent_messages: share.sent_messages as u64,
            sent_bytes: bytes(share.sent),
            local_bytes: bytes(share.kept),
        };
        match self.share.get_or_init(|| self.share_of(me)) {
            share if share.me == me => moved(share),
            _ => moved(&self.share_of(me)),
        }
    }

    #[inline(never)]
    fn share_of(&self, me: usize) -> Share {
        let sums = self.sums();
        let own = |traffic: &[Traffic]| traffic_with(traffic, me).map(|t| t.elements);
        let (kept, kept_out) = (own(&sums.incoming), own(&sums.outgoing));
        let messages = |all: &[Traffic], own: Option<usize>| all.len() - usize::from(own.is_some());
        Share {
            me,
            messages: messages(&sums.incoming, kept),
            sent_messages: messages(&sums.outgoing, kept_out),
            received: sums.received - kept.unwrap_or(0),
            sent: sums.sent - kept_out.unwrap_or(0),
            kept: kept.unwrap_or(0),
        }
    }

    pub(crate) fn collisions(&self) -> Collisions {
        self.sums().overlap
    }

    /// If pieces are stacked: the stack of each destination.
    pub(crate) fn stacks(&self) -> &[Stack] {
        &self.sums().stacks
    }

    /// Whether the pieces write every element of a destination of `len`.
    pub(crate) fn covers(&self, len: usize) -> bool {
        self.collisions() != Collisions::Mixed && self.sums().written == len
    }

    /// Whether the pieces might write every element. The answer is exact unless pieces overlap in ways too costly to analyse.
    pub(crate) fn may_cover(&self, len: usize) -> bool {
        self.covers(len) || self.collisions() == Collisions::Mixed && self.sums().written >= len
    }

    /// Checks that every element of a destination of `len` is written: by a piece, the fill or the fold.
    pub(crate) fn check_written(&self, len: usize) -> Result<()> {
        if self.fold.is_some() || self.fill.is_some() || self.may_cover(len) {
            return Ok(());
        }
        let pieces: usize = self.recv.iter().map(|p| p.numel()).sum();
        Err(CommError::invalid(
            self.name,
            format!("pieces for all {len} elements of the destination"),
            format!("pieces for {pieces} of them"),
            "give the plan a fill value for what no piece writes",
        ))
    }

    /// Checks this rank's side against its buffers, as far as its own arguments decide that.
    pub(crate) fn check(
        &self,
        group: usize,
        dtype: Option<DType>,
        sources: &(impl Iterator<Item = (DType, usize)> + Clone),
        dst_len: usize,
    ) -> Result<()> {
        let invalid = |expected: String, got: String| {
            CommError::invalid(self.name, expected, got, "build the plan for these buffers")
        };
        let sums = self.sums();
        if let Some(fault) = &sums.fault {
            return Err(fault.clone());
        }
        if sums.peers_end > group {
            return Err(invalid(
                format!("peers below {group}"),
                format!("peer {}", sums.peers_end - 1),
            ));
        }
        if let (Some(fold), Some(dtype)) = (self.fold, dtype) {
            fold.check(dtype)?;
        }
        if let Some(fold) = self.fold
            && !dst_len.is_multiple_of(fold.width())
        {
            return Err(invalid(
                format!(
                    "a destination of whole groups of {} for {fold}",
                    fold.width()
                ),
                format!("{dst_len} elements"),
            ));
        }
        if let Some((other, _)) = sources.clone().find(|(t, _)| Some(*t) != dtype) {
            let expected = dtype.map_or("no source".to_owned(), |t| format!("sources of {t}"));
            return Err(invalid(expected, format!("a source of {other}")));
        }
        if sums.dst_end > dst_len {
            return Err(invalid(
                format!("a destination of at least {} elements", sums.dst_end),
                format!("{dst_len}"),
            ));
        }
        for &(source, end) in &sums.extents {
            let len = sources.clone().nth(source).map_or(0, |s| s.1);
            if end > len {
                return Err(invalid(
                    format!("source {source} to have at least {end} elements"),
                    format!("{len}"),
                ));
            }
        }
        Ok(())
    }

    fn sums(&self) -> &Sums {
        self.sums.get_or_init(|| {
            self.sum().unwrap_or_else(|fault| Sums {
                incoming: Vec::new(),
                outgoing: Vec::new(),
                received: 0,
                sent: 0,
                peers_end: 0,
                extents: SmallVec::new(),
                dst_end: 0,
                written: 0,
                overlap: Collisions::Disjoint,
                stacks: Vec::new(),
                fault: Some(fault),
            })
        })
    }

    fn sum(&self) -> Result<Sums> {
        let (mut incoming, mut outgoing) = (traffic(&self.recv)?, traffic(&self.send)?);
        if self.id == 0 {
            // Pairs are compared, and also where their pieces are read from: readers of shared memory go by their own pieces,
            // senders of messages by theirs.
            for (all, pieces) in [(&mut incoming, &self.recv), (&mut outgoing, &self.send)] {
                let lots = messages_of(pieces);
                let prints = all.iter_mut().zip(lots);
                prints.for_each(|(traffic, lot)| traffic.print = Some(lot.print));
            }
        }
        let (mut dst_end, mut written) = (0, 0);
        if let Some(fold) = self.fold {
            let mut pieces = self.recv.iter();
            pieces.try_for_each(|piece| check_groups(self.name, fold, piece))?;
        }
        let mut ranges = SmallVec::<[_; 8]>::with_capacity(self.recv.len());
        let mut apart = true;
        let facts = |p: PieceRef<'_>| {
            let (shape, strides) = (p.shape, p.dst_strides);
            (
                p.numel(),
                reach(shape, strides),
                steps_apart(shape, strides),
            )
        };
        for (p, (numel, reach, steps_apart)) in self.recv.with_facts(facts) {
            let range = span_within(p.dst_offset, p.shape, p.dst_strides, reach)?;
            dst_end = dst_end.max(range.end);
            written += numel;
            apart &= steps_apart;
            ranges.push(range);
        }
        let (mut overlap, mut stacked) = (Collisions::Mixed, Vec::new());
        if apart && are_disjoint(self.recv.iter(), &mut ranges, MOST_COMPARED) {
            overlap = Collisions::Disjoint;
        } else if apart && let Some(stacks) = stacks(&self.recv)? {
            let firsts = stacks.iter().filter_map(|s| self.recv.get(s[0]));
            written = firsts.map(|p| p.numel()).sum();
            overlap = Collisions::Stacked;
            stacked = stacks;
        }
        let elements = |all: &[Traffic]| all.iter().map(|t| t.elements).sum();
        let last = |all: &[Traffic]| all.last().map_or(0, |t| t.peer + 1);
        let mut extents: SmallVec<[(usize, usize); 1]> = SmallVec::new();
        for &(source, end) in outgoing.iter().flat_map(|t| &t.extents) {
            widen_extent(&mut extents, source, end);
        }
        Ok(Sums {
            received: elements(&incoming),
            sent: elements(&outgoing),
            peers_end: last(&incoming).max(last(&outgoing)),
            extents,
            incoming,
            outgoing,
            dst_end,
            written,
            overlap,
            stacks: stacked,
            fault: None,
        })
    }
}

/// How many pieces are compared one by one to find out that none writes what another does: of more, writing them by the general path
/// costs less than the proof.
const MOST_COMPARED: usize = 256;

/// A monoid of several elements per group needs whole groups of contiguous elements.
fn check_groups(name: &'static str, fold: Monoid, piece: PieceRef<'_>) -> Result<()> {
    let width = fold.width();
    if width == 1 {
        return Ok(());
    }
    let last = piece.shape.len().checked_sub(1);
    let whole = last.is_some_and(|d| {
        piece.shape[d].is_multiple_of(width)
            && piece.src_strides[d] == 1
            && piece.dst_strides[d] == 1
    });
    if whole {
        return Ok(());
    }
    Err(CommError::invalid(
        name,
        format!("an innermost dim of stride 1, a multiple of {width} long, for {fold}"),
        format!("{piece:?}"),
        "keep the elements of a group side by side",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Piece;

    #[test]
    fn faults_are_remembered() {
        let backwards = Piece {
            dst_offset: 1,
            dst_strides: [-1].as_slice().into(),
            ..Piece::run(0, 0, 3, 0, 0)
        };
        let plan = ExchangePlan::new("t", 0, [backwards].into(), Pieces::new(), None, None);
        assert!(
            plan.check(1, Some(DType::F32), &std::iter::empty(), 3)
                .is_err()
        );
        let odd = ExchangePlan::new(
            "t",
            0,
            [Piece::run(0, 0, 4, 0, 0)].into(),
            Pieces::new(),
            Some(Monoid::Moments),
            None,
        );
        assert!(
            odd.check(1, Some(DType::F32), &std::iter::once((DType::F32, 4)), 4)
                .is_err()
        );
    }
}
