//! Copies among many ranks in stages: elements pass through trees of ranks, so that each has few messages.
//!
//! If the ranks are on several nodes, elements go from node to node first and then from rank to rank of a node, or the other way
//! round: so they cross between nodes as seldom as they can in so few messages. Ranks of a node need not follow each other.

use std::ops::Range;

use super::sums::levels;
use super::{Leaves, Pair, Step, Steps};
use crate::{Nodes, Piece, Pieces};

/// The order of ranks in which a root deals out or collects, and what belongs to each. The place of a rank is its number in that order,
/// which begins with the root and its node.
struct Places<'a> {
    counts: &'a [usize],
    /// The rank at each place.
    order: Vec<usize>,
    /// This rank's place.
    place: usize,
    /// The places of each node.
    nodes: Vec<Range<usize>>,
    /// Where the elements of each rank begin in the whole.
    starts: Vec<usize>,
    /// How many elements belong to the places before each, and in all.
    before: Vec<usize>,
}

impl<'a> Places<'a> {
    fn new(me: usize, root: usize, counts: &'a [usize], nodes: Option<&Nodes>) -> Self {
        let ranks = counts.len();
        let (mut order, mut spans) = (Vec::with_capacity(ranks), Vec::new());
        match nodes {
            None => {
                order.extend((root..ranks).chain(0..root));
                spans.push(0..ranks);
            }
            Some(nodes) => {
                let all = nodes.all();
                let first = nodes.of(root);
                for node in all[first..].iter().chain(&all[..first]) {
                    let start = order.len();
                    let at = node.iter().position(|&rank| rank == root).unwrap_or(0);
                    order.extend(node[at..].iter().chain(&node[..at]));
                    spans.push(start..order.len());
                }
            }
        }
        let sums = |counts: &mut dyn Iterator<Item = usize>| -> Vec<usize> {
            let mut sums = vec![0];
            let mut sum = 0;
            sums.extend(counts.map(|count| {
                sum += count;
                sum
            }));
            sums
        };
        Self {
            place: order.iter().position(|&rank| rank == me).unwrap_or(0),
            nodes: spans,
            starts: sums(&mut counts.iter().copied()),
            before: sums(&mut order.iter().map(|&rank| counts[rank])),
            order,
            counts,
        }
    }

    fn rank(&self, place: usize) -> usize {
        self.order[place]
    }

    /// How many elements belong to some places.
    fn len(&self, places: Range<usize>) -> usize {
        self.before[places.end] - self.before[places.start]
    }

    /// The pieces of the elements of some places, which `peer` has or gets.
    fn pieces(&self, peer: usize, places: Range<usize>, source: Lie, destination: Lie) -> Pieces {
        let first = self.before[places.start];
        let at = |lie, place: usize| match lie {
            Lie::Whole => self.starts[self.order[place]],
            Lie::From(offset) => offset + self.before[place] - first,
        };
        let blocks = places.map(|place| Block {
            source: at(source, place),
            destination: at(destination, place),
            len: self.counts[self.order[place]],
        });
        joined(peer, blocks)
    }

    /// In which stages elements are dealt out, the first one first: the groups of places in each, of which the first one of two
    /// neighbours gives the second one's elements away. Nodes first, then the places of each node.
    fn halvings(&self) -> Vec<Vec<[Range<usize>; 2]>> {
        let mut stages = Vec::new();
        let starts: Vec<usize> = self.nodes.iter().map(|node| node.start).collect();
        stages.extend(halvings(&starts, self.order.len()));
        let mut inside: Vec<Vec<[Range<usize>; 2]>> = Vec::new();
        for node in &self.nodes {
            let starts: Vec<usize> = node.clone().collect();
            let stages: Vec<_> = halvings(&starts, node.end).collect();
            // Nodes of fewer ranks begin later.
            let most = inside.len().max(stages.len());
            while inside.len() < most {
                inside.insert(0, Vec::new());
            }
            for (all, pairs) in inside[most - stages.len()..].iter_mut().zip(stages) {
                all.extend(pairs);
            }
        }
        stages.extend(inside);
        stages
    }
}

