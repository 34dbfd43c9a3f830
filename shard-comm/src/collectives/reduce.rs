//! Collectives that combine, in the order of a tree over the ranks.

use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use super::gather::{plan_all_gather, plan_gather};
use super::staged::{self, Leaves, Way};
use super::{check_len, check_root_rank, span_of, spans, total};
use crate::plan::Shape;
use crate::{
    Buffer, CommError, Communicator, DType, ExchangePlan, Handle, LinkCost, Monoid, Piece, Pieces,
    Result, Site,
};
use crate::{Request, Stage, Target};

/// Up to this many bytes, or more where [ranks share memory](Communicator::at_once), an all-reduce is one round in which every rank
/// combines everything. Above, each rank combines its chunk and a second round gathers the chunks. Many ranks that [send messages](Communicator::messages) go about it in stages, in
/// each of which a rank has few. Results are bitwise the same either way.
pub const ONE_ROUND_BYTES: usize = 4096;

const ALL_REDUCE: &str = "all_reduce";

/// Operations that combine, element by element and [by the tree](crate::by_tree) over rank numbers: of four ranks `(0+1) + (2+3)`.
impl dyn Communicator + '_ {
    /// Combines all ranks' buffers element by element, by the tree over rank numbers, and leaves each rank its part: `counts[r]`
    /// elements for rank `r`, in rank order.
    ///
    /// # Collective
    /// Every rank of the group, with equal counts and operation.
    ///
    /// # Errors
    /// As [`all_gather_v`](#method.all_gather_v).
    #[doc(alias = "MPI_Reduce_scatter")]
    #[track_caller]
    pub fn reduce_scatter_v(&self, mine: &Buffer, counts: &[usize], op: Monoid) -> Result<Buffer> {
        self.start_reduce_scatter_v(mine, counts, op)?.wait()
    }

    /// [`reduce_scatter_v`](#method.reduce_scatter_v) without waiting.
    ///
    /// # Collective
    /// As `reduce_scatter_v`.
    ///
    /// # Errors
    /// Failures at once; the rest from the handle.
    #[track_caller]
    pub fn start_reduce_scatter_v(
        &self,
        mine: &Buffer,
        counts: &[usize],
        op: Monoid,
    ) -> Result<Handle> {
        const NAME: &str = "reduce_scatter_v";
        let handle = self.start(NAME, Location::caller(), |site| {
            self.check_counts(NAME, counts)?;
            check_groups(NAME, op, counts)?;
            check_len(NAME, "the sum of the counts", total(counts), mine.len())?;
            let (me, moves) = (self.rank(), staged::moves(mine.dtype(), op));
            let steps = self.in_stages((NAME, Some(op)), counts, moves.size(), &[], || {
                staged::reduce_scatter(NAME, me, counts, op)
            });
            if let Some(steps) = steps {
                let request = staged::summed(self, &steps, mine, moves, site)?;
                let counts = counts.to_vec();
                let plan = move || plan_reduce_scatter(NAME, me, &counts, op);
                return Ok(request.instead_of(plan));
            }
            let plan = self.plans().get(NAME, Some(op), counts, &[], || {
                plan_reduce_scatter(NAME, me, counts, op)
            });
            let (target, sources) = (
                self.target(mine.dtype(), counts[me])?,
                std::slice::from_ref(mine),
            );
            Ok(Request::exchange(plan, sources, target, site))
        })?;
        Ok(self.narrowing(handle, mine, op))
    }

    /// Combines all ranks' buffers element by element, by the tree over rank numbers; every rank gets the same bits.
    ///
    /// # Collective
    /// Every rank of the group, with equal lengths and operation. A rank alone in its group keeps what it has, without
    /// a round. Between ranks that send messages a rank has at most 2 log2(n) + 2 of them, rounded up; stages hold up to three times
    /// the buffer.
    ///
    /// # Errors
    /// As [`all_gather_v`](#method.all_gather_v).
    #[doc(alias("MPI_Allreduce", "ncclAllReduce"))]
    #[track_caller]
    pub fn all_reduce(&self, mine: &Buffer, op: Monoid) -> Result<Buffer> {
        if self.is_trivial(ALL_REDUCE, mine, op) {
            return Ok(mine.clone());
        }
        let site = Location::caller();
        // The request of the shortest one is made where it is used, as it is large.
        let sum = match self.all_reduce_at_once(mine, op) {
            Ok(Some((plan, target))) => {
                let mut request = Request::exchange(plan, std::slice::from_ref(mine), target, site);
                request.argument = length_of(mine);
                self.call_for(request)
            }
            _ => self.run(ALL_REDUCE, site, |site| {
                self.all_reduce_request(mine, op, site)
            }),
        }?;
        staged::narrow(sum, mine.dtype())
    }

    /// [`all_reduce`](#method.all_reduce) without waiting.
    ///
    /// # Collective
    /// As `all_reduce`.
    ///
    /// # Errors
    /// Failures at once; the rest from the handle.
    #[track_caller]
    pub fn start_all_reduce(&self, mine: &Buffer, op: Monoid) -> Result<Handle> {
        if self.is_trivial(ALL_REDUCE, mine, op) {
            return Ok(Handle::ready(mine.device(), Some(mine.clone())));
        }
        let handle = self.start(ALL_REDUCE, Location::caller(), |site| {
            self.all_reduce_request(mine, op, site)
        })?;
        Ok(self.narrowing(handle, mine, op))
    }

    /// Combines all ranks' buffers element by element, by the tree over rank numbers, at the root. The root gets the bits of
    /// [`all_reduce`](#method.all_reduce), the other ranks get `None`.
    ///
    /// Up to [`ONE_ROUND_BYTES`] the root receives every buffer, in one round. Above, every rank combines its chunk and sends
    /// it to the root in a second round: each rank receives `(n - 1) / n` of a buffer, and the root as much again. Many ranks that
    /// send messages do it in stages, as an all-reduce.
    ///
    /// ```
    /// use shard_comm::{Monoid, local};
    /// let sums = local::run(3, |comm| {
    ///     let mine = comm.device().upload_slice(&[comm.rank() as f64, 1.0]).unwrap();
    ///     let sum = comm.reduce(&mine, Monoid::SUM, 1).unwrap();
    ///     sum.map(|sum| sum.to_vec::<f64>().unwrap())
    /// }).unwrap();
    /// assert_eq!(sums, [None, Some(vec![3.0, 3.0]), None]);
    /// ```
    ///
    /// # Collective
    /// Every rank of the group, with equal root, lengths and operation. A rank alone in its group keeps what it has,
    /// without a round.
    ///
    /// # Errors
    /// As [`all_gather_v`](#method.all_gather_v).
    #[doc(alias("MPI_Reduce", "ncclReduce"))]
    #[track_caller]
    pub fn reduce(&self, mine: &Buffer, op: Monoid, root: usize) -> Result<Option<Buffer>> {
        self.start_reduce(mine, op, root)?.wait_optional()
    }

    /// [`reduce`](#method.reduce) without waiting; see [`Handle::wait_optional`].
    ///
    /// # Collective
    /// As `reduce`.
    ///
    /// # Errors
    /// Failures at once; the rest from the handle.
    #[track_caller]
    pub fn start_reduce(&self, mine: &Buffer, op: Monoid, root: usize) -> Result<Handle> {
        const NAME: &str = "reduce";
        if root == 0 && self.is_trivial(NAME, mine, op) {
            return Ok(Handle::ready(mine.device(), Some(mine.clone())));
        }
        let handle = self.start(NAME, Location::caller(), |site| {
            check_root_rank(NAME, root, self.size())?;
            check_reduction(NAME, mine, op)?;
            let (ranks, me, len) = (self.size(), self.rank(), mine.len());
            let moves = staged::moves(mine.dtype(), op);
            let (size, most) = (moves.size(), self.at_once());
            if let Some(link) = self.messages()
                && !staged::is_at_once(ranks, len * size, most)
            {
                let steps = self
                    .plans()
                    .staged(NAME, Some(op), &[len, root, size], &[], || {
                        let way = Way::new(ranks, len * size, link);
                        staged::reduce(NAME, way, (me, root), ranks, len, op)
                    });
                if !steps.is_empty() {
                    let request = staged::summed(self, &steps, mine, moves, site)?;
                    let plan = move || plan_reduce(NAME, me, ranks, len, op, root);
                    return Ok(request.rooted(root).instead_of(plan));
                }
            }
            let sources = std::slice::from_ref(mine);
            let whole = match me == root {
                true => self.target(mine.dtype(), len)?,
                false => Target::Nothing,
            };
            let request = if mine.bytes() <= most {
                let plan = self.plans().get(NAME, Some(op), &[len], &[root], || {
                    plan_reduce(NAME, me, ranks, len, op, root)
                });
                Request::exchange(plan, sources, whole, site)
            } else {
                let counts = chunks(len, ranks, op.width());
                let scatter = self.plans().get(NAME, Some(op), &counts, &[], || {
                    plan_reduce_scatter(NAME, me, &counts, op)
                });
                let gather = self.plans().get(NAME, None, &counts, &[root], || {
                    plan_gather(NAME, me, &counts, root)
                });
                let chunk = self.target(mine.dtype(), counts[me])?;
                in_two_rounds((scatter, chunk), (gather, whole), sources, site)
            };
            Ok(request.rooted(root))
        })?;
        Ok(self.narrowing(handle, mine, op))
    }

    /// The handle of a sum of these elements, rounded to their type if it was formed in a wider one.
    pub(super) fn narrowing(&self, handle: Handle, mine: &Buffer, op: Monoid) -> Handle {
        match self.messages() {
            Some(_) if staged::moves(mine.dtype(), op) != mine.dtype() => {
                staged::narrowing(handle, self.device(), mine.dtype())
            }
            _ => handle,
        }
    }

    /// Whether this rank is alone in its group, so that a reduction leaves its buffer unchanged.
    fn is_trivial(&self, name: &'static str, mine: &Buffer, op: Monoid) -> bool {
        self.size() == 1 && check_reduction(name, mine, op).is_ok()
    }

    /// The plan and the target of an all-reduce in one round, if that is known to be best.
    #[inline]
    fn all_reduce_at_once(
        &self,
        mine: &Buffer,
        op: Monoid,
    ) -> Result<Option<(Arc<ExchangePlan>, Target)>> {
        check_reduction(ALL_REDUCE, mine, op)?;
        let bytes = mine.len() * staged::moves(mine.dtype(), op).size();
        let most = self.at_once();
        if bytes > most
            || self.messages().is_some() && !staged::is_at_once(self.size(), bytes, most)
        {
            return Ok(None);
        }
        let plan = self.whole_plan(mine.len(), op);
        Ok(Some((plan, self.target(mine.dtype(), mine.len())?)))
    }

    /// The plan by which every rank combines all elements of all.
    #[inline]
    fn whole_plan(&self, len: usize, op: Monoid) -> Arc<ExchangePlan> {
        self.plans().get(ALL_REDUCE, Some(op), &[len], &[], || {
            let ranks = 0..self.size();
            let pieces: Pieces = ranks.map(|j| Piece::run(j, 0, len, 0, 0)).collect();
            // The length is compared as an argument of its own, and the plan follows from it.
            let id = len as u128 + 1;
            ExchangePlan::new(ALL_REDUCE, id, pieces.clone(), pieces, Some(op), None)
                .alike()
                .shaped(Shape::AllReduce)
        })
    }

    fn all_reduce_request(&self, mine: &Buffer, op: Monoid, site: Site) -> Result<Request> {
        const NAME: &str = ALL_REDUCE;
        let sources = std::slice::from_ref(mine);
        if let Some((plan, target)) = self.all_reduce_at_once(mine, op)? {
            let mut request = Request::exchange(plan, sources, target, site);
            request.argument = length_of(mine);
            return Ok(request);
        }
        let (ranks, me, len) = (self.size(), self.rank(), mine.len());
        let moves = staged::moves(mine.dtype(), op);
        let size = moves.size();
        if let Some(link) = self.messages() {
            let steps = self.plans().staged(NAME, Some(op), &[len, size], &[], || {
                let way = Way::new(ranks, len * size, link);
                staged::all_reduce(NAME, way, me, ranks, len, op)
            });
            if !steps.is_empty() {
                let mut request = staged::summed(self, &steps, mine, moves, site)?;
                request.argument = length_of(mine);
                return Ok(request);
            }
        }
        if mine.bytes() <= self.at_once() {
            let target = self.target(mine.dtype(), len)?;
            let mut request = Request::exchange(self.whole_plan(len, op), sources, target, site);
            request.argument = length_of(mine);
            return Ok(request);
        }
        let counts = chunks(len, ranks, op.width());
        let scatter = self.plans().get(NAME, Some(op), &counts, &[], || {
            plan_reduce_scatter(NAME, me, &counts, op).shaped(Shape::AllReduce)
        });
        let gather = self.plans().get(NAME, None, &counts, &[], || {
            plan_all_gather(NAME, me, &counts)
        });
        let chunk = self.target(mine.dtype(), counts[me])?;
        let whole = self.target(mine.dtype(), len)?;
        let mut request = in_two_rounds((scatter, chunk), (gather, whole), sources, site);
        request.argument = length_of(mine);
        Ok(request)
    }
}

