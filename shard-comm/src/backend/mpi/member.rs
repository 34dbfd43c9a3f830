//! One process' communicator.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::rc::Rc;

use super::node::{Board, Node, Place};
use super::progress::{Called, InFlight, Rank};
use super::records::FEW;
use super::tags::{CONTEXTS, Context, Lane, Tags};
use super::wire::WireCache;
use crate::validate::label;
use crate::{Buffer, CommError, Communicator, DeviceRef, Handle, Ledger, PlanCache, Result, Site};
use crate::{Link, LinkCost, Nodes, ONE_ROUND_BYTES, Request};

/// What a message costs about, by which collectives choose between few messages and few bytes: 2 µs and 10 GB/s. Only their
/// product matters, and it is much the same on nodes and on networks for clusters.
const MESSAGE: LinkCost = LinkCost {
    latency: 2e-6,
    per_byte: 1e-10,
};

/// A rank that is a process. Clones are the same communicator.
///
/// It derefs to [`dyn Communicator`](Communicator), which has all the operations.
#[derive(Clone)]
pub struct MpiComm(Rc<Member>);

struct Member {
    rank: Rc<Rank>,
    group: Rc<Group>,
    /// How many messages there were so far, by the two ends and the side.
    links: RefCell<HashMap<(usize, usize, usize), u64>>,
    plans: PlanCache,
    wires: Rc<WireCache>,
    nodes: OnceCell<Option<Nodes>>,
}

/// Some ranks that operate together.
pub(super) struct Group {
    members: Rc<[usize]>,
    index: usize,
    context: Rc<Context>,
    /// Where the members' records are, if they share memory.
    board: Option<Rc<Board>>,
    sequence: Cell<u64>,
}

impl Group {
    /// The tags of the next operation of the group.
    pub(super) fn next(&self) -> Tags {
        let sequence = self.sequence.get();
        self.sequence.set(sequence + 1);
        Tags {
            members: Rc::clone(&self.members),
            index: self.index,
            context: Rc::clone(&self.context),
            sequence,
            lane: Lane::All,
            board: self.board.clone(),
        }
    }
}

/// The length of what a rank tells in a split: whether it joins, its color, its key, its place in the memory of its node, and which
/// context numbers are free.
const NOTE: usize = FIXED + CONTEXTS / 64;
const FIXED: usize = 4;

/// A group that a split makes: its ranks as numbered in the group that is split, in the order of their keys.
struct NewGroup {
    ranks: Vec<usize>,
    context: u32,
    /// The members' places in the memory of their node, as they told them.
    places: Vec<i64>,
}

impl NewGroup {
    /// The group of a color; `None` if no context number is free on all its members.
    fn new(notes: &[&[i64]], color: i64) -> Option<Self> {
        let mut joined: Vec<(u64, usize)> = notes
            .iter()
            .enumerate()
            .filter(|(_, note)| note[..2] == [1, color])
            .map(|(r, note)| (note[2].cast_unsigned(), r))
            .collect();
        joined.sort_unstable();
        // The first number that is free on all members: they all find the same one, and no other group has it.
        let free = |word: usize| {
            let words = joined
                .iter()
                .map(|&(_, r)| notes[r][FIXED + word].cast_unsigned());
            words.fold(u64::MAX, |all, one| all & one)
        };
        let context = (0..CONTEXTS / 64).find_map(|word| {
            let bits = free(word);
            (bits != 0).then(|| (word * 64) as u32 + bits.trailing_zeros())
        })?;
        Some(Self {
            places: joined.iter().map(|&(_, r)| notes[r][3]).collect(),
            ranks: joined.into_iter().map(|(_, r)| r).collect(),
            context,
        })
    }

    fn index(&self, rank: usize) -> Option<usize> {
        self.ranks.iter().position(|&r| r == rank)
    }
}

impl MpiComm {
    /// The communicator of all ranks of the launch.
    pub(super) fn world(rank: &Rc<Rank>, run: u64) -> Result<Self> {
        let (members, index) = (Rc::clone(rank.everyone()), rank.world().rank());
        let board = match rank.node() {
            Some(node) if members.len() <= FEW => node.of_run(run, &members)?,
            _ => None,
        };
        if let (Some(node), None) = (rank.world().node(), rank.node()) {
            node.stay_out(run)?;
        }
        // The first number of a run, which is free.
        Ok(Self::new(
            rank,
            members,
            index,
            rank.contexts().take(1),
            board,
        ))
    }

    fn new(
        rank: &Rc<Rank>,
        members: Rc<[usize]>,
        index: usize,
        context: Rc<Context>,
        board: Option<Board>,
    ) -> Self {
        let group = Rc::new(Group {
            members,
            index,
            context,
            board: board.map(Rc::new),
            sequence: Cell::new(0),
        });
        Self(Rc::new(Member {
            rank: Rc::clone(rank),
            group,
            links: RefCell::default(),
            plans: PlanCache::new(),
            wires: Rc::default(),
            nodes: OnceCell::new(),
        }))
    }

    pub(super) fn group(&self) -> &Rc<Group> {
        &self.0.group
    }

