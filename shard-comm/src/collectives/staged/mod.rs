//! Collectives in stages, for ranks that send messages: what many ranks share passes from rank to rank, so that a rank has few
//! peers. Each stage is an exchange that reads what the one before left.
//!
//! The bits are those of the exchange that every rank has with every other, because sums are formed by the same tree.

mod copies;
mod narrow;
mod sums;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::fingerprint::Fingerprint;
use crate::{
    Buffer, Communicator, DType, ExchangePlan, LinkCost, Monoid, ONE_ROUND_BYTES, Pieces, Request,
    Result, Site, Stage, Target,
};

pub(super) use copies::{all_gather, broadcast, broadcast_parts, gather, scatter};
pub(super) use narrow::{moves, narrow, narrowing};
pub(super) use sums::{all_reduce, reduce, reduce_scatter};

/// One stage at one rank.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) plan: Arc<ExchangePlan>,
    pub(crate) leaves: Leaves,
}

/// What a stage leaves at a rank, for the next one to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leaves {
    /// This many elements, which its pieces write.
    New(usize),
    /// What it has.
    Same,
    /// Nothing.
    Nothing,
}

/// Up to this many ranks have a message to and from each other in either of two rounds.
const PAIRWISE: usize = 4;

/// Up to this many ranks have a message to and from each other in one round, if it is [small](ONE_ROUND_BYTES): this takes fewer
/// rounds than any other way.
const AT_ONCE: usize = 8;

/// Whether sums of so few bytes take one round, in which each rank has them of all others, if up to `most` bytes go so best.
#[inline]
pub(super) fn is_at_once(ranks: usize, bytes: usize, most: usize) -> bool {
    ranks <= AT_ONCE && bytes <= most
}

/// How sums over many ranks are formed. Each gives the bits of [`by_tree`](crate::by_tree).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// A message from each rank to each other, in one round or two.
    Direct,
    /// Pairs of ranks sum up all elements, then pairs of pairs, and so on: half the messages.
    Doubling,
    /// Of what they have in common pairs keep half each, and so on; then they gather it again: fewer bytes.
    Halving,
}

impl Way {
    /// The way in which `ranks` form sums of `bytes` at this cost of messages. It depends on nothing else, so all ranks take the
    /// same.
    pub(crate) fn new(ranks: usize, bytes: usize, link: LinkCost) -> Self {
        if ranks <= PAIRWISE || is_at_once(ranks, bytes, ONE_ROUND_BYTES) {
            return Self::Direct;
        }
        let most = 2 * ranks.next_power_of_two().ilog2() as usize + 2;
        let halving = halving_cost(ranks, bytes as f64, link);
        if doubling_cost(ranks, bytes as f64, link) <= halving
            || sums::halving_messages(ranks) > most
        {
            Self::Doubling
        } else {
            Self::Halving
        }
    }
}

/// Seconds for all elements to pass in each of the stages of doubling.
fn doubling_cost(ranks: usize, bytes: f64, link: LinkCost) -> f64 {
    let stages = sums::doubling_stages(ranks) as f64;
    link.time(stages, stages * bytes)
}

fn halving_cost(ranks: usize, bytes: f64, link: LinkCost) -> f64 {
    let levels = f64::from(ranks.next_power_of_two().ilog2());
    link.time(2.0 * levels, 2.0 * bytes)
}

/// Seconds for an all-reduce of `bytes` over `ranks` that send messages, at this cost of each. For planners, which compare ways to bring
/// an array elsewhere.
///
/// ```
/// use shard_comm::{LinkCost, all_reduce_seconds};
/// let link = LinkCost::new(1e-6, 1e9);
/// // Of many ranks each has a message per doubling of their number.
/// assert_eq!(all_reduce_seconds(16_384, 8, link), 14.0 * (1e-6 + 8e-9));
/// ```
pub fn all_reduce_seconds(ranks: usize, bytes: usize, link: LinkCost) -> f64 {
    if ranks <= 1 || bytes == 0 {
        return 0.0;
    }
    let (others, len) = ((ranks - 1) as f64, bytes as f64);
    match Way::new(ranks, bytes, link) {
        Way::Direct if bytes <= ONE_ROUND_BYTES => link.time(others, others * len),
        Way::Direct => link.time(2.0 * others, 2.0 * others / ranks as f64 * len),
        Way::Doubling => doubling_cost(ranks, len, link),
        Way::Halving => halving_cost(ranks, len, link),
    }
}

