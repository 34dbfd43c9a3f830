//! Sums over ranks in stages, by the tree over their numbers.
//!
//! At level k of the tree the ranks are in blocks of 2^k, the last one perhaps of fewer. Two neighbouring blocks become one of the
//! next level; a last block without a neighbour stays as it is.

use std::ops::Range;

use super::{Leaves, Pair, Step, Steps, Way};
use crate::{Monoid, Piece, Pieces};

/// The steps of an all-reduce of `len` elements at rank `me`; none if it is to be direct.
pub(in super::super) fn all_reduce(
    name: &'static str,
    way: Way,
    me: usize,
    ranks: usize,
    len: usize,
    op: Monoid,
) -> Vec<Step> {
    match way {
        Way::Direct => Vec::new(),
        Way::Doubling => doubling(name, me, ranks, len, op),
        Way::Halving => halving(name, me, ranks, len, op, None),
    }
}

/// The steps of a reduction to one rank; none if it is to be direct.
pub(in super::super) fn reduce(
    name: &'static str,
    way: Way,
    (me, root): (usize, usize),
    ranks: usize,
    len: usize,
    op: Monoid,
) -> Vec<Step> {
    match way {
        Way::Direct => Vec::new(),
        Way::Doubling => to_root(name, (me, root), ranks, len, op),
        Way::Halving => halving(name, me, ranks, len, op, Some(root)),
    }
}

/// How often the ranks can be halved.
pub(super) fn levels(ranks: usize) -> usize {
    ranks.next_power_of_two().ilog2() as usize
}

/// The ranks of the last two blocks of a level, if there are an even number of blocks and the last one is not whole: where it begins,
/// and how many ranks it has.
fn edge(ranks: usize, level: usize) -> Option<(usize, usize)> {
    let last = (ranks - 1) >> level;
    let (start, block) = (last << level, 1 << level);
    (last % 2 == 1 && ranks - start < block).then_some((start, ranks - start))
}

/// How many stages [`doubling`] has.
pub(super) fn doubling_stages(ranks: usize) -> usize {
    let spread = |level: usize| {
        edge(ranks, level).map_or(0, |(_, few)| {
            let times = (1_usize << level).div_ceil(few);
            levels(times)
        })
    };
    (0..levels(ranks)).map(|level| 1 + spread(level)).sum()
}

/// Every rank of a block has its sum. Ranks at the same place of two neighbouring blocks give it to each other. If the second block
/// is the last one and has fewer ranks, those of the first one that have no partner hear the sum from others of their block.
fn doubling(name: &'static str, me: usize, ranks: usize, len: usize, op: Monoid) -> Vec<Step> {
    let mut steps = Steps::new(name, &[1, ranks, len]);
    for level in 0..levels(ranks) {
        let block = 1 << level;
        let partner = me ^ block;
        let mut pair = Pair::default();
        let mut leaves = Leaves::Same;
        if partner < ranks {
            let both = [me.min(partner), me.max(partner)];
            pair.recv = both.iter().map(|&r| Piece::run(r, 0, len, 0, 0)).collect();
            pair.send = pair.recv.clone();
            leaves = Leaves::New(len);
        }
        steps.push(pair, Some(op), leaves);
        let Some((start, mut have)) = edge(ranks, level) else {
            continue;
        };
        // My place in the first of the two blocks.
        let place = me.checked_sub(start - block).filter(|&place| place < block);
        while have < block {
            let mut pair = Pair::default();
            let mut leaves = Leaves::Same;
            if let Some(place) = place {
                if (have..block.min(2 * have)).contains(&place) {
                    pair.recv = [Piece::run(me - have, 0, len, 0, 0)].into();
                    leaves = Leaves::New(len);
                } else if place < have && place + have < block {
                    pair.send = [Piece::run(me + have, 0, len, 0, 0)].into();
                }
            }
            steps.push(pair, None, leaves);
            have *= 2;
        }
    }
    steps.steps
}

/// One rank of each block has its sum: the root in its own block, elsewhere the first.
fn to_root(
    name: &'static str,
    (me, root): (usize, usize),
    ranks: usize,
    len: usize,
    op: Monoid,
) -> Vec<Step> {
    let mut steps = Steps::new(name, &[2, ranks, len, root]);
    let holder = |rank: usize, level: usize| match rank >> level == root >> level {
        true => root,
        false => rank >> level << level,
    };
    let run = |rank| Piece::run(rank, 0, len, 0, 0);
    for level in 0..levels(ranks) {
        let other = ((me >> level) ^ 1) << level;
        let mut pair = Pair::default();
        let mut leaves = Leaves::Nothing;
        if holder(me, level) == me {
            let (to, theirs) = (holder(me, level + 1), holder(other, level));
            if other >= ranks {
                leaves = Leaves::Same;
            } else if to == me {
                let both = match me < other {
                    true => [me, theirs],
                    false => [theirs, me],
                };
                pair.recv = both.into_iter().map(run).collect();
                pair.send = [run(me)].into();
                leaves = Leaves::New(len);
            } else {
                pair.send = [run(to)].into();
            }
        }
        steps.push(pair, Some(op), leaves);
    }
    steps.steps
}

