//! One rank's operations in flight, and how they go on.
//!
//! Starting an operation posts its first round. A blocking call carries on *all* of the rank's operations while it
//! waits for its own: it reads pieces that have become ready and posts rounds that follow. So handles may be waited
//! for in any order, and one that is dropped or forgotten still does its part.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::slot::{Post, Slot};
use super::sync::{Clock, SPINS, YIELDS, yield_now};
use super::world::{Wanted, World, check_sources};
use crate::guard::Guard;
use crate::plan::Traffic;
use crate::{
    Buffer, BufferMut, CommError, DType, DeviceRef, Event, ExchangePlan, Ledger, Pending, Request,
    Result, Site, SiteText, Stage, Target, exchange,
};

/// For how long a waiting rank lets others run before it parks, per rank that shares its core; and no more than [`YIELDS`]
/// times.
const YIELDING: Duration = Duration::from_micros(200);
/// But no longer than this.
const MOST_YIELDING: Duration = Duration::from_millis(2);

/// A single yield this long has run something else for a whole time slice: the machine is busy, and yielding costs
/// more than parking. The next [`BUSY_WAITS`] waits do not try.
const SLICE: Duration = Duration::from_millis(1);

/// How many waits a busy machine is believed to stay so.
const BUSY_WAITS: u32 = 64;

/// How many waits in a row do not spin, where spinning was in vain: the system may have put two ranks on one core while
/// another idles, and then each only keeps the other from coming. After so many it is tried again.
const BARREN_WAITS: u32 = 32;

/// What belongs to one rank, whatever the group.
#[derive(Debug)]
pub(super) struct Rank {
    world: Arc<World>,
    number: usize,
    device: DeviceRef,
    ledger: Ledger,
    /// Operations that are posted, not finished, and not being waited for.
    flying: RefCell<Vec<Rc<Flying>>>,
    /// How many waits from now on park at once.
    busy_waits: Cell<u32>,
    /// How many waits from now on do not spin.
    barren_waits: Cell<u32>,
    ended: Cell<bool>,
}

/// An operation that is posted.
#[derive(Debug)]
pub(super) struct Op {
    name: &'static str,
    site: Site,
    dtype: Option<DType>,
    /// Who takes part, as ranks of the launch, and which of them this rank is.
    members: Arc<[usize]>,
    index: usize,
    /// Where the round in progress meets; `None` once there is a result.
    slot: Option<Arc<Slot>>,
    /// The round in progress, then those that follow, last first.
    stages: SmallVec<[Stage; 1]>,
    result: Option<Result<Option<Buffer>>>,
}

/// An operation with a handle, which any call of the rank carries on.
#[derive(Debug)]
pub(super) struct Flying {
    op: RefCell<Op>,
    /// Nobody will ask for the result.
    dropped: Cell<bool>,
}

impl Op {
    /// Where the operation meets, unless it has ended.
    pub(super) fn slot(&self) -> Option<&Arc<Slot>> {
        self.slot.as_ref()
    }

    fn is_ready(&self) -> bool {
        self.slot.as_ref().is_some_and(|slot| slot.is_settled())
    }

    fn wanted(&self) -> Option<Wanted> {
        Some(Wanted {
            slot: self.slot.clone()?,
            members: Arc::clone(&self.members),
            index: self.index,
        })
    }
}

impl Flying {
    /// Whether settling the slot lets others go on that wait for this rank: there is more to do.
    fn has_more(&self) -> bool {
        let op = self.op.borrow();
        op.result.is_none() && (op.stages.len() > 1 || self.dropped.get())
    }

    /// Whether nobody will ever look at it again.
    fn is_over(&self) -> bool {
        self.dropped.get() && self.op.borrow().result.is_some()
    }
}

/// Where an operation starts.
pub(super) struct Call {
    pub(super) op: &'static str,
    pub(super) slot: Arc<Slot>,
    pub(super) members: Arc<[usize]>,
    pub(super) index: usize,
    /// What others learn of this rank.
    pub(super) note: Option<(usize, usize)>,
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
            barren_waits: Cell::new(0),
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
    #[inline]
    pub(super) fn launch(&self, call: Call, request: &mut Request) -> Result<Op> {
        if self.ended.get() {
            let closed = CommError::Closed { op: call.op };
            return Err(self.world.root().unwrap_or(closed));
        }
        let site = SiteText::from(request.site);
        self.ledger.posted(call.op, call.slot.sequence, site);
        // What is moved is large, so it is taken from where it is to where it will lie.
        let post = || self.first_post(&call, request);
        (self.world).post(&call.slot, &call.members, call.index, post)?;
        request.stages.reverse();
        Ok(Op {
            name: call.op,
            site: request.site,
            dtype: request.dtype,
            members: call.members,
            index: call.index,
            slot: Some(call.slot),
            stages: std::mem::take(&mut request.stages),
            result: None,
        })
    }