/// A reduction of which each rank finds a chunk, and then chunks are gathered.
fn in_two_rounds(
    (scatter, chunk): (Arc<ExchangePlan>, Target),
    (plan, target): (Arc<ExchangePlan>, Target),
    sources: &[Buffer],
    site: Site,
) -> Request {
    let mut request = Request::exchange(scatter, sources, chunk, site);
    request.stages.push(Stage { plan, target });
    request
}

/// What ranks compare where all have equally many elements.
pub(super) fn length_of(mine: &Buffer) -> Option<(&'static str, u128)> {
    Some(("length", mine.len() as u128))
}

/// Every rank's whole buffer, combined at the root.
fn plan_reduce(
    name: &'static str,
    me: usize,
    ranks: usize,
    len: usize,
    op: Monoid,
    root: usize,
) -> ExchangePlan {
    let recv = (0..ranks).filter(|_| me == root);
    let recv = recv.map(|j| Piece::run(j, 0, len, 0, 0)).collect();
    let send = [Piece::run(root, 0, len, 0, 0)].into();
    ExchangePlan::new(name, 0, recv, send, Some(op), None)
}

/// What one rank moves in an operation, as its ledger shows it, and what it allocates for that. It is for planners, which tell beforehand
/// what a sum over ranks will cost, as those of `shard-redistribute` do.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Moves {
    /// Bytes received from other ranks.
    pub bytes: u64,
    /// Ranks received from, summed over rounds.
    pub messages: u64,
    /// Number of rendezvous.
    pub rounds: u64,
    /// Bytes allocated, the result among them.
    pub allocated: u64,
}

