//! Collectives that copy: gather, scatter, broadcast, all-to-all.

use std::panic::Location;

use smallvec::SmallVec;
use std::sync::Arc;

use super::reduce::chunks;
use super::staged::{self, Spread, Step};
use super::{check_len, check_root_rank, check_type, span_of, spans, total};
use crate::plan::Shape;
use crate::{
    Buffer, Communicator, DType, ExchangePlan, Handle, LinkCost, Monoid, Piece, Pieces, Request,
    Result, Site, Target,
};

/// Operations that copy. Counts are in elements; counts of zero are ordinary.
impl dyn Communicator + '_ {
    /// Joins every rank's elements in rank order; `counts` says how many each rank has.
    ///
    /// ```
    /// let all = shard_comm::local::run(3, |comm| {
    ///     let mine = vec![comm.rank() as i64; comm.rank()];
    ///     let mine = comm.device().upload_slice(&mine).unwrap();
    ///     comm.all_gather_v(&mine, &[0, 1, 2]).unwrap().to_vec::<i64>().unwrap()
    /// }).unwrap();
    /// assert_eq!(all, vec![vec![1, 2, 2]; 3]);
    /// ```
    ///
    /// # Collective
    /// Every rank of the group, with equal counts.
    ///
    /// # Errors
    /// [`Agreed`](crate::CommError::Agreed) if some rank's buffer is not as long as its count,
    /// [`Mismatch`](crate::CommError::Mismatch) if counts or types differ between ranks, or a failure.
    #[doc(alias = "MPI_Allgatherv")]
    #[track_caller]
    pub fn all_gather_v(&self, mine: &Buffer, counts: &[usize]) -> Result<Buffer> {
        self.start_all_gather_v(mine, counts)?.wait()
    }

    /// [`all_gather_v`](#method.all_gather_v) without waiting.
    ///
    /// # Collective
    /// As `all_gather_v`.
    ///
    /// # Errors
    /// Failures at once; the rest from the handle.
    #[track_caller]
    pub fn start_all_gather_v(&self, mine: &Buffer, counts: &[usize]) -> Result<Handle> {
        const NAME: &str = "all_gather_v";
        self.start(NAME, Location::caller(), |site| {
            self.check_counts(NAME, counts)?;
            check_len(
                NAME,
                "the count of this rank",
                counts[self.rank()],
                mine.len(),
            )?;
            self.all_gather_request(NAME, mine, counts, site)
        })
    }

    /// Sends `send_counts[j]` elements to each rank `j`, which lie in rank order in `mine`; returns the elements that came from
    /// each rank, in rank order.
    ///
    /// # Collective
    /// Every rank of the group; what `i` sends to `j` is what `j` expects from `i`.
    ///
    /// # Errors
    /// As [`all_gather_v`](#method.all_gather_v).
    #[doc(alias("MPI_Alltoallv", "all_to_all_single"))]
    #[track_caller]
    pub fn all_to_all_v(
        &self,
        mine: &Buffer,
        send_counts: &[usize],
        recv_counts: &[usize],
    ) -> Result<Buffer> {
        self.start_all_to_all_v(mine, send_counts, recv_counts)?
            .wait()
    }

    /// [`all_to_all_v`](#method.all_to_all_v) without waiting.
    ///
    /// # Collective
    /// As `all_to_all_v`.
    ///
    /// # Errors
    /// Failures at once; the rest from the handle.
    #[track_caller]
    pub fn start_all_to_all_v(
        &self,
        mine: &Buffer,
        send_counts: &[usize],
        recv_counts: &[usize],
    ) -> Result<Handle> {
        const NAME: &str = "all_to_all_v";
        self.start(NAME, Location::caller(), |site| {
            self.check_counts(NAME, send_counts)?;
            self.check_counts(NAME, recv_counts)?;
            check_len(
                NAME,
                "the sum of the send counts",
                total(send_counts),
                mine.len(),
            )?;
            let plan = self.plans().get(NAME, None, send_counts, recv_counts, || {
                // What I read starts in each peer's buffer after its elements for the ranks below me, and only the peer knows
                // how many these are. So each piece addresses a source of its own, numbered by its reader.
                let me = self.rank();
                let recv =
                    spans(recv_counts).map(|(j, at)| Piece::run(j, me, at.len(), 0, at.start));
                let send = spans(send_counts).map(|(j, at)| Piece::run(j, j, at.len(), 0, 0));
                ExchangePlan::new(NAME, 0, recv.collect(), send.collect(), None, None)
            });
            let sources = spans(send_counts)
                .map(|(_, at)| mine.try_slice(at))
                .collect::<Result<SmallVec<[Buffer; 8]>, _>>()?;
            let target = self.target(mine.dtype(), total(recv_counts))?;
            Ok(Request::exchange(plan, &sources, target, site))
        })
    }

    /// The root's elements on every rank. Only the root passes elements; all ranks pass their type and number.
    ///
    /// # Collective
    /// Every rank of the group, with equal root, type and length.
    ///
    /// # Errors
    /// As [`all_gather_v`](#method.all_gather_v).
    #[doc(alias("MPI_Bcast", "ncclBroadcast"))]
    #[track_caller]
    pub fn broadcast(
        &self,
        data: Option<&Buffer>,
        root: usize,
        dtype: DType,
        len: usize,
    ) -> Result<Buffer> {
        self.start_broadcast(data, root, dtype, len)?.wait()
    }

    /// [`broadcast`](#method.broadcast) without waiting.
    ///
    /// # Collective
    /// As `broadcast`.
    ///
    /// # Errors
    /// Failures at once; the rest from the handle.
    #[track_caller]
    pub fn start_broadcast(
        &self,
        data: Option<&Buffer>,
        root: usize,
        dtype: DType,
        len: usize,
    ) -> Result<Handle> {
        const NAME: &str = "broadcast";
        self.start(NAME, Location::caller(), |site| {
            let data = self.check_root(NAME, root, data)?;
            if let Some(data) = data {
                check_type(NAME, dtype, data)?;
                check_len(NAME, "the length", len, data.len())?;
            }
            let (me, ranks) = (self.rank(), self.size());
            if let Some(link) = self.messages() {
                let facts = [root, len, dtype.size()];
                let steps = self.plans().staged(NAME, None, &facts, &[], || {
                    match Spread::new(ranks, len.saturating_mul(dtype.size()), link) {
                        Spread::Direct => Vec::new(),
                        Spread::Whole => {
                            staged::broadcast(NAME, me, root, ranks, len, self.nodes())
                        }
                        Spread::Parts => {
                            let counts = chunks(len, ranks, 1);
                            staged::broadcast_parts(NAME, me, root, &counts, self.nodes())
                        }
                    }
                });
                if !steps.is_empty() {
                    let request = staged::request(self, &steps, data, dtype, site)?;
                    let plan = move || plan_broadcast(NAME, me, ranks, root, len);
                    return Ok(request.rooted(root).instead_of(plan));
                }
            }
            let plan = self.plans().get(NAME, None, &[root, len], &[], || {
                plan_broadcast(NAME, me, ranks, root, len)
            });
            let target = match data {
                Some(data) => Target::Keep(data.clone()),
                None => self.target(dtype, len)?,
            };
            let sources = data.map_or(&[][..], std::slice::from_ref);
            Ok(Request::exchange(plan, sources, target, site).rooted(root))
        })
    }

    /// Gives each rank its part of the root's elements: `counts[r]` for rank `r`, in rank order.
    ///
    /// # Collective
    /// Every rank of the group, with equal root, type and counts; only the root passes data.
    ///
    /// # Errors
    /// As [`all_gather_v`](#method.all_gather_v).
    #[doc(alias = "MPI_Scatterv")]
    #[track_caller]
    pub fn scatter_v(
        &self,
        data: Option<&Buffer>,
        counts: &[usize],
        root: usize,
        dtype: DType,
    ) -> Result<Buffer> {
        self.start_scatter_v(data, counts, root, dtype)?.wait()
    }

    /// [`scatter_v`](#method.scatter_v) without waiting.
    ///
    /// # Collective
    /// As `scatter_v`.
    ///
    /// # Errors
    /// Failures at once; the rest from the handle.
    #[track_caller]
    pub fn start_scatter_v(
        &self,
        data: Option<&Buffer>,
        counts: &[usize],
        root: usize,
        dtype: DType,
    ) -> Result<Handle> {
        const NAME: &str = "scatter_v";
        self.start(NAME, Location::caller(), |site| {
            self.check_counts(NAME, counts)?;
            let data = self.check_root(NAME, root, data)?;
            if let Some(data) = data {
                check_type(NAME, dtype, data)?;
                check_len(NAME, "the sum of the counts", total(counts), data.len())?;
            }
            let me = self.rank();
            let steps = self.in_stages((NAME, None), counts, dtype.size(), &[root], || {
                staged::scatter(NAME, me, root, counts, self.nodes())
            });
            if let Some(steps) = steps {
                let request = staged::request(self, &steps, data, dtype, site)?;
                let counts = counts.to_vec();
                let plan = move || plan_scatter(NAME, me, &counts, root);
                return Ok(request.rooted(root).instead_of(plan));
            }
            let plan = self.plans().get(NAME, None, counts, &[root], || {
                plan_scatter(NAME, me, counts, root)
            });
            let target = self.target(dtype, counts[me])?;
            let sources = data.map_or(&[][..], std::slice::from_ref);
            Ok(Request::exchange(plan, sources, target, site).rooted(root))
        })
    }

    /// Joins every rank's elements, in rank order, on the root; `None` elsewhere.
    ///
    /// # Collective
    /// Every rank of the group, with equal root and counts.
    ///
    /// # Errors
    /// As [`all_gather_v`](#method.all_gather_v).
    #[doc(alias = "MPI_Gatherv")]
    #[track_caller]
    pub fn gather_v(&self, mine: &Buffer, counts: &[usize], root: usize) -> Result<Option<Buffer>> {
        self.start_gather_v(mine, counts, root)?.wait_optional()
    }

    /// [`gather_v`](#method.gather_v) without waiting; see [`Handle::wait_optional`].
    ///
    /// # Collective
    /// As `gather_v`.
    ///
    /// # Errors
    /// Failures at once; the rest from the handle.
    #[track_caller]
    pub fn start_gather_v(&self, mine: &Buffer, counts: &[usize], root: usize) -> Result<Handle> {
        const NAME: &str = "gather_v";
        self.start(NAME, Location::caller(), |site| {
            self.check_counts(NAME, counts)?;
            check_root_rank(NAME, root, self.size())?;
            let me = self.rank();
            check_len(NAME, "the count of this rank", counts[me], mine.len())?;
            let steps = self.in_stages((NAME, None), counts, mine.dtype().size(), &[root], || {
                staged::gather(NAME, me, root, counts, self.nodes())
            });
            if let Some(steps) = steps {
                let request = staged::request(self, &steps, Some(mine), mine.dtype(), site)?;
                let counts = counts.to_vec();
                let plan = move || plan_gather(NAME, me, &counts, root);
                return Ok(request.rooted(root).instead_of(plan));
            }
            let plan = self.plans().get(NAME, None, counts, &[root], || {
                plan_gather(NAME, me, counts, root)
            });
            let target = if me == root {
                self.target(mine.dtype(), total(counts))?
            } else {
                Target::Nothing
            };
            let sources = std::slice::from_ref(mine);
            Ok(Request::exchange(plan, sources, target, site).rooted(root))
        })
    }
}

