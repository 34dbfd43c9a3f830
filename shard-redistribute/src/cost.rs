//! What moves cost: the model by which plans are chosen.

use crate::{MeshComm, Result};
use shard_comm::Topology;
use shard_comm::{Communicator, DType, ExchangePlan, LinkCost, Monoid, Piece, Pieces};
use shard_spec::DeviceMesh;
use smallvec::SmallVec;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The α–β model that methods are compared by.
///
/// A rank's time in a step is its messages times α plus its bytes times β. This counts what it receives or, where
/// [`sender_pays`](Self::sender_pays) and that is more, what it sends (links are full duplex). A step takes as long as its
/// busiest rank, and a plan as long as its steps one after the other. A message between ranks that differ along several mesh
/// axes pays the worst of their links.
///
/// The model is a plain value: give every rank the same one, or the ranks choose different plans, which the next
/// exchange reports as a mismatch.
///
/// ```
/// use shard_redistribute::{CostModel, LinkCost};
/// // Two nodes of eight: the first mesh axis crosses nodes.
/// let model = CostModel::network(LinkCost::new(3e-6, 80e9)).with_axis(0, LinkCost::new(10e-6, 20e9));
/// assert_eq!(model.link(&[0, 3], &[0, 5]).latency, 3e-6);
/// assert_eq!(model.link(&[0, 3], &[1, 5]).latency, 10e-6);
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct CostModel {
    usual: LinkCost,
    axes: Vec<(usize, LinkCost)>,
    /// Per axis along which several consecutive ranks share a node: how many do, and what joins them.
    nodes: Vec<(usize, usize, LinkCost)>,
    /// What messages cost, where plans are chosen as if there were none.
    messages: Option<Box<Self>>,
    /// Whether sending occupies the sender: true on a network, false where readers copy from shared memory.
    pub sender_pays: bool,
    /// Bytes that a plan may hold on one rank beyond its source and its destination.
    pub staging: usize,
    /// Seconds that a rendezvous takes, not counting the bytes that move, where fewer rounds are weighed against fewer bytes.
    /// The default is 10 µs, in which ranks that share memory copy about 100 kB.
    pub round: f64,
    /// Seconds that each run of contiguous elements takes, for forecasts: plans are not chosen by it. The default is 0.
    pub per_run: f64,
    /// Floating-point operations per second of a rank's kernels, where computing is weighed against moving. The default is 50
    /// GFLOP/s, about one core.
    pub flops: f64,
    /// A rank's messages of one exchange go as they are where there are no more than so many; more may pass through other ranks, in
    /// stages of fewer. The default is 8.
    pub at_once: usize,
    /// Ways to run an op that take up to this many times as long as the fastest count as equally fast, and the one among them
    /// that holds the least memory is taken. The default is 1.1.
    pub slack: f64,
}

impl Default for CostModel {
    /// [`CostModel::shared_memory`].
    fn default() -> Self {
        Self::shared_memory()
    }
}

/// The staging that plans may use unless told otherwise: 64 MiB.
pub(crate) const STAGING: usize = 64 << 20;

// `cargo run --release -p xtests --bin bench -- comm attention` measures the figures below. On two busy cores, two threads
// took 4.4 µs for a round of 1 KiB, and attention ran at 30 to 42 GFLOP/s; `CostModel::measure` measures the links and rounds
// of a mesh.

/// The default cost of a rendezvous, including the call of a kernel that follows it, in seconds.
const ROUND: f64 = 10e-6;

/// The default for what kernels compute per second.
const FLOPS: f64 = 50e9;

/// The default for how many messages of a rank go at once.
const AT_ONCE: usize = 8;

/// The default for how much slower a way to run an op may be that holds less memory.
const SLACK: f64 = 1.1;

impl CostModel {
    /// For ranks that are threads of one process. Messages are free, and readers copy what they need, so the direct plan, in
    /// which everyone receives least, is hardly ever beaten.
    pub fn shared_memory() -> Self {
        Self {
            usual: LinkCost::new(0.0, 10e9),
            axes: Vec::new(),
            nodes: Vec::new(),
            messages: None,
            sender_pays: false,
            staging: STAGING,
            round: ROUND,
            per_run: 0.0,
            flops: FLOPS,
            at_once: AT_ONCE,
            slack: SLACK,
        }
    }

