//! The collectives: each is a plan of pieces that is handed to [`Communicator::post`].
//!
//! A rank whose own arguments are wrong does not return early, which would leave the others waiting: it joins the
//! operation with the error as its status, and all ranks return that error.

mod equal;
mod gather;
mod message;
mod reduce;
mod scan;
mod staged;
mod uniform;

#[cfg(feature = "mpi")]
pub(crate) use gather::plan_all_gather;

use std::ops::Range;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

pub use reduce::{Moves, ONE_ROUND_BYTES, all_reduce_received, staged_all_reduce};
pub(crate) use staged::Step;
pub use staged::all_reduce_seconds;

use crate::caller::called;
use crate::handle::waiting;
use crate::validate::label;
use crate::{
    AgreedError, Buffer, BufferMut, CommError, Communicator, DType, ExchangePlan, Handle, Result,
    Site,
};
use crate::{Request, Target};

/// The operations of a group. Counts are in elements; counts of zero are ordinary.
impl dyn Communicator + '_ {
    /// Runs a plan: reads this rank's pieces from its peers' `sources` into `dst`, and returns it.
    ///
    /// # Collective
    /// Every rank of the group, with the plans of one exchange: equal names and ids, mirrored pieces. `status` may be an
    /// error that only this rank can see; all ranks then return the error of the lowest failing rank, and nothing moves.
    ///
    /// # Errors
    /// [`Mismatch`](CommError::Mismatch) if the plans do not fit, [`Agreed`](CommError::Agreed) if some rank's
    /// buffers do not fit its plan or some status is an error, or a failure.
    #[doc(alias("halo", "MPI_Neighbor_alltoallw", "MPI_Alltoallw"))]
    #[track_caller]
    pub fn exchange(
        &self,
        plan: &Arc<ExchangePlan>,
        sources: &[Buffer],
        dst: BufferMut,
        status: Result<(), AgreedError>,
    ) -> Result<Buffer> {
        let site = Location::caller();
        self.call_for(exchange_of(plan, sources, dst, status, site))
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
        let site = Location::caller();
        self.noted(self.post(exchange_of(plan, sources, dst, status, site)))
    }

    /// Returns when every rank of the group has called it.
    ///
    /// # Collective
    /// Every rank of the group.
    ///
    /// # Errors
    /// [`Mismatch`](CommError::Mismatch) if ranks call different operations, or a failure.
    #[doc(alias = "MPI_Barrier")]
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        self.tell("barrier", Ok(()), None, Location::caller())
    }

    /// Tells all ranks whether some rank has an error; all return the error of the lowest failing rank.
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

    fn tell(
        &self,
        name: &'static str,
        status: Result<(), AgreedError>,
        argument: Option<(&'static str, u128)>,
        site: Site,
    ) -> Result<()> {
        let plan = self
            .plans()
            .get(name, None, &[], &[], || ExchangePlan::silent(name));
        let mut request = Request::status(plan, status, site);
        request.argument = argument;
        self.completed(request).map(drop)
    }

    /// Splits the group by color: ranks with equal colors form a new group, ordered by (key, rank). `None` joins no
    /// group.
    ///
    /// # Collective
    /// Every rank of the group, also those without a color.
    ///
    /// # Errors
    /// [`Mismatch`](CommError::Mismatch) if ranks call different operations, or a failure.
    #[doc(alias("MPI_Comm_split", "ncclCommSplit"))]
    #[track_caller]
    pub fn split(&self, color: Option<usize>, key: usize) -> Result<Option<Rc<dyn Communicator>>> {
        self.noted(self.post_split(color, key, called(Location::caller())))
    }

    /// Splits off the group of these ranks, in this order; `None` joins no group. Every member of a group passes the same list,
    /// which includes the member itself, and no rank is in two lists: a [`split`](#method.split) for programs in which every
    /// rank knows the members. Costs a split and a round in which ranks agree that all members of each group name it alike.
    ///
    /// ```
    /// use shard_comm::{CommError, local};
    /// let errors = local::run(3, |comm| {
    ///     let members = [[0, 1], [1, 0], [2, 2]][comm.rank()];
    ///     comm.subgroup(Some(&members)).unwrap_err()
    /// })
    /// .unwrap();
    /// assert!(errors.iter().all(|e| e == &errors[0] && matches!(e, CommError::Agreed(_))));
    /// ```
    ///
    /// # Collective
    /// Every rank of the group, also those without a list.
    ///
    /// # Errors
    /// [`Agreed`](CommError::Agreed), on every rank of this group, if some members of a group name it differently; else as
    /// [`split`](#method.split).
    #[doc(alias("MPI_Comm_create_group", "new_group", "process group"))]
    #[track_caller]
    pub fn subgroup(&self, members: Option<&[usize]>) -> Result<Option<Rc<dyn Communicator>>> {
        const NAME: &str = "subgroup";
        let site = called(Location::caller());
        let group = match self.noted(self.post_subgroup(members, site)) {
            // An error that only this rank has found must be told to the others.
            Err(error @ CommError::Invalid { .. }) => Err(AgreedError::from_local(NAME, error)),
            Err(error) => return Err(error),
            Ok(group) => match self.misnamed(members, group.as_deref()) {
                Some(error) => Err(error),
                None => Ok(group),
            },
        };
        let status = group.as_ref().map(drop).map_err(AgreedError::clone);
        self.tell(NAME, status, None, site)?;
        Ok(group?)
    }

    /// The error if the members of a group do not name it alike. `members` is the list of this rank.
    fn misnamed(
        &self,
        named: Option<&[usize]>,
        group: Option<&dyn Communicator>,
    ) -> Option<AgreedError> {
        let formed = group.map(|group| group.members());
        let as_named = match (named, formed) {
            (None, None) => true,
            (Some(named), Some(formed)) => {
                let named = named.iter().map(|&r| self.members().get(r));
                named.eq(formed.iter().map(Some))
            }
            _ => false,
        };
        (!as_named).then(|| {
            AgreedError::new(
                "subgroup",
                format!(
                    "members {named:?} of {}, as named here",
                    label(self.members())
                ),
                formed.map_or("no group".to_owned(), |formed| {
                    format!("a group of {}", label(formed))
                }),
                "name the same ranks in the same order on all of them, and no rank in two groups",
            )
        })
    }

    /// Posts a request, or the reason why this rank could not make one.
    pub(super) fn start(
        &self,
        name: &'static str,
        site: Site,
        request: impl FnOnce(Site) -> Result<Request>,
    ) -> Result<Handle> {
        self.noted(match request(site) {
            Ok(request) => self.post(request),
            Err(error) => self.post(refusal(name, site, error)),
        })
    }

    /// As `start`, and waits.
    #[inline]
    pub(super) fn run(
        &self,
        name: &'static str,
        site: Site,
        request: impl FnOnce(Site) -> Result<Request>,
    ) -> Result<Buffer> {
        match request(site) {
            Ok(request) => self.call_for(request),
            Err(error) => self.call_for(refusal(name, site, error)),
        }
    }

    /// Runs an operation and waits for its result: an empty buffer if the operation has none on this rank.
    #[inline]
    fn call_for(&self, request: Request) -> Result<Buffer> {
        match self.completed(request)? {
            Some(result) => Ok(result),
            None => Ok(self.device().alloc(DType::U8, 0)?.freeze()),
        }
    }

    /// Runs an operation and waits for it.
    #[inline]
    fn completed(&self, request: Request) -> Result<Option<Buffer>> {
        let _span = waiting();
        self.noted(self.call(request))
    }

    /// Returns the result, and tells the flight recorder if it is a failure.
    fn noted<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| self.ledger().failed(error))
    }

    pub(super) fn target(&self, dtype: DType, len: usize) -> Result<Target> {
        Ok(Target::Write(self.device().alloc(dtype, len)?))
    }

    pub(super) fn check_counts(&self, name: &'static str, counts: &[usize]) -> Result<()> {
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
    pub(super) fn check_root<'b>(
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

fn exchange_of(
    plan: &Arc<ExchangePlan>,
    sources: &[Buffer],
    dst: BufferMut,
    status: Result<(), AgreedError>,
    site: Site,
) -> Request {
    let request = Request::exchange(Arc::clone(plan), sources, Target::Write(dst), site);
    Request {
        status: status.map_err(Box::new),
        ..request
    }
}

/// The request of a rank that could not make one: it joins the operation with its error.
#[cold]
fn refusal(name: &'static str, site: Site, error: CommError) -> Request {
    let status = Err(AgreedError::from_local(name, error));
    Request::status(Arc::new(ExchangePlan::empty(name)), status, site)
}

pub(super) fn check_root_rank(name: &'static str, root: usize, size: usize) -> Result<()> {
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

pub(super) fn check_len(name: &'static str, what: &str, expected: usize, got: usize) -> Result<()> {
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

pub(super) fn check_type(name: &'static str, expected: DType, data: &Buffer) -> Result<()> {
    if data.dtype() == expected {
        Ok(())
    } else {
        Err(CommError::dtype(name, expected, data.dtype()))
    }
}

pub(super) fn total(counts: &[usize]) -> usize {
    counts.iter().sum()
}

pub(super) fn span_of(counts: &[usize], rank: usize) -> Range<usize> {
    let start = total(&counts[..rank]);
    start..start + counts[rank]
}

pub(super) fn spans(counts: &[usize]) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
    counts.iter().enumerate().scan(0, |start, (rank, &count)| {
        let at = *start..*start + count;
        *start = at.end;
        Some((rank, at))
    })
}
