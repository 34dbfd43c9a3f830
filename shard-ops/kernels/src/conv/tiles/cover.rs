//! Which tiles cover the outputs of a block, and which positions of the kernel each of them needs.

use super::SIDE;
use super::plan::{Block, Needed, Plan, Run};
use std::ops::Range;

/// Places of outputs that are computed together.
#[derive(Clone, Debug)]
pub(super) struct Tile {
    pub(super) place: usize,
    /// How many places there are to the last of its outputs.
    pub(super) len: usize,
    /// Its terms, among those of all tiles.
    pub(super) terms: Range<usize>,
}

/// Tiles that cover some outputs, each of which is in one of them.
#[derive(Debug, Default)]
pub(super) struct Cover {
    pub(super) tiles: Vec<Tile>,
    /// Numbers of terms.
    pub(super) terms: Vec<usize>,
    runs: Vec<Run>,
    /// Those of the last tile.
    needed: Needed,
}

impl Cover {
    /// Covers the outputs of a block whose places are in an interval, which begins where a column does: by tiles of 32 places, or of 16 where
    /// `halves` are worth it. Without `all` terms a tile has those alone that read an input for one of its outputs, and one at least.
    pub(super) fn go_to(
        &mut self,
        plan: &Plan,
        block: &Block,
        places: &Range<usize>,
        halves: bool,
        all: bool,
    ) {
        let mut runs = std::mem::take(&mut self.runs);
        runs.clear();
        runs.extend(plan.runs(block, places));
        self.tiles.clear();
        self.terms.clear();
        let all = all || plan.terms.len() > Needed::BITS as usize;
        self.needed = 0;
        let mut next = 0;
        for (number, run) in runs.iter().enumerate() {
            let end = run.until;
            let mut from = next.max(run.place);
            while from < end {
                let rest = &runs[number..];
                let [half, whole] = [SIDE / 2, SIDE].map(|width| outputs(rest, from, width));
                // Half of a tile takes a bit more than half as long.
                let is_half = halves && 15 * half > 8 * whole;
                let width = if is_half { SIDE / 2 } else { SIDE };
                let len = (rest.iter().take_while(|run| run.place < from + width))
                    .map(|run| run.until.min(from + width) - from)
                    .last();
                let met = rest.iter().take_while(|run| run.place < from + width);
                let needed = match all {
                    true => Needed::MAX,
                    false => met.fold(0, |all, run| all | plan.needed(run, from..from + width)),
                };
                let terms = self.terms(plan, needed);
                self.tiles.push(Tile {
                    place: from,
                    len: len.unwrap_or(width),
                    terms,
                });
                from += width;
            }
            next = from;
        }
        self.runs = runs;
    }

    /// Where the terms that are needed are among all: those of the tile before, if these are the same.
    fn terms(&mut self, plan: &Plan, needed: Needed) -> Range<usize> {
        if let Some(last) = self.tiles.last()
            && self.needed == needed
        {
            return last.terms.clone();
        }
        self.needed = needed;
        let start = self.terms.len();
        let bit =
            |term: usize| Needed::checked_shl(1, term as u32).is_none_or(|bit| needed & bit != 0);
        self.terms
            .extend((0..plan.terms.len()).filter(|term| bit(*term)));
        if self.terms.len() == start {
            self.terms.push(0);
        }
        start..self.terms.len()
    }
}

/// How many outputs of runs there are in so many places from one on.
fn outputs(runs: &[Run], from: usize, width: usize) -> usize {
    let within = runs.iter().take_while(|run| run.place < from + width);
    within
        .map(|run| run.until.min(from + width) - run.place.max(from))
        .sum()
}
