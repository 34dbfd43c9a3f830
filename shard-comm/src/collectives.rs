//! The collectives: each is a plan of pieces handed to [`Communicator::post`].
//!
//! A rank whose own arguments are wrong does not return early, which would leave the others waiting: it joins the
//! operation with an error for its status, and all ranks return that.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::communicator::{Link, LinkSide, Request, Stage, Target};
use crate::{
    AgreedError, Buffer, BufferMut, CommError, Communicator, DType, ExchangePlan, Handle, Monoid,
    Piece, Result, Site,
};

/// Up to this many bytes an all-reduce is one round in which every rank combines everything; above, owners combine
/// their chunk and a second round gathers the chunks. Results are bitwise the same either way.
pub const ONE_ROUND_BYTES: usize = 4096;

/// The operations of a group. Counts are in elements; counts of zero are ordinary.
impl dyn Communicator + '_ {
    /// Runs a plan: reads this rank's pieces from its peers' `sources` into `dst`, and returns it.
    ///
    /// # Collective
    /// Every rank of the group, with the plans of one exchange: equal names and ids, mirrored pieces. `status` is an
    /// error that only this rank can see; all ranks then return the lowest failing rank's, and nothing moves.
    ///
    /// # Errors
    /// [`Mismatch`](CommError::Mismatch) if the plans do not fit, [`Agreed`](CommError::Agreed) if some rank's
    /// buffers do not fit its plan or some status is an error, or a failure.
    #[track_caller]
    pub fn exchange(
        &self,
        plan: &Arc<ExchangePlan>,
        sources: &[Buffer],
        dst: BufferMut,
        status: Result<(), AgreedError>,
    ) -> Result<Buffer> {
        self.start_exchange(plan, sources, dst, status)?.wait()
    }

    /// [`exchange`](#method.exchange) without waiting.
    ///
    /// # Collective
    /// As `exchange`.
    ///
    /// # Errors
    /// Failures at once; the rest from the handle.
    #[track_caller]
    pub fn start_exchange(
        &self,
        plan: &Arc<ExchangePlan>,
        sources: &[Buffer],
        dst: BufferMut,
        status: Result<(), AgreedError>,
    ) -> Result<Handle> {
        let request = Request::exchange(
            Arc::clone(plan),
            sources,
            Target::Write(dst),
            Location::caller(),
        );
        self.post(Request { status, ..request })
    }

    /// Returns when every rank of the group has called it.
    ///
    /// # Collective
    /// Every rank of the group.
    ///
    /// # Errors
    /// [`Mismatch`](CommError::Mismatch) if ranks call different operations, or a failure.
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        self.tell("barrier", Ok(()), None, Location::caller())
    }

    /// Tells all ranks whether some rank has an error; the lowest failing rank's is returned everywhere.
    ///
    /// # Collective
    /// Every rank of the group.
    ///
    /// # Errors
    /// [`Agreed`](CommError::Agreed) if some rank passed an error; else as [`barrier`](#method.barrier).
    #[track_caller]
    pub fn agree(&self, status: Result<(), AgreedError>) -> Result<()> {
        self.tell("agree", status, None, Location::caller())
    }

    /// Checks that all ranks pass the same value, a fingerprint of what they must agree on.
    ///
    /// # Collective
    /// Every rank of the group.
    ///
    /// # Errors
    /// The same [`Mismatch`](CommError::Mismatch), naming `what`, on every rank if not; or a failure.
    #[track_caller]
    pub fn check_uniform(&self, what: &'static str, value: u128) -> Result<()> {
        self.tell(
            "check_uniform",
            Ok(()),
            Some((what, value)),
            Location::caller(),
        )
    }

    fn tell(
        &self,
        name: &'static str,
        status: Result<(), AgreedError>,
        argument: Option<(&'static str, u128)>,
        site: Site,
    ) -> Result<()> {
        let plan = self
            .plans()
            .get(name, None, &[], &[], || ExchangePlan::empty(name));
        let request = Request {
            argument,
            ..Request::status(plan, status, site)
        };
        self.post(request)?.wait_optional().map(drop)
    }

    /// Splits the group by color: ranks with equal colors form a new group, ordered by (key, rank). `None` joins no
    /// group.
    ///
    /// # Collective
    /// Every rank of the group, those without a color too.
    ///
    /// # Errors
    /// [`Mismatch`](CommError::Mismatch) if ranks call different operations, or a failure.
    #[track_caller]
    pub fn split(&self, color: Option<usize>, key: usize) -> Result<Option<Rc<dyn Communicator>>> {
        self.post_split(color, key, Location::caller())
    }

    /// Sends elements to one rank, and returns when that rank has asked for them.
    ///
    /// Two ranks that send to each other before they receive wait forever here, which the `local` backend reports;
    /// use [`start_send`](#method.start_send) for such patterns.
    ///
    /// # Errors
    /// [`Mismatch`](CommError::Mismatch), on both ranks, if the other expects another type or count; or a failure.
    #[track_caller]
    pub fn send(&self, peer: usize, data: &Buffer) -> Result<()> {
        self.start_send(peer, data)?.wait_optional().map(drop)
    }

    /// [`send`](#method.send) without waiting.
    ///
    /// # Errors
    /// [`CommError::Invalid`] if there is no such peer, and failures, at once; the rest from the handle.
    #[track_caller]
    pub fn start_send(&self, peer: usize, data: &Buffer) -> Result<Handle> {
        let side = LinkSide::Send(data.clone());
        self.post_link(Link {
            peer,
            side,
            site: Location::caller(),
        })
    }

    /// Receives elements from one rank. Messages between two ranks arrive in the order they were sent.
    ///
    /// # Errors
    /// As [`send`](#method.send).
    #[track_caller]
    pub fn recv(&self, peer: usize, dtype: DType, len: usize) -> Result<Buffer> {
        self.start_recv(peer, dtype, len)?.wait()
    }

    /// [`recv`](#method.recv) without waiting.
    ///
    /// # Errors
    /// As [`start_send`](#method.start_send).
    #[track_caller]
    pub fn start_recv(&self, peer: usize, dtype: DType, len: usize) -> Result<Handle> {
        let side = LinkSide::Recv(self.device().alloc(dtype, len)?);
        self.post_link(Link {
            peer,
            side,
            site: Location::caller(),
        })
    }

    /// Every rank's elements, joined in rank order; `counts` says how many each rank has.
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
    /// [`Agreed`](CommError::Agreed) if some rank's buffer is not as long as its count,
    /// [`Mismatch`](CommError::Mismatch) if counts or types differ between ranks, or a failure.
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
            let plan = self.plans().get(NAME, None, counts, &[], || {
                plan_all_gather(NAME, self.rank(), counts)
            });
            let target = self.target(mine.dtype(), total(counts))?;
            Ok(Request::exchange(
                plan,
                std::slice::from_ref(mine),
                target,
                site,
            ))
        })
    }

    /// Sends `send_counts[j]` elements to each rank `j`, in rank order in `mine`; returns what came from each rank,
    /// in rank order.
    ///
    /// # Collective
    /// Every rank of the group; what `i` sends to `j` is what `j` expects from `i`.
    ///
    /// # Errors
    /// As [`all_gather_v`](#method.all_gather_v).
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
                // What I read starts in each peer after what it has for the ranks below me, which only it knows;
                // so each piece addresses a source of its own, numbered by its reader.
                let me = self.rank();
                let recv =
                    spans(recv_counts).map(|(j, at)| Piece::run(j, me, at.len(), 0, at.start));
                let send = spans(send_counts).map(|(j, at)| Piece::run(j, j, at.len(), 0, 0));
                ExchangePlan::new(NAME, 0, recv.collect(), send.collect(), None, None)
            });
            let sources = spans(send_counts)
                .map(|(_, at)| mine.try_slice(at))
                .collect::<Result<SmallVec<[Buffer; 8]>>>()?;
            let target = self.target(mine.dtype(), total(recv_counts))?;
            Ok(Request::exchange(plan, &sources, target, site))
        })
    }

    /// Combines all ranks' buffers element by element, in rank order, and leaves each rank its part: `counts[r]`
    /// elements for rank `r`, in rank order.
    ///
    /// # Collective
    /// Every rank of the group, with equal counts and operation.
    ///
    /// # Errors
    /// As [`all_gather_v`](#method.all_gather_v).
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
        self.start(NAME, Location::caller(), |site| {
            self.check_counts(NAME, counts)?;
            check_groups(NAME, op, counts)?;
            check_len(NAME, "the sum of the counts", total(counts), mine.len())?;
            let plan = self.plans().get(NAME, Some(op), counts, &[], || {
                plan_reduce_scatter(NAME, self.rank(), counts, op)
            });
            let target = self.target(mine.dtype(), counts[self.rank()])?;
            Ok(Request::exchange(
                plan,
                std::slice::from_ref(mine),
                target,
                site,
            ))
        })
    }

    /// Combines all ranks' buffers element by element, in rank order; every rank gets the same bits.
    ///
    /// # Collective
    /// Every rank of the group, with equal lengths and operation.
    ///
    /// # Errors
    /// As [`all_gather_v`](#method.all_gather_v).
    #[track_caller]
    pub fn all_reduce(&self, mine: &Buffer, op: Monoid) -> Result<Buffer> {
        self.start_all_reduce(mine, op)?.wait()
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
        const NAME: &str = "all_reduce";
        self.start(NAME, Location::caller(), |site| {
            let (ranks, me, len) = (self.size(), self.rank(), mine.len());
            check_groups(NAME, op, &[len])?;
            let sources = std::slice::from_ref(mine);
            let argument = Some(("length", len as u128));
            if ranks == 1 {
                op.check(mine.dtype())?;
                let plan = self
                    .plans()
                    .get(NAME, None, &[], &[], || ExchangePlan::empty(NAME));
                let request = Request::exchange(plan, sources, Target::Keep(mine.clone()), site);
                return Ok(Request {
                    argument,
                    ..request
                });
            }
            if mine.bytes() <= ONE_ROUND_BYTES {
                let plan = self.plans().get(NAME, Some(op), &[len], &[], || {
                    let pieces: Vec<_> = (0..ranks).map(|j| Piece::run(j, 0, len, 0, 0)).collect();
                    ExchangePlan::new(NAME, 0, pieces.clone(), pieces, Some(op), None)
                });
                let target = self.target(mine.dtype(), len)?;
                return Ok(Request {
                    argument,
                    ..Request::exchange(plan, sources, target, site)
                });
            }
            let counts = chunks(len, ranks, op.width());
            let scatter = self.plans().get(NAME, Some(op), &counts, &[], || {
                plan_reduce_scatter(NAME, me, &counts, op)
            });
            let gather = self.plans().get(NAME, None, &counts, &[], || {
                plan_all_gather(NAME, me, &counts)
            });
            let chunk = self.target(mine.dtype(), counts[me])?;
            let whole = self.target(mine.dtype(), len)?;
            let mut request = Request::exchange(scatter, sources, chunk, site);
            request.stages.push(Stage {
                plan: gather,
                target: whole,
            });
            Ok(Request {
                argument,
                ..request
            })
        })
    }

    /// The root's elements on every rank. Only the root passes them; all pass their type and number.
    ///
    /// # Collective
    /// Every rank of the group, with equal root, type and length.
    ///
    /// # Errors
    /// As [`all_gather_v`](#method.all_gather_v).
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
            let plan = self.plans().get(NAME, None, &[root, len], &[], || {
                let others = (0..self.size()).filter(|&j| j != root);
                let send = others.map(|j| Piece::run(j, 0, len, 0, 0)).collect();
                let recv = vec![Piece::run(root, 0, len, 0, 0)];
                let (recv, send) = if self.rank() == root {
                    (vec![], send)
                } else {
                    (recv, vec![])
                };
                ExchangePlan::new(NAME, 0, recv, send, None, None)
            });
            let target = match data {
                Some(data) => {
                    check_type(NAME, dtype, data)?;
                    check_len(NAME, "the length", len, data.len())?;
                    Target::Keep(data.clone())
                }
                None => self.target(dtype, len)?,
            };
            let request =
                Request::exchange(plan, data.map_or(&[], std::slice::from_ref), target, site);
            Ok(Request {
                argument: Some(("root", root as u128)),
                ..request
            })
        })
    }

    /// Gives each rank its part of the root's elements: `counts[r]` for rank `r`, in rank order.
    ///
    /// # Collective
    /// Every rank of the group, with equal root, type and counts; only the root passes data.
    ///
    /// # Errors
    /// As [`all_gather_v`](#method.all_gather_v).
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
            let plan = self.plans().get(NAME, None, counts, &[root], || {
                let at = span_of(counts, me);
                let recv = vec![Piece::run(root, 0, at.len(), at.start, 0)];
                let send = spans(counts).map(|(j, at)| Piece::run(j, 0, at.len(), at.start, 0));
                let send = if me == root { send.collect() } else { vec![] };
                ExchangePlan::new(NAME, 0, recv, send, None, None)
            });
            let target = self.target(dtype, counts[me])?;
            let request =
                Request::exchange(plan, data.map_or(&[], std::slice::from_ref), target, site);
            Ok(Request {
                argument: Some(("root", root as u128)),
                ..request
            })
        })
    }

    /// Every rank's elements, joined in rank order, on the root; `None` elsewhere.
    ///
    /// # Collective
    /// Every rank of the group, with equal root and counts.
    ///
    /// # Errors
    /// As [`all_gather_v`](#method.all_gather_v).
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
            let plan = self.plans().get(NAME, None, counts, &[root], || {
                let recv = spans(counts).map(|(j, at)| Piece::run(j, 0, at.len(), 0, at.start));
                let recv = if me == root { recv.collect() } else { vec![] };
                let send = vec![Piece::run(
                    root,
                    0,
                    counts[me],
                    0,
                    span_of(counts, me).start,
                )];
                ExchangePlan::new(NAME, 0, recv, send, None, None)
            });
            let target = if me == root {
                self.target(mine.dtype(), total(counts))?
            } else {
                Target::Nothing
            };
            let request = Request::exchange(plan, std::slice::from_ref(mine), target, site);
            Ok(Request {
                argument: Some(("root", root as u128)),
                ..request
            })
        })
    }

    /// Posts a request, or the reason why this rank could not make one.
    fn start(
        &self,
        name: &'static str,
        site: Site,
        request: impl FnOnce(Site) -> Result<Request>,
    ) -> Result<Handle> {
        self.post(request(site).unwrap_or_else(|error| {
            let status = Err(AgreedError::from_local(name, error));
            Request::status(Arc::new(ExchangePlan::empty(name)), status, site)
        }))
    }

    fn target(&self, dtype: DType, len: usize) -> Result<Target> {
        self.device().alloc(dtype, len).map(Target::Write)
    }

    fn check_counts(&self, name: &'static str, counts: &[usize]) -> Result<()> {
        if counts.len() != self.size() {
            return Err(CommError::invalid(
                name,
                format!("{} counts, one per rank", self.size()),
                format!("{}", counts.len()),
                "pass a count for every rank of the group, zero where there is nothing",
            ));
        }
        if counts
            .iter()
            .try_fold(0usize, |sum, &c| sum.checked_add(c))
            .is_none()
        {
            return Err(CommError::invalid(
                name,
                "counts whose sum is addressable",
                format!("{counts:?}"),
                "check the counts",
            ));
        }
        Ok(())
    }

    /// The data if this rank is the root, which alone must have some.
    fn check_root<'b>(
        &self,
        name: &'static str,
        root: usize,
        data: Option<&'b Buffer>,
    ) -> Result<Option<&'b Buffer>> {
        check_root_rank(name, root, self.size())?;
        match (self.rank() == root, data) {
            (true, None) => Err(CommError::invalid(
                name,
                "data on the root",
                "none",
                "pass Some(buffer) on the root rank",
            )),
            (true, data) => Ok(data),
            (false, _) => Ok(None),
        }
    }
}

