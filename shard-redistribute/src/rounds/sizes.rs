//! How a move is cut so that it stays within its staging, and what it then costs.

use super::aligned::Aligned;
use super::pages::Timetable;
use super::ranges::{Block, Cut, UNEVEN};
use crate::exchange::Exchange;
use crate::explain::{all_reduce_forecast, position};
use crate::path::{EXACT_RANKS, Hop, Move};
use crate::{Owners, Plan, PlanCost, Step};
use shard_comm::DType;
use shard_spec::{Layout, numel};
use std::collections::BTreeSet;

/// How one step of a plan is run: the same on every rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// All at once, from one buffer into another.
    Whole,
    /// An exchange in so many rounds.
    Rounds(usize),
    /// An all-reduce, so many elements at a time.
    Slices(usize),
    /// Nothing to do: the all-reduce is over one rank.
    Keep,
}

/// Where the result of a step goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// To a new buffer, because somebody else holds the source.
    Fresh,
    /// Into the source's own buffer, where that saves memory.
    Own,
}

/// One step of a plan, with the layout it goes from.
pub(crate) struct Leg<'a> {
    pub(crate) step: &'a Step,
    pub(crate) hop: &'a Hop,
    pub(crate) from: &'a Layout,
}

impl Plan {
    /// The steps, each with the layout it goes from.
    pub(crate) fn legs(&self) -> impl Iterator<Item = Leg<'_>> {
        let from = std::iter::once(self.from()).chain(self.steps.iter().map(Step::layout));
        self.steps
            .iter()
            .zip(&self.hops)
            .zip(from)
            .map(|((step, hop), from)| Leg { step, hop, from })
    }

    /// The plan to run in place instead, if steps from `first` on would run by rounds in which readers take lengths of a row
    /// ([`Owners::Balanced`]). Such lengths overlap without being equal, so one that is read late would keep memory occupied
    /// that others have read. Even shares of the copies do not.
    pub(super) fn in_even_shares(&self, first: usize, dtype: DType) -> Option<Self> {
        let by_rounds = |leg: &Leg<'_>| {
            leg.owners() == Owners::Balanced
                && matches!(leg.way(dtype, self.staging(), Place::Own), Way::Rounds(_))
        };
        self.legs().skip(first).any(|leg| by_rounds(&leg)).then(|| {
            let hops = self.hops.iter().map(Hop::in_even_shares).collect();
            // There are no more pieces than before: both kinds cut each piece into one per copy.
            Self::of_hops(self.from(), self.to(), self.index, self.method(), hops)
                .with_staging(self.staging())
        })
    }
}

impl Leg<'_> {
    /// How the step is run within `staging` bytes beside source and destination.
    pub(crate) fn way(&self, dtype: DType, staging: usize, place: Place) -> Way {
        let (size, to) = (dtype.size(), self.step.layout());
        let (source, target) = (self.from.max_local_numel(), to.max_local_numel());
        match self.step {
            Step::Exchange(..) => {
                let wide = self.widening(dtype);
                let second = match place {
                    Place::Fresh => 0,
                    Place::Own => source.min(target) * size,
                };
                if second + target * wide + self.between() * size <= staging {
                    return Way::Whole;
                }
                let pieces = self.pieces();
                let room = room(staging, size + wide, pieces) / (size + wide) - pieces;
                let largest = source.max(target);
                let rounds = (largest + largest / UNEVEN).div_ceil(room).max(1);
                Way::Rounds(rounds.min(MOST_ROUNDS))
            }
            Step::AllReduce(axes, ..) => {
                let ranks = to.mesh().part_count(axes);
                // The result of a slice, and this rank's chunk of it, must fit.
                let slice = (staging / (2 * size)).max(1);
                match place {
                    _ if ranks == 1 => Way::Keep,
                    _ if target <= slice => Way::Whole,
                    Place::Fresh if beside_sum(target, dtype, ranks) <= staging => Way::Whole,
                    _ => Way::Slices(slice),
                }
            }
        }
    }

    /// The least staging with which the step keeps its promise.
    pub(super) fn least_staging(&self, dtype: DType) -> usize {
        let size = dtype.size();
        match self.step {
            Step::Exchange(..) => 2 * least_elements(self.pieces()) * (size + self.widening(dtype)),
            Step::AllReduce(..) => 2 * size,
        }
    }

    /// At least as many pieces as any rank reads or sends. Pieces that are several ranks' terms, or are sent to several ranks,
    /// count once.
    fn pieces(&self) -> usize {
        let count = |hop: &Hop| match hop {
            Hop::Exchange(e) if e.to.mesh().size() <= EXACT_RANKS || !boxes(e) => most_pieces(e),
            // Every rank holds one box, so two ranks share at most one. A rank's own piece is cut into the parts before, in
            // and after each share of it.
            Hop::Exchange(e) if e.owners == Owners::Spread => 3 * self.from.mesh().size(),
            _ => self.from.mesh().size(),
        };
        match self.owners() {
            // The step may run in even shares.
            Owners::Balanced => count(self.hop).max(count(&self.hop.in_even_shares())),
            _ => count(self.hop),
        }
    }

    fn owners(&self) -> Owners {
        match self.hop {
            Hop::Exchange(e) => e.owners,
            Hop::AllReduce { .. } => Owners::Nearest,
        }
    }

    /// The member at `index`, if others read shares of a piece that it reads whole itself.
    pub(super) fn shared(&self, index: usize) -> Option<usize> {
        (self.owners() == Owners::Spread).then_some(index)
    }

    /// Most elements that some rank holds between the stages of an exchange. By rounds it goes in none.
    pub(super) fn between(&self) -> usize {
        match self.hop {
            Hop::Exchange(e) => e.stages.as_ref().map_or(0, |stages| stages.staging()),
            Hop::AllReduce { .. } => 0,
        }
    }

    /// A bound of [`widening`](Self::widening) found without looking at pieces.
    pub(super) fn most_widening(&self, dtype: DType) -> usize {
        match self.step {
            Step::Exchange(e, _) if dtype.is_half() && e.fold.is_some() => DType::F32.size(),
            _ => 0,
        }
    }

    /// Bytes per element that an exchange may need beside its destination, for sums in a wider type. It is at least what
    /// [`ExchangePlan::widens`](shard_comm::ExchangePlan::widens) says on any rank.
    pub(super) fn widening(&self, dtype: DType) -> usize {
        /// An exchange plan tells up to this many boxes apart, but no parts that interleave.
        const TOLD_APART: usize = 256;
        let (Step::Exchange(exchange, _), Hop::Exchange(e)) = (self.step, self.hop) else {
            return 0;
        };
        let most = self.most_widening(dtype);
        let told = || boxes(e) && self.pieces() <= TOLD_APART;
        match most > 0 && exchange.fill.is_none() && told() {
            true => 0,
            false => most,
        }
    }
}

