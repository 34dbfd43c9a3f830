//! One process' operations in flight, and how they go on.
//!
//! A blocking call carries on *all* operations of the process while it waits for its own. So handles may be waited for
//! in any order, and an operation whose handle is dropped or forgotten still does its part.

mod ending;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::MpiOptions;
use super::all_gather::AllGather;
use super::details::END;
use super::node::{Board, Node};
use super::notice::{self, Letterbox, Notice};
use super::op::Op;
use super::raw::{self, Mail, World};
use super::short::Begun;
use super::tags::{Contexts, TagBits, Tags};
use super::wire::WireCache;
use crate::Request;
use crate::validate::label;
use crate::{
    Buffer, CommError, DeviceRef, Host, Ledger, Pending, Result, SiteText, TimeoutReport, WaitLine,
};

/// How often a waiting process polls before it lets others run between polls, where each process has a core.
const SPINS: u32 = 64;

/// After this many polls a waiting process also carries on its other operations, and reads notices.
const ROUND: u32 = 16;

/// After this long a waiting process sleeps between polls: nothing will come within microseconds.
const PATIENT: Duration = Duration::from_millis(50);
const NAP: Duration = Duration::from_micros(100);

/// How long after a process left its last messages may still arrive.
const PARTING: Duration = Duration::from_millis(100);

/// The state of this process, shared by all its groups.
#[derive(Debug)]
pub(super) struct Rank {
    world: World,
    everyone: Rc<[usize]>,
    device: DeviceRef,
    /// Whether small work may be done in the device's memory without telling the device.
    plain: bool,
    /// Whether groups use the memory that the processes of a node share.
    shares: bool,
    ledger: Ledger,
    timeout: Option<Duration>,
    /// Operations that are posted and not finished.
    flying: RefCell<Vec<Rc<Op>>>,
    /// Messages of finished operations that are still leaving.
    leaving: RefCell<Vec<Mail>>,
    /// All-gathers of records that are done and may be used again.
    #[expect(
        clippy::vec_box,
        reason = "operations keep them boxed, as they are large to move"
    )]
    spare: RefCell<Vec<Box<AllGather>>>,
    letterbox: RefCell<Letterbox>,
    /// The first failure.
    root: RefCell<Option<CommError>>,
    /// Ranks that have ended.
    ended: RefCell<BTreeSet<usize>>,
    closed: Cell<bool>,
    /// The context numbers of groups, free and taken.
    contexts: Rc<Contexts>,
}

/// How far an operation has come that its caller waits for.
pub(super) enum Called {
    /// It cannot begin yet.
    Held,
    /// It has begun.
    Begun(Begun),
    /// It is done.
    Done,
}

impl Rank {
    pub(super) fn new(
        world: World,
        ranks: usize,
        options: &MpiOptions,
        run: u64,
    ) -> Result<Rc<Self>> {
        let device = Host::with_options(options.host);
        let letterbox = RefCell::new(Letterbox::new(&world, run)?);
        let granted = world.greatest_tag();
        let greatest = options.greatest_tag.unwrap_or(granted).min(granted);
        raw::set_broken(true);
        Ok(Rc::new(Self {
            world,
            everyone: (0..ranks).collect(),
            ledger: Ledger::new(Arc::clone(&device)),
            device,
            plain: !options.host.meter,
            shares: options.shared_memory,
            timeout: options.timeout,
            flying: RefCell::default(),
            leaving: RefCell::default(),
            spare: RefCell::default(),
            letterbox,
            root: RefCell::default(),
            ended: RefCell::default(),
            closed: Cell::new(false),
            contexts: Contexts::new(TagBits::new(greatest)),
        }))
    }

    pub(super) fn world(&self) -> &World {
        &self.world
    }

    /// The memory that the processes of this node share, if groups are to use it.
    pub(super) fn node(&self) -> Option<&Rc<Node>> {
        self.world.node().filter(|_| self.shares)
    }

    pub(super) fn everyone(&self) -> &Rc<[usize]> {
        &self.everyone
    }

    pub(super) fn device(&self) -> &DeviceRef {
        &self.device
    }

    /// Between polls: where there are fewer cores than processes, what this one waits for needs its core. The operations in flight go
    /// on, if there are more than the caller's `own`.
    fn give_way(&self, own: usize) {
        if self.world.node().is_some_and(|node| node.is_crowded()) {
            self.progress(own);
            std::thread::yield_now();
        }
    }

