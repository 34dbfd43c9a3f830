//! The communicator: one rank's view of a group, and the handle of an operation in flight.
//!
//! A backend implements the few methods of [`Communicator`]; every collective that users call is an inherent method
//! of `dyn Communicator` (see `collectives.rs`) built on [`Communicator::post`], so that there is one mechanism and
//! its call sites are the user's.

use std::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::caller::called;
use crate::collectives::PlanCache;
use crate::guard::Guard;
use crate::plan::Fit;
use crate::simulated::Topology;
use crate::{
    AgreedError, Buffer, BufferMut, CommError, DType, DeviceRef, ExchangePlan, Ledger, Piece,
    Pieces, Result, Site,
};

/// One rank's membership of a group of ranks.
///
/// Live communicators of some backends must not leave their thread, so this is not `Send`; a rank's communicators
/// are made inside its own thread. The methods listed here are what a backend provides. What programs call
/// (`all_gather_v`, `barrier`, `exchange`, ...) are the inherent methods of `dyn Communicator` below.
pub trait Communicator: Debug {
    /// This rank's number within the group.
    fn rank(&self) -> usize;

    /// How many ranks the group has.
    fn size(&self) -> usize;

    /// The ranks of the group as numbered in the launch, in group order.
    fn members(&self) -> &[usize];

    /// The device of this rank.
    fn device(&self) -> &DeviceRef;

    /// What this rank moved, in all its groups.
    fn ledger(&self) -> &Ledger;

    /// The name of the backend.
    fn backend(&self) -> &'static str;

    /// The cache of plans of the inherent collectives.
    fn plans(&self) -> &PlanCache;

    /// Starts one operation of the group.
    ///
    /// # Collective
    /// Every rank of the group, in the same order as its other operations.
    ///
    /// # Errors
    /// Failures only ([`PeerFailed`](CommError::PeerFailed), [`Deadlock`](CommError::Deadlock),
    /// [`Closed`](CommError::Closed)). What is wrong with the arguments comes out of the handle, on every rank.
    fn post(&self, request: Request) -> Result<Handle>;

    /// Does one operation of the group and waits for it; its result, if it has one on this rank. A backend that can do
    /// without a handle is spared it.
    ///
    /// # Collective
    /// As [`Communicator::post`].
    ///
    /// # Errors
    /// Whatever [`Communicator::post`] and its handle report.
    fn call(&self, request: Request) -> Result<Option<Buffer>> {
        self.post(request)?.wait_optional()
    }

    /// Starts one side of a message between two ranks of the group.
    ///
    /// # Errors
    /// As [`Communicator::post`]; [`CommError::Invalid`] if the peer is not in the group.
    fn post_link(&self, link: Link) -> Result<Handle>;

    /// Splits the group; see the inherent `split`.
    ///
    /// # Collective
    /// Every rank of the group.
    ///
    /// # Errors
    /// As [`Communicator::post`].
    fn post_split(
        &self,
        color: Option<usize>,
        key: usize,
        site: Site,
    ) -> Result<Option<Rc<dyn Communicator>>>;

    /// Splits off the group of these ranks, whom all of its members name alike; see the inherent `subgroup`.
    ///
    /// # Collective
    /// Every rank of the group.
    ///
    /// # Errors
    /// As [`Communicator::post`].
    fn post_subgroup(
        &self,
        members: Option<&[usize]>,
        site: Site,
    ) -> Result<Option<Rc<dyn Communicator>>> {
        let me = self.rank();
        let first = members.and_then(|m| m.first().copied());
        let key = members.and_then(|m| m.iter().position(|&r| r == me));
        self.post_split(first, key.unwrap_or(0), site)
    }

    /// What joins the ranks, where that is known: plans are chosen by it.
    fn topology(&self) -> Option<&Topology> {
        None
    }

    /// The failure that all calls of this rank end in, if it is known by now: looked at, not waited for.
    fn failure(&self) -> Option<CommError> {
        None
    }

    /// Gives up: every other rank gets [`PeerFailed`](CommError::PeerFailed) with this rank as its origin, at its
    /// current or next call, and this rank at its next.
    fn fail(&self, cause: String);
}