/// The most rounds, times pieces, that are followed one by one to find their cost.
const MOST_FOLLOWED: usize = 1 << 26;

/// At most this many rounds are made; the staging is then exceeded.
const MOST_ROUNDS: usize = 1 << 30;

/// The most bytes worth staging: what was staged is then read again from the cache, not from memory.
const CACHED_STAGE: usize = 4 << 20;
/// More bytes are worth staging if there are many pieces: this many for each, so that messages are long enough for a network.
const LONG_MESSAGE: usize = 1 << 20;

/// Bytes that a round may stage: half of the staging, since pages have the other half, but at least enough for a page to hold
/// one element and for a round to move one element of each piece. `each` is what an element needs on the stage.
fn room(staging: usize, each: usize, pieces: usize) -> usize {
    let enough = CACHED_STAGE.max(pieces.saturating_mul(LONG_MESSAGE));
    (staging / 2).min(enough).max(least_elements(pieces) * each)
}

fn least_elements(pieces: usize) -> usize {
    2 * (pieces + 2)
}

/// The most bytes that an all-reduce of `len` elements among so many ranks needs beside its result.
pub(super) fn beside_sum(len: usize, dtype: DType, ranks: usize) -> usize {
    match ranks {
        1 => 0,
        // The first rank's share is never the smaller one.
        _ => all_reduce_forecast(len, dtype, ranks, 0).peak as usize - len * dtype.size(),
    }
}

/// Whether every rank holds one box, before and after the move.
fn boxes(e: &Move) -> bool {
    [&e.from, &e.to].iter().all(|layout| {
        let shardings = (0..layout.ndim()).filter_map(|d| layout.sharding(d));
        shardings
            .into_iter()
            .all(|s| s.partition.offsets().is_some())
    })
}

fn most_pieces(e: &Move) -> usize {
    let builder = e.builder();
    let ranks = e.to.mesh().size();
    let mut sent = vec![BTreeSet::new(); ranks];
    let mut reads = Vec::with_capacity(ranks);
    builder.for_each_reader(|_, pieces| {
        let mut read = BTreeSet::new();
        for piece in pieces.iter() {
            read.insert(piece.dst_offset);
            sent[piece.peer].insert((piece.src_offset, piece.numel()));
        }
        reads.push(read.len());
    });
    let most = |(read, sent): (&usize, &BTreeSet<_>)| match e.owners {
        // The rank's own pieces are cut where the shares of them begin and end.
        Owners::Spread => read.max(&sent.len()) + 2 * sent.len(),
        _ => *read.max(&sent.len()),
    };
    reads.iter().zip(&sent).map(most).fold(1, usize::max)
}