    /// For ranks joined by a network whose links all cost the same.
    pub fn network(link: LinkCost) -> Self {
        Self {
            usual: link,
            sender_pays: true,
            ..Self::shared_memory()
        }
    }

    /// The links of a topology as a mesh lies on it: along an axis, the worst between the first rank of a group and the
    /// others.
    pub fn of(topology: &Topology, mesh: &DeviceMesh) -> Self {
        let usual = topology.link(mesh.ranks()[0], mesh.ranks()[mesh.size() - 1]);
        let mut model = Self {
            sender_pays: topology.flies(),
            ..Self::network(usual)
        };
        for axis in 0..mesh.ndim() {
            let apart = |members: &Vec<usize>| {
                let links = members.iter().map(|&m| topology.link(members[0], m));
                links.reduce(LinkCost::worse)
            };
            let links = mesh.groups(&[axis]);
            if let Some(worst) = links.iter().filter_map(apart).reduce(LinkCost::worse) {
                model = model.with_axis(axis, worst);
            }
            let each = sharing(mesh, axis, |index| topology.node(mesh.ranks()[index]));
            model = model.with_node(axis, each, topology.link(0, 0));
        }
        (model.with_round(topology.round())).with_flops(topology.machine().flops())
    }

    /// The default for ranks of which nothing was measured: plans are the direct ones, and exchanges go in stages by what the
    /// communicator of the whole mesh says of its messages.
    pub(crate) fn unmeasured(all: &dyn Communicator, mesh: &DeviceMesh) -> Self {
        let by_messages = |link: LinkCost| {
            let Some(nodes) = all.nodes() else {
                return Self::network(link);
            };
            // The ranks of a node share what joins it to the others.
            let each = nodes.all().iter().map(Vec::len).max().unwrap_or(1);
            let per_byte = link.per_byte * each as f64;
            let far = LinkCost { per_byte, ..link };
            (0..mesh.ndim()).fold(Self::network(far), |model, axis| {
                let each = sharing(mesh, axis, |index| nodes.of(index));
                match each == mesh.shape()[axis] {
                    true => model.with_axis(axis, link),
                    false => model.with_node(axis, each, link),
                }
            })
        };
        Self {
            messages: all.messages().map(by_messages).map(Box::new),
            ..Self::default()
        }
    }

    /// The model by which exchanges go in stages; `None` where ranks copy from memory that they share.
    pub(crate) fn by_messages(&self) -> Option<&Self> {
        match self.sender_pays {
            true => Some(self),
            false => self.messages.as_deref(),
        }
    }

    /// Sets the cost of links along one mesh axis, in place of the usual one.
    #[must_use]
    pub fn with_axis(mut self, axis: usize, link: LinkCost) -> Self {
        self.axes.retain(|(a, _)| *a != axis);
        self.axes.push((axis, link));
        self
    }

    /// Says that `each` consecutive ranks along a mesh axis share a node, whose links cost this. `each` divides the ranks of the axis.
    ///
    /// ```
    /// use shard_redistribute::{CostModel, LinkCost};
    /// // A row of nodes of eight.
    /// let model = CostModel::network(LinkCost::new(10e-6, 20e9)).with_node(0, 8, LinkCost::new(3e-6, 80e9));
    /// assert!(model.to_string().contains("80.0 GB/s among 8"), "{model}");
    /// ```
    #[must_use]
    pub fn with_node(mut self, axis: usize, each: usize, link: LinkCost) -> Self {
        self.nodes.retain(|(a, ..)| *a != axis);
        if each > 1 {
            self.nodes.push((axis, each, link));
        }
        self
    }

    /// Sets how many messages of a rank go as they are in one exchange, without passing through other ranks.
    #[must_use]
    pub fn with_at_once(mut self, messages: usize) -> Self {
        self.at_once = messages;
        self
    }

    /// Sets the bytes that a plan may hold on one rank beyond its source and its destination.
    #[must_use]
    pub fn with_staging(mut self, bytes: usize) -> Self {
        self.staging = bytes;
        self
    }