/// The halvings of units that begin at these places, the last one ending at `end`.
fn halvings(starts: &[usize], end: usize) -> impl Iterator<Item = Vec<[Range<usize>; 2]>> {
    let units = starts.len();
    let start = move |unit: usize| starts.get(unit).copied().unwrap_or(end);
    (0..levels(units)).rev().map(move |level| {
        let block = 1 << level;
        (0..units)
            .step_by(2 * block)
            .filter(|first| first + block < units)
            .map(|first| {
                let (middle, last) = (start(first + block), start(units.min(first + 2 * block)));
                [start(first)..middle, middle..last]
            })
            .collect()
    })
}

/// How elements lie in a buffer.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// Among all elements, in rank order.
    Whole,
    /// From an offset on, in the order of places.
    From(usize),
}

/// Consecutive elements: where they are read, where they are written, and how many.
#[derive(Clone, Copy, Debug)]
struct Block {
    source: usize,
    destination: usize,
    len: usize,
}

/// The pieces of some blocks: those that follow each other at both ends are one piece, and so are those of one length at equal
/// distances.
fn joined(peer: usize, blocks: impl Iterator<Item = Block>) -> Pieces {
    let mut runs: Vec<Block> = Vec::new();
    for block in blocks.filter(|block| block.len > 0) {
        match runs.last_mut() {
            Some(run)
                if run.source + run.len == block.source
                    && run.destination + run.len == block.destination =>
            {
                run.len += block.len;
            }
            _ => runs.push(block),
        }
    }
    let mut pieces = Pieces::new();
    let mut rest = &runs[..];
    while let [first, others @ ..] = rest {
        let step = others
            .first()
            .filter(|next| next.source >= first.source && next.destination >= first.destination)
            .map(|next| {
                (
                    next.source - first.source,
                    next.destination - first.destination,
                )
            });
        let regular = |(k, run): (usize, &Block)| {
            step.is_some_and(|(source, destination)| {
                run.len == first.len
                    && run.source == first.source + (k + 1) * source
                    && run.destination == first.destination + (k + 1) * destination
            })
        };
        let alike = 1 + others
            .iter()
            .enumerate()
            .take_while(|&run| regular(run))
            .count();
        let mut piece = Piece::run(peer, 0, first.len, first.source, first.destination);
        if let Some((source, destination)) = step.filter(|_| alike > 1) {
            piece.shape = [alike, first.len][..].into();
            piece.src_strides = [source as isize, 1][..].into();
            piece.dst_strides = [destination as isize, 1][..].into();
        }
        pieces.extend([piece]);
        rest = &rest[alike..];
    }
    pieces
}

fn facts(kind: usize, root: usize, counts: &[usize], nodes: Option<&Nodes>) -> Vec<usize> {
    let all = nodes.map_or(&[][..], Nodes::all);
    let of = all
        .iter()
        .flat_map(|node| node.iter().copied().chain([usize::MAX]));
    let counts = counts.iter().copied();
    [kind, root].into_iter().chain(counts).chain(of).collect()
}

/// Every rank gets all elements: each round it hears those of as many others as it has already. If nodes have as many ranks each, ranks
/// at the same place of all nodes gather theirs first, while there is little to send.
pub(in super::super) fn all_gather(
    name: &'static str,
    me: usize,
    counts: &[usize],
    nodes: Option<&Nodes>,
) -> Vec<Step> {
    let mut steps = Steps::new(name, &facts(4, 0, counts, nodes));
    gather_all(&mut steps, me, counts, nodes);
    steps.steps
}

/// The ranks as a table: a row for each node, and in it its ranks.
#[derive(Clone, Copy)]
struct Table<'a> {
    nodes: Option<&'a Nodes>,
    rows: usize,
    columns: usize,
}

impl<'a> Table<'a> {
    fn new(ranks: usize, nodes: Option<&'a Nodes>) -> Self {
        match nodes.and_then(|nodes| Some((nodes, nodes.each()?))) {
            Some((nodes, each)) => Self {
                nodes: Some(nodes),
                rows: nodes.all().len(),
                columns: each,
            },
            None => Self {
                nodes: None,
                rows: 1,
                columns: ranks,
            },
        }
    }

    fn rank(&self, row: usize, column: usize) -> usize {
        let (row, column) = (row % self.rows, column % self.columns);
        self.nodes.map_or(column, |nodes| nodes.all()[row][column])
    }

    fn place(&self, rank: usize) -> (usize, usize) {
        let Some(nodes) = self.nodes else {
            return (0, rank);
        };
        let row = nodes.of(rank);
        let column = nodes.all()[row].iter().position(|&other| other == rank);
        (row, column.unwrap_or(0))
    }