/// What rank `me` of `ranks` moves in an all-reduce of `len` elements where messages cost as much as on this link; `None` if that does
/// not go in stages. For planners, as [`Moves`].
///
/// ```
/// use shard_comm::{DType, LinkCost, Monoid, staged_all_reduce};
/// let link = LinkCost::new(1e-6, 1e9);
/// let moves = staged_all_reduce(1, DType::F64, (5, 1024), Monoid::SUM, link).unwrap();
/// assert_eq!((moves.messages, moves.bytes, moves.rounds), (10, 80, 10));
/// assert_eq!(staged_all_reduce(1, DType::F64, (1, 4), Monoid::SUM, link), None);
/// ```
pub fn staged_all_reduce(
    len: usize,
    dtype: DType,
    (me, ranks): (usize, usize),
    op: Monoid,
    link: LinkCost,
) -> Option<Moves> {
    let size = staged::moves(dtype, op).size();
    let way = Way::new(ranks, len * size, link);
    let steps = staged::all_reduce(ALL_REDUCE, way, me, ranks, len, op);
    if steps.is_empty() {
        return None;
    }
    let bytes = |elements: usize| (elements * size) as u64;
    Some(steps.iter().fold(Moves::default(), |sum, step| Moves {
        bytes: sum.bytes + bytes(step.plan.remote_elements(me)),
        messages: sum.messages + step.plan.remote_messages(me) as u64,
        rounds: sum.rounds + 1,
        allocated: sum.allocated
            + match step.leaves {
                Leaves::New(len) => bytes(len),
                Leaves::Same | Leaves::Nothing => 0,
            },
    }))
}

