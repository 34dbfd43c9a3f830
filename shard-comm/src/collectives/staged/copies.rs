//! Copies among many ranks in stages: elements pass through trees of ranks.
//!
//! Ranks are counted from the root on, and round the end: the place of a rank is how many come between the root and it. A rank holds
//! what belongs to several places that follow each other, one after the other.

use smallvec::SmallVec;

use super::sums::levels;
use super::{Leaves, Pair, Step, Steps};
use crate::Piece;

/// The places of ranks, and how many elements belong to each.
struct Places<'a> {
    me: usize,
    root: usize,
    counts: &'a [usize],
    /// How many elements belong to the ranks before each, and in all.
    starts: Vec<usize>,
}

/// Consecutive elements: where they are in the whole, in rank order; and how many.
type Run = (usize, usize);

impl<'a> Places<'a> {
    fn new(me: usize, root: usize, counts: &'a [usize]) -> Self {
        let mut starts = vec![0];
        for &count in counts {
            starts.push(starts[starts.len() - 1] + count);
        }
        Self {
            me,
            root,
            counts,
            starts,
        }
    }

    fn ranks(&self) -> usize {
        self.counts.len()
    }

    fn place(&self) -> usize {
        (self.me + self.ranks() - self.root) % self.ranks()
    }

    fn rank(&self, place: usize) -> usize {
        (self.root + place) % self.ranks()
    }

    /// The elements of places `from..to` as runs of the whole: two if they go round its end.
    fn runs(&self, from: usize, to: usize) -> SmallVec<[Run; 2]> {
        let run = |a: usize, b: usize| (self.starts[a], self.starts[b] - self.starts[a]);
        let (first, count, ranks) = (self.rank(from), to.saturating_sub(from), self.ranks());
        match first + count <= ranks {
            true => [run(first, first + count)].into_iter().collect(),
            false => [run(first, ranks), run(0, first + count - ranks)]
                .into_iter()
                .collect(),
        }
    }

    /// How many elements belong to places `from..to`.
    fn len(&self, from: usize, to: usize) -> usize {
        self.runs(from, to).iter().map(|run| run.1).sum()
    }

    /// Pieces of the elements of places `from..to`, which `peer` has or gets. At one end they may lie in rank order among all
    /// elements, otherwise one after the other from an offset on.
    fn pieces(
        &self,
        peer: usize,
        (from, to): (usize, usize),
        source: Lie,
        destination: Lie,
    ) -> impl Iterator<Item = Piece> {
        let mut before = 0;
        self.runs(from, to).into_iter().map(move |(start, len)| {
            let at = |lie| match lie {
                Lie::Whole => start,
                Lie::From(offset) => offset + before,
            };
            let piece = Piece::run(peer, 0, len, at(source), at(destination));
            before += len;
            piece
        })
    }
}

/// How elements lie in a buffer.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// Among all elements, in rank order.
    Whole,
    /// From an offset on, in the order of places.
    From(usize),
}

fn facts(kind: usize, root: usize, counts: &[usize]) -> Vec<usize> {
    [kind, root]
        .into_iter()
        .chain(counts.iter().copied())
        .collect()
}

/// Every rank gets all elements: each round it hears those of as many places after its own as it has already.
pub(in super::super) fn all_gather(name: &'static str, me: usize, counts: &[usize]) -> Vec<Step> {
    let mut steps = Steps::new(name, &facts(4, 0, counts));
    gather_all(&mut steps, me, counts);
    steps.steps
}

/// Adds the stages in which ranks gather all. A rank counts places from itself on.
fn gather_all(steps: &mut Steps, me: usize, counts: &[usize]) {
    let ranks = counts.len();
    let of = |rank| Places::new(rank, rank, counts);
    let mine = of(me);
    let mut have = 1;
    while have < ranks {
        let next = ranks.min(2 * have);
        let (from, to) = ((me + have) % ranks, (me + ranks - have) % ranks);
        let lie = |reader: &Places<'_>, before: usize| match next == ranks {
            true => Lie::Whole,
            false => Lie::From(reader.len(0, before)),
        };
        let mut pair = Pair::default();
        let own = |peer| mine.pieces(peer, (0, have), Lie::From(0), lie(&mine, 0));
        pair.recv.extend(own(me));
        let new = mine.pieces(from, (have, next), Lie::From(0), lie(&mine, have));
        pair.recv.extend(new);
        pair.send.extend(own(me));
        let reader = of(to);
        let sent = reader.pieces(to, (have, next), Lie::From(0), lie(&reader, have));
        pair.send.extend(sent);
        steps.push(pair, None, Leaves::New(mine.len(0, next)));
        have = next;
    }
}