    /// The ranks whose elements a rank has when it has heard those of so many rows and columns from its own on, in the order in which
    /// they lie.
    fn held(&self, rank: usize, rows: usize, columns: usize) -> impl Iterator<Item = usize> {
        let ((row, column), table) = (self.place(rank), *self);
        let of_column = move |k| (0..rows).map(move |j| table.rank(row + j, column + k));
        (0..columns).flat_map(of_column)
    }
}

/// Adds the stages in which ranks gather all.
fn gather_all(steps: &mut Steps, me: usize, counts: &[usize], nodes: Option<&Nodes>) {
    let table = Table::new(counts.len(), nodes);
    let (rows, columns) = (table.rows, table.columns);
    let places = Places::new(0, 0, counts, None);
    let (row, column) = table.place(me);
    // What a rank has, and of what is new which ranks' elements `owner` brings.
    let mut have = (1, 1);
    while have != (rows, columns) {
        let next = match have.0 < rows {
            true => (rows.min(2 * have.0), 1),
            false => (rows, columns.min(2 * have.1)),
        };
        let by_rows = have.0 < rows;
        let (from, to) = match by_rows {
            true => (
                table.rank(row + have.0, column),
                table.rank(row + rows - have.0, column),
            ),
            false => (
                table.rank(row, column + have.1),
                table.rank(row, column + columns - have.1),
            ),
        };
        let more = match by_rows {
            true => (next.0 - have.0, 1),
            false => (rows, next.1 - have.1),
        };
        // The blocks that a reader takes from what `owner` has, the first ones of it.
        let last = next == (rows, columns);
        let blocks = |peer, owner: usize, what: (usize, usize), behind: usize| {
            let mut at = 0;
            let blocks = table.held(owner, what.0, what.1).map(move |rank| {
                let source = at;
                at += counts[rank];
                (rank, source)
            });
            joined(
                peer,
                blocks.map(|(rank, source)| Block {
                    source,
                    destination: match last {
                        true => places.starts[rank],
                        false => behind + source,
                    },
                    len: counts[rank],
                }),
            )
        };
        let len = |rank: usize, what: (usize, usize)| -> usize {
            table.held(rank, what.0, what.1).map(|r| counts[r]).sum()
        };
        let mut pair = Pair::default();
        let own = || blocks(me, me, have, 0);
        let listed = |pieces: Pieces| pieces.iter().map(|p| p.to_piece()).collect::<Vec<_>>();
        pair.recv.extend(listed(own()));
        pair.recv
            .extend(listed(blocks(from, from, more, len(me, have))));
        pair.send.extend(listed(own()));
        pair.send
            .extend(listed(blocks(to, me, more, len(to, have))));
        steps.push(pair, None, Leaves::New(len(me, next)));
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
    nodes: Option<&Nodes>,
) -> Vec<Step> {
    let mut steps = Steps::new(name, &facts(5, root, &[ranks, len], nodes));
    let ones = vec![1; ranks];
    let places = Places::new(me, root, &ones, nodes);
    let run = |place: usize| Piece::run(places.rank(place), 0, len, 0, 0);
    let mut has = places.place == 0;
    for pairs in places.halvings() {
        let mut pair = Pair::default();
        let mut leaves = match has {
            true => Leaves::Same,
            false => Leaves::Nothing,
        };
        for [first, second] in &pairs {
            if first.start == places.place {
                pair.send = [run(second.start)].into();
            } else if second.start == places.place {
                pair.recv = [run(first.start)].into();
                (leaves, has) = (Leaves::New(len), true);
            }
        }
        steps.push(pair, None, leaves);
    }
    steps.steps
}

/// Each rank gets its part of the root's elements, and then all gather them: of a long array fewer bytes than by [`broadcast`].
pub(in super::super) fn broadcast_parts(
    name: &'static str,
    me: usize,
    root: usize,
    counts: &[usize],
    nodes: Option<&Nodes>,
) -> Vec<Step> {
    let mut steps = Steps::new(name, &facts(6, root, counts, nodes));
    deal_out(&mut steps, &Places::new(me, root, counts, nodes));
    gather_all(&mut steps, me, counts, nodes);
    steps.steps
}

/// The root gives half of the elements to a rank that passes them on, and so on.
pub(in super::super) fn scatter(
    name: &'static str,
    me: usize,
    root: usize,
    counts: &[usize],
    nodes: Option<&Nodes>,
) -> Vec<Step> {
    let mut steps = Steps::new(name, &facts(7, root, counts, nodes));
    deal_out(&mut steps, &Places::new(me, root, counts, nodes));
    steps.steps
}

/// Adds the stages in which the root's elements are dealt out.
fn deal_out(steps: &mut Steps, places: &Places<'_>) {
    let (place, ranks) = (places.place, places.order.len());
    // The root keeps all elements as they lie, others those that they got.
    let lie = |holder: usize, from: usize| match holder {
        0 => Lie::Whole,
        _ => Lie::From(places.len(holder..from)),
    };
    // What this rank holds, from its place on; the root has everything.
    let mut held = match place {
        0 => 0..ranks,
        _ => place..place,
    };
    let stages = places.halvings();
    let last = stages.len().saturating_sub(1);
    for (stage, pairs) in stages.into_iter().enumerate() {
        let mut pair = Pair::default();
        let mut leaves = match held.is_empty() {
            true => Leaves::Nothing,
            false => Leaves::Same,
        };
        for [first, second] in &pairs {
            if first.start == place {
                let to = places.rank(second.start);
                let gone =
                    places.pieces(to, second.clone(), lie(place, second.start), Lie::From(0));
                pair.send.extend(gone.iter().map(|p| p.to_piece()));
            } else if second.start == place {
                let from = places.rank(first.start);
                let at = lie(first.start, place);
                let come = places.pieces(from, second.clone(), at, Lie::From(0));
                pair.recv.extend(come.iter().map(|p| p.to_piece()));
                held = second.clone();
                leaves = Leaves::New(places.len(held.clone()));
            }
        }
        // What was passed on is left behind.
        if stage == last && held.start < held.end && (place == 0 || held.len() > 1) {
            let own = || {
                places.pieces(
                    places.rank(place),
                    place..place + 1,
                    lie(place, place),
                    Lie::From(0),
                )
            };
            pair.recv.extend(own().iter().map(|p| p.to_piece()));
            pair.send.extend(own().iter().map(|p| p.to_piece()));
            leaves = Leaves::New(places.len(place..place + 1));
        }
        steps.push(pair, None, leaves);
    }
}

/// Ranks hand on what they have gathered, half of them each time, until the root has all elements: first those of each node, then the
/// nodes.
pub(in super::super) fn gather(
    name: &'static str,
    me: usize,
    root: usize,
    counts: &[usize],
    nodes: Option<&Nodes>,
) -> Vec<Step> {
    let places = Places::new(me, root, counts, nodes);
    let mut steps = Steps::new(name, &facts(8, root, counts, nodes));
    let (place, stages) = (places.place, places.halvings());
    let mut held = Some(place..place + 1);
    let last = stages.len().saturating_sub(1);
    for (stage, pairs) in stages.into_iter().rev().enumerate() {
        // Where the reader at a place puts what belongs to the places from another one on.
        let lie = |reader: usize, from: usize| match stage == last {
            true => Lie::Whole,
            false => Lie::From(places.len(reader..from)),
        };
        let mut pair = Pair::default();
        let mut leaves = match held {
            Some(_) => Leaves::Same,
            None => Leaves::Nothing,
        };
        for [first, second] in &pairs {
            if first.start == place {
                let own = || {
                    places.pieces(
                        places.rank(place),
                        first.clone(),
                        Lie::From(0),
                        lie(place, place),
                    )
                };
                pair.recv.extend(own().iter().map(|p| p.to_piece()));
                pair.send.extend(own().iter().map(|p| p.to_piece()));
                let from = places.rank(second.start);
                let new =
                    places.pieces(from, second.clone(), Lie::From(0), lie(place, second.start));
                pair.recv.extend(new.iter().map(|p| p.to_piece()));
                leaves = Leaves::New(places.len(first.start..second.end));
            } else if second.start == place {
                let to = places.rank(first.start);
                let gone = places.pieces(to, second.clone(), Lie::From(0), lie(first.start, place));
                pair.send.extend(gone.iter().map(|p| p.to_piece()));
                leaves = Leaves::Nothing;
                held = None;
            }
        }
        steps.push(pair, None, leaves);
    }
    steps.steps
}