    fn start(&self, tags: Tags, request: Request) -> Result<Handle> {
        let this = &*self.0;
        let op = this.rank.start(tags, request, &this.wires)?;
        Ok(Handle::new(Box::new(InFlight {
            rank: Rc::clone(&this.rank),
            op,
        })))
    }
}

impl Communicator for MpiComm {
    fn rank(&self) -> usize {
        self.0.group.index
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
        "mpi"
    }

    fn plans(&self) -> &PlanCache {
        &self.0.plans
    }

    fn post(&self, request: Request) -> Result<Handle> {
        let request = request.checked(self.size());
        self.start(self.0.group.next(), request)
    }

    fn call(&self, mut request: Request) -> Result<Option<Buffer>> {
        let this = &*self.0;
        request.check_own(self.size());
        let (rank, tags) = (&this.rank, this.group.next());
        let mut result = None;
        let op = match rank.call(&tags, &mut request, &this.wires, &mut result)? {
            Called::Done => return Ok(result),
            Called::Begun(begun) => rank.set_off(tags, request, begun)?,
            Called::Held => rank.start(tags, request, &this.wires)?,
        };
        rank.wait(&op)
    }

    fn post_link(&self, link: Link) -> Result<Handle> {
        let ([from, to], index) = (link.ends(self.rank()), link.participant());
        let request = link.into_request(self.size(), self.plans())?;
        let members = &self.0.group.members;
        let tags = Tags {
            members: [members[from], members[to]].into(),
            index,
            context: Rc::clone(&self.0.group.context),
            sequence: self.next_message(from, to, index),
            lane: Lane::Link,
            board: None,
        };
        self.start(tags, request)
    }

    fn post_split(
        &self,
        color: Option<usize>,
        key: usize,
        site: Site,
    ) -> Result<Option<Rc<dyn Communicator>>> {
        const NAME: &str = "split";
        let rank = &self.0.rank;
        let mut note = vec![i64::from(color.is_some())];
        note.extend([color.unwrap_or(0) as i64, key as i64]);
        let joining = rank.node().filter(|_| color.is_some());
        let offer = joining.and_then(Node::offer);
        note.push(offer.as_ref().map_or(0, |offer| offer.place.to_note()));
        note.extend(rank.contexts().free().map(u64::cast_signed));
        let note = self.device().upload_slice(&note)?;
        let this: &dyn Communicator = self;
        let request = this.all_gather_request(NAME, &note, &vec![NOTE; self.size()], site)?;
        let notes = self.post(request)?.wait()?;
        let notes: Vec<&[i64]> = notes.as_slice::<i64>()?.chunks_exact(NOTE).collect();
        // Every rank computes all groups, so that all ranks learn of a group that finds no number.
        let colors: BTreeSet<i64> = (notes.iter().filter(|note| note[0] == 1))
            .map(|note| note[1])
            .collect();
        let groups: Vec<NewGroup> = colors
            .iter()
            .map(|&color| NewGroup::new(&notes, color))
            .collect::<Option<_>>()
            .ok_or_else(|| {
                CommError::invalid(
                    NAME,
                    format!(
                        "fewer than {} groups at a time",
                        rank.contexts().bits().contexts() - 1
                    ),
                    "one more".to_owned(),
                    "drop communicators that are no longer used",
                )
            })?;
        let own = groups
            .into_iter()
            .find_map(|group| Some((group.index(self.rank())?, group)));
        Ok(own.map(|(index, group)| {
            let members: Rc<[usize]> = group.ranks.iter().map(|&r| self.members()[r]).collect();
            let context = rank.contexts().take(group.context);
            let places = members.iter().zip(&group.places);
            let places: Option<_> = (places.take(FEW + 1))
                .map(|(&process, &note)| Place::from_note(process, note))
                .collect();
            let board = match (rank.node(), places) {
                (Some(node), Some(places)) if members.len() <= FEW => node.board(places),
                _ => None,
            };
            Rc::new(Self::new(rank, members, index, context, board)) as Rc<dyn Communicator>
        }))
    }

    fn messages(&self) -> Option<LinkCost> {
        Some(MESSAGE)
    }

    fn nodes(&self) -> Option<&Nodes> {
        let (rank, members) = (&self.0.rank, &self.0.group.members);
        let nodes = self.0.nodes.get_or_init(|| {
            let of = members.iter().map(|&process| rank.world().nodes()[process]);
            Nodes::new(&of.collect::<Vec<_>>())
        });
        nodes.as_ref()
    }

    fn at_once(&self) -> usize {
        let board = self.0.group.board.as_ref();
        board
            .map_or(0, |board| board.at_once())
            .max(ONE_ROUND_BYTES)
    }

    fn failure(&self) -> Option<CommError> {
        self.0.rank.failure()
    }

    fn fail(&self, cause: String) {
        self.0.rank.fail(&cause);
    }
}

impl MpiComm {
    /// The number of the next message between two ranks. The two sides are counted separately, because a rank may send to itself.
    fn next_message(&self, from: usize, to: usize, side: usize) -> u64 {
        let mut links = self.0.links.borrow_mut();
        let count = links.entry((from, to, side)).or_insert(0);
        *count += 1;
        *count - 1
    }
}

communicator!(MpiComm);

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({})", label(&self.members))
    }
}
