//! One rank's operations in flight, and how they go on.
//!
//! Operations of groups are queued on one stream in the order in which they were posted, each once its ranks agree. In a
//! program that posts in the same order on all ranks, this order is the same on all ranks, as the library requires. Messages
//! have a stream and a communicator of their own: all messages whose two ends agree are queued together, so that ranks that
//! send to each other and then receive do not wait for each other.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::course::{Course, Means, Messages, Queued};
use super::group::GroupHandle;
use super::landing::{Landed, Staging};
use super::library::cuda;
use super::op::{Lane, Op, State, Step};
use super::options::NcclOptions;
use crate::Target;
use crate::guard::PeerSums;
use crate::validate::label;
use crate::{
    Buffer, CommError, Communicator, DeviceRef, ErrorClass, Ledger, Pending, Result, SiteText,
    TimeoutReport, WaitLine,
};

/// How often a waiting rank polls before it lets others run between polls.
const SPINS: u32 = 64;
/// After this many polls it also asks the library what has gone wrong.
const ROUND: u32 = 64;
/// After this long it sleeps between polls.
const PATIENT: Duration = Duration::from_millis(50);
const NAP: Duration = Duration::from_micros(100);
/// A rest shorter than this counts as none.
const REST: Duration = Duration::from_micros(10);

/// The state of one rank, shared by all its groups.
#[derive(Debug)]
pub(super) struct Rank {
    /// The communicator of all ranks, over which they agree and learn of failures.
    pub(super) control: Rc<dyn Communicator>,
    pub(super) device: DeviceRef,
    /// The streams for operations of groups and for messages.
    streams: [DeviceRef; 2],
    /// The library's group for messages: that of all ranks.
    pub(super) messages: Rc<GroupHandle>,
    groups: RefCell<Vec<Weak<GroupHandle>>>,
    pub(super) ledger: Ledger,
    pub(super) options: NcclOptions,
    /// Operations of groups that are not yet queued, in order.
    waiting: RefCell<VecDeque<Rc<Op>>>,
    /// Operations that are posted and not finished.
    flying: RefCell<Vec<Rc<Op>>>,
    /// Messages whose calls are under way.
    batch: RefCell<Option<Messages>>,
    /// Messages that this rank sent to itself: the communicator, the number of the message, and its elements.
    to_myself: RefCell<Vec<(Rc<GroupHandle>, u64, Buffer)>>,
    root: RefCell<Option<CommError>>,
    closed: Cell<bool>,
}

impl Rank {
    pub(super) fn new(
        control: Rc<dyn Communicator>,
        device: DeviceRef,
        streams: [DeviceRef; 2],
        messages: Rc<GroupHandle>,
        options: NcclOptions,
    ) -> Rc<Self> {
        let rank = Self {
            control,
            ledger: Ledger::new(Arc::clone(&device)),
            device,
            streams,
            groups: RefCell::new(vec![Rc::downgrade(&messages)]),
            messages,
            options,
            waiting: RefCell::default(),
            flying: RefCell::default(),
            batch: RefCell::default(),
            to_myself: RefCell::default(),
            root: RefCell::default(),
            closed: Cell::new(false),
        };
        Rc::new(rank)
    }

    /// The places of ranks of the launch in the library's group of all ranks.
    pub(super) fn places(&self, members: &[usize]) -> Rc<[usize]> {
        let all = self.control.members().iter().enumerate();
        let places: HashMap<usize, usize> = all.map(|(place, &rank)| (rank, place)).collect();
        let place = |rank: &usize| places.get(rank).copied().unwrap_or(*rank);
        members.iter().map(place).collect()
    }

    /// The number of this rank in the launch.
    pub(super) fn number(&self) -> usize {
        let control = &self.control;
        (control.members().get(control.rank())).map_or(control.rank(), |&rank| rank)
    }

    /// The stream of a lane.
    pub(super) fn stream(&self, lane: Lane) -> &DeviceRef {
        match lane {
            Lane::Groups => &self.streams[0],
            Lane::Messages | Lane::Myself => &self.streams[1],
        }
    }