/// One rank's part in an exchange by rounds.
#[derive(Debug)]
pub(super) struct Schedule {
    pub(super) rounds: usize,
    pub(super) pieces: Aligned,
    /// The boxes that this rank receives, sorted by offset. A box that is the sum of several terms is listed once.
    pub(super) targets: Vec<Block>,
    sources: Vec<Block>,
}

impl Schedule {
    /// `shared` is this rank's position if others read shares of a piece that it reads whole itself; see [`Leg::shared`].
    pub(super) fn new(exchange: &Exchange, rounds: usize, shared: Option<usize>) -> Self {
        let pieces = Aligned::new(exchange.plan(), shared);
        let mut targets: Vec<Block> = (pieces.recv.iter())
            .map(|p| Block::new(p.dst_offset, &p.shape, &p.dst_strides))
            .collect();
        let mut sources: Vec<Block> = (pieces.send.iter())
            .map(|p| Block::new(p.src_offset, &p.shape, &p.src_strides))
            .collect();
        for blocks in [&mut targets, &mut sources] {
            blocks.sort_by(|a, b| (a.offset, &a.shape).cmp(&(b.offset, &b.shape)));
            blocks.dedup();
        }
        Self {
            rounds,
            pieces,
            targets,
            sources,
        }
    }

    /// The elements of each target that a round brings, and their place on the stage.
    pub(super) fn staged(
        &self,
        round: usize,
    ) -> impl Iterator<Item = (&Block, std::ops::Range<usize>, usize)> {
        self.targets.iter().scan(0, move |base, block| {
            let range = Cut::new(&block.shape, self.rounds).range(round);
            let at = *base;
            *base += range.len();
            Some((block, range, at))
        })
    }

    /// The number of elements that a round brings.
    pub(super) fn len(&self, round: usize) -> usize {
        self.staged(round).map(|(_, range, _)| range.len()).sum()
    }

    /// The most elements that any round brings.
    fn stage(&self) -> usize {
        if self.is_beyond() {
            let share = |block: &Block| numel(&block.shape).div_ceil(self.rounds);
            return self.targets.iter().map(share).sum();
        }
        (0..self.rounds).map(|k| self.len(k)).max().unwrap_or(0)
    }

    /// Whether going through all rounds to find their cost would take too long. No rank holds an array of so many elements;
    /// the figures are then bounds.
    fn is_beyond(&self) -> bool {
        let pieces = self.sources.len() + self.targets.len() + self.pieces.recv.len();
        self.rounds.saturating_mul(pieces) > MOST_FOLLOWED
    }

    /// The number of elements of the buffer in which these rounds run.
    fn elements(&self, source: usize, destination: usize, size: usize, staging: usize) -> usize {
        if self.is_beyond() {
            let pieces = self.sources.len().max(self.targets.len());
            return source.max(destination) + room(staging, size, pieces) / size;
        }
        self.timetable(source, destination, size, staging)
            .elements()
    }

    /// The pages of a buffer for a source and a destination of these lengths. They are as large as possible while
    /// the buffer exceeds the larger of the two by no more than half of the staging.
    pub(super) fn timetable(
        &self,
        source: usize,
        destination: usize,
        size: usize,
        staging: usize,
    ) -> Timetable {
        let pieces = self.sources.len().max(self.targets.len());
        let spare = room(staging, size, pieces) / size;
        // At each piece's front a page may be partly read or partly written.
        let fronts = self.sources.len() + self.targets.len() + 3;
        let largest = source.max(destination);
        let line = 64 / size;
        let mut page = (spare / fronts).clamp(1, largest.max(1));
        loop {
            if page > line {
                page -= page % line;
            }
            let times = Timetable::new(
                page,
                self.rounds,
                (source, &self.sources),
                (destination, &self.targets),
            );
            if page == 1 || times.elements() <= largest + spare {
                return times;
            }
            page /= 2;
        }
    }

    /// Messages that the member at `index` receives: per round, one from each rank that has something for it.
    fn messages(&self, index: usize) -> u64 {
        if self.is_beyond() {
            let peers = self.pieces.recv.iter().map(|piece| piece.peer);
            let others: BTreeSet<usize> = peers.filter(|&peer| peer != index).collect();
            return (self.rounds * others.len()) as u64;
        }
        let mut messages = 0;
        for round in 0..self.rounds {
            let mut last = None;
            for piece in &self.pieces.recv {
                let some = || !Cut::new(&piece.shape, self.rounds).range(round).is_empty();
                if piece.peer != index && last != Some(piece.peer) && some() {
                    messages += 1;
                    last = Some(piece.peer);
                }
            }
        }
        messages
    }
}

