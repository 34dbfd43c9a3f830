//! One rank's operations in flight, and how they go on.
//!
//! Starting an operation posts its first round. A blocking call carries on *all* of the rank's operations while it
//! waits for its own: it reads pieces that have become ready and posts rounds that follow. So handles may be waited
//! for in any order, and one that is dropped or forgotten still does its part.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::{SmallVec, smallvec};

use super::world::{Group, Key, Post, Slot, World};
use crate::guard::Guard;
use crate::plan::Traffic;
use crate::{
    Buffer, CommError, DType, DeviceRef, ExchangePlan, Ledger, Pending, Result, Site, SiteText,
    Stage, Target, exchange,
};

/// How often a waiting rank lets others run before it parks. A park and wake costs tens of microseconds, a yield
/// well under one; with more ranks than cores the ones that yield are soon at their own rendezvous.
const YIELDS: usize = 256;

/// And for how long, per rank that shares its core.
const YIELDING: Duration = Duration::from_micros(200);
/// But no longer than this.
const MOST_YIELDING: Duration = Duration::from_millis(2);

/// A single yield this long has run something else for a whole time slice: the machine is busy, and yielding costs
/// more than parking. The next [`BUSY_WAITS`] waits do not try.
const SLICE: Duration = Duration::from_millis(1);

/// How many waits a busy machine is believed to stay so.
const BUSY_WAITS: u32 = 64;

/// What belongs to one rank, whatever the group.
#[derive(Debug)]
pub(super) struct Rank {
    world: Arc<World>,
    number: usize,
    device: DeviceRef,
    ledger: Ledger,
    /// Operations that are posted and not finished.
    flying: RefCell<Vec<Rc<Op>>>,
    /// How many waits from now on park at once.
    busy_waits: Cell<u32>,
    ended: Cell<bool>,
}

/// An operation in flight.
#[derive(Debug)]
pub(super) struct Op {
    name: &'static str,
    site: Site,
    dtype: Option<DType>,
    /// This rank's participant number in every round.
    index: usize,
    members: Arc<[usize]>,
    state: RefCell<OpState>,
}

#[derive(Debug)]
struct OpState {
    key: Key,
    slot: Arc<Slot>,
    /// The round in progress, then those that follow, last first.
    stages: SmallVec<[Stage; 1]>,
    result: Option<Result<Option<Buffer>>>,
    dropped: bool,
}

/// What an operation starts with.
pub(super) struct Launch {
    pub(super) op: &'static str,
    pub(super) key: Key,
    pub(super) members: Arc<[usize]>,
    pub(super) index: usize,
    pub(super) stages: SmallVec<[Stage; 1]>,
    pub(super) post: Post,
}

impl Rank {
    pub(super) fn new(world: Arc<World>, number: usize, device: DeviceRef) -> Rc<Self> {
        let ledger = Ledger::new(Arc::clone(&device));
        Rc::new(Self {
            world,
            number,
            device,
            ledger,
            flying: RefCell::default(),
            busy_waits: Cell::new(0),
            ended: Cell::new(false),
        })
    }

    pub(super) fn number(&self) -> usize {
        self.number
    }