/// Elements that rank `me` of `ranks` receives from others in an all-reduce of `len` elements of `bytes` bytes each, in one round or
/// two; stages may bring it others. For planners, as [`Moves`].
///
/// ```
/// // Two rounds of 3/4 of a large buffer; every other rank's whole copy of a small one.
/// assert_eq!(shard_comm::all_reduce_received(1 << 20, 4, 4, 0, 1), 2 * 3 * (1 << 18));
/// assert_eq!(shard_comm::all_reduce_received(8, 4, 4, 0, 1), 3 * 8);
/// ```
pub fn all_reduce_received(
    len: usize,
    bytes: usize,
    ranks: usize,
    me: usize,
    width: usize,
) -> usize {
    if ranks <= 1 {
        return 0;
    }
    if len * bytes <= ONE_ROUND_BYTES {
        return (ranks - 1) * len;
    }
    let mine = chunks(len, ranks, width)[me];
    (ranks - 1) * mine + len - mine
}

pub(super) fn check_reduction(name: &'static str, mine: &Buffer, op: Monoid) -> Result<()> {
    check_groups(name, op, &[mine.len()])?;
    Ok(op.check(mine.dtype())?)
}

pub(super) fn check_groups(name: &'static str, op: Monoid, counts: &[usize]) -> Result<()> {
    if counts.iter().all(|c| c % op.width() == 0) {
        return Ok(());
    }
    Err(CommError::invalid(
        name,
        format!("counts in multiples of {} for {op}", op.width()),
        format!("{counts:?}"),
        "never cut a group of elements that belong together",
    ))
}