/// A communicator that changes what another one does, and passes on what it does not.
pub(crate) trait Decorator: Debug {
    /// The communicator below.
    fn inner(&self) -> &Rc<dyn Communicator>;

    /// The same around a group split from the one below.
    fn decorate(&self, group: Rc<dyn Communicator>) -> Rc<dyn Communicator>;

    fn post(&self, request: Request) -> Result<Handle>;

    fn post_link(&self, link: Link) -> Result<Handle>;

    fn post_split(
        &self,
        color: Option<usize>,
        key: usize,
        site: Site,
    ) -> Result<Option<Rc<dyn Communicator>>> {
        self.split_inner(color, key, site)
    }

    fn split_inner(
        &self,
        color: Option<usize>,
        key: usize,
        site: Site,
    ) -> Result<Option<Rc<dyn Communicator>>> {
        let group = self.inner().post_split(color, key, site)?;
        Ok(group.map(|group| self.decorate(group)))
    }
}

impl<D: Decorator> Communicator for D {
    fn rank(&self) -> usize {
        self.inner().rank()
    }

    fn size(&self) -> usize {
        self.inner().size()
    }

    fn members(&self) -> &[usize] {
        self.inner().members()
    }

    fn device(&self) -> &DeviceRef {
        self.inner().device()
    }

    fn ledger(&self) -> &Ledger {
        self.inner().ledger()
    }

    fn backend(&self) -> &'static str {
        self.inner().backend()
    }

    fn plans(&self) -> &PlanCache {
        self.inner().plans()
    }

    fn post(&self, request: Request) -> Result<Handle> {
        Decorator::post(self, request)
    }

    fn post_link(&self, link: Link) -> Result<Handle> {
        Decorator::post_link(self, link)
    }

    fn post_split(
        &self,
        color: Option<usize>,
        key: usize,
        site: Site,
    ) -> Result<Option<Rc<dyn Communicator>>> {
        Decorator::post_split(self, color, key, site)
    }

    fn failure(&self) -> Option<CommError> {
        self.inner().failure()
    }

    fn fail(&self, cause: String) {
        self.inner().fail(cause);
    }
}

/// One operation of a group, as [`Communicator::post`] takes it: exchanges that feed one another.
///
/// The first stage reads `sources`; each later one reads only the result of the stage before.
#[derive(Debug)]
pub struct Request {
    /// The exchanges, in order; the same number on every rank unless their arguments are at odds.
    pub stages: SmallVec<[Stage; 1]>,
    /// What the first stage's pieces read.
    pub sources: SmallVec<[Buffer; 1]>,
    /// An error of this rank that all must hear of.
    pub status: Result<(), Box<AgreedError>>,
    /// An argument that must be equal on all ranks: its name and value.
    pub argument: Option<(&'static str, u128)>,
    /// The type of the elements, if any move; equal on all ranks.
    pub dtype: Option<DType>,
    /// Where the user called.
    pub site: Site,
    /// What a checked communicator adds.
    pub guard: Guard,
}

/// One exchange of a [`Request`].
#[derive(Debug)]
pub struct Stage {
    /// What moves.
    pub plan: Arc<ExchangePlan>,
    /// Where it goes.
    pub target: Target,
}

/// What an exchange leaves behind on this rank.
#[derive(Debug)]
pub enum Target {
    /// A destination that the pieces write.
    Write(BufferMut),
    /// A buffer that already is the result, as the root's own in a broadcast. No piece may be received.
    Keep(Buffer),
    /// No result. No piece may be received.
    Nothing,
    /// Whatever it is, something else moves it, and has checked this rank's buffers: the communicator only sees to it that
    /// all ranks agree, and its operation ends there; its result is what [guards](Request::guard) told, if any did. Sources
    /// need not have elements.
    Elsewhere,
}

impl Request {
    /// A request of one exchange.
    #[inline]
    pub fn exchange(
        plan: Arc<ExchangePlan>,
        sources: &[Buffer],
        target: Target,
        site: Site,
    ) -> Self {
        let dtype = match &target {
            Target::Write(dst) => Some(dst.dtype()),
            Target::Keep(result) => Some(result.dtype()),
            Target::Nothing | Target::Elsewhere => sources.first().map(Buffer::dtype),
        };
        Self {
            stages: smallvec![Stage { plan, target }],
            sources: match sources {
                [] => SmallVec::new(),
                [one] => smallvec![one.clone()],
                all => all.into(),
            },
            status: Ok(()),
            argument: None,
            dtype,
            site: called(site),
            guard: Guard::default(),
        }
    }

