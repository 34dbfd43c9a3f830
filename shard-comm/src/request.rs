//! The requests to a communicator: exchanges of a group, and messages between two ranks.

use std::fmt;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::caller::{Calling, called};
use crate::guard::Guard;
use crate::plan::Fit;
use crate::{
    AgreedError, Buffer, BufferMut, CommError, DType, ExchangePlan, Past, Piece, Pieces, PlanCache,
    Result, Site,
};

/// One operation of a group, as [`Communicator::post`](crate::Communicator::post) takes it: exchanges that feed one another.
///
/// The first stage reads `sources`; each later one reads only the result of the stage before.
#[derive(Debug)]
pub struct Request {
    /// The exchanges, in order; as many on every rank, unless their arguments contradict each other.
    pub stages: SmallVec<[Stage; 1]>,
    /// The sources that the first stage's pieces read.
    pub sources: SmallVec<[Buffer; 1]>,
    /// An error of this rank that all must learn of.
    pub status: Result<(), Box<AgreedError>>,
    /// An argument that must be equal on all ranks: its name and value.
    pub argument: Option<(&'static str, u128)>,
    /// What the program did before, where ranks are to compare it.
    pub past: Option<Past>,
    /// The type of the elements, if any move; equal on all ranks.
    pub dtype: Option<DType>,
    /// The type in which they move, if that is another one: 16-bit floats that are summed on their way move as `f32`.
    pub wide: Option<DType>,
    /// The same operation as one exchange, for ranks that disagree to compare; `None` if the stages are what they compare.
    pub direct: Option<Direct>,
    /// Where the user called.
    pub site: Site,
    /// What the user called, if that is [known](crate::Calling).
    pub method: Option<&'static str>,
    /// The part that a checked communicator adds.
    pub guard: Guard,
}

/// One exchange of a [`Request`].
#[derive(Debug)]
pub struct Stage {
    /// The pieces that move.
    pub plan: Arc<ExchangePlan>,
    /// Where they go.
    pub target: Target,
}

/// The result of an exchange on this rank.
#[derive(Debug)]
pub enum Target {
    /// A destination that the pieces write.
    Write(BufferMut),
    /// A buffer that already is the result, such as the root's own in a broadcast. No piece may be received.
    Keep(Buffer),
    /// What this rank has: its source, or the result of the stage before. No piece may be received.
    Same,
    /// No result. No piece may be received.
    Nothing,
    /// Something else moves the elements, and has checked this rank's buffers. The communicator only makes sure that all ranks
    /// agree; its result is the table of all ranks' checksums, if any rank's [guard](Request::guard) has some. Sources need
    /// not have elements.
    Elsewhere,
}

impl Request {
    /// A request of one exchange.
    // Made in place where it is used: a request is large, and every call makes one.
    #[inline(always)]
    pub fn exchange(
        plan: Arc<ExchangePlan>,
        sources: &[Buffer],
        target: Target,
        site: Site,
    ) -> Self {
        let dtype = match &target {
            Target::Write(dst) => Some(dst.dtype()),
            Target::Keep(result) => Some(result.dtype()),
            Target::Same | Target::Nothing | Target::Elsewhere => {
                sources.first().map(Buffer::dtype)
            }
        };
        let sources = match sources {
            [] => SmallVec::new(),
            [one] => smallvec![one.clone()],
            all => all.into(),
        };
        Self::new(smallvec![Stage { plan, target }], sources, dtype, site)
    }

    /// A request of these exchanges, without sources.
    pub(crate) fn of_stages(stages: SmallVec<[Stage; 1]>, site: Site) -> Self {
        Self::new(stages, SmallVec::new(), None, site)
    }

    #[inline(always)]
    fn new(
        stages: SmallVec<[Stage; 1]>,
        sources: SmallVec<[Buffer; 1]>,
        dtype: Option<DType>,
        site: Site,
    ) -> Self {
        Self {
            stages,
            sources,
            status: Ok(()),
            argument: None,
            past: None,
            dtype,
            wide: None,
            direct: None,
            site: called(site),
            method: Calling::method(),
            guard: Guard::default(),
        }
    }

