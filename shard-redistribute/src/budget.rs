//! Limits on what a plan may ask for, checked before anything of it is built.
//!
//! A few words can describe layouts of any extent, and tiles repeated any number of times. Both checks look at layouts alone,
//! so every rank decides alike.

use crate::error::TooManyPieces;
use crate::path::{Hop, Move};
use crate::{Owners, RedistributeError, Result};
use shard_spec::{DimSharding, Layout, Partition, SpecError, most_pieces};

/// The most pieces that one rank may read, or send, in all steps of a plan. Their list takes about half a gigabyte while the
/// plan is made.
const MOST_PIECES: usize = 1 << 22;

/// The most bytes of a tensor, counted as if every rank held all of it. Sums over the steps of a plan then fit into 64 bits.
const MOST_BYTES: u128 = 1 << 62;

/// Bytes of the widest element.
const WIDEST: u128 = 8;

/// Refuses tensors whose bytes could not be counted.
pub(crate) fn check_bytes(op: &'static str, layout: &Layout) -> Result<()> {
    let bytes = layout.numel() as u128 * layout.mesh().size() as u128 * WIDEST;
    if bytes <= MOST_BYTES {
        return Ok(());
    }
    let shape = layout.shape().to_vec();
    Err(SpecError::Overflow { op, shape }.into())
}

/// A bound on the pieces that one rank reads or sends in all these hops.
pub(crate) fn pieces_of(hops: &[Hop]) -> usize {
    let of = |hop: &Hop| match hop {
        Hop::Exchange(e) => e.most_pieces(),
        Hop::AllReduce { .. } => 0,
    };
    hops.iter().map(of).fold(0, usize::saturating_add)
}

/// Refuses a move of more pieces than a rank can list.
pub(crate) fn check_pieces(
    op: &'static str,
    from: &Layout,
    to: &Layout,
    pieces: usize,
) -> Result<()> {
    if pieces <= MOST_PIECES {
        return Ok(());
    }
    Err(RedistributeError::TooManyPieces(Box::new(TooManyPieces {
        op,
        from: from.clone(),
        to: to.clone(),
        pieces,
        most: MOST_PIECES,
    })))
}

/// Whether a rank can list the pieces of these exchanges.
pub(crate) fn is_affordable(stages: &[Move]) -> bool {
    let pieces = stages.iter().map(Move::most_pieces);
    pieces.fold(0, usize::saturating_add) <= MOST_PIECES
}

impl Move {
    /// A bound on the pieces that one rank reads or sends.
    fn most_pieces(&self) -> usize {
        let (from, to) = (&self.from, &self.to);
        let count = |axes: &[usize]| to.mesh().part_count(axes);
        let copies = match self.owners {
            Owners::Nearest => 1,
            Owners::Spread | Owners::Balanced => count(from.replicate_axes()),
        };
        pieces_between(from, to)
            .saturating_mul(count(&self.scatter))
            .saturating_mul(copies)
    }
}

/// A bound on the pieces in which a block of one layout lies among those of the other, whatever their meshes. It is 0 between
/// contiguous layouts, where two blocks have at most one piece in common.
pub(crate) fn pieces_between(from: &Layout, to: &Layout) -> usize {
    if from.is_contiguous() && to.is_contiguous() {
        return 0;
    }
    let whole = |n: usize| Partition::chunk(n, 1);
    let along = |sharding: Option<&DimSharding>, n: usize| {
        sharding.map_or_else(|| whole(n), |s| s.partition.clone())
    };
    let dims = to.shape().iter().enumerate();
    dims.map(|(d, &n)| most_pieces(&along(from.sharding(d), n), &along(to.sharding(d), n)))
        .fold(1, usize::saturating_mul)
}
