//! The communicator of a rank that is played.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::Played;
use super::clock::{Clock, Travel};
use super::phantom::Phantom;
use crate::{
    Buffer, CommError, Communicator, DType, DeviceRef, ExchangePlan, Handle, Ledger,
    LedgerSnapshot, Nodes, PieceRef, PlanCache, Result, Site,
};
use crate::{Link, LinkCost, Pending, Request, Stage, Target};
use crate::{Reductions, Topology};
use smallvec::SmallVec;

/// One rank of a simulated program; see the [module](super). Clones are the same communicator.
///
/// It derefs to [`dyn Communicator`](Communicator), which has all the operations.
#[derive(Clone)]
pub struct SimulatedComm(Rc<Member>);

struct Member {
    rank: Rc<Rank>,
    members: Arc<[usize]>,
    /// This rank's number within the group.
    index: usize,
    /// Members on this rank's node.
    here: usize,
    /// The worst link between two members.
    link: LinkCost,
    sequence: Cell<u64>,
    plans: PlanCache,
    nodes: OnceCell<Option<Nodes>>,
}

/// The state that the rank's groups share.
struct Rank {
    clock: Arc<Clock>,
    device: DeviceRef,
    ledger: Ledger,
    /// The ledger at the last restart.
    before: RefCell<LedgerSnapshot>,
    /// Bytes received from ranks of other nodes.
    crossed: Cell<u64>,
    failed: RefCell<Option<CommError>>,
}

impl SimulatedComm {
    /// The communicator of all ranks of a topology, as rank `rank` sees it.
    ///
    /// # Errors
    /// [`CommError::Invalid`] if there is no such rank.
    pub fn new(topology: &Topology, rank: usize) -> Result<Self> {
        Self::on(topology, rank, None)
    }

    /// The communicator of a rank that does its own work on a device of this machine. What lies between two of its calls takes as
    /// long as it takes here: kernels on pieces of just these shapes, and all that the host does besides. What the calls take is
    /// forecast. Elements that other ranks would send are whatever the memory holds.
    ///
    /// ```
    /// use shard_comm::simulated::SimulatedComm;
    /// use shard_comm::{Host, LinkCost, Machine, Topology};
    /// let links = LinkCost::new(1.0, f64::INFINITY);
    /// let far = Topology::network(1000, Machine::new(1e12, 1e12), links);
    /// let comm = SimulatedComm::rehearsing(&far, 7, Host::new())?;
    /// comm.restart();
    /// std::thread::sleep(std::time::Duration::from_millis(2));
    /// comm.barrier()?;
    /// let seconds = comm.played().seconds;
    /// assert!((2e-3..0.5).contains(&seconds), "{seconds}");
    /// # Ok::<(), shard_comm::CommError>(())
    /// ```
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn rehearsing(topology: &Topology, rank: usize, device: DeviceRef) -> Result<Self> {
        Self::on(topology, rank, Some(device))
    }

    fn on(topology: &Topology, rank: usize, rehearses: Option<DeviceRef>) -> Result<Self> {
        if rank >= topology.ranks() {
            return Err(CommError::invalid(
                "simulate",
                format!("a rank below {}", topology.ranks()),
                rank.to_string(),
                "play a rank of the topology",
            ));
        }
        let clock = Arc::new(Clock::new(topology, rehearses.is_some()));
        let device = rehearses.unwrap_or_else(|| Phantom::on(&clock));
        let state = Rc::new(Rank {
            clock,
            ledger: Ledger::new(Arc::clone(&device)),
            device,
            before: RefCell::default(),
            crossed: Cell::new(0),
            failed: RefCell::default(),
        });
        Ok(Self::over(state, (0..topology.ranks()).collect(), rank))
    }