    /// Sets the seconds that a rendezvous takes, not counting the bytes that move.
    #[must_use]
    pub fn with_round(mut self, seconds: f64) -> Self {
        self.round = seconds;
        self
    }

    /// Sets the floating-point operations per second of a rank's kernels.
    #[must_use]
    pub fn with_flops(mut self, flops: f64) -> Self {
        self.flops = flops;
        self
    }

    /// Sets how many times as long as the fastest a way to run an op may take that holds less memory.
    #[must_use]
    pub fn with_slack(mut self, slack: f64) -> Self {
        self.slack = slack;
        self
    }

    /// The link along one mesh axis.
    pub fn axis(&self, axis: usize) -> LinkCost {
        self.axes
            .iter()
            .find(|(a, _)| *a == axis)
            .map_or(self.usual, |(_, link)| *link)
    }

    /// How many consecutive ranks along a mesh axis share a node, if several do, and what joins them.
    pub(crate) fn near(&self, axis: usize) -> Option<(usize, LinkCost)> {
        let known = self.nodes.iter().find(|(a, ..)| *a == axis);
        known.map(|&(_, each, link)| (each, link))
    }

    /// The model of a mesh on which this axis is taken apart into several, the major one first.
    pub(crate) fn split(&self, axis: usize, digits: &[usize]) -> Self {
        let others = self.axes.iter().filter(|(a, _)| *a != axis);
        let mut axes: Vec<(usize, LinkCost)> = others
            .map(|&(a, link)| (if a > axis { a + digits.len() - 1 } else { a }, link))
            .collect();
        let mut apart = 1;
        for (digit, n) in digits.iter().enumerate().rev() {
            apart *= n;
            let near = self
                .near(axis)
                .filter(|(each, _)| each.is_multiple_of(apart));
            axes.push((axis + digit, near.map_or(self.axis(axis), |(_, link)| link)));
        }
        Self {
            axes,
            nodes: Vec::new(),
            ..self.clone()
        }
    }

    /// The link between two coordinates: the worst of the axes along which they differ.
    pub fn link(&self, a: &[usize], b: &[usize]) -> LinkCost {
        let differ: SmallVec<[usize; 4]> =
            (0..a.len()).filter(|&axis| a[axis] != b[axis]).collect();
        self.worst(&differ)
    }

    /// The worst link of several axes; the usual link for none.
    pub fn worst(&self, axes: &[usize]) -> LinkCost {
        axes.iter()
            .map(|&a| self.axis(a))
            .reduce(LinkCost::worse)
            .unwrap_or(self.usual)
    }

    /// Seconds for an all-reduce of `bytes` over the ranks along `axes`, of which there are `ranks`: on a network as ranks that send
    /// messages do it; where they share memory, one round of whole copies when `bytes` is small, otherwise a reduce-scatter and an
    /// all-gather.
    pub(crate) fn all_reduce(&self, axes: &[usize], ranks: usize, bytes: usize) -> f64 {
        if ranks <= 1 || bytes == 0 {
            return 0.0;
        }
        if self.sender_pays {
            return shard_comm::all_reduce_seconds(ranks, bytes, self.worst(axes));
        }
        let (link, others, bytes) = (self.worst(axes), (ranks - 1) as f64, bytes as f64);
        let two_rounds = link.time(2.0 * others, 2.0 * others / ranks as f64 * bytes);
        if bytes <= shard_comm::ONE_ROUND_BYTES as f64 {
            // It is taken because a round costs more than its bytes, and rounds are not in these prices.
            return link.time(others, others * bytes).min(two_rounds);
        }
        two_rounds
    }

