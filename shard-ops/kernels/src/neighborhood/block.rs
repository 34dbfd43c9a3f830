//! Queries side by side, and the order in which lines of queries meet lines of keys.

use super::near::{Along, Few, Near};
use std::ops::Range;

/// Most queries of a block.
const WIDTH: usize = 32;

/// Numbers of a unit, in which blocks are counted: a multiple of the lanes of every vector.
pub(super) const UNIT: usize = 16;

/// Some queries side by side along the chosen dim, and the keys they see along it. Blocks begin where global indices are
/// multiples of their width, so that sums over queries, which go block by block, are the same for all boxes.
#[derive(Debug)]
pub(super) struct Block {
    /// The first query, counted from that of the box, and how many there are.
    pub(super) first: usize,
    pub(super) count: usize,
    /// The count, rounded up to whole units.
    pub(super) wide: usize,
    /// How many keys a query sees along the dim, leaving out those that no query of the block sees.
    pub(super) slots: usize,
    /// The keys that some query sees, counted from the first of the box.
    pub(super) keys: Range<usize>,
    /// Columns of a line of keys, in whole units: one per place that a lane looks at. The first key is in column `at`.
    pub(super) columns: usize,
    pub(super) at: usize,
    /// Per slot, the column of the first lane's key; those of the other lanes are beside it.
    pub(super) shifts: Vec<usize>,
    /// Columns of places beyond an end of the grid, each with the column of the key that is seen there.
    pub(super) beyond: Vec<[usize; 2]>,
    /// Slots of lanes in which nothing is seen: `slot * wide + lane`.
    pub(super) unseen: Vec<usize>,
    /// Per query the keys it sees, and per key the queries that see it; both counted from the first of the block.
    pub(super) by_query: Terms,
    pub(super) by_key: Terms,
}

/// Per row of a result, which rows of an operand it sums, and with which weights.
#[derive(Debug, Default)]
pub(super) struct Terms {
    /// The row of the result, and its terms, which are one run: place of the first weight, first row of the operand, and how many
    /// there are.
    pub(super) runs: Vec<(usize, [usize; 3])>,
    /// The row of the result, the first of its terms in the list, and how many there are: of other rows.
    pub(super) others: Vec<[usize; 3]>,
    /// Place of the weight, and row of the operand.
    pub(super) list: Vec<[usize; 2]>,
    /// From one weight of a run to the next, and from one row to the next, which may wrap around to go backwards.
    pub(super) steps: [usize; 2],
}

impl Terms {
    /// Of rows of a result with their weights and rows.
    fn new(all: &[Few<[usize; 2]>]) -> Self {
        // Those in the middle, since only rows near the ends of a grid differ.
        let middle = all[all.len() / 2..].iter().chain(all);
        let mut steps = middle.flat_map(|terms| terms.windows(2)).map(|pair| {
            let [a, b] = [pair[0], pair[1]];
            [b[0].wrapping_sub(a[0]), b[1].wrapping_sub(a[1])]
        });
        let mut found = Self {
            steps: steps.next().unwrap_or([1, 1]),
            ..Self::default()
        };
        let [by_weight, by_row] = found.steps;
        for (row, terms) in all.iter().enumerate() {
            let next = |pair: &[[usize; 2]]| {
                let [weight, row] = pair[0];
                pair[1] == [weight.wrapping_add(by_weight), row.wrapping_add(by_row)]
            };
            match terms.first() {
                Some(&[weight, first]) if terms.windows(2).all(next) => {
                    found.runs.push((row, [weight, first, terms.len()]));
                }
                _ => {
                    found.others.push([row, found.list.len(), terms.len()]);
                    found.list.extend(terms);
                }
            }
        }
        found
    }
}

impl Block {
    /// Those of a box.
    pub(super) fn all(near: &Near) -> Vec<Self> {
        let seen = &near.seen[near.along];
        let (mut blocks, mut first) = (Vec::new(), 0);
        while first < seen.len() {
            let count = (WIDTH - (near.window.queries + first) % WIDTH).min(seen.len() - first);
            blocks.push(Self::new(&seen[first..first + count], first, near.window));
            first += count;
        }
        blocks
    }