    fn over(rank: Rc<Rank>, members: Arc<[usize]>, index: usize) -> Self {
        let topology = rank.clock.topology();
        let node = topology.node(members[index]);
        let here = members.iter().filter(|&&m| topology.node(m) == node);
        let links = members.iter().map(|&m| topology.link(members[index], m));
        let link = links.fold(topology.link(0, 0), LinkCost::worse);
        Self(Rc::new(Member {
            here: here.count(),
            link,
            rank,
            members,
            index,
            sequence: Cell::new(0),
            plans: PlanCache::new(),
            nodes: OnceCell::new(),
        }))
    }

    /// Forgets the time and the traffic so far, and begins a new measurement of memory at the bytes in use now.
    pub fn restart(&self) {
        let rank = &self.0.rank;
        rank.device.reset_peak();
        rank.device.reset_spent();
        *rank.before.borrow_mut() = rank.ledger.snapshot();
        rank.crossed.set(0);
        rank.clock.restart();
    }

    /// The account since the last [`restart`](Self::restart).
    pub fn played(&self) -> Played {
        let rank = &self.0.rank;
        let mut state = rank.clock.read();
        if rank.device.kind() != super::PHANTOM {
            state.worked(&rank.device.spent());
        }
        Played::new(
            self.0.members[self.0.index],
            state,
            rank.device.memory().peak,
            rank.ledger.since(&rank.before.borrow()),
            rank.crossed.get(),
        )
    }

    /// Counts an operation and computes how long it takes.
    fn start(
        &self,
        op: &'static str,
        stages: &[Stage],
        dtype: Option<DType>,
        site: Site,
    ) -> Result<Travel> {
        let this = &*self.0;
        let _off = this.rank.clock.off();
        if let Some(error) = this.rank.failed.borrow().clone() {
            return Err(error);
        }
        let sequence = this.sequence.get();
        this.sequence.set(sequence + 1);
        this.rank.ledger.posted(op, sequence, site);
        let mut prices: SmallVec<[f64; 2]> = SmallVec::new();
        for stage in stages {
            (this.rank.ledger).moved(op, &stage.plan, this.index, dtype);
            prices.push(self.price(&stage.plan, dtype));
        }
        // In a stage in which this rank has nothing to do it waits for one that has, for as long as it takes itself elsewhere.
        let longest = prices.iter().copied().fold(0.0, f64::max);
        let price = |(seconds, stage): (f64, &Stage)| match stage.target {
            Target::Same | Target::Nothing if stages.len() > 2 => longest,
            _ => seconds,
        };
        // Ranks that share memory meet in every stage; those that send messages agree once.
        let round = this.rank.clock.topology().round();
        let meetings = match this.rank.clock.topology().flies() {
            true => stages.len().min(1),
            false => stages.len(),
        };
        let stages_take: f64 = prices.into_iter().zip(stages).map(price).sum();
        let mut seconds = meetings as f64 * round + stages_take;
        if op == "all_reduce" && this.rank.clock.topology().reductions() == Reductions::Library {
            seconds = self.by_library(stages, dtype);
        }
        Ok(this.rank.clock.post(op, seconds))
    }

    /// The seconds of one exchange: for what this rank receives, or sends where that occupies it, and for what it copies from
    /// itself.
    fn price(&self, plan: &ExchangePlan, dtype: Option<DType>) -> f64 {
        let this = &*self.0;
        let topology = this.rank.clock.topology();
        let (size, me) = (dtype.map_or(0, DType::size), this.members[this.index]);
        let along = |traffic: &mut dyn Iterator<Item = (usize, usize)>| -> f64 {
            traffic
                .filter(|&(peer, _)| peer != this.index)
                .map(|(peer, elements)| {
                    let link = topology.link(me, this.members[peer]);
                    link.time(1.0, (elements * size) as f64)
                })
                .sum()
        };
        let crosses =
            |t: &&crate::plan::Traffic| topology.node(this.members[t.peer]) != topology.node(me);
        let crossed: usize = (plan.incoming().iter().filter(crosses))
            .map(|t| t.elements * size)
            .sum();
        this.rank.crossed.update(|all| all + crossed as u64);
        let mut received = along(&mut plan.incoming().iter().map(|t| (t.peer, t.elements)));
        let sent = along(&mut plan.outgoing().iter().map(|t| (t.peer, t.elements)));
        let own = plan.received_from(this.index) * size;
        let copied = topology
            .machine()
            .time("copy", crate::Work::moving(2 * own));
        if topology.per_run() > 0.0 {
            let others = plan.recv.iter().filter(|piece| piece.peer != this.index);
            received += others.map(runs).sum::<usize>() as f64 * topology.per_run();
        }
        let busy = if topology.flies() {
            received.max(sent)
        } else {
            received
        };
        busy + if own > 0 { copied } else { 0.0 }
    }