    /// What this rank brings to the first rendezvous of an operation.
    #[inline]
    fn first_post(&self, call: &Call, request: &mut Request) -> Post {
        let first = request.stages.first().map(|stage| &stage.plan);
        let event = match request.sources.is_empty() {
            true => Event::ready(),
            false => self.device.record(),
        };
        Post {
            op: call.op,
            name: first.map_or(call.op, |plan| plan.name),
            id: first.map_or(0, |plan| plan.id),
            fold: first.and_then(|plan| plan.fold),
            plan: first.and_then(Post::plan_to_read),
            event,
            sources: std::mem::take(&mut request.sources),
            dtype: request.dtype,
            argument: request.argument,
            status: std::mem::replace(&mut request.status, Ok(())).err(),
            note: call.note,
            site: request.site,
            guard: std::mem::take(&mut request.guard),
        }
    }

    /// Gives an operation a handle.
    pub(super) fn fly(&self, op: Op) -> Rc<Flying> {
        let flying = Rc::new(Flying {
            op: RefCell::new(op),
            dropped: Cell::new(false),
        });
        self.flying.borrow_mut().push(Rc::clone(&flying));
        flying
    }

    /// Blocks until an operation with a handle is finished, and takes its result.
    pub(super) fn land(&self, flying: &Rc<Flying>) -> Result<Option<Buffer>> {
        let others = |other: &Rc<Flying>| !Rc::ptr_eq(other, flying);
        self.flying.borrow_mut().retain(others);
        self.wait(&mut flying.op.borrow_mut())
    }

    /// Blocks until an operation is finished, and takes its result.
    pub(super) fn wait(&self, op: &mut Op) -> Result<Option<Buffer>> {
        let mut done = op.result.take();
        loop {
            done = done.or_else(|| self.go_on(op));
            // Even if there is a result: a meeting that is over and not left keeps all later ones, and what they read.
            if !self.flying.borrow().is_empty() {
                self.progress();
            }
            if let Some(result) = done {
                return result;
            }
            let ready = || self.can_go_on(op);
            if !self.yield_until(|| ready() || self.world.has_failed()) || !ready() {
                self.world.park(self.number, self.wanted(op));
            }
        }
    }

    /// Carries all operations with a handle on; whether this one is finished.
    fn is_done(&self, flying: &Flying) -> bool {
        self.progress();
        flying.op.borrow().result.is_some()
    }

    /// Waits until this operation or any other one with a handle may have gone on.
    fn rest(&self, flying: &Rc<Flying>) {
        let all = self.flying.borrow();
        // A look at one carries all on, so one that was looked at before may be done unseen.
        let unseen = |one: &Rc<Flying>| !one.dropped.get() && one.op.borrow().result.is_some();
        if all.iter().any(unseen) {
            return;
        }
        let mut wanted: SmallVec<[Wanted; 1]> = flying.op.borrow().wanted().into_iter().collect();
        let others = all.iter().filter(|other| !Rc::ptr_eq(other, flying));
        wanted.extend(others.filter_map(|other| other.op.borrow().wanted()));
        let ready = || wanted.iter().any(|w| w.slot.is_settled());
        if !self.yield_until(|| ready() || self.world.has_failed()) || !ready() {
            self.world.park(self.number, wanted);
        }
    }

    /// Leaves an operation to this rank's later calls.
    pub(super) fn leave(&self, flying: &Flying) {
        flying.dropped.set(true);
        self.advance(&mut flying.op.borrow_mut());
        self.forget_done();
    }