fn check_root_rank(name: &'static str, root: usize, size: usize) -> Result<()> {
    if root < size {
        return Ok(());
    }
    Err(CommError::invalid(
        name,
        format!("a root below {size}"),
        format!("{root}"),
        "name a rank of the group, numbered within it",
    ))
}

fn check_len(name: &'static str, what: &str, expected: usize, got: usize) -> Result<()> {
    if expected == got {
        return Ok(());
    }
    Err(CommError::invalid(
        name,
        format!("a buffer of {expected} elements, {what}"),
        format!("{got}"),
        "make counts and buffer agree",
    ))
}

fn check_type(name: &'static str, expected: DType, data: &Buffer) -> Result<()> {
    if data.dtype() == expected {
        Ok(())
    } else {
        Err(CommError::dtype(name, expected, data.dtype()))
    }
}

fn check_groups(name: &'static str, op: Monoid, counts: &[usize]) -> Result<()> {
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

fn plan_all_gather(name: &'static str, me: usize, counts: &[usize]) -> ExchangePlan {
    let start = span_of(counts, me).start;
    let recv = spans(counts)
        .map(|(j, at)| Piece::run(j, 0, at.len(), 0, at.start))
        .collect();
    let send = (0..counts.len())
        .map(|j| Piece::run(j, 0, counts[me], 0, start))
        .collect();
    ExchangePlan::new(name, 0, recv, send, None, None)
}

fn plan_reduce_scatter(
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
    ExchangePlan::new(name, 0, recv, send, Some(op), None)
}

/// Elements that rank `me` of `ranks` receives from others in an all-reduce of `len` elements of `bytes` bytes each.
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

/// Balanced counts per rank, in whole groups of `width`.
fn chunks(len: usize, ranks: usize, width: usize) -> SmallVec<[usize; 16]> {
    let groups = len / width;
    (0..ranks)
        .map(|r| (groups / ranks + usize::from(r < groups % ranks)) * width)
        .collect()
}

fn total(counts: &[usize]) -> usize {
    counts.iter().sum()
}

fn span_of(counts: &[usize], rank: usize) -> Range<usize> {
    let start = total(&counts[..rank]);
    start..start + counts[rank]
}

fn spans(counts: &[usize]) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
    counts.iter().enumerate().scan(0, |start, (rank, &count)| {
        let at = *start..*start + count;
        *start = at.end;
        Some((rank, at))
    })
}