/// Whether `bytes`, of which each rank has or gets a part, go in stages: few messages, in which they are copied on their way. It takes
/// many ranks, and no more bytes than are copied in the time of the messages that this saves.
pub(super) fn pays(ranks: usize, bytes: usize, link: LinkCost) -> bool {
    let levels = ranks.next_power_of_two().ilog2() as usize;
    ranks > AT_ONCE && link.time((ranks - 1 - levels) as f64, 0.0) > link.time(0.0, bytes as f64)
}

/// Whether an all-gather of `bytes` over nodes of `each` ranks is cheaper in stages by [node](copies::all_gather) than by a message from
/// each rank to each other: every byte gets to a node once, and is then copied on its way.
pub(super) fn pays_by_node(
    nodes: usize,
    each: usize,
    bytes: usize,
    [near, far]: [LinkCost; 2],
) -> bool {
    let (ranks, bytes) = (nodes * each, bytes as f64);
    let of = |parts: usize| parts as f64 * bytes / ranks as f64;
    let (others, here) = (ranks - each, each - 1);
    let direct = far.time(others as f64, of(others)) + near.time(here as f64, of(here));
    let levels = |n: usize| f64::from(n.next_power_of_two().ilog2());
    let staged =
        far.time(levels(nodes), of(nodes - 1)) + near.time(levels(each), of(ranks - nodes) + bytes);
    ranks > AT_ONCE && staged < direct
}

/// How one rank's elements get to all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Spread {
    /// By a message to each.
    Direct,
    /// All of them from rank to rank.
    Whole,
    /// In parts, which ranks then gather.
    Parts,
}

impl Spread {
    /// The way in which `bytes` get to all of `ranks` at this cost of messages.
    pub(super) fn new(ranks: usize, bytes: usize, link: LinkCost) -> Self {
        if ranks <= AT_ONCE {
            return Self::Direct;
        }
        let levels = f64::from(ranks.next_power_of_two().ilog2());
        let bytes = bytes as f64;
        match link.time(levels, levels * bytes) <= link.time(2.0 * levels, 2.0 * bytes) {
            true => Self::Whole,
            false => Self::Parts,
        }
    }
}

/// The pieces of one stage at one rank.
#[derive(Default, Debug)]
struct Pair {
    recv: Pieces,
    send: Pieces,
}

/// Makes the steps of one operation at one rank: names and fingerprints of their plans.
struct Steps {
    name: &'static str,
    /// What the operation follows from.
    print: [u64; 2],
    steps: Vec<Step>,
}

impl Steps {
    fn new(name: &'static str, facts: &[usize]) -> Self {
        let mut print = Fingerprint::new();
        print.numbers(facts);
        Self {
            name,
            print: print.done(),
            steps: Vec::new(),
        }
    }

    /// Adds a stage; all ranks add as many, with equal `fold`.
    fn push(&mut self, pair: Pair, fold: Option<Monoid>, leaves: Leaves) {
        let mut print = Fingerprint::new();
        self.print.into_iter().for_each(|word| print.word(word));
        print.word(self.steps.len() as u64);
        let [a, b] = print.done();
        // Zero would say nothing about the plan.
        let id = (u128::from(a) << 64 | u128::from(b)) | 1;
        let plan = ExchangePlan::new(self.name, id, pair.recv, pair.send, fold, None);
        self.steps.push(Step {
            plan: Arc::new(plan),
            leaves,
        });
    }
}

/// The request that runs these steps on one source, if this rank has one.
pub(super) fn request(
    comm: &dyn Communicator,
    steps: &[Step],
    source: Option<&Buffer>,
    dtype: DType,
    site: Site,
) -> Result<Request> {
    let target = |leaves| -> Result<Target> {
        Ok(match leaves {
            Leaves::New(len) => comm.target(dtype, len)?,
            Leaves::Same => Target::Same,
            Leaves::Nothing => Target::Nothing,
        })
    };
    let stages: SmallVec<[Stage; 1]> = (steps.iter())
        .map(|step| {
            Ok(Stage {
                plan: Arc::clone(&step.plan),
                target: target(step.leaves)?,
            })
        })
        .collect::<Result<_>>()?;
    Ok(Request {
        sources: source.cloned().into_iter().collect(),
        dtype: Some(dtype),
        ..Request::of_stages(stages, site)
    })
}

/// The request that sums up this rank's elements by these steps, in the type in which they move.
pub(super) fn summed(
    comm: &dyn Communicator,
    steps: &[Step],
    mine: &Buffer,
    moves: DType,
    site: Site,
) -> Result<Request> {
    if mine.dtype() == moves {
        return request(comm, steps, Some(mine), moves, site);
    }
    let wide = narrow(mine.clone(), moves)?;
    Ok(Request {
        dtype: Some(mine.dtype()),
        wide: Some(moves),
        ..request(comm, steps, Some(&wide), moves, site)?
    })
}

#[cfg(test)]
mod tests;
