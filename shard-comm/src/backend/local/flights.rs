//! One rank's operations that have a handle, kept so that those that can go on are found without looking at all others.
//!
//! The first rendezvous of a lane's operations are settled in the lane's order, because a rank joins one before it joins a later one.
//! So of each lane only the first is looked at, however many are posted. Failures alone settle others before it, which is found by who asks
//! for these.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use smallvec::SmallVec;

use super::progress::{Course, Op};
use super::world::Meeting;
use crate::{Buffer, Request, Result};

/// What a rank has posted to one lane and has not seen settled.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// In the lane's order.
    open: RefCell<VecDeque<Rc<Flying>>>,
    /// Those of them with more to do once they are settled, by their numbers in the lane.
    more: RefCell<BTreeMap<u64, Rc<Flying>>>,
}

/// An operation with a handle; any call of the rank carries it on.
#[derive(Debug)]
pub(super) struct Flying {
    pub(super) op: RefCell<Op>,
    queue: Rc<Queue>,
    /// Its number in the lane, and among all operations of the rank that had a handle.
    sequence: u64,
    order: u64,
    /// Nobody will ask for the result.
    dropped: Cell<bool>,
    /// The result is being waited for, or was taken.
    landed: Cell<bool>,
}

impl Flying {
    /// Whether settling the slot lets ranks go on that wait for this rank, because this rank has more to do.
    fn has_more(&self) -> bool {
        let op = self.op.borrow();
        op.result.is_none() && (op.rounds_left() > 1 || self.dropped.get())
    }

    pub(super) fn is_done(&self) -> bool {
        self.op.borrow().result.is_some()
    }

    fn is_ready(&self) -> bool {
        self.op.borrow().course.is_ready()
    }

    /// The slot where the operation meets, unless the operation has ended.
    fn meeting(&self) -> Option<Meeting> {
        self.op.borrow().course.meeting().cloned()
    }
}

impl Queue {
    /// Takes out the first operation if its slot is settled.
    fn take_ready(&self) -> Option<Rc<Flying>> {
        let mut open = self.open.borrow_mut();
        // What is landed is borrowed by whoever waits for it.
        let left = |first: &Rc<Flying>| first.landed.get() || first.is_done();
        while open.front().is_some_and(left) {
            open.pop_front();
        }
        if !open.front()?.is_ready() {
            return None;
        }
        let ready = open.pop_front()?;
        self.more.borrow_mut().remove(&ready.sequence);
        Some(ready)
    }

    fn first(&self) -> Option<Rc<Flying>> {
        self.open.borrow().front().cloned()
    }

    /// The first with more to do.
    fn first_with_more(&self) -> Option<Rc<Flying>> {
        let more = self.more.borrow();
        more.first_key_value().map(|(_, first)| Rc::clone(first))
    }
}

/// The operations of a rank that have a handle.
#[derive(Debug, Default)]
pub(super) struct Flights {
    /// The lanes that have some in their first round.
    lanes: RefCell<Vec<Rc<Queue>>>,
    /// Those in a later round.
    later: RefCell<Vec<Rc<Flying>>>,
    /// How many there have been.
    count: Cell<u64>,
    /// How many are done that were neither dropped nor waited for.
    unseen: Cell<usize>,
}

impl Flights {
    /// Gives an operation that was just posted to a lane a handle.
    pub(super) fn begin(&self, queue: &Rc<Queue>, course: Course, request: Request) -> Rc<Flying> {
        let order = self.count.get();
        self.count.set(order + 1);
        let flying = Rc::new(Flying {
            sequence: course.meeting().map_or(0, |meeting| meeting.slot.sequence),
            op: RefCell::new(Op::new(course, request)),
            queue: Rc::clone(queue),
            order,
            dropped: Cell::new(false),
            landed: Cell::new(false),
        });
        if flying.has_more() {
            let mut more = queue.more.borrow_mut();
            more.insert(flying.sequence, Rc::clone(&flying));
        }
        let mut open = queue.open.borrow_mut();
        if open.is_empty() {
            self.lanes.borrow_mut().push(Rc::clone(queue));
        }
        open.push_back(Rc::clone(&flying));
        flying
    }

