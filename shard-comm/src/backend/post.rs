//! What ranks show each other of an operation, and how each then reads: the same in every backend that shares memory.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::guard::Guard;
use crate::plan::Traffic;
use crate::validate::Claim;
use crate::{
    AgreedError, Buffer, BufferMut, CommError, DType, DeviceKind, DeviceRef, Event, ExchangePlan,
    Ledger, Monoid, Past, PieceRef, Request, Result, Site, SiteText, Stage, Target, Told, run,
};

/// One rank's part in one exchange of an operation: what it [claims](Claim), and the memory that its peers read.
///
/// It can be sent to another thread. [`validate`](super::validate) compares the posts of all participants, and
/// [`receive`] reads from them.
///
/// ```
/// use shard_comm::backend::{Post, receive, validate};
/// use shard_comm::{ExchangePlan, Host, Ledger, Piece, Request, Target};
/// use std::sync::Arc;
/// # fn main() -> Result<(), shard_comm::CommError> {
/// let device = Host::new();
/// let ledger = Ledger::new(device.clone());
/// // A rank alone turns its three elements round.
/// let mut turned = Piece::run(0, 0, 3, 2, 0);
/// turned.src_strides[0] = -1;
/// let plan = ExchangePlan::new("turn", 1, [turned.clone()].into(), [turned].into(), None, None);
/// let mine = device.upload_slice(&[1.0f32, 2.0, 3.0])?;
/// let target = Target::Write(device.alloc(mine.dtype(), 3)?);
/// let mut request = Request::exchange(Arc::new(plan), &[mine], target, std::panic::Location::caller());
///
/// let post = Post::first("turn", &mut request, &device);
/// validate(0, &[0], &[&post])?;
/// let stage = &mut request.stages[0];
/// let result = receive(&ledger, &device, &[0], 0, stage, |_| Some(&post))?;
/// assert_eq!(result.unwrap().to_vec::<f32>()?, [3.0, 2.0, 1.0]);
/// # Ok(()) }
/// ```
// The fields that are compared are copied into the post itself, because the memory of a plan belongs to another core.
#[derive(Debug)]
pub struct Post {
    /// The name of the operation, for accounts; what must agree is the name of the plan.
    pub(crate) op: &'static str,
    /// What the user called, for messages.
    pub(crate) called: &'static str,
    name: &'static str,
    id: u128,
    fold: Option<Monoid>,
    /// The plan, if other ranks look into it: to compare pairs, or to compute a result once for all.
    plan: Option<Arc<ExchangePlan>>,
    pub(crate) sources: SmallVec<[Buffer; 1]>,
    event: Event,
    dtype: Option<DType>,
    /// The type in which elements move.
    pub(crate) moves: Option<DType>,
    argument: Option<(&'static str, u128)>,
    past: Option<Past>,
    status: Option<Box<AgreedError>>,
    /// Something that others learn of this rank: its color and key in a split.
    pub(crate) note: Option<(usize, usize)>,
    site: Site,
    pub(crate) guard: Guard,
}

impl Post {
    /// This rank's part in the first exchange of a request. It takes out of the request what peers look at: sources,
    /// status and guard.
    ///
    /// `op` is the name of the operation, for accounts: [`Request::name`], or [`Link::name`](crate::Link::name) for a message.
    /// The request has been [checked](Request::checked).
    pub fn first(op: &'static str, request: &mut Request, device: &DeviceRef) -> Self {
        Self::with_note(op, request, device, None)
    }

    /// [`Post::first`] with something that others learn of this rank besides what the request says.
    #[inline]
    pub(crate) fn with_note(
        op: &'static str,
        request: &mut Request,
        device: &DeviceRef,
        note: Option<(usize, usize)>,
    ) -> Self {
        let first = request.stages.first().map(|stage| &stage.plan);
        let event = match request.sources.is_empty() {
            true => Event::ready(),
            false => device.record(),
        };
        Self {
            op,
            called: request.method.unwrap_or(op),
            name: first.map_or(op, |plan| plan.name),
            id: first.map_or(0, |plan| plan.id),
            fold: first.and_then(|plan| plan.fold),
            plan: first.and_then(plan_to_read),
            event,
            sources: std::mem::take(&mut request.sources),
            dtype: request.dtype,
            moves: request.moves(),
            argument: request.argument,
            past: request.past.take(),
            status: std::mem::replace(&mut request.status, Ok(())).err(),
            note,
            site: request.site,
            guard: std::mem::take(&mut request.guard),
        }
    }