    /// Remembers a group of the library, to end it when the rank ends.
    pub(super) fn add_group(&self, group: &Rc<GroupHandle>) {
        let mut groups = self.groups.borrow_mut();
        groups.retain(|group| group.strong_count() > 0);
        groups.push(Rc::downgrade(group));
    }

    /// Whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.flying.borrow().is_empty()
    }

    /// Whether calls may be made.
    ///
    /// # Errors
    /// The first failure; [`CommError::Closed`].
    pub(super) fn open(&self, op: &'static str) -> Result<()> {
        match (&*self.root.borrow(), self.closed.get()) {
            (Some(root), _) => Err(root.clone()),
            (None, true) => Err(CommError::Closed { op }),
            (None, false) => Ok(()),
        }
    }

    /// Puts an operation in flight.
    pub(super) fn start(&self, op: &Rc<Op>, silent: bool) {
        if op.lane == Lane::Groups && !silent {
            self.waiting.borrow_mut().push_back(Rc::clone(op));
        }
        self.flying.borrow_mut().push(Rc::clone(op));
        self.progress();
    }

    /// Blocks until an operation is finished, and takes its result.
    pub(super) fn wait(&self, op: &Rc<Op>) -> Result<Option<Buffer>> {
        self.wait_until(op, || op.is_done());
        let result = op.state.borrow_mut().result.take();
        self.flying
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, op));
        result.unwrap_or(Ok(None))
    }

    /// Finishes all operations of a group that are posted, because the library does not split a group that has work to do. All
    /// ranks have posted these operations.
    ///
    /// # Errors
    /// The first failure.
    pub(super) fn drain(&self, group: &Rc<GroupHandle>) -> Result<()> {
        let last = || {
            let flying = self.flying.borrow();
            let of_group = |op: &&Rc<Op>| Rc::ptr_eq(&op.group, group) && !op.is_done();
            flying.iter().rev().find(of_group).cloned()
        };
        while let Some(op) = last() {
            self.wait_until(&op, || op.is_done());
        }
        self.open("split")
    }

    /// Carries everything on until `done`, which concerns this operation.
    fn wait_until(&self, op: &Rc<Op>, done: impl Fn() -> bool) {
        let (begun, mut looks) = (Instant::now(), 0_u32);
        loop {
            self.progress();
            if done() {
                return;
            }
            if self.has_failed() {
                self.give_up();
                continue;
            }
            let rested = self.rest(op);
            looks = looks.saturating_add(1);
            if looks.is_multiple_of(ROUND) {
                if let Err(error) = op.group.check() {
                    self.fail(&error);
                    continue;
                }
                let waited = begun.elapsed();
                if self.options.timeout.is_some_and(|most| waited > most) {
                    self.fail(&self.timed_out(op, waited));
                    continue;
                }
            }
            if rested || looks < SPINS {
                std::hint::spin_loop();
            } else if begun.elapsed() > PATIENT {
                std::thread::sleep(NAP);
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// If an operation cannot go on because other ranks have yet to join something, waits for them. Returns whether it waited.
    fn rest(&self, op: &Rc<Op>) -> bool {
        // Others may wait for work that this rank has to do when elements are there.
        if self.flying.borrow().iter().any(|op| op.needs_host()) {
            return false;
        }
        let blocker = if op.is_met() {
            let first = self.waiting.borrow().front().cloned();
            first.filter(|first| !op.is_queued() && !first.is_met())
        } else {
            Some(Rc::clone(op))
        };
        let Some(blocker) = blocker else {
            return false;
        };
        let begun = Instant::now();
        if let Step::Meeting(handle) = &mut blocker.state.borrow_mut().step {
            handle.rest();
        }
        begun.elapsed() > REST
    }

    /// Leaves an operation to this rank's later calls.
    pub(super) fn drop_op(&self, op: &Op) {
        op.state.borrow_mut().dropped = true;
        self.progress();
    }

    /// Carries every operation on as far as it goes without waiting.
    fn progress(&self) {
        let flying: SmallVec<[Rc<Op>; 8]> = self.flying.borrow().iter().cloned().collect();
        // All meetings are seen before anything is queued: messages rely on that.
        while flying.iter().fold(false, |any, op| self.meet(op) | any) {}
        if let Err(error) = self
            .queue_groups()
            .and_then(|()| self.queue_messages(&flying))
        {
            self.fail(&error);
        }
        for op in &flying {
            if let Err(error) = self.land(op) {
                self.fail(&error);
            }
        }
        let gone = |op: &Rc<Op>| op.state.borrow().dropped && op.is_done();
        self.flying.borrow_mut().retain(|op| !gone(op));
    }

    /// Whether the ranks of an operation have just been found to agree, or to disagree.
    fn meet(&self, op: &Op) -> bool {
        let mut state = op.state.borrow_mut();
        let Step::Meeting(handle) = &mut state.step else {
            return false;
        };
        if !handle.is_done() {
            return false;
        }
        let Step::Meeting(handle) = std::mem::replace(&mut state.step, Step::Done) else {
            return false;
        };
        let sums = handle.wait_optional().and_then(|sums| {
            let sums = sums.map(|words| PeerSums::new(&words, op.members.len()));
            sums.transpose()
        });
        let end = match sums {
            Ok(sums) if !Op::is_silent(&op.wiring, &state.stages) => {
                state.step = Step::Met(sums);
                return true;
            }
            Ok(_) => Ok(state.stages.pop().and_then(|stage| match stage.target {
                Target::Keep(result) => Some(result),
                Target::Same => state.sources.first().cloned(),
                _ => None,
            })),
            Err(error) => Err(error),
        };
        drop(state);
        if let Err(error) = &end
            && error.class() == ErrorClass::Failure
        {
            self.hear(error.clone());
        }
        if end.is_ok() {
            // Rounds without elements are counted too.
            (self.ledger).moved(op.name, &op.wiring.agreement, op.index, op.dtype);
        }
        op.end(end);
        true
    }

    /// Queues operations of groups, up to the first whose ranks have not all come or whose calls are under way.
    fn queue_groups(&self) -> Result<()> {
        loop {
            let Some(op) = self.waiting.borrow().front().cloned() else {
                return Ok(());
            };
            let queued = op.is_done() || op.is_met() && self.queue_group(&op)?;
            if !queued {
                return Ok(());
            }
            self.waiting.borrow_mut().pop_front();
        }
    }

    /// Queues an operation as far as that goes without waiting, and returns whether all of it is queued.
    fn queue_group(&self, op: &Op) -> Result<bool> {
        let mut state = op.state.borrow_mut();
        let means = self.means(op.lane);
        if let Step::Met(sums) = &mut state.step {
            let sums = sums.take();
            means.stream.wait(&state.posted)?;
            state.step = Step::Calling(Box::new(Course::new(&mut state, sums)));
        }
        let Step::Calling(course) = &mut state.step else {
            return Ok(true);
        };
        match course.go_on(op, means)? {
            Some(queued) => self.queued(op, &mut state, queued).map(|()| true),
            None => Ok(false),
        }
    }

    fn means(&self, lane: Lane) -> Means<'_> {
        Means {
            stream: self.stream(lane),
            order: self.options.order,
            ledger: &self.ledger,
        }
    }

    /// Records that everything of an operation is on its stream.
    fn queued(&self, op: &Op, state: &mut State, queued: Queued) -> Result<()> {
        let stream = self.stream(op.lane);
        let Queued {
            result,
            kept,
            check,
        } = queued;
        if let Some(result) = &result {
            cuda(stream)?.uses(&[result])?;
        }
        state.step = Step::Queued(Box::new(Landed {
            event: stream.record(),
            result,
            kept,
            check,
        }));
        Ok(())
    }

    /// Whether a call of the library may go on.
    pub(super) fn patience(&self, begun: Instant, late: impl Fn() -> CommError) -> Result<()> {
        if let Some(error) = self.control.failure() {
            return Err(error);
        }
        match self.options.timeout {
            Some(most) if begun.elapsed() > most => Err(late()),
            _ => Ok(()),
        }
    }

    /// Queues all messages whose two ends agree, together, as far as that goes without waiting.
    fn queue_messages(&self, flying: &[Rc<Op>]) -> Result<()> {
        for op in flying.iter().filter(|op| op.lane == Lane::Myself) {
            self.pass_to_myself(op)?;
        }
        let means = self.means(Lane::Messages);
        let ready = |op: &&Rc<Op>| {
            op.lane == Lane::Messages && matches!(op.state.borrow().step, Step::Met(_))
        };
        let mut batch = self.batch.borrow_mut();
        loop {
            let Some(messages) = &mut *batch else {
                let ready: SmallVec<[&Rc<Op>; 4]> = flying.iter().filter(ready).collect();
                *batch = Messages::begin(&ready, means)?;
                if batch.is_none() {
                    return Ok(());
                }
                continue;
            };
            let Some(all) = messages.queued(means)? else {
                return Ok(());
            };
            *batch = None;
            for (op, queued) in all {
                self.queued(&op, &mut op.state.borrow_mut(), queued)?;
            }
        }
    }

    /// Does one side of a message to this rank itself. The library has no call for that which could wait for the other side.
    fn pass_to_myself(&self, op: &Op) -> Result<()> {
        let mut state = op.state.borrow_mut();
        if !matches!(state.step, Step::Met(_)) {
            return Ok(());
        }
        let mut mail = self.to_myself.borrow_mut();
        let result = match state.stages.last_mut().map(|stage| &mut stage.target) {
            Some(Target::Keep(data)) => {
                mail.push((Rc::clone(&op.group), op.sequence, data.clone()));
                data.clone()
            }
            Some(target @ Target::Write(_)) => {
                // A message without elements is not kept.
                let empty = matches!(&*target, Target::Write(dst) if dst.is_empty());
                let kept = match empty {
                    true => Some(self.device.alloc(crate::DType::U8, 0)?.freeze()),
                    false => {
                        let sent = mail.iter().position(|(group, sequence, _)| {
                            Rc::ptr_eq(group, &op.group) && *sequence == op.sequence
                        });
                        sent.map(|at| mail.swap_remove(at).2)
                    }
                };
                let Some(data) = kept else {
                    return Ok(());
                };
                let Target::Write(mut dst) = std::mem::replace(target, Target::Nothing) else {
                    return Ok(());
                };
                if !empty {
                    let all = crate::Strided::contiguous(&[data.len()]);
                    self.device.copy(&data, &all, &mut dst, &all)?;
                }
                dst.freeze()
            }
            _ => return Ok(()),
        };
        if let Some(stage) = state.stages.last() {
            (self.ledger).moved(op.name, &stage.plan, op.index, op.dtype);
        }
        drop(state);
        op.end(Ok(Some(result)));
        Ok(())
    }

    /// Finishes an operation whose elements are there.
    fn land(&self, op: &Op) -> Result<()> {
        let mut state = op.state.borrow_mut();
        let Step::Queued(landed) = &mut state.step else {
            return Ok(());
        };
        if !landed.event.is_done()? {
            return Ok(());
        }
        let landed = std::mem::replace(&mut state.step, Step::Done);
        drop(state);
        let Step::Queued(landed) = landed else {
            return Ok(());
        };
        // An operation that ended early was ended by an abort.
        op.group.check()?;
        self.device.wait(&landed.event)?;
        let Landed {
            result,
            kept,
            check,
            ..
        } = *landed;
        drop(kept);
        if let Some(check) = check
            && let Some(peer) = check.first_wrong(&self.device)?
        {
            let (me, sender) = (self.number(), op.members.get(peer).copied());
            let cause = format!(
                "rank {me} did not find in {} ({}) at {} what rank {} sent",
                op.called,
                check.plan.name,
                SiteText::from(op.site),
                sender.unwrap_or(peer),
            );
            self.control.fail(cause.clone());
            return Err(CommError::PeerFailed {
                origin: me,
                cause: cause.into(),
            });
        }
        op.end(Ok(result));
        Ok(())
    }

    /// Whether some rank has failed.
    fn has_failed(&self) -> bool {
        if self.root.borrow().is_none()
            && let Some(error) = self.control.failure()
        {
            self.hear(error);
        }
        self.root.borrow().is_some()
    }

    /// Gives up: tells all others, and ends the work that this rank has queued.
    pub(super) fn fail(&self, error: &CommError) {
        if self.root.borrow().is_none() {
            if self.control.failure().is_none() {
                self.control.fail(error.to_string());
            }
            let own = matches!(error, CommError::TimedOut(_));
            let root = if own { None } else { self.control.failure() };
            self.hear(root.unwrap_or_else(|| error.clone()));
        }
        self.give_up();
    }

    /// Records a failure; the first one stands, and ends the work that is queued.
    pub(super) fn hear(&self, error: CommError) {
        let mut root = self.root.borrow_mut();
        if root.is_none() {
            *root = Some(error);
            drop(root);
            let groups = self.groups.borrow();
            groups
                .iter()
                .filter_map(Weak::upgrade)
                .for_each(|group| group.abort());
        }
    }

    /// Ends every operation with the first failure.
    fn give_up(&self) {
        let Some(root) = self.root.borrow().clone() else {
            return;
        };
        self.waiting.borrow_mut().clear();
        *self.batch.borrow_mut() = None;
        let flying: SmallVec<[Rc<Op>; 8]> = self.flying.borrow().iter().cloned().collect();
        flying
            .iter()
            .filter(|op| !op.is_done())
            .for_each(|op| op.end(Err(root.clone())));
    }

    fn timed_out(&self, op: &Op, waited: Duration) -> CommError {
        let missing = op
            .members
            .iter()
            .enumerate()
            .filter(|(i, _)| *i != op.index);
        CommError::TimedOut(Arc::new(TimeoutReport {
            waited,
            wait: WaitLine {
                rank: self.number(),
                op: op.called,
                group: label(&op.members),
                sequence: op.sequence,
                site: op.site.into(),
                missing: missing.map(|(_, &rank)| rank).collect(),
            },
            recent: self.ledger.recent(),
            others: Vec::new(),
        }))
    }

    /// Finishes what is in flight, and leaves the library's groups.
    ///
    /// # Errors
    /// The first failure.
    pub(super) fn finish(&self) -> Result<()> {
        loop {
            let Some(op) = self.flying.borrow().first().cloned() else {
                break;
            };
            // The handle is gone, so nobody is left to receive an error; the peers get it themselves.
            drop(self.wait(&op));
        }
        self.closed.set(true);
        let root = self.root.borrow().clone();
        if root.is_none() {
            self.device.synchronize()?;
        }
        let groups: Vec<Rc<GroupHandle>> = self
            .groups
            .borrow()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        groups.iter().for_each(|group| group.leave());
        root.map_or(Ok(()), Err)
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let groups = self.groups.borrow();
            groups
                .iter()
                .filter_map(Weak::upgrade)
                .for_each(|group| group.abort());
        } else if !self.closed.get() {
            // Its errors were returned before, or concern handles that are gone.
            drop(self.finish());
        }
    }
}

/// The staging buffers of a request's exchanges.
pub(super) fn staging(
    stream: &DeviceRef,
    wiring: &super::wire::Wiring,
    dtype: Option<crate::DType>,
) -> Result<SmallVec<[Staging; 1]>> {
    let dtype = dtype.unwrap_or(crate::DType::U8);
    let staging = wiring
        .wires
        .iter()
        .map(|wire| Staging::new(stream, wire, dtype));
    staging.collect()
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
        self.rank.progress();
        self.op.is_done()
    }

    fn device(&self) -> &DeviceRef {
        &self.rank.device
    }

    fn ledger(&self) -> Option<&Ledger> {
        Some(&self.rank.ledger)
    }

    fn park(&mut self) {
        self.rank.drop_op(&self.op);
    }
}