/// The most messages that a rank receives in [`halving`].
pub(super) fn halving_messages(ranks: usize) -> usize {
    let tree = Tree::new(ranks, 0, 1);
    let last = tree.levels - 1;
    let extra = |absent: usize| {
        let real = |level: &usize| absent ^ (1 << level) < ranks;
        (0..last).filter(real).count()
    };
    let of_two = (ranks..2 * tree.half).map(|absent| 2 * last + extra(absent));
    let of_one = (ranks > tree.half).then_some(2 * (last + 1));
    of_two.chain(of_one).max().unwrap_or(0)
}

/// The ranks as a whole tree: places up to the next power of two, of which those from `ranks` on have no rank. What such a place
/// would have is kept by the rank at the same place of the other half, which is its `host`.
struct Tree {
    ranks: usize,
    levels: usize,
    /// Half the number of places.
    half: usize,
    len: usize,
    width: usize,
}

impl Tree {
    fn new(ranks: usize, len: usize, width: usize) -> Self {
        let levels = levels(ranks);
        Self {
            ranks,
            levels,
            half: 1 << levels.saturating_sub(1),
            len,
            width,
        }
    }

    /// The elements of which a place has the sum over its block of a level: of what it had at the level below, the first half or the
    /// second.
    fn part(&self, place: usize, level: usize) -> Range<usize> {
        let mut groups = 0..self.len / self.width;
        for bit in 0..level {
            let middle = groups.start + groups.len().div_ceil(2);
            groups = match place >> bit & 1 {
                0 => groups.start..middle,
                _ => middle..groups.end,
            };
        }
        groups.start * self.width..groups.end * self.width
    }

    /// Whether there is a rank in the block of a level that has this place.
    fn has_ranks(&self, place: usize, level: usize) -> bool {
        place >> level << level < self.ranks
    }

    fn host(&self, place: usize) -> usize {
        match place < self.ranks {
            true => place,
            false => place - self.half,
        }
    }

    /// The places of a rank that have something at a level: its own, and one without a rank.
    fn places(&self, rank: usize, level: usize) -> impl Iterator<Item = usize> {
        let absent = rank + self.half;
        let hosts = rank < self.half && absent >= self.ranks && self.has_ranks(absent, level);
        std::iter::once(rank).chain(hosts.then_some(absent))
    }

    /// Where in its host's buffer the part of a place begins, at a level.
    fn base(&self, place: usize, level: usize) -> usize {
        match place < self.ranks {
            true => 0,
            false => self.part(self.host(place), level).len(),
        }
    }

    /// What a place has of its block's sum when all blocks are one. If the two last halves are both at one rank it need not divide.
    fn last_part(&self, rank: usize) -> Range<usize> {
        match (rank ^ self.half) < self.ranks {
            true => self.part(rank, self.levels),
            false => self.part(rank, self.levels - 1),
        }
    }

    /// The part that a place has after a level.
    fn after(&self, place: usize, level: usize) -> Range<usize> {
        match level + 1 == self.levels {
            true => self.last_part(place),
            false => self.part(place, level + 1),
        }
    }

    /// The piece that place `to` reads of what place `from` has at a level, if that has anything; `peer` is the other end.
    fn piece(&self, from: usize, to: usize, level: usize, peer: usize) -> Option<Piece> {
        if !self.has_ranks(from, level) {
            return None;
        }
        let (had, kept) = (self.part(from, level), self.after(to, level));
        let at = self.base(from, level) + kept.start - had.start;
        Some(Piece::run(
            peer,
            0,
            kept.len(),
            at,
            self.base(to, level + 1),
        ))
    }
}

/// Two neighbouring blocks of a level have the same elements at the same places. Ranks at the same place keep one half each, and give
/// the other away. When one block is left, the ranks go back the same way and gather the halves; if only the `root` wants the
/// result, the others do so until the last stage.
fn halving(
    name: &'static str,
    me: usize,
    ranks: usize,
    len: usize,
    op: Monoid,
    root: Option<usize>,
) -> Vec<Step> {
    let tree = Tree::new(ranks, len, op.width());
    let root_fact = root.map_or(0, |root| root + 1);
    let mut steps = Steps::new(name, &[3, ranks, len, op.width(), root_fact]);
    for level in 0..tree.levels {
        let bit = 1 << level;
        let last = level + 1 == tree.levels;
        let mut pair = Pair::default();
        let mut left = 0;
        // When one block is left, places without a rank have nothing.
        for to in tree.places(me, level + 1).filter(|&to| !last || to == me) {
            left += tree.after(to, level).len();
            for from in [to & !bit, to | bit] {
                pair.recv
                    .extend(tree.piece(from, to, level, tree.host(from)));
            }
        }
        for from in tree.places(me, level) {
            for to in [from, from ^ bit] {
                let gone = last && to >= ranks;
                let to_host = tree.host(to);
                pair.send
                    .extend(tree.piece(from, to, level, to_host).filter(|_| !gone));
            }
        }
        steps.push(pair, Some(op), Leaves::New(left));
    }
    for level in (0..tree.levels).rev() {
        gather(&tree, &mut steps, me, level, root);
    }
    steps.steps
}