    /// This rank's part in a later exchange, number `stage` of the request, which reads the result of the one before;
    /// `self` was its part in that one. `rank` is its number in the launch.
    ///
    /// # Errors
    /// [`PeerFailed`](CommError::PeerFailed) with this rank as origin if its checksums cannot be computed: it is too late to
    /// agree on that, because the others have begun to move elements.
    pub fn next(
        &self,
        request: &Request,
        stage: usize,
        result: Option<Buffer>,
        device: &DeviceRef,
        rank: usize,
    ) -> Result<Self> {
        let plan = &request.stages[stage].plan;
        let sources: SmallVec<[Buffer; 1]> = result.into_iter().collect();
        // If the exchange before had checksums, this one has them too.
        let sums = (self.guard.sums.is_some()).then(|| Guard::sums_of(device, plan, &sources));
        let sums = sums.transpose().map_err(|error| too_late(rank, error))?;
        Ok(Self {
            op: self.op,
            called: self.called,
            name: plan.name,
            id: plan.id,
            fold: plan.fold,
            plan: plan_to_read(plan),
            sources,
            event: device.record(),
            dtype: request.dtype,
            moves: request.moves(),
            argument: None,
            past: None,
            status: None,
            note: None,
            site: request.site,
            guard: Guard { turn: None, sums },
        })
    }

    /// The plan, if by it all ranks receive the same.
    pub(crate) fn plan_alike(&self) -> Option<&ExchangePlan> {
        self.plan.as_deref().filter(|plan| plan.is_alike())
    }
}

/// The plan, if other ranks look into it.
fn plan_to_read(plan: &Arc<ExchangePlan>) -> Option<Arc<ExchangePlan>> {
    (plan.id == 0 || plan.is_alike()).then(|| Arc::clone(plan))
}

/// Does this rank's part in an exchange whose posts [agree](super::validate): reads its pieces from what its peers
/// posted, and counts them in the ledger. Returns the result, if the exchange has one on this rank.
///
/// `members` are the participants as numbered in the launch, `me` is this rank's index among them, and `post` finds the post
/// of each of them, this rank included. The posts must live until this returns; a device with a queue keeps the buffers that
/// it still reads.
///
/// # Errors
/// [`PeerFailed`](CommError::PeerFailed), because it is too late to agree on anything: the others have begun to move elements.
/// Its origin is this rank, or the sender of elements whose checksum is wrong.
pub fn receive<'a>(
    ledger: &Ledger,
    device: &DeviceRef,
    members: &[usize],
    me: usize,
    stage: &mut Stage,
    post: impl Fn(usize) -> Option<&'a Post>,
) -> Result<Option<Buffer>> {
    let result = read(device, members, me, stage, &post);
    match result.map_err(|error| too_late(members[me], error))? {
        Read::Sums(told) => Ok(told),
        Read::Pieces(own) => Ok(received(ledger, own, me, stage)),
    }
}

/// The outcome of an exchange at a rank.
enum Read<'a> {
    /// The pieces were read, if the rank receives any; with the rank's own post.
    Pieces(&'a Post),
    /// The table of all ranks' checksums, if any rank gave some: for the communicator that moves the elements elsewhere.
    Sums(Option<Buffer>),
}

#[inline]
fn read<'a>(
    device: &DeviceRef,
    members: &[usize],
    me: usize,
    stage: &mut Stage,
    post: &impl Fn(usize) -> Option<&'a Post>,
) -> Result<Read<'a>> {
    let Stage { plan, target } = stage;
    let own = post(me).ok_or_else(|| absent(plan, me))?;
    match target {
        Target::Elsewhere => {
            let guards = (0..members.len()).map(|r| Some(&post(r)?.guard));
            let guards: SmallVec<[Option<&Guard>; 4]> = guards.collect();
            return Ok(Read::Sums(Guard::tell(&guards)?));
        }
        Target::Write(_) => read_pieces(device, plan, members, me, own, post, target)?,
        Target::Keep(_) | Target::Same | Target::Nothing => {}
    }
    Ok(Read::Pieces(own))
}

/// Counts what an exchange has moved, and takes its result.
#[inline]
pub(crate) fn received(
    ledger: &Ledger,
    own: &Post,
    me: usize,
    stage: &mut Stage,
) -> Option<Buffer> {
    ledger.moved(own.op, &stage.plan, me, own.moves);
    match std::mem::replace(&mut stage.target, Target::Nothing) {
        Target::Write(dst) => Some(dst.freeze()),
        Target::Keep(result) => Some(result),
        Target::Same => own.sources.first().cloned(),
        Target::Nothing | Target::Elsewhere => None,
    }
}

/// A rank's own error, at a point where it cannot be agreed on.
#[cold]
pub(crate) fn too_late(rank: usize, error: CommError) -> CommError {
    match error {
        CommError::PeerFailed { .. } => error,
        error => CommError::PeerFailed {
            origin: rank,
            cause: error.to_string().into(),
        },
    }
}