    /// The type in which elements move, if any do.
    pub fn moves(&self) -> Option<DType> {
        self.wide.or(self.dtype)
    }

    /// A request that moves nothing and tells whether this rank has an error.
    #[inline(always)]
    pub fn status(plan: Arc<ExchangePlan>, status: Result<(), AgreedError>, site: Site) -> Self {
        let mut request = Self::exchange(plan, &[], Target::Nothing, site);
        request.status = status.map_err(Box::new);
        request
    }

    /// The same with a root, which must be equal on all ranks.
    #[inline(always)]
    pub(crate) fn rooted(mut self, root: usize) -> Self {
        self.argument = Some(("root", root as u128));
        self
    }

    /// The same in stages, which ranks that disagree compare as the exchange of this plan.
    pub(crate) fn instead_of(
        mut self,
        plan: impl Fn() -> ExchangePlan + Send + Sync + 'static,
    ) -> Self {
        self.direct = Some(Direct::new(plan));
        self
    }

    /// The name of the operation.
    pub fn name(&self) -> &'static str {
        self.stages
            .first()
            .map_or("nothing", |stage| stage.plan.name)
    }

    /// What the user called, for messages: the operation, if nothing else is known.
    pub fn called(&self) -> &'static str {
        self.method.unwrap_or_else(|| self.name())
    }

    /// Checks this rank's own arguments, and turns an error in them into the status. Backends call it before posting.
    pub fn checked(mut self, group: usize) -> Self {
        self.check_own(group);
        self
    }

    /// As [`Request::checked`], in place.
    pub(crate) fn check_own(&mut self, group: usize) {
        if self.status.is_ok()
            && let Err(error) = self.check(group)
        {
            self.status = Err(Box::new(AgreedError::from_local(self.called(), error)));
        }
    }

    /// Whether something else moves its elements.
    pub(crate) fn is_elsewhere(&self) -> bool {
        let elsewhere = |stage: &Stage| matches!(stage.target, Target::Elsewhere);
        self.stages.iter().any(elsewhere)
    }

    /// The facts that an exchange of one source into one destination is checked for, which its plan remembers.
    fn fit(&self, group: usize) -> Option<Fit> {
        let ([stage], [source]) = (self.stages.as_slice(), self.sources.as_slice()) else {
            return None;
        };
        let Target::Write(dst) = &stage.target else {
            return None;
        };
        let dtype = dst.dtype();
        (source.dtype() == dtype && self.moves() == Some(dtype)).then(|| Fit {
            group,
            dtype,
            source: source.len(),
            dst: dst.len(),
        })
    }

    fn check(&self, group: usize) -> Result<()> {
        // A barrier has no arguments to check.
        let is_silent = |s: &Stage| matches!(s.target, Target::Nothing) && s.plan.is_silent();
        if self.sources.is_empty() && self.stages.iter().all(is_silent) || self.is_elsewhere() {
            return Ok(());
        }
        let fit = self.fit(group);
        let plan = self.stages.first().map(|stage| &stage.plan);
        if let (Some(plan), Some(fit)) = (plan, &fit)
            && plan.fits(fit)
        {
            return Ok(());
        }
        // The result of the stage before, which this one reads.
        let mut left: Option<(DType, usize)> = None;
        for stage in &self.stages {
            let first = || self.sources.first().map_or(0, Buffer::len);
            let (dtype, len) = match &stage.target {
                Target::Write(dst) => (Some(dst.dtype()), dst.len()),
                Target::Keep(result) => (Some(result.dtype()), result.len()),
                Target::Same => (self.moves(), left.map_or_else(first, |left| left.1)),
                Target::Nothing | Target::Elsewhere => (self.moves(), 0),
            };
            if dtype != self.moves() {
                return Err(CommError::invalid(
                    stage.plan.name,
                    format!("{:?} throughout", self.moves()),
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
            if let Target::Write(dst) = &stage.target {
                stage.plan.check_written(dst.len())?;
            }
            left = Some((dtype.unwrap_or(DType::U8), len));
        }
        if let (Some(plan), Some(fit)) = (plan, fit) {
            plan.remember(fit);
        }
        Ok(())
    }
}

/// How an operation would be one exchange, planned when ranks disagree: so they find the same cause whatever the stages are.
#[derive(Clone)]
// Behind one thin pointer: most requests have none, and each holds the place of one.
pub struct Direct(Arc<Box<dyn Fn() -> ExchangePlan + Send + Sync>>);

impl Direct {
    /// The operation as the exchange that `plan` makes.
    pub fn new(plan: impl Fn() -> ExchangePlan + Send + Sync + 'static) -> Self {
        Self(Arc::new(Box::new(plan)))
    }

    /// The exchange.
    pub fn plan(&self) -> ExchangePlan {
        (self.0)()
    }
}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Direct")
    }
}

