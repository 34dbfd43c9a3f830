//! The pieces of a plan by peer, in an order that both sides know: the pieces of a peer become one message.

use super::{PieceRef, Pieces};
use crate::fingerprint::Fingerprint;

/// The pieces between this rank and one other, or itself.
#[derive(Debug)]
#[cfg_attr(
    not(any(feature = "mpi", feature = "nccl")),
    expect(dead_code, reason = "only backends that send messages ask for this")
)]
pub(crate) struct Message {
    pub(crate) peer: usize,
    pub(crate) elements: usize,
    /// Their positions in the plan, in the order in which they are sent.
    pub(crate) pieces: Vec<usize>,
    /// A fingerprint of where they are read from.
    pub(crate) print: [u64; 2],
}

#[cfg(any(feature = "mpi", feature = "nccl"))]
impl Message {
    /// The pieces in the order in which they are sent.
    pub(crate) fn of<'a>(&'a self, pieces: &'a Pieces) -> impl Iterator<Item = PieceRef<'a>> {
        self.pieces.iter().filter_map(|&at| pieces.get(at))
    }
}

/// Pieces by peer, each peer's in the order in which [`Pieces::sort`] lists them on both sides.
pub(crate) fn messages_of(pieces: &Pieces) -> Vec<Message> {
    let mut order: Vec<(usize, PieceRef<'_>)> = pieces.iter().enumerate().collect();
    let key = |p: &PieceRef<'_>| (p.peer, p.source, p.dst_offset, p.src_offset);
    if !order.is_sorted_by_key(|(_, p)| key(p)) {
        order.sort_by_key(|(_, p)| key(p));
    }
    let by_peer = order.chunk_by(|a, b| a.1.peer == b.1.peer);
    by_peer
        .map(|message| {
            let mut print = Fingerprint::new();
            for (_, p) in message {
                print.numbers(&[p.source, p.src_offset]);
                for (&extent, &stride) in p.shape.iter().zip(p.src_strides) {
                    // The stride of a dim of extent 1 does not matter.
                    if extent != 1 {
                        print.numbers(&[extent, stride.cast_unsigned()]);
                    }
                }
            }
            Message {
                peer: message[0].1.peer,
                elements: message.iter().map(|(_, p)| p.numel()).sum(),
                pieces: message.iter().map(|(at, _)| *at).collect(),
                print: print.done(),
            }
        })
        .collect()
}