    /// A request that moves nothing and tells an error, or that there is none.
    #[inline]
    pub fn status(plan: Arc<ExchangePlan>, status: Result<(), AgreedError>, site: Site) -> Self {
        let mut request = Self::exchange(plan, &[], Target::Nothing, site);
        request.status = status.map_err(Box::new);
        request
    }

    /// The name of the operation.
    pub fn name(&self) -> &'static str {
        self.stages
            .first()
            .map_or("nothing", |stage| stage.plan.name)
    }

    /// Turns what this rank's own arguments show to be wrong into its status. Backends call it before posting.
    pub fn checked(mut self, group: usize) -> Self {
        self.check_own(group);
        self
    }

    /// As [`Request::checked`], in place.
    pub(crate) fn check_own(&mut self, group: usize) {
        if self.status.is_ok()
            && let Err(error) = self.check(group)
        {
            self.status = Err(Box::new(AgreedError::from_local(self.name(), error)));
        }
    }

    /// Whether its elements move by another way.
    pub(crate) fn is_elsewhere(&self) -> bool {
        let elsewhere = |stage: &Stage| matches!(stage.target, Target::Elsewhere);
        self.stages.iter().any(elsewhere)
    }

    /// What an exchange of one source into one destination is checked for, which its plan remembers.
    fn fit(&self, group: usize) -> Option<Fit> {
        let ([stage], [source]) = (self.stages.as_slice(), self.sources.as_slice()) else {
            return None;
        };
        let Target::Write(dst) = &stage.target else {
            return None;
        };
        let dtype = dst.dtype();
        (source.dtype() == dtype && self.dtype == Some(dtype)).then(|| Fit {
            group,
            dtype,
            source: source.len(),
            dst: dst.len(),
        })
    }

    fn check(&self, group: usize) -> Result<()> {
        // A barrier has nothing that could be wrong.
        let is_silent = |s: &Stage| matches!(s.target, Target::Nothing) && s.plan.is_silent();
        if self.is_elsewhere() || self.sources.is_empty() && self.stages.iter().all(is_silent) {
            return Ok(());
        }
        let fit = self.fit(group);
        let plan = self.stages.first().map(|stage| &stage.plan);
        if let (Some(plan), Some(fit)) = (plan, &fit)
            && plan.fits(fit)
        {
            return Ok(());
        }
        // What the stage before leaves behind, which this one reads.
        let mut left = None;
        for stage in &self.stages {
            let (dtype, len) = match &stage.target {
                Target::Write(dst) => (Some(dst.dtype()), dst.len()),
                Target::Keep(result) => (Some(result.dtype()), result.len()),
                Target::Nothing | Target::Elsewhere => (self.dtype, 0),
            };
            if dtype != self.dtype {
                return Err(CommError::invalid(
                    stage.plan.name,
                    format!("{:?} throughout", self.dtype),
                    format!("{dtype:?}"),
                    "pass buffers of one element type",
                ));
            }
            if !matches!(stage.target, Target::Write(_)) && !stage.plan.recv.is_empty() {
                return Err(CommError::invalid(
                    stage.plan.name,
                    "a destination to receive into",
                    format!("{:?}", stage.target),
                    "pass Target::Write where pieces are received",
                ));
            }
            let brought = self.sources.iter().map(|s| (s.dtype(), s.len()));
            match left {
                None => stage.plan.check(group, dtype, &brought, len)?,
                Some(one) => stage.plan.check(group, dtype, &std::iter::once(one), len)?,
            }
            if let Target::Write(dst) = &stage.target
                && stage.plan.fold.is_none()
                && stage.plan.fill.is_none()
                && !stage.plan.may_cover(dst.len())
            {
                return Err(CommError::invalid(
                    stage.plan.name,
                    format!("pieces for all {} elements of the destination", dst.len()),
                    format!(
                        "pieces for {} of them",
                        stage.plan.recv.iter().map(|p| p.numel()).sum::<usize>()
                    ),
                    "give the plan a fill value for what no piece writes",
                ));
            }
            left = Some((dtype.unwrap_or(DType::U8), len));
        }
        if let (Some(plan), Some(fit)) = (plan, fit) {
            plan.remember(fit);
        }
        Ok(())
    }
}