    fn new(seen: &[Few<usize>], first: usize, window: Along) -> Self {
        let (count, wide) = (seen.len(), seen.len().next_multiple_of(UNIT));
        let all = || seen.iter().flatten();
        let keys = all().min().map_or(0, |k| *k)..all().max().map_or(0, |k| k + 1);
        let place = |slot: usize, lane: usize| {
            (window.queries + first + lane) as isize + window.to_place(slot)
        };
        let found = |slot: usize, lane: usize| {
            let key = window.key_at(place(slot, lane)) - window.keys as isize;
            let key = usize::try_from(key).ok()?;
            seen.get(lane)?.contains(&key).then_some(key)
        };
        let slots = (0..window.kernel).filter(|s| (0..count).any(|lane| found(*s, lane).is_some()));
        let slots: Vec<usize> = slots.collect();
        let of_key = |key: usize| (window.keys + key) as isize;
        let places = |lane: usize| slots.iter().map(move |slot| place(*slot, lane));
        let begin = places(0).fold(of_key(keys.start), isize::min);
        let end = places(wide).fold(of_key(keys.end), isize::max);
        let column = |place: isize| (place - begin) as usize;
        let (mut beyond, mut unseen) = (Vec::new(), Vec::new());
        // Per lane, its keys and where their weights lie; later the latter first.
        let mut weights: Vec<Few<[usize; 2]>> = vec![Few::new(); wide];
        for (number, &slot) in slots.iter().enumerate() {
            for (lane, own) in weights.iter_mut().enumerate() {
                let at = number * wide + lane;
                let Some(key) = found(slot, lane) else {
                    unseen.push(at);
                    continue;
                };
                own.push([key, at]);
                if place(slot, lane) != of_key(key) {
                    beyond.push([column(place(slot, lane)), column(of_key(key))]);
                }
            }
        }
        weights.truncate(count);
        weights.iter_mut().for_each(|own| own.sort_unstable());
        beyond.sort_unstable();
        beyond.dedup();
        let mut by_key = vec![Few::new(); keys.len()];
        for (lane, own) in weights.iter_mut().enumerate() {
            for [key, at] in own {
                *key -= keys.start;
                by_key[*key].push([*at, lane]);
                (*key, *at) = (*at, *key);
            }
        }
        Self {
            first,
            count,
            wide,
            slots: slots.len(),
            columns: column(end).next_multiple_of(UNIT),
            at: column(of_key(keys.start)),
            shifts: places(0).map(column).collect(),
            beyond,
            unseen,
            by_query: Terms::new(&weights),
            by_key: Terms::new(&by_key),
            keys,
        }
    }
}

/// A line of queries of a group that meets a line of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Meeting {
    /// Number of the line of keys in the group.
    pub(super) key: usize,
    /// Number of the line of queries in the group.
    pub(super) line: usize,
    /// Number of the line of keys among those that the queries see.
    pub(super) place: usize,
}

/// Numbers that are kept for a group: a part of a second-level cache.
const BUDGET: usize = 32 * 1024;

/// Lines of queries that are computed together, and whom they meet.
#[derive(Debug)]
pub(super) struct Group {
    /// The first query of each line, and the first key of each line of keys that some of them see.
    pub(super) queries: Vec<usize>,
    pub(super) keys: Vec<usize>,
    /// Per line of queries, the numbers of the lines of keys that it sees.
    pub(super) seen: Vec<Vec<usize>>,
    /// By lines of keys, and for each by lines of queries.
    pub(super) meetings: Vec<Meeting>,
}

impl Group {
    /// Those of a box, if so many numbers are kept per line.
    pub(super) fn all(near: &Near, per_line: usize) -> impl Iterator<Item = Self> {
        let (lines, together) = (near.lines(), (BUDGET / per_line.max(1)).max(1));
        let first = (0..lines).step_by(together);
        first.map(move |first| Self::new(near, first..lines.min(first + together)))
    }

    fn new(near: &Near, lines: Range<usize>) -> Self {
        let mut spare = Vec::new();
        let (mut queries, mut seen) = (Vec::new(), Vec::new());
        for number in lines {
            let mut own = Vec::new();
            queries.push(near.line(number, &mut own, &mut spare));
            seen.push(own);
        }
        let mut keys: Vec<usize> = seen.iter().flatten().copied().collect();
        keys.sort_unstable();
        keys.dedup();
        let mut meetings = Vec::new();
        for (line, own) in seen.iter_mut().enumerate() {
            for (place, key) in own.iter_mut().enumerate() {
                *key = keys.partition_point(|other| *other < *key);
                meetings.push(Meeting {
                    key: *key,
                    line,
                    place,
                });
            }
        }
        meetings.sort_unstable();
        Self {
            queries,
            keys,
            seen,
            meetings,
        }
    }
}