/// The root's elements go to a rank, then both pass them on, and so on.
pub(in super::super) fn broadcast(
    name: &'static str,
    me: usize,
    root: usize,
    ranks: usize,
    len: usize,
) -> Vec<Step> {
    let mut steps = Steps::new(name, &[5, root, ranks, len]);
    let place = (me + ranks - root) % ranks;
    let run = |place: usize| Piece::run((root + place) % ranks, 0, len, 0, 0);
    let mut have = 1;
    while have < ranks {
        let mut pair = Pair::default();
        let mut leaves = Leaves::Nothing;
        if place < have {
            leaves = Leaves::Same;
            if place + have < ranks {
                pair.send = [run(place + have)].into();
            }
        } else if place < 2 * have {
            pair.recv = [run(place - have)].into();
            leaves = Leaves::New(len);
        }
        steps.push(pair, None, leaves);
        have *= 2;
    }
    steps.steps
}

/// Each rank gets its part of the root's elements, and then all gather them: of a long array fewer bytes than by [`broadcast`].
pub(in super::super) fn broadcast_parts(
    name: &'static str,
    me: usize,
    root: usize,
    counts: &[usize],
) -> Vec<Step> {
    let mut steps = Steps::new(name, &facts(6, root, counts));
    deal_out(&mut steps, &Places::new(me, root, counts));
    gather_all(&mut steps, me, counts);
    steps.steps
}

/// The root gives half of the elements to a rank that passes them on, and so on.
pub(in super::super) fn scatter(
    name: &'static str,
    me: usize,
    root: usize,
    counts: &[usize],
) -> Vec<Step> {
    let mut steps = Steps::new(name, &facts(7, root, counts));
    deal_out(&mut steps, &Places::new(me, root, counts));
    steps.steps
}

/// Adds the stages in which the root's elements are dealt out.
fn deal_out(steps: &mut Steps, places: &Places<'_>) {
    let (place, ranks) = (places.place(), places.ranks());
    for level in (0..levels(ranks)).rev() {
        let (block, both) = (1_usize << level, 2_usize << level);
        let mut pair = Pair::default();
        let mut leaves = Leaves::Nothing;
        let holds = place.is_multiple_of(both);
        let (next, end) = (place + block, ranks.min(place + both));
        // The root keeps all elements as they lie, others those that they got.
        let lie = |place: usize, offset: usize| match place {
            0 => Lie::Whole,
            _ => Lie::From(offset),
        };
        if holds {
            leaves = Leaves::Same;
            if next < ranks {
                let to = places.rank(next);
                let at = lie(place, places.len(place, next));
                pair.send
                    .extend(places.pieces(to, (next, end), at, Lie::From(0)));
            }
            // What was passed on is left behind.
            if level == 0 && (place == 0 || end > place + 1) {
                let own = || {
                    let own = (place, place + 1);
                    places.pieces(places.me, own, lie(place, 0), Lie::From(0))
                };
                pair.recv.extend(own());
                pair.send.extend(own());
                leaves = Leaves::New(places.len(place, place + 1));
            }
        } else if place.is_multiple_of(block) {
            let (from, end) = (place - block, ranks.min(place + block));
            let at = lie(from, places.len(from, place));
            let peer = places.rank(from);
            pair.recv
                .extend(places.pieces(peer, (place, end), at, Lie::From(0)));
            leaves = Leaves::New(places.len(place, end));
        }
        steps.push(pair, None, leaves);
    }
}

/// Ranks hand on what they have gathered, half of them each time, until the root has all elements.
pub(in super::super) fn gather(
    name: &'static str,
    me: usize,
    root: usize,
    counts: &[usize],
) -> Vec<Step> {
    let places = Places::new(me, root, counts);
    let mut steps = Steps::new(name, &facts(8, root, counts));
    let (place, ranks) = (places.place(), places.ranks());
    for level in 0..levels(ranks) {
        let (block, both) = (1_usize << level, 2_usize << level);
        let last = both >= ranks;
        // Where the reader at a place puts what belongs to the places from another one on.
        let lie = |reader: usize, from: usize| match last {
            true => Lie::Whole,
            false => Lie::From(places.len(reader, from)),
        };
        let mut pair = Pair::default();
        let mut leaves = Leaves::Nothing;
        if place.is_multiple_of(both) && place + block >= ranks {
            leaves = Leaves::Same;
        } else if place.is_multiple_of(both) {
            let (middle, end) = (place + block, ranks.min(place + both));
            let own = || places.pieces(places.me, (place, middle), Lie::From(0), lie(place, place));
            pair.recv.extend(own());
            pair.send.extend(own());
            let new = places.pieces(
                places.rank(middle),
                (middle, end),
                Lie::From(0),
                lie(place, middle),
            );
            pair.recv.extend(new);
            leaves = Leaves::New(places.len(place, end));
        } else if place.is_multiple_of(block) {
            let (to, end) = (place - block, ranks.min(place + block));
            let gone = places.pieces(places.rank(to), (place, end), Lie::From(0), lie(to, place));
            pair.send.extend(gone);
        }
        steps.push(pair, None, leaves);
    }
    steps.steps
}