/// The plans a rank used last, so that a collective repeated with the same counts plans nothing.
#[derive(Debug, Default)]
pub struct PlanCache {
    entries: RefCell<VecDeque<(PlanKey, Arc<ExchangePlan>)>>,
}

#[derive(PartialEq, Debug)]
struct PlanKey {
    name: &'static str,
    op: Option<Monoid>,
    a: SmallVec<[usize; 8]>,
    b: SmallVec<[usize; 8]>,
}

impl PlanCache {
    /// How many plans are kept.
    const CAPACITY: usize = 32;

    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    // A short list compared word by word is faster than hashing the counts.
    fn get(
        &self,
        name: &'static str,
        op: Option<Monoid>,
        a: &[usize],
        b: &[usize],
        build: impl FnOnce() -> ExchangePlan,
    ) -> Arc<ExchangePlan> {
        let mut entries = self.entries.borrow_mut();
        let known = entries.iter().find(|(key, _)| {
            key.name == name && key.op == op && key.a.as_slice() == a && key.b.as_slice() == b
        });
        if let Some((_, plan)) = known {
            return Arc::clone(plan);
        }
        let plan = Arc::new(build());
        if entries.len() == Self::CAPACITY {
            entries.pop_back();
        }
        entries.push_front((
            PlanKey {
                name,
                op,
                a: a.into(),
                b: b.into(),
            },
            Arc::clone(&plan),
        ));
        plan
    }
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

    #[test]
    fn plans_are_kept_and_bounded() {
        let cache = PlanCache::new();
        let get = |n: usize| cache.get("t", None, &[n], &[], || ExchangePlan::empty("t"));
        let first = get(0);
        assert!(Arc::ptr_eq(&first, &get(0)));
        for n in 1..100 {
            get(n);
        }
        assert_eq!(cache.entries.borrow().len(), PlanCache::CAPACITY);
        assert!(!Arc::ptr_eq(&first, &get(0)));
    }
}