    pub(super) fn device(&self) -> &DeviceRef {
        &self.device
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(super) fn world(&self) -> &World {
        &self.world
    }

    /// Posts the first round of an operation.
    ///
    /// # Errors
    /// The root failure.
    pub(super) fn launch(&self, launch: Launch) -> Result<Rc<Op>> {
        let Launch {
            op,
            key,
            members,
            index,
            mut stages,
            post,
        } = launch;
        if self.ended.get() {
            return Err(self.world.root().unwrap_or(CommError::Closed { op }));
        }
        self.ledger
            .posted(op, key.sequence, SiteText::from(post.site));
        let (site, dtype) = (post.site, post.dtype);
        let slot = self.world.post(key, &members, index, post)?;
        stages.reverse();
        let state = OpState {
            key,
            slot,
            stages,
            result: None,
            dropped: false,
        };
        let op = Rc::new(Op {
            name: op,
            site,
            dtype,
            index,
            members,
            state: RefCell::new(state),
        });
        self.flying.borrow_mut().push(Rc::clone(&op));
        Ok(op)
    }

    /// Blocks until an operation is finished, and takes its result.
    pub(super) fn wait(&self, op: &Rc<Op>) -> Result<Option<Buffer>> {
        loop {
            self.advance(op);
            if op.state.borrow().result.is_none() {
                self.progress();
            }
            // Asked after everything has moved on, this operation included: a finished one has no slot to wait for.
            if let Some(result) = op.state.borrow_mut().result.take() {
                self.flying
                    .borrow_mut()
                    .retain(|other| !Rc::ptr_eq(other, op));
                return result;
            }
            let wanted = self.wanted(op);
            if !self.yield_until(|| wanted.iter().any(|(_, slot)| slot.outcome().is_some())) {
                self.world.park(self.number, &wanted);
            }
        }
    }

    /// The posts of a settled operation's first round.
    pub(super) fn slot_of(op: &Op) -> Arc<Slot> {
        Arc::clone(&op.state.borrow().slot)
    }

    /// Leaves an operation to this rank's later calls.
    pub(super) fn drop_op(&self, op: &Op) {
        op.state.borrow_mut().dropped = true;
        self.advance(op);
        self.forget_done();
    }

    /// Ends the rank after a normal return: finishes what is in flight, then tells the others.
    pub(super) fn finish(&self) {
        if self.ended.replace(true) {
            return;
        }
        loop {
            let Some(op) = self.flying.borrow().first().cloned() else {
                break;
            };
            // Its handle is gone, so nobody is left to hear of an error that its peers hear of themselves.
            drop(self.wait(&op));
        }
        // Queued work holds buffers, and buffers their device: undone, it would keep itself alive.
        if let Err(error) = self.device.synchronize() {
            self.world.fail(self.number, &error.to_string());
        }
        self.world.end(self.number);
    }

    /// Ends the rank after a panic.
    pub(super) fn panicked(&self, message: &str) {
        if !self.ended.replace(true) {
            self.flying.borrow_mut().clear();
            self.world
                .fail(self.number, &format!("panicked: {message}"));
            self.world.end(self.number);
        }
    }

    /// Lets others run until `ready`, a little while at most; says whether it came to be.
    fn yield_until(&self, ready: impl Fn() -> bool) -> bool {
        if self.world.one_at_a_time() {
            return ready();
        }
        let busy = self.busy_waits.get();
        if busy > 0 {
            self.busy_waits.set(busy - 1);
            return ready();
        }
        let most = (YIELDING * self.world.crowd().min(1000)).min(MOST_YIELDING);
        let (start, mut before) = (Instant::now(), Duration::ZERO);
        for _ in 0..YIELDS {
            if ready() {
                return true;
            }
            std::thread::yield_now();
            let now = start.elapsed();
            if now - before > SLICE {
                self.busy_waits.set(BUSY_WAITS);
            }
            if now > most {
                break;
            }
            before = now;
        }
        ready()
    }

    /// Carries every operation on as far as it goes without waiting.
    fn progress(&self) {
        let flying: SmallVec<[Rc<Op>; 8]> = self.flying.borrow().iter().cloned().collect();
        for op in &flying {
            self.advance(op);
        }
        self.forget_done();
    }

    /// Forgets operations that are done and whose result nobody will ask for.
    fn forget_done(&self) {
        self.flying.borrow_mut().retain(|op| {
            let state = op.state.borrow();
            !(state.dropped && state.result.is_some())
        });
    }

    /// The slots whose settling lets this rank go on: its own first, and those of operations with more to do.
    fn wanted(&self, op: &Rc<Op>) -> SmallVec<[(Key, Arc<Slot>); 2]> {
        let of = |op: &Op| {
            let state = op.state.borrow();
            (state.key, Arc::clone(&state.slot))
        };
        let mut wanted = smallvec![of(op)];
        let flying = self.flying.borrow();
        let others = flying.iter().filter(|other| {
            let other_state = other.state.borrow();
            !Rc::ptr_eq(other, op)
                && other_state.result.is_none()
                && (other_state.stages.len() > 1 || other_state.dropped)
        });
        wanted.extend(others.map(|other| of(other)));
        wanted
    }

    /// Runs the rounds of an operation that are ready.
    fn advance(&self, op: &Op) {
        let mut state = op.state.borrow_mut();
        while state.result.is_none() {
            let slot = Arc::clone(&state.slot);
            let Some(outcome) = slot.outcome() else {
                return;
            };
            let posts = match outcome {
                Ok(posts) => posts,
                Err(error) => {
                    state.result = Some(Err(error.clone()));
                    break;
                }
            };
            let Some(stage) = state.stages.pop() else {
                state.result = Some(Ok(None));
                break;
            };
            match self.read(op, stage, posts) {
                Ok(result) if state.stages.is_empty() => state.result = Some(Ok(result)),
                Ok(result) => {
                    let summed = posts[op.index].guard.sums.is_some();
                    self.post_next(op, &mut state, result, summed);
                }
                Err(error) => {
                    // The others have begun to move: too late to agree on anything.
                    let error = match error {
                        CommError::PeerFailed { .. } => error,
                        other => CommError::PeerFailed {
                            origin: self.number,
                            cause: other.to_string().into(),
                        },
                    };
                    state.result = Some(Err(self.world.fail_with(error)));
                }
            }
        }
        if state.result.is_some() {
            // What others brought is no longer needed here; the slot may be the last to hold it.
            state.slot = Arc::default();
        }
    }

    fn post_next(&self, op: &Op, state: &mut OpState, result: Option<Buffer>, summed: bool) {
        let Some(next) = state.stages.last() else {
            return;
        };
        state.key.stage += 1;
        let sources: SmallVec<[Buffer; 1]> = result.into_iter().collect();
        let guard = match guard_of(&self.device, &next.plan, &sources, summed) {
            Ok(guard) => guard,
            Err(error) => {
                let failed = CommError::PeerFailed {
                    origin: self.number,
                    cause: error.to_string().into(),
                };
                state.result = Some(Err(self.world.fail_with(failed)));
                return;
            }
        };
        let post = Post {
            op: op.name,
            plan: Arc::clone(&next.plan),
            event: self.device.record(),
            sources,
            dtype: op.dtype,
            argument: None,
            status: Ok(()),
            note: None,
            site: op.site,
            guard,
        };
        match self.world.post(state.key, &op.members, op.index, post) {
            Ok(slot) => state.slot = slot,
            Err(error) => state.result = Some(Err(error)),
        }
    }

    /// Reads this rank's pieces of a settled round.
    fn read(&self, op: &Op, stage: Stage, posts: &[Post]) -> Result<Option<Buffer>> {
        let Stage { plan, target } = stage;
        let result = match target {
            Target::Nothing => None,
            Target::Keep(result) => Some(result),
            Target::Write(dst) => {
                for traffic in plan.incoming() {
                    check_sources(&plan, traffic, &posts[traffic.peer])?;
                    if traffic.peer != op.index {
                        self.device.wait(&posts[traffic.peer].event)?;
                    }
                }
                for traffic in plan.incoming() {
                    self.check_sum(op, &plan, traffic.peer, &posts[traffic.peer])?;
                }
                let source = |peer: usize, index: usize| &posts[peer].sources[index];
                Some(exchange::run(&self.device, &plan, source, dst)?.freeze())
            }
        };
        let moved = plan.moved(op.index, op.dtype);
        tracing::trace!(
            target: "shard_comm",
            op = op.name,
            plan = plan.name,
            messages = moved.messages,
            bytes = moved.bytes,
            "received"
        );
        self.ledger.moved(op.name, &moved);
        Ok(result)
    }

    /// Compares what is read from a peer with what that one sent, if it said so.
    fn check_sum(&self, op: &Op, plan: &ExchangePlan, peer: usize, post: &Post) -> Result<()> {
        let source = |index: usize| &post.sources[index];
        if post
            .guard
            .holds(&self.device, plan, op.index, peer, source)?
        {
            return Ok(());
        }
        let (sender, site) = (op.members[peer], SiteText::from(op.site));
        Err(CommError::PeerFailed {
            origin: sender,
            cause: format!(
                "rank {} did not find in {} ({}) at {site} what rank {sender} sent",
                self.number, op.name, plan.name
            )
            .into(),
        })
    }
}

/// What a checked operation adds to its next round.
fn guard_of(
    device: &DeviceRef,
    plan: &ExchangePlan,
    sources: &[Buffer],
    summed: bool,
) -> Result<Guard> {
    let sums = summed.then(|| Guard::sums_of(device, plan, sources));
    Ok(Guard {
        turn: None,
        sums: sums.transpose()?,
    })
}

impl Drop for Rank {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.panicked("its thread is unwinding");
        } else {
            self.finish();
        }
    }
}

/// Checks that a peer brought what is read from it. Equal fingerprints promise it, which a plan made by hand may break.
fn check_sources(plan: &ExchangePlan, traffic: &Traffic, post: &Post) -> Result<()> {
    let len = |source: usize| post.sources.get(source).map_or(0, Buffer::len);
    match traffic.extents.iter().find(|e| e.1 > len(e.0)) {
        None => Ok(()),
        Some(&(source, end)) => Err(CommError::invalid(
            plan.name,
            format!(
                "source {source} of peer {} to have at least {end} elements",
                traffic.peer
            ),
            format!("{}", len(source)),
            "give exchanges that differ different fingerprints, or zero",
        )),
    }
}

/// The operation behind a [`Handle`](crate::Handle).
pub(super) struct Flight {
    pub(super) rank: Rc<Rank>,
    pub(super) op: Rc<Op>,
    /// Keeps the group's number in use while its operations fly.
    pub(super) _group: Arc<Group>,
}

impl Pending for Flight {
    fn wait(&mut self) -> Result<Option<Buffer>> {
        self.rank.wait(&self.op)
    }

    fn device(&self) -> &DeviceRef {
        self.rank.device()
    }

    fn park(&mut self) {
        self.rank.drop_op(&self.op);
    }
}
