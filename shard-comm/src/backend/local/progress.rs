//! One rank's operations in flight, and how they go on.
//!
//! Starting an operation posts its first round. A blocking call carries on *all* of the rank's operations while it
//! waits for its own: it reads pieces that have become ready and posts the rounds that follow. So handles may be waited
//! for in any order, and an operation whose handle is dropped or forgotten still does its part.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::flights::{Flights, Flying, Queue};
use super::sync::{Clock, PAUSES, SPINS, YIELDS, yield_now};
use super::world::{Meeting, World};
use crate::backend::post::{received, too_late};
use crate::backend::{Post, receive};
use crate::{Buffer, CommError, DeviceRef, Ledger, Pending, Request, Result, Target};

/// For how long a waiting rank lets others run before it parks, per rank that shares its core; it yields at most [`YIELDS`]
/// times.
const YIELDING: Duration = Duration::from_micros(200);
/// The most time spent on yielding, however many ranks share a core.
const MOST_YIELDING: Duration = Duration::from_millis(2);

/// A single yield this long means that something else ran for a whole time slice: the machine is busy, and yielding costs
/// more than parking. The next [`BUSY_WAITS`] waits do not yield.
const SLICE: Duration = Duration::from_millis(1);

/// For how many waits a busy machine is assumed to stay busy.
const BUSY_WAITS: u32 = 64;

/// How many waits in a row do not spin after spinning was in vain: the system may have put two ranks on one core while
/// another core idles, and then each only keeps the other from running. After this many waits spinning is tried again.
const BARREN_WAITS: u32 = 32;

/// The state of one rank, shared by all its groups.
#[derive(Debug)]
pub(super) struct Rank {
    world: Arc<World>,
    number: usize,
    device: DeviceRef,
    ledger: Ledger,
    flights: Flights,
    /// How many waits from now on park at once.
    busy_waits: Cell<u32>,
    /// How many waits from now on do not spin.
    barren_waits: Cell<u32>,
    ended: Cell<bool>,
}

/// The progress of an operation.
#[derive(Debug)]
pub(super) struct Course {
    /// The name of the call, which may differ from the name of the plan.
    op: &'static str,
    /// The slot of the round in progress; `None` once there is a result.
    meeting: Option<Meeting>,
    /// Which of the request's stages the round is.
    round: usize,
}

/// An operation that is posted.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) course: Course,
    /// The rest of the request: its stages, and the names for errors.
    request: Request,
    pub(super) result: Option<Result<Option<Buffer>>>,
}

impl Course {
    /// The slot of the round in progress.
    pub(super) fn meeting(&self) -> Option<&Meeting> {
        self.meeting.as_ref()
    }

    pub(super) fn is_ready(&self) -> bool {
        (self.meeting.as_ref()).is_some_and(|meeting| meeting.slot.is_settled())
    }
}

impl Op {
    pub(super) fn new(course: Course, request: Request) -> Self {
        Self {
            course,
            request,
            result: None,
        }
    }

    /// How many rounds are not over.
    pub(super) fn rounds_left(&self) -> usize {
        self.request.stages.len().saturating_sub(self.course.round)
    }

    /// Whether the first round is over.
    pub(super) fn is_under_way(&self) -> bool {
        self.course.round > 0
    }
}