/// What the member at `index` moves and holds, its source included, when a plan's steps `from_step..` run in place.
pub(crate) fn forecast_into(
    plan: &Plan,
    from_step: usize,
    dtype: DType,
    mut loose: bool,
) -> PlanCost {
    let shares = plan.in_even_shares(from_step, dtype);
    let plan = shares.as_ref().unwrap_or(plan);
    let rank = plan.from().mesh().ranks()[plan.index];
    let held = |layout: &Layout| numel(&layout.local_shape(rank).unwrap_or_default());
    let size = dtype.size();
    let first = plan.legs().nth(from_step);
    let first = first.map_or(plan.to(), |leg| leg.from);
    let mut total = PlanCost {
        peak: (held(first) * size) as u64,
        ..PlanCost::default()
    };
    for leg in plan.legs().skip(from_step) {
        let (source, target) = (held(leg.from), held(leg.step.layout()));
        let way = leg.way(dtype, plan.staging(), Place::Own);
        let local = leg.is_local();
        let mut cost = match (leg.step, way) {
            (_, Way::Keep) => PlanCost::default(),
            (_, Way::Whole) => {
                let whole = plan.step_forecast(leg.step, dtype);
                PlanCost {
                    peak: whole.peak + (source * size) as u64,
                    ..whole
                }
            }
            (Step::Exchange(exchange, _), way) => {
                let Way::Rounds(rounds) = way else { continue };
                let schedule = Schedule::new(exchange, rounds, leg.shared(plan.index));
                let held = schedule.elements(source, target, size, plan.staging());
                let each = size + leg.widening(dtype);
                PlanCost {
                    bytes: (exchange.plan().remote_elements(plan.index) * size) as u64,
                    messages: schedule.messages(plan.index),
                    rounds: if local { 0 } else { 2 * rounds as u64 + 1 },
                    peak: (held * size + schedule.stage() * each) as u64,
                }
            }
            (Step::AllReduce(axes, ..), way) => {
                let Way::Slices(slice) = way else { continue };
                let (ranks, me) = position(plan.from().mesh(), axes, plan.index);
                slices_forecast(target, slice, dtype, ranks, me, Place::Own)
            }
        };
        cost.rounds += u64::from(settles(way, local, loose));
        loose = way == Way::Whole && !local;
        total.bytes += cost.bytes;
        total.messages += cost.messages;
        total.rounds += cost.rounds;
        total.peak = total.peak.max(cost.peak);
    }
    total
}

/// What a plan's first step costs if it has a destination of its own and is run this way. The peak does not count the source.
pub(super) fn fresh_forecast(plan: &Plan, leg: &Leg<'_>, way: Way, dtype: DType) -> PlanCost {
    let size = dtype.size();
    match (leg.step, way) {
        (_, Way::Keep) => PlanCost::default(),
        (Step::Exchange(exchange, _), Way::Rounds(rounds)) => {
            let schedule = Schedule::new(exchange, rounds, leg.shared(plan.index));
            let each = size + leg.widening(dtype);
            PlanCost {
                bytes: (exchange.plan().remote_elements(plan.index) * size) as u64,
                messages: schedule.messages(plan.index),
                rounds: rounds as u64 + 1,
                peak: (exchange.len * size + schedule.stage() * each) as u64,
            }
        }
        (Step::AllReduce(axes, _, to), Way::Slices(slice)) => {
            let (ranks, me) = position(to.mesh(), axes, plan.index);
            let rank = to.mesh().ranks()[plan.index];
            let len = numel(&to.local_shape(rank).unwrap_or_default());
            slices_forecast(len, slice, dtype, ranks, me, Place::Fresh)
        }
        _ => plan.step_forecast(leg.step, dtype),
    }
}

/// Whether all ranks meet before a step that runs in place, so that no rank still reads what the step overwrites, and so that
/// the buffers that the previous step read are free.
pub(super) fn settles(way: Way, local: bool, loose: bool) -> bool {
    match way {
        Way::Keep => false,
        Way::Whole => loose,
        Way::Rounds(_) | Way::Slices(_) => loose || !local,
    }
}

/// What an all-reduce of `len` elements costs when it runs `slice` elements at a time.
pub(super) fn slices_forecast(
    len: usize,
    slice: usize,
    dtype: DType,
    ranks: usize,
    me: usize,
    place: Place,
) -> PlanCost {
    let mut total = PlanCost::default();
    // All slices but the last are alike.
    for (slice, count) in [(slice, len / slice), (len % slice, 1)] {
        if slice > 0 && count > 0 {
            let one = all_reduce_forecast(slice, dtype, ranks, me);
            total.bytes += one.bytes * count as u64;
            total.messages += one.messages * count as u64;
            total.rounds += (one.rounds + u64::from(place == Place::Own)) * count as u64;
            total.peak = total.peak.max(one.peak);
        }
    }
    total.rounds += 1;
    total.peak += (len * dtype.size()) as u64;
    total
}

impl Leg<'_> {
    /// Whether no rank communicates.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.step, Step::Exchange(e, _) if e.is_local())
    }
}