    /// Measures the links of a mesh, axis by axis, by timing barriers between short pieces of work, and small and large messages of
    /// all ranks at once to those 1, 2, 4, ... places before them: the worst of these counts. The figures are those of the slowest rank, so all ranks get the same model, which can be printed. It does not measure
    /// how fast ranks compute; `shard_ops::measure` adds that.
    ///
    /// ```
    /// # use shard_comm::{Communicator, local};
    /// # use shard_redistribute::{CostModel, MeshComm};
    /// # use shard_spec::DeviceMesh;
    /// # use std::rc::Rc;
    /// let models = local::run(4, |comm| {
    ///     let world: Rc<dyn Communicator> = Rc::new(comm);
    ///     let cx = MeshComm::new(&world, &DeviceMesh::new(&[2, 2])?)?;
    ///     let model = CostModel::measure(&cx)?;
    ///     cx.planner().set_model(Some(model.clone()));
    ///     Ok::<_, shard_redistribute::RedistributeError>(model)
    /// })?;
    /// let models = models.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// println!("{}", models[0]); // axis 0: 1.31 us + 5.2 GB/s; axis 1: ...
    /// assert!(models.iter().all(|m| *m == models[0]));
    /// assert!(models[0].axis(1).per_byte > 0.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. The rounds, and the messages and bytes of a rank, grow with the logarithm of the extents of the
    /// axes: about 5 MiB for each doubling.
    ///
    /// # Errors
    /// What the communicator reports; [`NotMember`](crate::RedistributeError::NotMember) off the mesh.
    pub fn measure(cx: &Rc<MeshComm>) -> Result<Self> {
        const LARGE: usize = 1 << 20;
        const RUNS: usize = 1 << 12;
        const ROUNDS: usize = 20;
        let mut links: Vec<f64> = Vec::new();
        let nodes = member(cx, cx.all())?.nodes();
        let near = |axis| nodes.map_or(1, |nodes| sharing(cx.mesh(), axis, |i| nodes.of(i)));
        let (mut rounds, mut runs) = (0.0_f64, 0.0_f64);
        for axis in 0..cx.mesh().ndim() {
            let comm = member(cx, cx.along(&[axis]))?;
            let round = round_time(comm, ROUNDS)?;
            rounds = rounds.max(round);
            let bare = shift_time(comm, (0, comm.size()), (1, 0), ROUNDS)?;
            // Among all ranks of the axis, and among those that share a node, if these are others.
            for among in [comm.size(), near(axis) % comm.size()] {
                let (mut latency, mut per_byte) = (0.0_f64, 0.0_f64);
                for distance in (0..usize::BITS).map(|bit| 1 << bit) {
                    if distance >= among {
                        break;
                    }
                    let to = (distance, among);
                    let small = shift_time(comm, to, (1, 1), ROUNDS)?;
                    let large = shift_time(comm, to, (1, LARGE), 4)?;
                    let many = shift_time(comm, to, (RUNS, 1), 4)?;
                    latency = latency.max(small - bare);
                    runs = runs.max((many - small) / RUNS as f64);
                    per_byte = per_byte.max((large - small) / LARGE as f64);
                }
                links.extend([latency, per_byte]);
            }
        }
        links.extend([rounds, runs]);
        let all = member(cx, cx.all())?;
        let mine = all.device().upload_slice(&links)?;
        let slowest = all.all_reduce(&mine, Monoid::MAX)?;
        let slowest: Vec<f64> = all.device().download_vec(&slowest)?;
        let mut model = Self {
            sender_pays: all.backend() != "local",
            ..Self::shared_memory()
        };
        let (links, others) = slowest.split_at(4 * cx.mesh().ndim());
        if let [round, per_run] = *others {
            (model.round, model.per_run) = (round, per_run);
        }
        for (axis, found) in links.chunks_exact(4).enumerate() {
            let link = |pair: &[f64]| LinkCost {
                latency: pair[0],
                per_byte: pair[1],
            };
            let each = near(axis) % cx.mesh().shape()[axis];
            model = model.with_axis(axis, link(&found[..2]));
            model = model.with_node(axis, each, link(&found[2..]));
        }
        Ok(model)
    }
}

impl fmt::Display for CostModel {
    /// Such as `axis 0: 1.20 us + 9.8 GB/s; rounds of 1.5 us; 52.0 GFLOP/s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.axes.is_empty() {
            write!(f, "links: {}", self.usual)?;
            for (_, each, near) in &self.nodes {
                write!(f, ", {near} among {each}")?;
            }
        }
        for (i, (axis, link)) in self.axes.iter().enumerate() {
            let comma = if i > 0 { "; " } else { "" };
            write!(f, "{comma}axis {axis}: {link}")?;
            if let Some((each, near)) = self.near(*axis) {
                write!(f, ", {near} among {each}")?;
            }
        }
        let (round, rate) = (1e6 * self.round, 1e-9 * self.flops);
        write!(f, "; rounds of {round:.2} us")?;
        if self.per_run > 0.0 {
            write!(f, "; {:.1} ns per run", 1e9 * self.per_run)?;
        }
        write!(f, "; {rate:.1} GFLOP/s")
    }
}

