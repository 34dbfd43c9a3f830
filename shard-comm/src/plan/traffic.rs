//! What a plan moves between this rank and each peer, as both ends compare it.

use shard_device::view::{reach, span_within};
use smallvec::{SmallVec, smallvec};

use super::pieces::{PieceRef, Pieces};
use crate::Result;

/// All pieces between this rank and one peer, in one direction. [`validate`](crate::backend::validate) compares these where
/// plans have no fingerprint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Traffic {
    pub(crate) peer: usize,
    pub(crate) pieces: usize,
    pub(crate) elements: usize,
    /// For each source that is read: its index, and the least length that it must have.
    pub(crate) extents: SmallVec<[(usize, usize); 1]>,
    /// A fingerprint of where the pieces are read from, if sender and reader compare it: where the plan has none.
    pub(crate) print: Option<[u64; 2]>,
}

impl Traffic {
    /// What a peer in another process says of its pieces, so that it can be compared there and here: its number, how many pieces and
    /// elements; of each source that is read its index and the least length it must have; and, where both ends compute one, a
    /// fingerprint of where the pieces are read from.
    ///
    /// ```
    /// use shard_comm::backend::Traffic;
    /// use shard_comm::{ExchangePlan, Piece};
    /// let plan = ExchangePlan::new("shift", 0, [Piece::run(1, 0, 4, 2, 0)].into(), [].into(), None, None);
    /// let told = &plan.incoming()[0];
    /// // ... as bytes to another process, and there:
    /// let heard = Traffic::new(told.peer(), told.pieces(), told.elements(), told.extents(), told.print());
    /// assert_eq!((&heard, heard.extents()), (told, &[(0, 6)][..]));
    /// ```
    pub fn new(
        peer: usize,
        pieces: usize,
        elements: usize,
        extents: &[(usize, usize)],
        print: Option<[u64; 2]>,
    ) -> Self {
        Self {
            peer,
            pieces,
            elements,
            extents: extents.into(),
            print,
        }
    }

    /// The other rank, as numbered within the group.
    pub fn peer(&self) -> usize {
        self.peer
    }

    /// How many pieces.
    pub fn pieces(&self) -> usize {
        self.pieces
    }

    /// How many elements in all.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Of each source that is read: its index, and the least length it must have.
    pub fn extents(&self) -> &[(usize, usize)] {
        &self.extents
    }

    /// A fingerprint of where the pieces are read from, if there is one.
    pub fn print(&self) -> Option<[u64; 2]> {
        self.print
    }
}

pub(super) fn elements_of(traffic: &[Traffic], peer: usize) -> usize {
    traffic_with(traffic, peer).map_or(0, |t| t.elements)
}

/// The traffic with a peer. If every rank communicates with every other, it is at the peer's own index.
pub(crate) fn traffic_with(traffic: &[Traffic], peer: usize) -> Option<&Traffic> {
    if let Some(t) = traffic.get(peer)
        && t.peer == peer
    {
        return Some(t);
    }
    let at = traffic.binary_search_by_key(&peer, |t| t.peer).ok()?;
    traffic.get(at)
}

/// Notes that a source must have a length of at least `end`.
pub(super) fn widen_extent(extents: &mut SmallVec<[(usize, usize); 1]>, source: usize, end: usize) {
    match extents.iter_mut().find(|e| e.0 == source) {
        Some(extent) => extent.1 = extent.1.max(end),
        None => extents.push((source, end)),
    }
}

/// Sums pieces by peer, in peer order.
pub(super) fn traffic(pieces: &Pieces) -> Result<Vec<Traffic>> {
    let mut all: Vec<Traffic> = Vec::with_capacity(pieces.peers());
    let facts = |p: PieceRef<'_>| (p.numel(), reach(p.shape, p.src_strides));
    for (piece, (numel, reach)) in pieces.with_facts(facts) {
        // Plans of thousands of pieces have them sorted.
        let at = match all.last() {
            Some(last) if last.peer < piece.peer => Err(all.len()),
            Some(last) if last.peer == piece.peer => Ok(all.len() - 1),
            _ => all.binary_search_by_key(&piece.peer, |t| t.peer),
        };
        let at = match at {
            Ok(at) => at,
            Err(at) => {
                let fresh = Traffic {
                    peer: piece.peer,
                    pieces: 0,
                    elements: 0,
                    extents: smallvec![],
                    print: None,
                };
                all.insert(at, fresh);
                at
            }
        };
        let end = span_within(piece.src_offset, piece.shape, piece.src_strides, reach)?.end;
        let total = &mut all[at];
        total.pieces += 1;
        total.elements += numel;
        widen_extent(&mut total.extents, piece.source, end);
    }
    for total in &mut all {
        total.extents.sort_unstable();
    }
    Ok(all)
}
