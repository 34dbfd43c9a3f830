//! The pieces of an exchange as rounds cut them: a rank's own pieces advance together with the parts of them that others read.
//!
//! The elements still to be read and those written already add up to no more than the larger block, as long as pieces that
//! read the same elements read them in the same round. Pieces of one block are equal or disjoint, with one exception: where
//! readers share a block out over its copies ([`Owners::Spread`](crate::Owners)), a rank reads all of its own copy and others
//! read shares of it. The share that is read last would keep memory occupied whose elements the rank itself has long read and
//! written elsewhere: a quarter of the block when two shares are read. A rank's own piece moves within its memory, so the rank
//! alone decides how it is cut: along the shares that others read.

use shard_comm::{ExchangePlan, Piece, PieceRef};
use shard_spec::Dims;

/// The pieces of one rank: what it reads and what is read from it.
#[derive(Debug)]
pub(super) struct Aligned {
    pub(super) recv: Vec<Piece>,
    pub(super) send: Vec<Piece>,
}

impl Aligned {
    /// The pieces as they are, except that those which rank `shared` reads from itself are cut along the shares of its block
    /// that others read.
    pub(super) fn new(plan: &ExchangePlan, shared: Option<usize>) -> Self {
        let cut = |piece: PieceRef<'_>, out: &mut Vec<Piece>| {
            if shared == Some(piece.peer) {
                split(&piece, &cuts(plan, &piece), out);
            } else {
                out.push(piece.to_piece());
            }
        };
        let (mut recv, mut send) = (Vec::new(), Vec::new());
        plan.recv.iter().for_each(|piece| cut(piece, &mut recv));
        plan.send.iter().for_each(|piece| cut(piece, &mut send));
        Self { recv, send }
    }
}

/// Per dim of a piece, the boundaries of those parts of it that others read.
fn cuts(plan: &ExchangePlan, own: &PieceRef<'_>) -> Vec<Vec<usize>> {
    let mut cuts: Vec<Vec<usize>> = own.shape.iter().map(|&n| vec![0, n]).collect();
    for other in plan.send.iter().filter(|p| p.peer != own.peer) {
        if let Some(index) = index_within(&other, own) {
            for (d, cuts) in cuts.iter_mut().enumerate() {
                cuts.extend([index[d], index[d] + other.shape[d]]);
            }
        }
    }
    for cuts in &mut cuts {
        cuts.sort_unstable();
        cuts.dedup();
    }
    cuts
}

/// Where the box `inner` begins in `outer`, if it reads a part of the same elements.
fn index_within(inner: &PieceRef<'_>, outer: &PieceRef<'_>) -> Option<Dims> {
    if inner.source != outer.source || inner.src_strides != outer.src_strides {
        return None;
    }
    let mut rest = inner.src_offset.checked_sub(outer.src_offset)?;
    let mut index = Dims::new();
    for (d, stride) in outer.src_strides.iter().enumerate() {
        let stride = stride.unsigned_abs().max(1);
        index.push(rest / stride);
        rest %= stride;
        if index[d] + inner.shape[d] > outer.shape[d] {
            return None;
        }
    }
    (rest == 0).then_some(index)
}

/// Adds the boxes that a piece is cut into, in row-major order.
fn split(piece: &PieceRef<'_>, cuts: &[Vec<usize>], out: &mut Vec<Piece>) {
    let Some(d) = (0..cuts.len()).find(|&d| cuts[d].len() > 2) else {
        return out.push(piece.to_piece());
    };
    let mut rest = cuts.to_vec();
    for ends in cuts[d].windows(2) {
        let mut part = piece.to_piece();
        // Steps are positive, because in moves between layouts every map is the identity.
        part.src_offset += ends[0] * part.src_strides[d].unsigned_abs();
        part.dst_offset += ends[0] * part.dst_strides[d].unsigned_abs();
        part.shape[d] = ends[1] - ends[0];
        rest[d] = ends.to_vec();
        split(&part.view(), &rest, out);
    }
}