impl Rank {
    pub(super) fn new(world: Arc<World>, number: usize, device: DeviceRef) -> Rc<Self> {
        let ledger = Ledger::remembered_in(Arc::clone(&device), world.recent(number).clone());
        Rc::new(Self {
            world,
            number,
            device,
            ledger,
            flights: Flights::default(),
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

    /// Posts the first round of an operation. `note` is something that others learn of this rank besides the request.
    ///
    /// The request stays where its caller made it; the parts that the post needs are moved out of it, straight into the slot.
    ///
    /// # Errors
    /// The root failure.
    #[inline]
    pub(super) fn start(
        &self,
        meeting: Meeting,
        op: &'static str,
        request: &mut Request,
        note: Option<(usize, usize)>,
    ) -> Result<Course> {
        if self.ended.get() {
            let closed = CommError::Closed { op };
            return Err(self.world.root().unwrap_or(closed));
        }
        self.ledger.posted(op, meeting.slot.sequence, request.site);
        let post = || Post::with_note(op, request, &self.device, note);
        self.world.post(&meeting, post)?;
        Ok(Course {
            op,
            meeting: Some(meeting),
            round: 0,
        })
    }

    /// Gives an operation that was just posted a handle.
    pub(super) fn fly(&self, queue: &Rc<Queue>, course: Course, request: Request) -> Rc<Flying> {
        self.flights.begin(queue, course, request)
    }

    /// Blocks until an operation with a handle is finished, and takes its result.
    pub(super) fn land(&self, flying: &Rc<Flying>) -> Result<Option<Buffer>> {
        if let Some(result) = self.flights.land(flying) {
            self.progress();
            return result;
        }
        let op = &mut *flying.op.borrow_mut();
        self.wait(&mut op.course, &mut op.request)
    }

    /// Blocks until an operation is finished, and takes its result.
    pub(super) fn wait(
        &self,
        course: &mut Course,
        request: &mut Request,
    ) -> Result<Option<Buffer>> {
        loop {
            let done = self.go_on(course, request);
            // Done even if there is a result: a meeting that is over but not left keeps alive all later ones and the buffers
            // they read.
            if !self.flights.is_empty() {
                self.progress();
            }
            if let Some(result) = done {
                return result;
            }
            let ready = || self.can_go_on(course);
            if !self.yield_until(|| ready() || self.world.has_failed()) || !ready() {
                self.world.park(self.number, self.wanted(course));
            }
        }
    }

    /// Carries on all operations with a handle, and returns whether this one is finished.
    fn is_done(&self, flying: &Rc<Flying>) -> bool {
        self.progress();
        self.flights.progress_of(flying, |one| self.carry(one));
        flying.is_done()
    }

    /// Waits until this operation, or any other one with a handle, may have made progress.
    fn rest(&self, flying: &Rc<Flying>) {
        // Looking at one operation carries on all, so one that was looked at before may be done without its owner knowing.
        if self.flights.has_unseen() {
            return;
        }
        let own = flying.op.borrow().course.meeting().cloned();
        let mut wanted: SmallVec<[Meeting; 1]> = own.into_iter().collect();
        self.flights.want_any(flying, &mut wanted);
        let ready = || wanted.iter().any(|w| w.slot.is_settled());
        if !self.yield_until(|| ready() || self.world.has_failed()) || !ready() {
            self.world.park(self.number, wanted);
        }
    }

    /// Leaves an operation whose handle was dropped to this rank's later calls.
    pub(super) fn leave(&self, flying: &Rc<Flying>) {
        // A rank that panicked has no later calls.
        if !self.ended.get() {
            self.flights.leave(flying);
            self.progress();
        }
    }

    /// Ends the rank after a normal return: finishes what is in flight, then tells the others.
    pub(super) fn finish(&self) {
        if self.ended.replace(true) {
            return;
        }
        self.progress();
        while let Some(flying) = self.flights.first() {
            // The handle is gone, so nobody is left to receive an error; the peers get it themselves.
            drop(self.land(&flying));
        }
        // Queued work holds buffers, and buffers hold their device: without this the device would keep itself alive.
        if let Err(error) = self.device.synchronize() {
            self.world.fail(self.number, &error.to_string());
        }
        self.world.end(self.number);
    }

    /// Ends the rank after a panic.
    pub(super) fn panicked(&self, message: &str) {
        if !self.ended.replace(true) {
            self.flights.clear();
            self.world
                .fail(self.number, &format!("panicked: {message}"));
            self.world.end(self.number);
        }
    }

    /// Lets others run until `ready`, for a little while at most, and returns whether it became ready.
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
        // Among many ranks on few cores, most find what they wait for after one turn of the others, and need no clock.
        yield_now();
        ready() || self.yield_longer(&ready)
    }

    /// A function of its own, like other rare or long paths here: with many ranks on a core, each finds that its stack has left
    /// the nearest cache, so a call should use little of it.
    #[inline(never)]
    fn yield_longer(&self, ready: &impl Fn() -> bool) -> bool {
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

    /// Polls for a few microseconds, unless that was in vain lately.
    fn spin_until(&self, ready: &impl Fn() -> bool) -> bool {
        let barren = self.barren_waits.get();
        if barren > 0 {
            self.barren_waits.set(barren - 1);
            return false;
        }
        for _ in 0..SPINS {
            // A poll takes the cache line away from the ranks that are about to write it, so it is not repeated at once.
            for _ in 0..PAUSES {
                std::hint::spin_loop();
            }
            if ready() {
                return true;
            }
        }
        self.barren_waits.set(BARREN_WAITS);
        false
    }

    /// Carries on every operation with a handle as far as it goes without waiting.
    fn progress(&self) {
        self.flights.progress(|flying| self.carry(flying));
    }

    fn carry(&self, flying: &Flying) {
        let op = &mut *flying.op.borrow_mut();
        op.result = self.go_on(&mut op.course, &mut op.request);
    }

    /// Whether a slot that lets this rank go on is settled.
    fn can_go_on(&self, course: &Course) -> bool {
        course.is_ready() || self.flights.can_go_on()
    }

    /// The slots whose settling lets this rank go on: its own first, then those of operations with more to do.
    fn wanted(&self, course: &Course) -> SmallVec<[Meeting; 1]> {
        let mut wanted = course.meeting.clone().into_iter().collect();
        self.flights.want(&mut wanted);
        wanted
    }

    /// Runs the rounds of an operation that are ready, and returns its result if the last round was among them.
    #[inline]
    fn go_on(&self, course: &mut Course, request: &mut Request) -> Option<Result<Option<Buffer>>> {
        // The buffers of others are no longer needed once there is a result, and the slot may be their last holder.
        while let Some(meeting) = course.meeting.take_if(|m| m.slot.is_settled()) {
            let of_all = match meeting.slot.outcome()? {
                Ok(of_all) => of_all,
                Err(error) => return Some(Err(error.clone())),
            };
            if request.stages.is_empty() {
                return Some(Ok(None));
            }
            let read = self.read(&meeting, course, request, of_all);
            course.round += 1;
            let next = match read {
                Ok(result) if course.round == request.stages.len() => return Some(Ok(result)),
                Ok(result) => self.post_next(meeting, course, request, result),
                Err(error) => Err(self.world.fail_with(error)),
            };
            match next {
                Ok(next) => course.meeting = Some(next),
                Err(error) => return Some(Err(error)),
            }
        }
        None
    }

    /// Goes on to the next round with the result of this one.
    #[inline(never)]
    fn post_next(
        &self,
        meeting: Meeting,
        course: &Course,
        request: &Request,
        result: Option<Buffer>,
    ) -> Result<Meeting> {
        // All members have posted, this one too, so the post is there.
        let next = match meeting.slot.post(meeting.index) {
            Some(own) => own.next(request, course.round, result, &self.device, self.number),
            None => Err(CommError::Closed { op: course.op }),
        };
        let post = next.map_err(|error| self.world.fail_with(error))?;
        let next = Meeting {
            slot: meeting.slot.next_round(),
            ..meeting
        };
        self.world.post(&next, || post)?;
        Ok(next)
    }

    /// Reads this rank's pieces of a settled round.
    #[inline]
    fn read(
        &self,
        meeting: &Meeting,
        course: &Course,
        request: &mut Request,
        of_all: Option<&Buffer>,
    ) -> Result<Option<Buffer>> {
        let (stage, me) = (&mut request.stages[course.round], meeting.index);
        let post = |peer: usize| meeting.slot.post(peer);
        if let (Target::Write(dst), Some(result), Some(own)) = (&mut stage.target, of_all, post(me))
            && stage.plan.is_alike()
            && result.len() == dst.len()
        {
            let copied = self.device.copy_run(result, 0..result.len(), dst, 0);
            copied.map_err(|error| too_late(self.number, error.into()))?;
            return Ok(received(&self.ledger, own, me, stage));
        }
        receive(
            &self.ledger,
            &self.device,
            &meeting.members,
            me,
            stage,
            post,
        )
    }
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
pub(super) struct InFlight {
    pub(super) rank: Rc<Rank>,
    pub(super) flying: Rc<Flying>,
}

impl Pending for InFlight {
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