/// The name of the plan of a message.
const MESSAGE: &str = "message";

/// One side of a message between two ranks.
#[derive(Debug)]
pub struct Link {
    /// The other rank, numbered within the group.
    pub peer: usize,
    /// What this side does.
    pub side: LinkSide,
    /// Whether something else moves the elements: then the two ranks only agree, and there is no result.
    pub elsewhere: bool,
    /// An error of this rank that both must learn of.
    pub status: Result<(), Box<AgreedError>>,
    /// Where the user called.
    pub site: Site,
    /// The part that a checked communicator adds.
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
    /// The name of the call.
    pub fn name(&self) -> &'static str {
        match self.side {
            LinkSide::Send(_) => "send",
            LinkSide::Recv(_) => "recv",
        }
    }

    /// The sender and the receiver, as numbered within the group, if `me` is this rank.
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

    /// The message as an exchange of its two participants.
    pub fn plan(&self) -> ExchangePlan {
        let run = |peer, len| Pieces::from([Piece::run(peer, 0, len, 0, 0)]);
        let (recv, send) = match &self.side {
            LinkSide::Send(data) => (Pieces::new(), run(1, data.len())),
            LinkSide::Recv(dst) => (run(0, dst.len()), Pieces::new()),
        };
        ExchangePlan::new(MESSAGE, 0, recv, send, None, None)
    }

    /// The message as an operation of its two participants, in a group of `size` that keeps these plans.
    ///
    /// # Errors
    /// [`CommError::Invalid`] if the peer is not in the group.
    pub fn into_request(self, size: usize, plans: &PlanCache) -> Result<Request> {
        check_peer(self.name(), self.peer, size)?;
        let len = match &self.side {
            LinkSide::Send(data) => data.len(),
            LinkSide::Recv(dst) => dst.len(),
        };
        let plan = plans.get(MESSAGE, None, &[len, self.participant()], &[], || {
            self.plan()
        });
        let (dtype, elsewhere) = (self.side.dtype(), self.elsewhere);
        let (sources, target) = match self.side {
            LinkSide::Send(data) => (smallvec![data.clone()], Target::Keep(data)),
            LinkSide::Recv(dst) => (SmallVec::new(), Target::Write(dst)),
        };
        let target = if elsewhere { Target::Elsewhere } else { target };
        let stages = smallvec![Stage { plan, target }];
        Ok(Request {
            status: self.status,
            guard: self.guard,
            ..Request::new(stages, sources, Some(dtype), self.site)
        })
    }
}

/// Checks that a group of `size` ranks has this rank.
pub(crate) fn check_peer(op: &'static str, peer: usize, size: usize) -> Result<()> {
    if peer < size {
        return Ok(());
    }
    Err(CommError::invalid(
        op,
        format!("a peer below {size}"),
        peer.to_string(),
        "name a rank of the group, numbered within it",
    ))
}