/// One side of a message between two ranks.
#[derive(Debug)]
pub struct Link {
    /// The other rank, numbered within the group.
    pub peer: usize,
    /// What this side does.
    pub side: LinkSide,
    /// Whether something else moves the elements: the two only agree, and there is no result.
    pub elsewhere: bool,
    /// Where the user called.
    pub site: Site,
    /// What a checked communicator adds.
    pub guard: Guard,
}

/// Which side of a message this rank is.
#[derive(Debug)]
pub enum LinkSide {
    /// Sends these elements.
    Send(Buffer),
    /// Receives into this memory.
    Recv(BufferMut),
}

impl LinkSide {
    fn dtype(&self) -> DType {
        match self {
            Self::Send(data) => data.dtype(),
            Self::Recv(dst) => dst.dtype(),
        }
    }
}

impl Link {
    /// The call it came from.
    pub fn name(&self) -> &'static str {
        match self.side {
            LinkSide::Send(_) => "send",
            LinkSide::Recv(_) => "recv",
        }
    }

    /// Who sends and who receives, as numbered within the group, if `me` is this rank.
    pub fn ends(&self, me: usize) -> [usize; 2] {
        match self.side {
            LinkSide::Send(_) => [me, self.peer],
            LinkSide::Recv(_) => [self.peer, me],
        }
    }

    /// Which participant of [`Link::into_request`] this rank is: 0 sends, 1 receives.
    pub fn participant(&self) -> usize {
        match self.side {
            LinkSide::Send(_) => 0,
            LinkSide::Recv(_) => 1,
        }
    }

    /// What moves, as an exchange of the two participants.
    pub fn plan(&self) -> ExchangePlan {
        let run = |peer, len| Pieces::from([Piece::run(peer, 0, len, 0, 0)]);
        let (recv, send) = match &self.side {
            LinkSide::Send(data) => (Pieces::new(), run(1, data.len())),
            LinkSide::Recv(dst) => (run(0, dst.len()), Pieces::new()),
        };
        ExchangePlan::new("message", 0, recv, send, None, None)
    }

    /// The message as an operation of its two participants, in a group of `size`.
    ///
    /// # Errors
    /// [`CommError::Invalid`] if the peer is not in the group.
    pub fn into_request(self, size: usize) -> Result<Request> {
        if self.peer >= size {
            return Err(CommError::invalid(
                self.name(),
                format!("a peer below {size}"),
                self.peer.to_string(),
                "name a rank of the group, numbered within it",
            ));
        }
        let plan = Arc::new(self.plan());
        let (dtype, elsewhere) = (self.side.dtype(), self.elsewhere);
        let or_elsewhere = |target| if elsewhere { Target::Elsewhere } else { target };
        let request = match self.side {
            LinkSide::Send(data) => {
                let sources = [data.clone()];
                let target = or_elsewhere(Target::Keep(data));
                Request::exchange(plan, &sources, target, self.site)
            }
            LinkSide::Recv(dst) => {
                Request::exchange(plan, &[], or_elsewhere(Target::Write(dst)), self.site)
            }
        };
        Ok(Request {
            dtype: Some(dtype),
            guard: self.guard,
            ..request
        })
    }
}

/// An operation in flight.
///
/// Between starting and waiting, do other work. Handles may be waited for in any order. One that is dropped leaves
/// its operation to the communicator, which finishes it during later calls.
///
/// ```
/// use shard_comm::{local, Monoid};
/// let sums = local::run(3, |comm| {
///     let mine = comm.device().upload_slice(&[comm.rank() as f64]).unwrap();
///     let sum = comm.start_all_reduce(&mine, Monoid::SUM).unwrap();
///     // ... work that does not need the sum ...
///     sum.wait().unwrap().to_vec::<f64>().unwrap()[0]
/// }).unwrap();
/// assert_eq!(sums, [3.0, 3.0, 3.0]);
/// ```
#[must_use = "an operation completes when its handle is waited for"]
pub struct Handle {
    pending: Option<Box<dyn Pending>>,
}

