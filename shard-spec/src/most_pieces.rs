//! A bound on how many pieces a move along one dim is cut into, found without listing them.

use crate::partition::Partition;
use crate::progression::gcd;
use crate::segments::{RunKind, Runs};

/// A closed form that gives no more than this is not refined by counting.
const LOW: usize = 1 << 12;

/// Partitions with up to this many intervals together are walked through and counted.
const WALKED: usize = 1 << 20;

/// The most pieces that one part of a dim reads, or sends, when it goes from one partition to another of the same extent:
/// an upper bound on what [`overlaps`](crate::overlaps) and [`overlaps_from`](crate::overlaps_from) list under the
/// identity.
///
/// Short descriptions may stand for many pieces: two numbers repeat a tile over any extent. A program that plans for layouts
/// from untrusted input asks here first. Nothing is done per interval where there are more than a million.
///
/// ```
/// use shard_spec::{Partition, most_pieces};
/// let rows = Partition::balanced(12, 3);
/// assert!(most_pieces(&rows, &Partition::balanced(12, 2)) <= 4);
/// // A stripe is one piece per pair of parts, whatever the extent.
/// assert_eq!(most_pieces(&Partition::striped(1 << 40, 8), &Partition::striped(1 << 40, 6)), 4);
/// // Tiles of 2^20 and of 2^20 - 1 share boundaries nowhere.
/// let tiles = |size| Partition::from_repeated(1 << 50, 2, &[(0, size), (1, size)]);
/// assert!(most_pieces(&tiles(1 << 20)?, &tiles((1 << 20) - 1)?) > 1 << 39);
/// # Ok::<(), shard_spec::SpecError>(())
/// ```
///
/// # Panics
/// Where the extents differ.
pub fn most_pieces(src: &Partition, dst: &Partition) -> usize {
    let (n, m) = (src.extent(), dst.extent());
    assert!(n == m, "a move from a dim of {n} to one of {m}");
    let (from, to) = (src.runs(), dst.runs());
    let reads = bound(&from, &to).min(dst.max_size());
    let sends = bound(&to, &from).min(src.max_size());
    let most = reads.max(sends);
    if most <= LOW || from.intervals.saturating_add(to.intervals) > WALKED {
        return most;
    }
    most.min(walked(src, dst))
}

/// The most pieces that a part of one side shares with all parts of the other.
fn bound(all: &Runs, one: &Runs) -> usize {
    let pairs = all.total.saturating_mul(one.most);
    let fewer = match (&all.kind, &one.kind) {
        // A piece begins where an interval of either side does.
        (RunKind::Blocks, RunKind::Blocks) => all.total.saturating_add(one.most),
        // There is one stride at each place of the other side's period, and a stride meets those with the same remainder.
        (RunKind::Strides { period: p }, RunKind::Strides { period: q }) => {
            one.most.saturating_mul(p / gcd(*p, *q))
        }
        _ => pairs,
    };
    fewer.min(pairs)
}

/// Walks through both partitions and counts.
fn walked(src: &Partition, dst: &Partition) -> usize {
    let (mut read, mut sent) = (vec![0; dst.parts()], vec![0; src.parts()]);
    let (mut from, mut to) = (src.blocks(), dst.blocks());
    let (mut here, mut there) = (from.next(), to.next());
    while let (Some((sender, a)), Some((reader, b))) = (here, there) {
        read[reader] += 1;
        sent[sender] += 1;
        let both = a.min(b);
        here = if a > both {
            Some((sender, a - both))
        } else {
            from.next()
        };
        there = if b > both {
            Some((reader, b - both))
        } else {
            to.next()
        };
    }
    let most = |counts: &[usize]| counts.iter().copied().max().unwrap_or(0);
    most(&read).max(most(&sent))
}