    /// Whether none is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.borrow().is_empty() && self.later.borrow().is_empty()
    }

    /// Whether one is done whose owner may not know.
    pub(super) fn has_unseen(&self) -> bool {
        self.unseen.get() > 0
    }

    /// The one that was posted first.
    pub(super) fn first(&self) -> Option<Rc<Flying>> {
        let lanes = self.lanes.borrow();
        let firsts = lanes.iter().filter_map(|lane| lane.first());
        let later = self.later.borrow();
        let all = firsts.chain(later.iter().cloned());
        all.min_by_key(|flying| flying.order)
    }

    /// Takes one out to be waited for; gives its result if there is one.
    pub(super) fn land(&self, flying: &Rc<Flying>) -> Option<Result<Option<Buffer>>> {
        flying.landed.set(true);
        flying.queue.more.borrow_mut().remove(&flying.sequence);
        let mut later = self.later.borrow_mut();
        later.retain(|other| !Rc::ptr_eq(other, flying));
        let result = flying.op.borrow_mut().result.take()?;
        self.note_seen(flying);
        Some(result)
    }

    /// Leaves one whose handle was dropped to this rank's later calls.
    pub(super) fn leave(&self, flying: &Rc<Flying>) {
        if flying.is_done() {
            self.note_seen(flying);
        }
        flying.dropped.set(true);
        if flying.has_more() && !flying.op.borrow().is_under_way() {
            let mut more = flying.queue.more.borrow_mut();
            more.insert(flying.sequence, Rc::clone(flying));
        }
    }

    /// Carries on those that can go on. Nothing is borrowed while `carry` runs.
    pub(super) fn progress(&self, carry: impl Fn(&Flying)) {
        let mut at = 0;
        while let Some(flying) = self.take_ready(&mut at) {
            carry(&flying);
            match flying.is_done() {
                true => self.note_done(&flying),
                false => self.later.borrow_mut().push(flying),
            }
        }
        let mut at = 0;
        while let Some(flying) = self.later(at) {
            if flying.is_ready() {
                carry(&flying);
            }
            match flying.is_done() {
                true => {
                    self.later.borrow_mut().remove(at);
                    self.note_done(&flying);
                }
                false => at += 1,
            }
        }
    }

    /// Carries on one that is ready although others of its lane before it are not, as after a failure.
    pub(super) fn progress_of(&self, flying: &Rc<Flying>, carry: impl Fn(&Flying)) {
        if !flying.is_done() && flying.is_ready() {
            carry(flying);
            if flying.is_done() {
                self.note_done(flying);
            }
        }
    }

    /// Takes out a ready operation of the lanes from this one on. Lanes without operations leave.
    fn take_ready(&self, at: &mut usize) -> Option<Rc<Flying>> {
        let mut lanes = self.lanes.borrow_mut();
        while let Some(lane) = lanes.get(*at) {
            let ready = lane.take_ready();
            let is_empty = lane.open.borrow().is_empty();
            if is_empty {
                lanes.remove(*at);
            } else if ready.is_none() {
                *at += 1;
            }
            if ready.is_some() {
                return ready;
            }
        }
        None
    }

    fn later(&self, at: usize) -> Option<Rc<Flying>> {
        self.later.borrow().get(at).cloned()
    }

    fn note_done(&self, flying: &Flying) {
        if !flying.dropped.get() {
            self.unseen.set(self.unseen.get() + 1);
        }
    }

    fn note_seen(&self, flying: &Flying) {
        if !flying.dropped.get() {
            self.unseen.set(self.unseen.get() - 1);
        }
    }

    /// Whether a slot is settled that lets this rank do more for others.
    pub(super) fn can_go_on(&self) -> bool {
        self.with_more(|flying| flying.is_ready())
    }

    /// Adds the slots whose settling lets this rank do more for others: of each lane the first to be settled.
    pub(super) fn want(&self, wanted: &mut SmallVec<[Meeting; 1]>) {
        self.with_more(|flying| {
            wanted.extend(flying.meeting());
            false
        });
    }

    /// Adds the slots with which another operation than this one goes on.
    pub(super) fn want_any(&self, but: &Rc<Flying>, wanted: &mut SmallVec<[Meeting; 1]>) {
        let lanes = self.lanes.borrow();
        let firsts = lanes.iter().filter_map(|lane| lane.first());
        let later = self.later.borrow();
        let all = firsts.chain(later.iter().cloned());
        let others = all.filter(|other| !Rc::ptr_eq(other, but));
        wanted.extend(others.filter_map(|other| other.meeting()));
    }

    /// Whether this holds of one of the next operations with more to do.
    fn with_more(&self, mut holds: impl FnMut(&Flying) -> bool) -> bool {
        let lanes = self.lanes.borrow();
        let mut firsts = lanes.iter().filter_map(|lane| lane.first_with_more());
        let later = self.later.borrow();
        let mut later = later.iter().filter(|flying| flying.has_more());
        firsts.any(|flying| holds(&flying)) || later.any(|flying| holds(flying))
    }

    /// Forgets all.
    pub(super) fn clear(&self) {
        for lane in self.lanes.take() {
            lane.open.take();
            lane.more.take();
        }
        self.later.take();
    }
}