/// What a backend puts behind a [`Handle`].
pub trait Pending {
    /// Finishes the operation and returns its result, if it has one on this rank.
    ///
    /// # Errors
    /// Whatever went wrong, alike on all ranks.
    fn wait(&mut self) -> Result<Option<Buffer>>;

    /// Carries the operation on without waiting; whether [`wait`](Self::wait) will return at once. Where the ranks it waits
    /// for have failed or ended, it may stay undone: [`rest`](Self::rest) finds out.
    fn is_done(&mut self) -> bool;

    /// Returns when this operation, or any other one of the rank on this communicator and its splits, may have gone on: for
    /// those who wait for several. A rank that rests waits for all of them, so that deadlocks are found as in
    /// [`wait`](Self::wait). It does not rest while one is done whose handle has not been waited for.
    fn rest(&mut self) {
        std::thread::yield_now();
    }

    /// The device of the rank.
    fn device(&self) -> &DeviceRef;

    /// The ledger of the rank, whose flight recorder hears of failures.
    fn ledger(&self) -> Option<&Ledger> {
        None
    }

    /// The handle is dropped unwaited: the backend has to finish the operation by itself.
    fn park(&mut self);
}

impl Handle {
    /// A handle over a backend's operation.
    pub fn new(pending: Box<dyn Pending>) -> Self {
        Self {
            pending: Some(pending),
        }
    }

    /// A handle of what needs no other rank and is done.
    pub fn ready(device: &DeviceRef, result: Option<Buffer>) -> Self {
        Self::new(Box::new(Ready {
            device: Arc::clone(device),
            result,
        }))
    }

    /// See [`Pending::is_done`].
    pub fn is_done(&mut self) -> bool {
        (self.pending.as_mut()).is_none_or(|pending| pending.is_done())
    }

    /// See [`Pending::rest`].
    #[cfg(feature = "nccl")]
    pub(crate) fn rest(&mut self) {
        if let Some(pending) = &mut self.pending {
            pending.rest();
        }
    }

    /// Completes this rank's own reads and returns the result; an operation without one on this rank gives a
    /// buffer of no elements. Never waits for other ranks to read from this one.
    ///
    /// # Errors
    /// Whatever went wrong, alike on all ranks: [`Mismatch`](CommError::Mismatch), [`Agreed`](CommError::Agreed), or
    /// a failure.
    pub fn wait(mut self) -> Result<Buffer> {
        let Some(mut pending) = self.pending.take() else {
            return Err(CommError::Closed { op: "wait" });
        };
        match finish(&mut *pending)? {
            Some(result) => Ok(result),
            None => Ok(pending.device().alloc(DType::U8, 0)?.freeze()),
        }
    }

    /// As [`Handle::wait`], with `None` if this rank has no result.
    ///
    /// # Errors
    /// As [`Handle::wait`].
    pub fn wait_optional(mut self) -> Result<Option<Buffer>> {
        match self.pending.take() {
            Some(mut pending) => finish(&mut *pending),
            None => Err(CommError::Closed { op: "wait" }),
        }
    }
}

/// Waits, and lets the flight recorder hear of a failure.
fn finish(pending: &mut dyn Pending) -> Result<Option<Buffer>> {
    pending.wait().inspect_err(|error| {
        if let Some(ledger) = pending.ledger() {
            ledger.failed(error);
        }
    })
}

/// An operation that was done when it was started.
struct Ready {
    device: DeviceRef,
    result: Option<Buffer>,
}

impl Pending for Ready {
    fn wait(&mut self) -> Result<Option<Buffer>> {
        Ok(self.result.take())
    }

    fn is_done(&mut self) -> bool {
        true
    }

    fn device(&self) -> &DeviceRef {
        &self.device
    }

    fn park(&mut self) {}
}

impl Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handle")
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(mut pending) = self.pending.take() {
            pending.park();
        }
    }
}