    /// Ends the rank after a normal return: finishes what is in flight, then tells the others.
    pub(super) fn finish(&self) {
        if self.ended.replace(true) {
            return;
        }
        loop {
            let Some(flying) = self.flying.borrow().first().cloned() else {
                break;
            };
            // Its handle is gone, so nobody is left to hear of an error that its peers hear of themselves.
            drop(self.land(&flying));
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
        if ready() {
            return true;
        }
        if self.world.one_at_a_time() {
            return false;
        }
        let busy = self.busy_waits.get();
        if busy > 0 {
            self.busy_waits.set(busy - 1);
            return false;
        }
        if self.world.has_cores() && self.spin_until(&ready) {
            return true;
        }
        // Of many ranks on few cores most find what they wait for after one turn of the others, and need no clock.
        yield_now();
        if ready() {
            return true;
        }
        let most = (YIELDING * self.world.crowd().min(1000)).min(MOST_YIELDING);
        let (start, mut before) = (Clock::start(), Duration::ZERO);
        for _ in 1..YIELDS {
            yield_now();
            if ready() {
                return true;
            }
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

    /// Looks for about a microsecond, unless that was in vain lately.
    fn spin_until(&self, ready: &impl Fn() -> bool) -> bool {
        let barren = self.barren_waits.get();
        if barren > 0 {
            self.barren_waits.set(barren - 1);
            return false;
        }
        for _ in 0..SPINS {
            std::hint::spin_loop();
            if ready() {
                return true;
            }
        }
        self.barren_waits.set(BARREN_WAITS);
        false
    }

    /// Carries every operation with a handle on as far as it goes without waiting.
    fn progress(&self) {
        let flying: SmallVec<[Rc<Flying>; 8]> = self.flying.borrow().iter().cloned().collect();
        for one in &flying {
            self.advance(&mut one.op.borrow_mut());
        }
        self.forget_done();
    }

    /// Forgets operations that are done and whose result nobody will ask for.
    fn forget_done(&self) {
        self.flying.borrow_mut().retain(|one| !one.is_over());
    }

    /// Whether a slot that lets this rank go on is settled.
    fn can_go_on(&self, op: &Op) -> bool {
        let more = |other: &Rc<Flying>| other.has_more() && other.op.borrow().is_ready();
        op.is_ready() || self.flying.borrow().iter().any(more)
    }

    /// The slots whose settling lets this rank go on: its own first, and those of operations with more to do.
    fn wanted(&self, op: &Op) -> SmallVec<[Wanted; 1]> {
        let flying = self.flying.borrow();
        let others = flying.iter().filter(|other| other.has_more());
        let others = others.filter_map(|other| other.op.borrow().wanted());
        op.wanted().into_iter().chain(others).collect()
    }

    /// Runs the rounds of an operation with a handle that are ready.
    fn advance(&self, op: &mut Op) {
        if op.result.is_none() {
            op.result = self.go_on(op);
        }
    }

    /// Runs the rounds of an operation that are ready; its result if they were the last.
    fn go_on(&self, op: &mut Op) -> Option<Result<Option<Buffer>>> {
        // What others brought is no longer needed once there is a result; the slot may be the last to hold it.
        while let Some(slot) = op.slot.take_if(|slot| slot.is_settled()) {
            let of_all = match slot.outcome()? {
                Ok(of_all) => of_all,
                Err(error) => return Some(Err(error.clone())),
            };
            let Some(stage) = op.stages.pop() else {
                return Some(Ok(None));
            };
            let read = match self.read(op, stage, &slot, of_all) {
                Ok(result) if op.stages.is_empty() => return Some(Ok(result)),
                Ok(result) => self.post_next(op, &slot, result),
                // The others have begun to move: too late to agree on anything.
                Err(error @ CommError::PeerFailed { .. }) => Err(self.world.fail_with(error)),
                Err(error) => Err(self.world.fail_with(self.failed_by(&error))),
            };
            if let Err(error) = read {
                return Some(Err(error));
            }
        }
        None
    }

    /// An error that only this rank has, where it cannot be agreed on.
    fn failed_by(&self, error: &CommError) -> CommError {
        CommError::PeerFailed {
            origin: self.number,
            cause: error.to_string().into(),
        }
    }

    /// Goes on to the next round with the result of this one.
    fn post_next(&self, op: &mut Op, slot: &Slot, result: Option<Buffer>) -> Result<()> {
        let Some(next) = op.stages.last() else {
            return Ok(());
        };
        let sources: SmallVec<[Buffer; 1]> = result.into_iter().collect();
        let summed = slot.post(op.index).is_some_and(|p| p.guard.sums.is_some());
        let guard = guard_of(&self.device, &next.plan, &sources, summed)
            .map_err(|error| self.world.fail_with(self.failed_by(&error)))?;
        let plan = &next.plan;
        let post = || Post {
            op: op.name,
            name: plan.name,
            id: plan.id,
            fold: plan.fold,
            plan: Post::plan_to_read(plan),
            sources,
            event: self.device.record(),
            dtype: op.dtype,
            argument: None,
            status: None,
            note: None,
            site: op.site,
            guard,
        };
        let slot = slot.next_round();
        self.world.post(&slot, &op.members, op.index, post)?;
        op.slot = Some(slot);
        Ok(())
    }

    /// Reads this rank's pieces of a settled round.
    fn read(
        &self,
        op: &Op,
        stage: Stage,
        slot: &Slot,
        of_all: Option<&Buffer>,
    ) -> Result<Option<Buffer>> {
        let Stage { plan, target } = stage;
        let result = match target {
            Target::Elsewhere => return told(slot),
            Target::Nothing => None,
            Target::Keep(result) => Some(result),
            Target::Write(dst) => Some(match of_all {
                Some(result) if plan.is_alike() && result.len() == dst.len() => {
                    self.take_over(result, dst)?
                }
                _ => self.read_pieces(op, &plan, slot, dst)?,
            }),
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

    /// Copies what was found for all ranks.
    fn take_over(&self, result: &Buffer, mut dst: BufferMut) -> Result<Buffer> {
        self.device.copy_run(result, 0..result.len(), &mut dst, 0)?;
        Ok(dst.freeze())
    }

    /// Reads pieces from those who brought them.
    fn read_pieces(
        &self,
        op: &Op,
        plan: &ExchangePlan,
        slot: &Slot,
        dst: BufferMut,
    ) -> Result<Buffer> {
        // Of many ranks most bring nothing for this one. All have come.
        let peers = plan.incoming().iter();
        let brought = peers.filter_map(|traffic| Some((traffic, slot.post(traffic.peer)?)));
        let brought: SmallVec<[(&Traffic, &Post); 4]> = brought.collect();
        for &(traffic, post) in &brought {
            check_sources(plan, traffic, post)?;
            if traffic.peer != op.index {
                self.device.wait(&post.event)?;
            }
        }
        for &(traffic, post) in &brought {
            self.check_sum(op, plan, traffic.peer, op.members[traffic.peer], post)?;
        }
        let source = |peer: usize, index: usize| {
            let at = brought.partition_point(|(traffic, _)| traffic.peer < peer);
            &brought[at].1.sources[index]
        };
        Ok(exchange::run(&self.device, plan, source, dst)?.freeze())
    }

    /// Compares what is read from a peer with what that one sent, if it said so.
    fn check_sum(
        &self,
        op: &Op,
        plan: &ExchangePlan,
        peer: usize,
        sender: usize,
        post: &Post,
    ) -> Result<()> {
        let source = |index: usize| &post.sources[index];
        if post
            .guard
            .holds(&self.device, plan, op.index, peer, source)?
        {
            return Ok(());
        }
        let site = SiteText::from(op.site);
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

/// What all said that their peers should find, for who moves the elements; nothing if nobody did.
fn told(slot: &Slot) -> Result<Option<Buffer>> {
    let guards: SmallVec<[Option<&Guard>; 4]> = slot.posts().map(|p| Some(&p?.guard)).collect();
    Guard::tell(&guards)
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

/// The operation behind a [`Handle`](crate::Handle).
pub(super) struct Flight {
    pub(super) rank: Rc<Rank>,
    pub(super) flying: Rc<Flying>,
}

impl Pending for Flight {
    fn wait(&mut self) -> Result<Option<Buffer>> {
        self.rank.land(&self.flying)
    }

    fn is_done(&mut self) -> bool {
        self.rank.is_done(&self.flying)
    }

    fn rest(&mut self) {
        self.rank.rest(&self.flying);
    }

    fn device(&self) -> &DeviceRef {
        self.rank.device()
    }

    fn ledger(&self) -> Option<&Ledger> {
        Some(&self.rank.ledger)
    }

    fn park(&mut self) {
        self.rank.leave(&self.flying);
    }
}