/// Reads pieces from the posts of their owners into the target, or keeps what one of them posted if that is the whole result.
#[inline(never)]
fn read_pieces<'a>(
    device: &DeviceRef,
    plan: &ExchangePlan,
    members: &[usize],
    me: usize,
    own: &Post,
    post: &impl Fn(usize) -> Option<&'a Post>,
    target: &mut Target,
) -> Result<()> {
    let Target::Write(dst) = target else {
        return Ok(());
    };
    // Among many ranks most have nothing for this one.
    let mut brought: SmallVec<[(&Traffic, &Post); 4]> = SmallVec::new();
    for traffic in plan.incoming() {
        let post = post(traffic.peer).ok_or_else(|| absent(plan, traffic.peer))?;
        check_sources(plan, traffic, post)?;
        if traffic.peer != me {
            device.wait(&post.event)?;
        }
        brought.push((traffic, post));
    }
    for &(Traffic { peer, .. }, post) in &brought {
        let source = |index: usize| &post.sources[index];
        if !(post.guard).holds(device, plan, me, *peer, source)? {
            return Err(not_found(plan, members[me], own, members[*peer]));
        }
    }
    let source = |peer: usize, index: usize| {
        let at = brought.partition_point(|(traffic, _)| traffic.peer < peer);
        &brought[at].1.sources[index]
    };
    // Most results are too little to be looked at.
    if dst.bytes() >= SHARED
        && device.kind() == DeviceKind::Host
        && let Some(piece) = whole(plan, dst)
    {
        let source = source(piece.peer, piece.source);
        if source.len() == dst.len() && source.is_all_of_host_memory() {
            *target = Target::Keep(source.clone());
            return Ok(());
        }
    }
    Ok(run::run(device, plan, source, dst)?)
}

/// From this many bytes on the whole memory of a peer is shared instead of copied. It is immutable, and lives as long as any
/// holder; copies of less cost no more than another holder does.
const SHARED: usize = 4096;

/// The one piece that is the whole result, from the first element of its source on.
#[inline(never)]
fn whole<'a>(plan: &'a ExchangePlan, dst: &BufferMut) -> Option<PieceRef<'a>> {
    if plan.recv.len() != 1 || plan.fold.is_some() {
        return None;
    }
    let piece = plan.recv.first()?;
    let is_all = piece.numel() == dst.len() && (piece.src_offset, piece.dst_offset) == (0, 0);
    (is_all && piece.src_view().is_contiguous() && piece.dst_view().is_contiguous())
        .then_some(piece)
}

/// Checks that a peer posted the elements that are read from it. Equal fingerprints promise that, but a plan made by hand may
/// break it.
#[inline]
fn check_sources(plan: &ExchangePlan, traffic: &Traffic, post: &Post) -> Result<()> {
    let len = |source: usize| post.sources.get(source).map_or(0, Buffer::len);
    match traffic.extents.iter().find(|e| e.1 > len(e.0)) {
        None => Ok(()),
        Some(&(source, end)) => Err(too_few(plan, traffic.peer, (source, end), len(source))),
    }
}

/// The error for a source that is read beyond its end.
#[cold]
fn too_few(
    plan: &ExchangePlan,
    peer: usize,
    (source, end): (usize, usize),
    len: usize,
) -> CommError {
    CommError::invalid(
        plan.name,
        format!("source {source} of peer {peer} to have at least {end} elements"),
        format!("{len}"),
        "give exchanges that differ different fingerprints, or zero",
    )
}

/// The error for checksums that differ.
#[cold]
fn not_found(plan: &ExchangePlan, reader: usize, own: &Post, sender: usize) -> CommError {
    let (site, op, name) = (own.site(), own.called, plan.name);
    CommError::PeerFailed {
        origin: sender,
        cause: format!(
            "rank {reader} did not find in {op} ({name}) at {site} what rank {sender} sent"
        )
        .into(),
    }
}

#[cold]
fn absent(plan: &ExchangePlan, peer: usize) -> CommError {
    CommError::invalid(
        plan.name,
        "the posts of all participants",
        format!("none of participant {peer}"),
        "receive once all have come",
    )
}

impl Claim for Post {
    fn called(&self) -> &'static str {
        self.called
    }

    fn site(&self) -> SiteText {
        self.site.into()
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn turn(&self) -> Option<u64> {
        self.guard.turn
    }

    fn status(&self) -> Option<&AgreedError> {
        self.status.as_deref()
    }

    fn argument(&self) -> Option<(&'static str, u128)> {
        self.argument
    }

    fn past(&self) -> Option<u64> {
        self.past.as_ref().map(Past::print)
    }

    fn told(&self) -> Vec<Told> {
        self.past.as_ref().map(Past::told).unwrap_or_default()
    }

    fn dtype(&self) -> Option<DType> {
        self.dtype
    }

    fn fold(&self) -> Option<Monoid> {
        self.fold
    }

    fn id(&self) -> u128 {
        self.id
    }

    fn incoming(&self) -> &[Traffic] {
        self.plan.as_deref().map_or(&[], ExchangePlan::incoming)
    }

    fn outgoing(&self) -> &[Traffic] {
        self.plan.as_deref().map_or(&[], ExchangePlan::outgoing)
    }

    fn source_len(&self, source: usize) -> usize {
        self.sources.get(source).map_or(0, Buffer::len)
    }
}