pub(super) fn plan_reduce_scatter(
    name: &'static str,
    me: usize,
    counts: &[usize],
    op: Monoid,
) -> ExchangePlan {
    let mine = span_of(counts, me);
    let recv = (0..counts.len())
        .map(|j| Piece::run(j, 0, mine.len(), mine.start, 0))
        .collect();
    let send = spans(counts)
        .map(|(j, at)| Piece::run(j, 0, at.len(), at.start, 0))
        .collect();
    let plan = ExchangePlan::new(name, 0, recv, send, Some(op), None);
    match counts.iter().all(|&count| count == counts[0]) {
        true => plan.shaped(Shape::ReduceScatter),
        false => plan,
    }
}

/// Balanced counts per rank, in whole groups of `width`.
pub(super) fn chunks(len: usize, ranks: usize, width: usize) -> SmallVec<[usize; 16]> {
    let groups = len / width;
    (0..ranks)
        .map(|r| (groups / ranks + usize::from(r < groups % ranks)) * width)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_balanced_and_keep_groups() {
        assert_eq!(chunks(10, 4, 1).as_slice(), &[3, 3, 2, 2]);
        assert_eq!(chunks(9, 4, 3).as_slice(), &[3, 3, 3, 0]);
        assert_eq!(chunks(0, 2, 2).as_slice(), &[0, 0]);
    }
}
