//! One rank's communicator.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::flights::Queue;
use super::progress::{Course, InFlight, Rank};
use super::slot::Slot;
use super::world::{Group, Lane, Meeting};
use crate::backend::Post;
use crate::{
    Buffer, CommError, Communicator, DeviceRef, ExchangePlan, Handle, Ledger, PlanCache, Result,
    Site,
};
use crate::{Link, Request};

/// A rank that is a thread of this process. Clones are the same communicator.
///
/// It derefs to [`dyn Communicator`](Communicator), which has all the operations.
#[derive(Clone)]
pub struct LocalComm(Rc<Member>);

struct Member {
    rank: Rc<Rank>,
    group: Arc<Group>,
    /// The members of the group, in memory that no other rank counts references to.
    members: Arc<[usize]>,
    /// This rank's number within the group.
    index: usize,
    /// The slots where this rank meets next: `whole` for the whole group, apart for speed; `links` for messages, by lane and
    /// side, because a rank may send to itself.
    whole: RefCell<Option<Arc<Slot>>>,
    links: RefCell<HashMap<(Lane, usize), Messages>>,
    /// This rank's operations of the whole group that have a handle.
    queue: Rc<Queue>,
    plans: PlanCache,
}

/// One side of the messages from one rank to another.
struct Messages {
    /// The slot of the next one.
    next: Arc<Slot>,
    /// Those in flight.
    queue: Rc<Queue>,
}

impl LocalComm {
    /// The communicator of all ranks of the launch.
    pub(super) fn world(rank: Rc<Rank>) -> Self {
        let (group, index) = (Arc::clone(rank.world().everyone()), rank.number());
        Self::new(rank, group, index)
    }

    fn new(rank: Rc<Rank>, group: Arc<Group>, index: usize) -> Self {
        Self(Rc::new(Member {
            rank,
            members: group.members.as_ref().into(),
            group,
            index,
            whole: RefCell::default(),
            links: RefCell::default(),
            queue: Rc::default(),
            plans: PlanCache::new(),
        }))
    }

    pub(super) fn rank_state(&self) -> Rc<Rank> {
        Rc::clone(&self.0.rank)
    }

    /// Posts one operation of the whole group.
    #[inline]
    fn start(&self, request: &mut Request, note: Option<(usize, usize)>) -> Result<Course> {
        let this = &*self.0;
        request.check_own(this.members.len());
        let meeting = Meeting {
            slot: self.this_slot(),
            members: Arc::clone(&this.members),
            index: this.index,
        };
        let course = (this.rank).start(meeting, request.name(), request, note)?;
        // Made afterwards: a rank that waits has the time to make the next slot, and the last to join finds it made.
        *this.whole.borrow_mut() = course.meeting().map(|meeting| meeting.slot.next());
        Ok(course)
    }

    fn handle(&self, queue: &Rc<Queue>, course: Course, request: Request) -> Handle {
        let rank = Rc::clone(&self.0.rank);
        let flying = rank.fly(queue, course, request);
        Handle::new(Box::new(InFlight { rank, flying }))
    }
}

impl Communicator for LocalComm {
    fn rank(&self) -> usize {
        self.0.index
    }

    fn size(&self) -> usize {
        self.0.members.len()
    }

    fn members(&self) -> &[usize] {
        &self.0.members
    }

    fn device(&self) -> &DeviceRef {
        self.0.rank.device()
    }

    fn ledger(&self) -> &Ledger {
        self.0.rank.ledger()
    }

    fn backend(&self) -> &'static str {
        "local"
    }

    fn plans(&self) -> &PlanCache {
        &self.0.plans
    }

    fn post(&self, mut request: Request) -> Result<Handle> {
        let course = self.start(&mut request, None)?;
        Ok(self.handle(&self.0.queue, course, request))
    }

    fn call(&self, mut request: Request) -> Result<Option<Buffer>> {
        let mut course = self.start(&mut request, None)?;
        self.0.rank.wait(&mut course, &mut request)
    }

    fn post_link(&self, link: Link) -> Result<Handle> {
        let this = &*self.0;
        let (op, index) = (link.name(), link.participant());
        let [from, to] = link.ends(this.index);
        let mut request = link.into_request(self.size(), self.plans())?;
        let (slot, queue) = self.next_message(from, to, index);
        let meeting = Meeting {
            slot,
            members: [this.members[from], this.members[to]].into(),
            index,
        };
        let course = this.rank.start(meeting, op, &mut request, None)?;
        Ok(self.handle(&queue, course, request))
    }

    fn post_split(
        &self,
        color: Option<usize>,
        key: usize,
        site: Site,
    ) -> Result<Option<Rc<dyn Communicator>>> {
        let this = &*self.0;
        let mut request = Request::status(Arc::new(ExchangePlan::silent("split")), Ok(()), site);
        let note = color.map(|color| (color, key));
        let mut course = self.start(&mut request, note)?;
        let slot = course.meeting().map(|meeting| Arc::clone(&meeting.slot));
        this.rank.wait(&mut course, &mut request)?;
        let (Some(color), Some(slot)) = (color, slot) else {
            return Ok(None);
        };
        let of_color = |post: &Post| post.note.filter(|n| n.0 == color);
        let mut joined: Vec<(usize, usize)> = slot
            .posts()
            .enumerate()
            .filter_map(|(r, post)| Some((of_color(post?)?.1, r)))
            .collect();
        joined.sort_unstable();
        let index = joined
            .iter()
            .position(|&(_, r)| r == this.index)
            .unwrap_or(0);
        let members = joined.iter().map(|&(_, r)| this.members[r]).collect();
        let group = (this.rank.world()).join_group(&this.group, slot.sequence, color, members);
        Ok(Some(Rc::new(Self::new(
            Rc::clone(&this.rank),
            group,
            index,
        ))))
    }

    fn failure(&self) -> Option<CommError> {
        self.0.rank.world().root()
    }

    fn fail(&self, cause: String) {
        let rank = &self.0.rank;
        rank.world().fail(rank.number(), &cause);
    }
}

impl LocalComm {
    /// The slot of this operation of the whole group.
    fn this_slot(&self) -> Arc<Slot> {
        let this = &*self.0;
        let first = || (this.rank.world()).first_slot(this.group.id, Lane::All, this.members.len());
        this.whole.borrow_mut().take().unwrap_or_else(first)
    }

    /// The slot of the next message between two ranks, and those of this side before it.
    fn next_message(&self, from: usize, to: usize, side: usize) -> (Arc<Slot>, Rc<Queue>) {
        let this = &*self.0;
        let lane = Lane::Link(from as u32, to as u32);
        let mut links = this.links.borrow_mut();
        let messages = links.entry((lane, side)).or_insert_with(|| Messages {
            next: this.rank.world().first_slot(this.group.id, lane, 2),
            queue: Rc::default(),
        });
        let after = messages.next.next();
        let slot = std::mem::replace(&mut messages.next, after);
        (slot, Rc::clone(&messages.queue))
    }
}

communicator!(LocalComm);