impl dyn Communicator + '_ {
    /// The request of an all-gather whose counts and buffer have been checked.
    pub(crate) fn all_gather_request(
        &self,
        name: &'static str,
        mine: &Buffer,
        counts: &[usize],
        site: Site,
    ) -> Result<Request> {
        let (me, dtype) = (self.rank(), mine.dtype());
        let bytes = || dtype.size().saturating_mul(total(counts));
        let steps = match self.messages() {
            None => None,
            Some(_) if self.gathers_by_node(bytes()) => {
                let steps = self
                    .plans()
                    .staged(name, None, counts, &[dtype.size()], || {
                        staged::all_gather(name, me, counts, self.nodes())
                    });
                Some(steps)
            }
            Some(_) => self.in_stages((name, None), counts, dtype.size(), &[], || {
                staged::all_gather(name, me, counts, self.nodes())
            }),
        };
        if let Some(steps) = steps {
            let request = staged::request(self, &steps, Some(mine), dtype, site)?;
            let counts = counts.to_vec();
            return Ok(request.instead_of(move || plan_all_gather(name, me, &counts)));
        }
        let plan = self.plans().get(name, None, counts, &[], || {
            plan_all_gather(name, me, counts)
        });
        let target = self.target(dtype, total(counts))?;
        let source = std::slice::from_ref(mine);
        Ok(Request::exchange(plan, source, target, site))
    }

    /// Whether an all-gather of so many bytes is to go from node to node first, whatever the messages that saves.
    pub(super) fn gathers_by_node(&self, bytes: usize) -> bool {
        let (Some(link), Some(nodes)) = (self.messages(), self.nodes()) else {
            return false;
        };
        let ([first, second, ..], Some(each)) = (nodes.all(), nodes.each()) else {
            return false;
        };
        let links = match (self.topology(), self.members()) {
            (Some(topology), members) => {
                let to = |rank: usize| topology.link(members[first[0]], members[rank]);
                [to(first[each - 1]), to(second[0])]
            }
            // The ranks of a node share what joins it to the others.
            (None, _) => {
                let per_byte = link.per_byte * each as f64;
                [link, LinkCost { per_byte, ..link }]
            }
        };
        staged::pays_by_node(nodes.all().len(), each, bytes, links)
    }

    /// The steps of a collective in which each rank has or gets `counts[r]` elements of `size` bytes, if it is cheaper in stages.
    pub(super) fn in_stages(
        &self,
        (name, op): (&'static str, Option<Monoid>),
        counts: &[usize],
        size: usize,
        facts: &[usize],
        steps: impl FnOnce() -> Vec<Step>,
    ) -> Option<Arc<[Step]>> {
        let link = self.messages()?;
        let facts: SmallVec<[usize; 2]> = facts.iter().copied().chain([size]).collect();
        let steps = self.plans().staged(name, op, counts, &facts, || {
            match staged::pays(counts.len(), size.saturating_mul(total(counts)), link) {
                true => steps(),
                false => Vec::new(),
            }
        });
        (!steps.is_empty()).then_some(steps)
    }
}