/// How many consecutive members along a mesh axis share a node everywhere, if `node` tells the node of the member at a position: the
/// most that divides the number of ranks along the axis.
fn sharing(mesh: &DeviceMesh, axis: usize, node: impl Fn(usize) -> usize) -> usize {
    let n = mesh.shape()[axis];
    let step: usize = mesh.shape()[axis + 1..].iter().product();
    let mut each = n;
    for index in 0..mesh.size() {
        let at = index / step % n;
        if at > 0 && node(index) != node(index - step) {
            each = gcd(each, at);
        }
    }
    each
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Seconds that a barrier adds to work which all ranks do before it, where they may share cores: what ranks lose when they take
/// turns is in it.
fn round_time(comm: &Rc<dyn Communicator>, rounds: usize) -> Result<f64> {
    const BYTES: usize = 1 << 18;
    let device = comm.device();
    let mine = device.upload_slice(&vec![0_u8; BYTES])?;
    let mut copy = device.alloc(DType::U8, BYTES)?;
    let mut time = |meet: bool| -> Result<Duration> {
        comm.barrier()?;
        let start = Instant::now();
        for _ in 0..rounds {
            device.copy_run(&mine, 0..BYTES, &mut copy, 0)?;
            if meet {
                comm.barrier()?;
            }
        }
        comm.barrier()?;
        Ok(start.elapsed())
    };
    let alone = best_of(TURNS, || time(false))?;
    let meeting = best_of(TURNS, || time(true))?;
    Ok((meeting - alone).max(0.0) / rounds as f64)
}

/// How often what takes many rounds is timed.
const TURNS: usize = 5;

/// The shortest of a few exchanges in which each rank receives so many runs of so many bytes from the one that lies `distance`
/// places after it, where each `among` consecutive ranks form a circle, in seconds.
fn shift_time(
    comm: &Rc<dyn Communicator>,
    (distance, among): (usize, usize),
    (runs, bytes): (usize, usize),
    turns: usize,
) -> Result<f64> {
    /// Runs lie so far apart that each is in a line of memory of its own. As there is more than what is read, it is copied
    /// where ranks share memory, and not held in common.
    const APART: usize = 256;
    let (first, me) = (comm.rank() / among * among, comm.rank() % among);
    let step = bytes + APART;
    let piece = |peer: usize| {
        let (shape, from, to) = ([runs, bytes], [step as isize, 1], [bytes as isize, 1]);
        let piece = Piece {
            shape: shape[..].into(),
            src_strides: from[..].into(),
            dst_strides: to[..].into(),
            ..Piece::run(first + peer % among, 0, 0, 0, 0)
        };
        Pieces::from([piece])
    };
    let (recv, send) = (piece(me + distance), piece(me + among - distance));
    let plan = Arc::new(ExchangePlan::new("shift", 0, recv, send, None, None));
    let mine = [comm.device().upload_slice(&vec![0_u8; runs * step])?];
    let bytes = runs * bytes;
    best_of(turns, || {
        let dst = comm.device().alloc(DType::U8, bytes)?;
        comm.barrier()?;
        let start = Instant::now();
        comm.exchange(&plan, &mine, dst, Ok(()))?;
        Ok(start.elapsed())
    })
}

/// The shortest of a few times, in seconds; the first one warms up.
fn best_of(turns: usize, mut time: impl FnMut() -> Result<Duration>) -> Result<f64> {
    time()?;
    let mut best = f64::INFINITY;
    for _ in 0..turns {
        best = best.min(time()?.as_secs_f64());
    }
    Ok(best)
}

fn member<'a>(
    cx: &MeshComm,
    comm: Option<&'a Rc<dyn Communicator>>,
) -> Result<&'a Rc<dyn Communicator>> {
    comm.ok_or(crate::RedistributeError::NotMember {
        op: "measure",
        rank: cx.rank(),
    })
}