    fn by_library(&self, stages: &[Stage], dtype: Option<DType>) -> f64 {
        let topology = self.0.rank.clock.topology();
        let len = |stage: &Stage| match &stage.target {
            Target::Write(dst) => dst.len(),
            Target::Keep(result) => result.len(),
            Target::Same | Target::Nothing | Target::Elsewhere => 0,
        };
        let whole = stages.iter().map(len).max().unwrap_or(0);
        let bytes = (whole * dtype.map_or(0, DType::size)) as f64;
        topology.round() + topology.library_all_reduce(self.size(), self.0.here, bytes)
    }

    fn handle(&self, op: &'static str, travel: Travel, result: Result<Option<Buffer>>) -> Handle {
        Handle::new(Box::new(InFlight {
            rank: Rc::clone(&self.0.rank),
            op,
            travel,
            result: Some(result),
        }))
    }
}

impl Communicator for SimulatedComm {
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
        &self.0.rank.device
    }

    fn ledger(&self) -> &Ledger {
        &self.0.rank.ledger
    }

    fn backend(&self) -> &'static str {
        "simulated"
    }

    fn plans(&self) -> &PlanCache {
        &self.0.plans
    }

    fn topology(&self) -> Option<&Topology> {
        Some(self.0.rank.clock.topology())
    }

    fn messages(&self) -> Option<LinkCost> {
        let flies = self.0.rank.clock.topology().flies();
        flies.then_some(self.0.link)
    }

    fn nodes(&self) -> Option<&Nodes> {
        let this = &*self.0;
        let nodes = this.nodes.get_or_init(|| {
            let topology = this.rank.clock.topology();
            let of: Vec<usize> = this.members.iter().map(|&m| topology.node(m)).collect();
            Nodes::new(&of)
        });
        nodes.as_ref()
    }

    fn post(&self, request: Request) -> Result<Handle> {
        let request = request.checked(self.size());
        let op = request.name();
        if let Err(error) = request.status {
            let stages = [];
            let travel = self.start(op, &stages, None, request.site)?;
            return Ok(self.handle(op, travel, Err(CommError::Agreed(error))));
        }
        let travel = self.start(op, &request.stages, request.moves(), request.site)?;
        let left = request.sources.first().cloned();
        let result = (request.stages.into_iter()).fold(left, |left, stage| match stage.target {
            Target::Write(dst) => Some(dst.freeze()),
            Target::Keep(result) => Some(result),
            Target::Same => left,
            Target::Nothing | Target::Elsewhere => None,
        });
        Ok(self.handle(op, travel, Ok(result)))
    }

    fn post_link(&self, link: Link) -> Result<Handle> {
        let (op, site) = (link.name(), link.site);
        let _off = self.0.rank.clock.off();
        let (topology, peer) = (self.0.rank.clock.topology(), link.peer);
        let request = link.into_request(self.size(), self.plans())?;
        let bytes = (request.stages.first()).map_or(0, |stage| match &stage.target {
            Target::Write(dst) => dst.bytes(),
            Target::Keep(data) => data.bytes(),
            Target::Same | Target::Nothing | Target::Elsewhere => 0,
        });
        let between = topology.link(self.0.members[self.0.index], self.0.members[peer]);
        let pays = topology.flies() || op == "recv";
        let seconds = topology.round()
            + if pays {
                between.time(1.0, bytes as f64)
            } else {
                0.0
            };
        let sequence = self.0.sequence.get();
        let rank = &self.0.rank;
        rank.ledger.posted(op, sequence, site);
        if let Some(stage) = request.stages.first() {
            // The plan numbers the two of them 0 and 1.
            let me = usize::from(op == "recv");
            (rank.ledger).moved(op, &stage.plan, me, request.dtype);
        }
        let travel = rank.clock.post(op, seconds);
        let result = request
            .stages
            .into_iter()
            .last()
            .and_then(|stage| match stage.target {
                Target::Write(dst) => Some(dst.freeze()),
                Target::Keep(result) => Some(result),
                Target::Same | Target::Nothing | Target::Elsewhere => None,
            });
        Ok(self.handle(op, travel, Ok(result)))
    }

    fn post_split(
        &self,
        color: Option<usize>,
        _: usize,
        _: Site,
    ) -> Result<Option<Rc<dyn Communicator>>> {
        if self.size() == 1 {
            return Ok(color.map(|_| Rc::new(self.clone()) as Rc<dyn Communicator>));
        }
        Err(CommError::invalid(
            "split",
            "a group whose members this rank knows",
            "colors that only other ranks know, and nobody plays them",
            "make the group by its members, with subgroup",
        ))
    }

    fn post_subgroup(
        &self,
        members: Option<&[usize]>,
        site: Site,
    ) -> Result<Option<Rc<dyn Communicator>>> {
        let plan = ExchangePlan::empty("split");
        let stage = Stage {
            plan: Arc::new(plan),
            target: Target::Nothing,
        };
        let travel = self.start("split", &[stage], None, site)?;
        let _off = self.0.rank.clock.off();
        self.0.rank.clock.wait("split", travel);
        let Some(members) = members else {
            return Ok(None);
        };
        let own = members.iter().position(|&m| m == self.0.index);
        let known: Option<Arc<[usize]>> = (members.iter())
            .map(|&m| self.0.members.get(m).copied())
            .collect();
        match (own, known) {
            (Some(index), Some(known)) => {
                // Of the same ranks there is one list, however many groups have them.
                let known = match known == self.0.members {
                    true => Arc::clone(&self.0.members),
                    false => known,
                };
                let group = Self::over(Rc::clone(&self.0.rank), known, index);
                Ok(Some(Rc::new(group)))
            }
            _ => Err(CommError::invalid(
                "subgroup",
                format!("ranks below {}, this one among them", self.size()),
                format!("{members:?}"),
                "name the members as numbered in this group",
            )),
        }
    }

    fn fail(&self, cause: String) {
        *self.0.rank.failed.borrow_mut() = Some(CommError::PeerFailed {
            origin: self.0.members[self.0.index],
            cause: cause.into(),
        });
    }
}

communicator!(SimulatedComm);

/// How many runs of contiguous elements a piece is made of.
fn runs(piece: PieceRef<'_>) -> usize {
    let mut run = 1;
    for dim in (0..piece.shape.len()).rev() {
        let stride = run as isize;
        if piece.src_strides[dim] != stride || piece.dst_strides[dim] != stride {
            break;
        }
        run *= piece.shape[dim];
    }
    piece.numel().checked_div(run).unwrap_or(0)
}

/// An operation that takes some time and whose result is known already.
struct InFlight {
    rank: Rc<Rank>,
    op: &'static str,
    travel: Travel,
    result: Option<Result<Option<Buffer>>>,
}

impl Pending for InFlight {
    fn wait(&mut self) -> Result<Option<Buffer>> {
        let _off = self.rank.clock.off();
        self.rank.clock.wait(self.op, self.travel);
        self.result.take().unwrap_or(Ok(None))
    }

    fn is_done(&mut self) -> bool {
        true
    }

    fn device(&self) -> &DeviceRef {
        &self.rank.device
    }

    fn park(&mut self) {}
}