pub(crate) fn plan_all_gather(name: &'static str, me: usize, counts: &[usize]) -> ExchangePlan {
    let start = span_of(counts, me).start;
    let recv = spans(counts)
        .map(|(j, at)| Piece::run(j, 0, at.len(), 0, at.start))
        .collect();
    let send = (0..counts.len())
        .map(|j| Piece::run(j, 0, counts[me], 0, start))
        .collect();
    let plan = ExchangePlan::new(name, 0, recv, send, None, None);
    match counts.iter().all(|&count| count == counts[0]) {
        true => plan.shaped(Shape::AllGather),
        false => plan,
    }
}

fn plan_broadcast(
    name: &'static str,
    me: usize,
    ranks: usize,
    root: usize,
    len: usize,
) -> ExchangePlan {
    let others = (0..ranks).filter(|&j| j != root);
    let send = others.map(|j| Piece::run(j, 0, len, 0, 0)).collect();
    let recv = [Piece::run(root, 0, len, 0, 0)].into();
    let (recv, send) = if me == root {
        (Pieces::new(), send)
    } else {
        (recv, Pieces::new())
    };
    ExchangePlan::new(name, 0, recv, send, None, None).shaped(Shape::Broadcast { root })
}

fn plan_scatter(name: &'static str, me: usize, counts: &[usize], root: usize) -> ExchangePlan {
    let at = span_of(counts, me);
    let recv = [Piece::run(root, 0, at.len(), at.start, 0)].into();
    let send = spans(counts).map(|(j, at)| Piece::run(j, 0, at.len(), at.start, 0));
    let send = if me == root {
        send.collect()
    } else {
        Pieces::new()
    };
    ExchangePlan::new(name, 0, recv, send, None, None)
}

pub(super) fn plan_gather(
    name: &'static str,
    me: usize,
    counts: &[usize],
    root: usize,
) -> ExchangePlan {
    let recv = spans(counts).map(|(j, at)| Piece::run(j, 0, at.len(), 0, at.start));
    let recv = if me == root {
        recv.collect()
    } else {
        Pieces::new()
    };
    let start = span_of(counts, me).start;
    let send = [Piece::run(root, 0, counts[me], 0, start)].into();
    ExchangePlan::new(name, 0, recv, send, None, None)
}