/// The stage of the way back in which pairs of a level gather what they had before it.
fn gather(tree: &Tree, steps: &mut Steps, me: usize, level: usize, root: Option<usize>) {
    let bit = 1 << level;
    let wants = |rank: usize| level > 0 || root.is_none_or(|root| root == rank);
    // What a rank has before this stage.
    let has = |rank: usize| tree.after(rank, level);
    // A place without a rank would have what its host has, except at the last level, where the host has all of it.
    let source = |rank: usize| match rank ^ bit {
        other if other < tree.ranks => Some(other),
        other if level + 1 < tree.levels => Some(tree.host(other)),
        _ => None,
    };
    let piece = |from: usize, to: usize, peer: usize| {
        let (part, whole) = (has(from), tree.part(to, level));
        Piece::run(peer, 0, part.len(), 0, part.start - whole.start)
    };
    let mut pair = Pair::default();
    let mut leaves = match wants(me) {
        true => Leaves::Same,
        false => Leaves::Nothing,
    };
    if let Some(from) = source(me).filter(|_| wants(me)) {
        pair.recv = [piece(me, me, me), piece(from, me, from)].into();
        pair.send = [piece(me, me, me)].into();
        leaves = Leaves::New(tree.part(me, level).len());
    }
    // A rank reads from me if I am its partner, or the host of its partner.
    for place in [me, me + tree.half] {
        let to = place ^ bit;
        if to < tree.ranks && to != me && source(to) == Some(me) && wants(to) {
            let listed = pair.send.iter().any(|p| p.peer == to);
            if !listed {
                pair.send.extend([piece(me, to, to)]);
            }
        }
    }
    steps.push(pair, None, leaves);
}

/// As the way there in [`halving`], where each rank is left its own part, `counts[r]` elements for rank `r`: at each level a place
/// keeps the parts of all ranks that have the places of its block in the levels below in common with it.
pub(in super::super) fn reduce_scatter(
    name: &'static str,
    me: usize,
    counts: &[usize],
    op: Monoid,
) -> Vec<Step> {
    let facts: Vec<usize> = [9].into_iter().chain(counts.iter().copied()).collect();
    let mut steps = Steps::new(name, &facts);
    let tree = Tree::new(counts.len(), 0, 1);
    let kept =
        |place: usize, level: usize| (place % (1 << level)..counts.len()).step_by(1 << level);
    let len = |place: usize, level: usize| kept(place, level).map(|r| counts[r]).sum::<usize>();
    let base = |place: usize, level: usize| match place < counts.len() {
        true => 0,
        false => len(tree.host(place), level),
    };
    // The pieces that place `to` reads of what place `from` has at a level, if that has anything.
    let pieces = |from: usize, to: usize, level: usize, peer: usize| {
        let mut pieces = Pieces::new();
        let (mut src, mut dst) = (base(from, level), base(to, level + 1));
        for rank in kept(from, level) {
            let count = counts[rank];
            if rank % (2 << level) == to % (2 << level) {
                pieces.extend([Piece::run(peer, 0, count, src, dst)]);
                dst += count;
            }
            src += count;
        }
        match tree.has_ranks(from, level) {
            true => together(pieces),
            false => Pieces::new(),
        }
    };
    for level in 0..tree.levels {
        let bit = 1 << level;
        let last = level + 1 == tree.levels;
        let mut pair = Pair::default();
        let mut left = 0;
        for to in tree.places(me, level + 1).filter(|&to| !last || to == me) {
            left += len(to, level + 1);
            for from in [to & !bit, to | bit] {
                let read = pieces(from, to, level, tree.host(from));
                pair.recv.extend(read.iter().map(|p| p.to_piece()));
            }
        }
        for from in tree.places(me, level) {
            for to in [from, from ^ bit] {
                let read = pieces(from, to, level, tree.host(to));
                let stays = !last || to < counts.len();
                pair.send
                    .extend(read.iter().filter(|_| stays).map(|p| p.to_piece()));
            }
        }
        steps.push(pair, Some(op), Leaves::New(left));
    }
    steps.steps
}

/// Runs of one length at equal distances as one piece.
fn together(pieces: Pieces) -> Pieces {
    let [Some(first), Some(second)] = [pieces.get(0), pieces.get(1)] else {
        return pieces;
    };
    let count = first.numel();
    let steps = (
        second.src_offset - first.src_offset,
        second.dst_offset - first.dst_offset,
    );
    let regular = pieces.iter().enumerate().all(|(k, p)| {
        p.numel() == count
            && p.src_offset == first.src_offset + k * steps.0
            && p.dst_offset == first.dst_offset + k * steps.1
    });
    if !regular {
        return pieces;
    }
    let mut one = first.to_piece();
    one.shape = [pieces.len(), count][..].into();
    one.src_strides = [steps.0 as isize, 1][..].into();
    one.dst_strides = [steps.1 as isize, 1][..].into();
    [one].into()
}