    /// Whether small work may be done in the device's memory without telling the device.
    pub(super) fn is_plain(&self) -> bool {
        self.plain
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The context numbers of groups.
    pub(super) fn contexts(&self) -> &Rc<Contexts> {
        &self.contexts
    }

    /// An all-gather of records to begin: one that is done, or a new one.
    pub(super) fn spare(&self) -> Box<AllGather> {
        let spare = self.spare.borrow_mut().pop();
        spare.unwrap_or_else(|| Box::new(AllGather::idle()))
    }

    /// Keeps an all-gather of records that is done, to be used again.
    pub(super) fn keep_spare(&self, records: Box<AllGather>) {
        /// As many as there are usually operations in flight.
        const MOST: usize = 8;
        let mut spare = self.spare.borrow_mut();
        if spare.len() < MOST {
            spare.push(records);
        }
    }

    /// Posts an operation.
    ///
    /// # Errors
    /// The first failure, or an error of MPI.
    pub(super) fn start(
        &self,
        tags: Tags,
        mut request: Request,
        wires: &Rc<WireCache>,
    ) -> Result<Rc<Op>> {
        self.check_open(&request)?;
        self.note(&tags, &request);
        if self.is_held(&tags) {
            let op = Rc::new(Op::held(tags, request, Rc::clone(wires)));
            self.flying.borrow_mut().push(Rc::clone(&op));
            return Ok(op);
        }
        let begun = self.or_fail(Begun::new(self, &tags, &mut request, wires))?;
        self.set_off(tags, request, begun)
    }

    /// Begins an operation that the caller waits for, and finishes it if everything comes with the records: then it need not be listed
    /// as in flight, and its result goes to `result`. The request stays where it is, as it is large.
    ///
    /// # Errors
    /// Whatever went wrong.
    pub(super) fn call(
        &self,
        tags: &Tags,
        request: &mut Request,
        wires: &WireCache,
        result: &mut Option<Buffer>,
    ) -> Result<Called> {
        if self.is_held(tags) {
            return Ok(Called::Held);
        }
        self.check_open(request)?;
        let begun = Begun::new(self, tags, request, wires);
        // Only now, while the record is under way.
        self.note(tags, request);
        let mut begun = self.or_fail(begun)?;
        if begun.is_short(tags, request) {
            let done = self.finish_short(tags, request, &mut begun, result);
            if self.or_fail(done)? {
                begun.records.keep(self);
                return Ok(Called::Done);
            }
        }
        Ok(Called::Begun(begun))
    }

    /// Whether operations may begin.
    fn check_open(&self, request: &Request) -> Result<()> {
        if let Some(root) = &*self.root.borrow() {
            return Err(root.clone());
        }
        if self.closed.get() {
            return Err(CommError::Closed { op: request.name() });
        }
        Ok(())
    }

    /// Tells the flight recorder of an operation.
    fn note(&self, tags: &Tags, request: &Request) {
        (self.ledger).posted(request.name(), tags.sequence, request.site);
    }

    /// Whether an operation cannot begin yet: before other ones are done, because they have the same tags, or before all have read the
    /// records of other ones.
    pub(super) fn is_held(&self, tags: &Tags) -> bool {
        let has_room = |board: &Rc<Board>| board.has_room(tags.sequence);
        self.holds(tags).is_some() || !tags.board.as_ref().is_none_or(has_room)
    }

    /// An operation in flight that must be done before this one begins.
    fn holds(&self, tags: &Tags) -> Option<Rc<Op>> {
        let last = tags.last_gone()?;
        let flying = self.flying.borrow();
        let mut earlier = flying
            .iter()
            .filter(|op| op.tags.sequence <= last && op.tags.is_before(tags));
        let holds = earlier.find(|op| op.state.borrow().result.is_none());
        holds.cloned()
    }

    /// Puts an operation in flight.
    pub(super) fn set_off(&self, tags: Tags, request: Request, begun: Begun) -> Result<Rc<Op>> {
        let complete = begun.complete;
        let op = Rc::new(Op::new(tags, request, begun));
        // Once the operation has begun, more of it may be posted, unless everything has gone with the record.
        if !complete {
            self.or_fail(op.advance(self))?;
        }
        self.flying.borrow_mut().push(Rc::clone(&op));
        Ok(op)
    }

    /// Waits a while for everybody's record, and finishes the operation if it needs no more. Returns whether it did.
    fn finish_short(
        &self,
        tags: &Tags,
        request: &mut Request,
        begun: &mut Begun,
        result: &mut Option<Buffer>,
    ) -> Result<bool> {
        for look in 1..=SPINS {
            if begun.records.advance(self, tags)? {
                return begun.finish(self, tags, request, result);
            }
            self.give_way(0);
            if look.is_multiple_of(ROUND) {
                self.progress(0);
                self.read_notices();
                if self.root.borrow().is_some() {
                    break;
                }
            }
        }
        Ok(false)
    }

    /// Returns the result; an error becomes a failure of this rank.
    fn or_fail<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| self.fail(&error.to_string()))
    }

    /// Blocks until an operation is finished, and takes its result.
    pub(super) fn wait(&self, op: &Rc<Op>) -> Result<Option<Buffer>> {
        self.wait_until(op, self.timeout, |_| ())
    }

    /// Carries on all operations, and returns whether this one is finished.
    fn is_done(&self, op: &Op) -> bool {
        self.advance(op);
        if op.state.borrow().result.is_none() {
            self.progress(1);
            self.read_notices();
            if let Some(root) = &*self.root.borrow() {
                self.give_up(op, root);
            } else {
                self.miss(op, &self.ended.borrow(), "it ended");
            }
        }
        op.state.borrow().result.is_some()
    }

    /// The first failure, if it is known.
    pub(super) fn failure(&self) -> Option<CommError> {
        if self.root.borrow().is_none() {
            self.read_notices();
        }
        self.root.borrow().clone()
    }

    fn wait_until(
        &self,
        op: &Rc<Op>,
        timeout: Option<Duration>,
        mut meanwhile: impl FnMut(Duration),
    ) -> Result<Option<Buffer>> {
        let mut start = None;
        let mut looks = 0_u32;
        loop {
            self.advance(op);
            if let Some(result) = op.state.borrow_mut().result.take() {
                self.flying
                    .borrow_mut()
                    .retain(|other| !Rc::ptr_eq(other, op));
                return result;
            }
            looks = looks.saturating_add(1);
            if !looks.is_multiple_of(ROUND) {
                self.give_way(1);
                continue;
            }
            self.progress(1);
            self.read_notices();
            if let Some(root) = &*self.root.borrow() {
                self.give_up(op, root);
                continue;
            }
            if op.name != END {
                self.miss(op, &self.ended.borrow(), "it ended");
            }
            if looks < SPINS {
                self.give_way(1);
                continue;
            }
            let waited = start.get_or_insert_with(Instant::now).elapsed();
            // Messages that a process sent before it left may still be coming.
            if waited > PARTING {
                self.miss(op, &notice::left(), "its process left the job");
            }
            if timeout.is_some_and(|most| waited > most) {
                self.time_out(op, waited);
                continue;
            }
            meanwhile(waited);
            if waited > PATIENT {
                std::thread::sleep(NAP);
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Whether an earlier operation of the same group, or an earlier message of the same pair, is in flight.
    pub(super) fn has_earlier(&self, tags: &Tags) -> bool {
        let flying = self.flying.borrow();
        let mut earlier = flying.iter().filter(|op| op.tags.is_before(tags));
        earlier.any(|op| op.state.borrow().result.is_none())
    }

    /// Leaves an operation to later calls.
    pub(super) fn drop_op(&self, op: &Op) {
        op.state.borrow_mut().dropped = true;
        self.advance(op);
        self.forget_done();
    }

    /// Gives up: tells all others, and fails this rank's operations.
    pub(super) fn fail(&self, cause: &str) {
        self.fail_all(CommError::PeerFailed {
            origin: self.world.rank(),
            cause: cause.into(),
        });
    }

    /// As [`Rank::fail`], with the failure of some rank.
    pub(super) fn fail_all(&self, error: CommError) {
        if self.root.borrow().is_some() {
            return;
        }
        if let CommError::PeerFailed { origin, cause } = &error {
            let notice = Notice::Failed {
                origin: *origin,
                cause: cause.to_string(),
            };
            self.tell(&notice);
        }
        self.hear(error);
    }

    /// Records a failure; the first one stands.
    pub(super) fn hear(&self, error: CommError) {
        self.root.borrow_mut().get_or_insert(error);
    }

    fn tell(&self, notice: &Notice) {
        let me = self.world.rank();
        let others = self.everyone.iter().copied().filter(|&r| r != me);
        // Ranks that a notice cannot reach learn of it when the job ends.
        drop(
            self.letterbox
                .borrow_mut()
                .tell(&self.world, others, notice),
        );
    }

    fn read_notices(&self) {
        let notice = self.letterbox.borrow_mut().look(&self.world);
        match notice {
            Ok(None | Some(Notice::Left { .. })) => {}
            Ok(Some(Notice::Failed { origin, cause })) => self.hear(CommError::PeerFailed {
                origin,
                cause: cause.into(),
            }),
            Ok(Some(Notice::Ended { rank })) => {
                self.ended.borrow_mut().insert(rank);
            }
            Err(error) => self.hear(error),
        }
    }

    /// Fails if an operation waits for a rank that has gone.
    fn miss(&self, op: &Op, gone: &BTreeSet<usize>, how: &str) {
        if gone.is_empty() || self.root.borrow().is_some() {
            return;
        }
        let holds = self.holds(&op.tags);
        let op = holds.as_deref().unwrap_or(op);
        let Some(&origin) = op.peers().iter().find(|peer| gone.contains(peer)) else {
            return;
        };
        let cause = format!(
            "{how} without joining {} (operation {} of {}), which rank {} called at {}",
            op.called(),
            op.tags.sequence,
            label(&op.tags.members),
            self.world.rank(),
            SiteText::from(op.site)
        );
        self.fail_all(CommError::PeerFailed {
            origin,
            cause: cause.into(),
        });
    }

    fn time_out(&self, op: &Op, waited: Duration) {
        let report = TimeoutReport {
            waited,
            wait: WaitLine {
                rank: self.world.rank(),
                op: op.called(),
                group: label(&op.tags.members),
                sequence: op.tags.sequence,
                site: op.site.into(),
                missing: self.holds(&op.tags).as_deref().unwrap_or(op).peers(),
            },
            recent: self.ledger.recent(),
            others: Vec::new(),
        };
        let error = CommError::TimedOut(Arc::new(report));
        // The others get a short text, because the list of operations is this rank's own.
        self.tell(&Notice::Failed {
            origin: self.world.rank(),
            cause: error.to_string(),
        });
        self.hear(error);
    }

    /// Ends an operation with the first failure, whatever has become of its messages.
    fn give_up(&self, op: &Op, root: &CommError) {
        op.state
            .borrow_mut()
            .result
            .get_or_insert(Err(root.clone()));
    }

    fn advance(&self, op: &Op) {
        if let Err(error) = op.advance(self) {
            self.fail(&error.to_string());
            self.give_up(op, &error);
        }
    }

    /// Carries on every operation as far as it goes without waiting, if there are more than the caller's `own`.
    fn progress(&self, own: usize) {
        if self.flying.borrow().len() > own {
            let flying: SmallVec<[Rc<Op>; 8]> = self.flying.borrow().iter().cloned().collect();
            for op in &flying {
                self.advance(op);
            }
            self.forget_done();
        }
        let mut leaving = self.leaving.borrow_mut();
        if !leaving.is_empty() {
            leaving.retain_mut(|mail| !matches!(mail.test(), Ok(true)));
        }
    }

    /// Keeps messages of a finished operation until they have left.
    pub(super) fn see_off(&self, mut mail: Mail) -> Result<()> {
        if !mail.test()? {
            self.leaving.borrow_mut().push(mail);
        }
        Ok(())
    }

    /// Forgets operations that are done and whose result nobody will ask for.
    fn forget_done(&self) {
        self.flying.borrow_mut().retain(|op| {
            let state = op.state.borrow();
            !(state.dropped && state.result.is_some())
        });
    }
}

/// The operation behind a [`Handle`](crate::Handle).
pub(super) struct InFlight {
    pub(super) rank: Rc<Rank>,
    pub(super) op: Rc<Op>,
}

impl Pending for InFlight {
    fn wait(&mut self) -> Result<Option<Buffer>> {
        self.rank.wait(&self.op)
    }

    fn is_done(&mut self) -> bool {
        self.rank.is_done(&self.op)
    }

    fn device(&self) -> &DeviceRef {
        self.rank.device()
    }

    fn ledger(&self) -> Option<&Ledger> {
        Some(self.rank.ledger())
    }

    fn park(&mut self) {
        self.rank.drop_op(&self.op);
    }
}
