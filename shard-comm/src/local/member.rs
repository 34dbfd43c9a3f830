//! One rank's communicator.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use super::progress::{Flight, Launch, Op, Rank};
use super::world::{Group, Key, Lane, Post};
use crate::communicator::{Link, Request, Stage};
use crate::{
    Communicator, DeviceRef, Event, ExchangePlan, Handle, Ledger, PlanCache, Result, Site,
};

/// A rank that is a thread of this process. Clones are the same communicator.
///
/// It derefs to [`dyn Communicator`](Communicator), which has all the operations.
#[derive(Clone)]
pub struct LocalComm(Rc<Member>);

struct Member {
    rank: Rc<Rank>,
    group: Arc<Group>,
    /// This rank's number within the group.
    index: usize,
    sequence: Cell<u64>,
    /// Messages so far, by lane and side.
    links: RefCell<HashMap<(Lane, usize), u64>>,
    plans: PlanCache,
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
            group,
            index,
            sequence: Cell::new(0),
            links: RefCell::default(),
            plans: PlanCache::new(),
        }))
    }

    pub(super) fn rank_state(&self) -> Rc<Rank> {
        Rc::clone(&self.0.rank)
    }

    /// Posts one operation of the whole group.
    fn launch(&self, request: Request, note: Option<(usize, usize)>) -> Result<(Key, Rc<Op>)> {
        let this = &*self.0;
        let request = request.checked(this.group.members.len());
        let key = Key {
            group: this.group.id,
            lane: Lane::All,
            sequence: this.sequence.get(),
            stage: 0,
        };
        this.sequence.set(key.sequence + 1);
        let op = request.name();
        let event = if request.sources.is_empty() {
            Event::ready()
        } else {
            this.rank.device().record()
        };
        let (stages, post) = posted(op, request, event, note);
        let members = Arc::clone(&this.group.members);
        let launch = Launch {
            op,
            key,
            members,
            index: this.index,
            stages,
            post,
        };
        Ok((key, this.rank.launch(launch)?))
    }

    fn handle(&self, op: Rc<Op>) -> Handle {
        let rank = Rc::clone(&self.0.rank);
        Handle::new(Box::new(Flight {
            rank,
            op,
            _group: Arc::clone(&self.0.group),
        }))
    }
}

impl Communicator for LocalComm {
    fn rank(&self) -> usize {
        self.0.index
    }

    fn size(&self) -> usize {
        self.0.group.members.len()
    }

    fn members(&self) -> &[usize] {
        &self.0.group.members
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

    fn post(&self, request: Request) -> Result<Handle> {
        self.launch(request, None).map(|(_, op)| self.handle(op))
    }

    fn post_link(&self, link: Link) -> Result<Handle> {
        let this = &*self.0;
        let (op, index) = (link.name(), link.participant());
        let [from, to] = link.ends(this.index);
        let request = link.into_request(self.size())?;
        let members = [this.group.members[from], this.group.members[to]].into();
        let key = self.next_message(from as u32, to as u32, index);
        let event = this.rank.device().record();
        let (stages, post) = posted(op, request, event, None);
        let launch = Launch {
            op,
            key,
            members,
            index,
            stages,
            post,
        };
        Ok(self.handle(this.rank.launch(launch)?))
    }

    fn post_split(
        &self,
        color: Option<usize>,
        key: usize,
        site: Site,
    ) -> Result<Option<Rc<dyn Communicator>>> {
        let this = &*self.0;
        let request = Request::status(Arc::new(ExchangePlan::empty("split")), Ok(()), site);
        let (at, op) = self.launch(request, color.map(|color| (color, key)))?;
        let slot = Rank::slot_of(&op);
        this.rank.wait(&op)?;
        let (Some(color), Some(Ok(posts))) = (color, slot.outcome()) else {
            return Ok(None);
        };
        let mut joined: Vec<(usize, usize)> = posts
            .iter()
            .enumerate()
            .filter_map(|(r, post)| post.note.filter(|n| n.0 == color).map(|(_, key)| (key, r)))
            .collect();
        joined.sort_unstable();
        let index = joined
            .iter()
            .position(|&(_, r)| r == this.index)
            .unwrap_or(0);
        let members = joined.iter().map(|&(_, r)| this.group.members[r]).collect();
        let group = this.rank.world().join_group(at, color, members);
        Ok(Some(Rc::new(Self::new(
            Rc::clone(&this.rank),
            group,
            index,
        ))))
    }

    fn fail(&self, cause: String) {
        let rank = &self.0.rank;
        rank.world().fail(rank.number(), &cause);
    }
}

impl LocalComm {
    /// The key of the next message between two ranks. Sides are counted apart: a rank may send to itself.
    fn next_message(&self, from: u32, to: u32, side: usize) -> Key {
        let mut links = self.0.links.borrow_mut();
        let lane = Lane::Link(from, to);
        let count = links.entry((lane, side)).or_insert(0);
        let key = Key {
            group: self.0.group.id,
            lane,
            sequence: *count,
            stage: 0,
        };
        *count += 1;
        key
    }
}

impl Deref for LocalComm {
    type Target = dyn Communicator;

    fn deref(&self) -> &Self::Target {
        self
    }
}

impl fmt::Debug for LocalComm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "LocalComm(rank {} of {})",
            self.0.index,
            self.0.group.label()
        )
    }
}

/// What a rank brings to the first rendezvous of an operation, and its stages.
fn posted(
    op: &'static str,
    request: Request,
    event: Event,
    note: Option<(usize, usize)>,
) -> (SmallVec<[Stage; 1]>, Post) {
    let plan = request.stages.first().map_or_else(
        || Arc::new(ExchangePlan::empty(op)),
        |s| Arc::clone(&s.plan),
    );
    let post = Post {
        op,
        plan,
        sources: request.sources,
        event,
        dtype: request.dtype,
        argument: request.argument,
        status: request.status,
        note,
        site: request.site,
        guard: request.guard,
    };
    (request.stages, post)
}
