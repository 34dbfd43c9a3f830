//! The machine that ranks run on: how fast one computes, which ranks share a node, and what the links between them cost.

use std::collections::BTreeMap;
use std::fmt;

use crate::{Work, WorkStats};

/// How fast one rank computes: a roofline, and for each op the share of it that the op reaches.
///
/// A piece of work takes `launch + max(flops / rate, bytes / bandwidth) / share` seconds (the roofline model of Williams,
/// Waterman and Patterson 2009). The shares are 1 unless they are [measured](Self::calibrated).
///
/// ```
/// use shard_comm::{Machine, Work};
/// let machine = Machine::new(1e12, 1e11).with_launch(1e-6).with_share("gelu", 0.5);
/// let work = Work { flops: 1_000_000, bytes: 1_000_000 };
/// assert!((machine.time("matmul", work) - 11e-6).abs() < 1e-15);
/// assert!((machine.time("gelu", work) - 21e-6).abs() < 1e-15);
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Machine {
    flops: f64,
    bandwidth: f64,
    launch: f64,
    shares: BTreeMap<String, f64>,
}

impl Machine {
    /// A rank that does this many floating-point operations, and reads or writes this many bytes, per second.
    pub fn new(flops: f64, bandwidth: f64) -> Self {
        Self {
            flops,
            bandwidth,
            launch: 0.0,
            shares: BTreeMap::new(),
        }
    }

    /// Seconds that every call takes before it does anything.
    #[must_use]
    pub fn with_launch(self, seconds: f64) -> Self {
        Self {
            launch: seconds,
            ..self
        }
    }

    /// The share of the roofline that ops of this name reach.
    #[must_use]
    pub fn with_share(mut self, op: &str, share: f64) -> Self {
        self.shares.insert(op.to_owned(), share);
        self
    }

    /// The shares that a [metered](crate::HostOptions::meter) device reached. Its account begins when a kernel does, so the launches
    /// are not in it and come on top.
    #[must_use]
    pub fn calibrated(mut self, spent: &[(&'static str, WorkStats)]) -> Self {
        for (op, spent) in spent {
            let took = spent.time.as_secs_f64();
            let bound = self.roofline(spent.work);
            if took > 0.0 && bound > 0.0 {
                self.shares.insert((*op).to_owned(), bound / took);
            }
        }
        self
    }

    /// The same machine, shared by `times` ranks that take turns: everything takes `times` as long.
    #[must_use]
    pub fn slowed(self, times: f64) -> Self {
        Self {
            flops: self.flops / times,
            bandwidth: self.bandwidth / times,
            launch: self.launch * times,
            ..self
        }
    }

    /// Floating-point operations per second.
    pub fn flops(&self) -> f64 {
        self.flops
    }

    /// Seconds that work of this op takes.
    pub fn time(&self, op: &str, work: Work) -> f64 {
        let share = self.shares.get(op).copied().unwrap_or(1.0);
        self.launch + self.roofline(work) / share
    }

    fn roofline(&self, work: Work) -> f64 {
        (work.flops as f64 / self.flops).max(work.bytes as f64 / self.bandwidth)
    }
}

impl fmt::Display for Machine {
    /// For example `52.0 GFLOP/s, 9.8 GB/s, 0.4 us per call`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rate, bytes, launch) = (1e-9 * self.flops, 1e-9 * self.bandwidth, 1e6 * self.launch);
        write!(
            f,
            "{rate:.1} GFLOP/s, {bytes:.1} GB/s, {launch:.2} us per call"
        )
    }
}

/// What one link costs: `latency + bytes * per_byte` seconds for one message.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkCost {
    /// Seconds per message, the model's α.
    pub latency: f64,
    /// Seconds per byte, the model's β: one over the bandwidth.
    pub per_byte: f64,
}

impl LinkCost {
    /// A link with this latency in seconds and this bandwidth in bytes per second.
    ///
    /// ```
    /// use shard_comm::LinkCost;
    /// let link = LinkCost::new(10e-6, 50e9);
    /// assert_eq!(link.time(2.0, 0.0), 20e-6);
    /// ```
    pub fn new(latency: f64, bandwidth: f64) -> Self {
        Self {
            latency,
            per_byte: 1.0 / bandwidth,
        }
    }

    /// Seconds for this many messages of this many bytes together.
    pub fn time(&self, messages: f64, bytes: f64) -> f64 {
        messages * self.latency + bytes * self.per_byte
    }

    /// The worse of two links in both respects.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        Self {
            latency: self.latency.max(other.latency),
            per_byte: self.per_byte.max(other.per_byte),
        }
    }
}

impl fmt::Display for LinkCost {
    /// For example `3.00 us + 80.0 GB/s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (latency, rate) = (1e6 * self.latency, 1e-9 / self.per_byte);
        write!(f, "{latency:.2} us + {rate:.1} GB/s")
    }
}

/// Ranks, the nodes they are on, and the links that join them.
///
/// ```
/// use shard_comm::{LinkCost, Machine, Topology};
/// let machine = Machine::new(60e12, 3e12);
/// let cluster = Topology::network(16, machine, LinkCost::new(3e-6, 450e9)).nodes_of(8, LinkCost::new(6e-6, 50e9));
/// assert_eq!(cluster.link(0, 7).latency, 3e-6);
/// assert_eq!(cluster.link(7, 8).latency, 6e-6);
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Topology {
    ranks: usize,
    per_node: usize,
    inside: LinkCost,
    between: LinkCost,
    round: f64,
    per_run: f64,
    flies: bool,
    reductions: Reductions,
    machine: Machine,
}

/// How the sums of an all-reduce are formed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reductions {
    /// By the ranks themselves, by the [tree](crate::by_tree) over their numbers: the same bits whatever the network. The backends
    /// of this crate do this, with messages that grow with the logarithm of the number of ranks.
    Direct,
    /// By the network's library, with trees within and between nodes: `2 log2` latencies, and the bytes of a reduce-scatter and
    /// an all-gather; between nodes each rank of a node carries its share of them. NCCL and the collectives of MPI do this.
    Library,
}

impl Topology {
    /// Ranks on a network whose links all cost the same. It carries messages while ranks compute, at full duplex.
    pub fn network(ranks: usize, machine: Machine, link: LinkCost) -> Self {
        Self {
            ranks,
            per_node: ranks.max(1),
            inside: link,
            between: link,
            round: 0.0,
            per_run: 0.0,
            flies: true,
            reductions: Reductions::Direct,
            machine,
        }
    }

    /// Ranks that share memory: a rank copies what it needs when it waits for it, and sending costs nothing. They plan as threads do, without
    /// a model of these links unless the program sets one.
    pub fn shared_memory(ranks: usize, machine: Machine, link: LinkCost) -> Self {
        Self {
            flies: false,
            ..Self::network(ranks, machine, link)
        }
    }

    /// Nodes of `ranks` consecutive ranks each, joined by links of this cost.
    #[must_use]
    pub fn nodes_of(self, ranks: usize, between: LinkCost) -> Self {
        Self {
            per_node: ranks.max(1),
            between,
            ..self
        }
    }

    /// Seconds that every rendezvous takes, however little moves.
    #[must_use]
    pub fn with_round(self, seconds: f64) -> Self {
        Self {
            round: seconds,
            ..self
        }
    }

    /// Seconds that each run of contiguous elements takes where a rank receives pieces that are made of many: the columns of a
    /// halo, say, of which every element lies by itself.
    #[must_use]
    pub fn with_runs(self, seconds: f64) -> Self {
        Self {
            per_run: seconds,
            ..self
        }
    }

    /// Sets how the sums of an all-reduce are formed.
    #[must_use]
    pub fn with_reductions(self, reductions: Reductions) -> Self {
        Self { reductions, ..self }
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The machine that a rank computes on.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Seconds of a rendezvous in which nothing moves.
    pub fn round(&self) -> f64 {
        self.round
    }

    /// Seconds for each run of contiguous elements that is received.
    pub fn per_run(&self) -> f64 {
        self.per_run
    }

    /// How the sums of an all-reduce are formed.
    pub fn reductions(&self) -> Reductions {
        self.reductions
    }

    /// Whether messages travel while ranks compute, and occupy their sender's links.
    pub fn flies(&self) -> bool {
        self.flies
    }

    /// The node of a rank.
    pub fn node(&self, rank: usize) -> usize {
        rank / self.per_node
    }

    /// The link between two ranks.
    pub fn link(&self, a: usize, b: usize) -> LinkCost {
        if self.node(a) == self.node(b) {
            self.inside
        } else {
            self.between
        }
    }

    /// Seconds for an all-reduce of `bytes` by the network's library, over a group of `size` that has `here` members on
    /// this node.
    pub(crate) fn library_all_reduce(&self, size: usize, here: usize, bytes: f64) -> f64 {
        let doublings = |n: usize| f64::from(n.max(1).next_power_of_two().ilog2());
        let nodes = size.div_ceil(here.max(1));
        let part = |n: usize| (n - 1) as f64 / n as f64;
        let inside = self
            .inside
            .time(2.0 * doublings(here), 2.0 * part(here.max(1)) * bytes);
        let share = bytes / here.max(1) as f64;
        inside + (self.between).time(2.0 * doublings(nodes), 2.0 * part(nodes.max(1)) * share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_pay_latencies_by_doubling() {
        let machine = Machine::new(1.0, 1.0);
        let (near, far) = (LinkCost::new(1.0, 1e9), LinkCost::new(10.0, 1e9));
        let cluster = Topology::network(64, machine, near).nodes_of(8, far);
        assert_eq!(
            cluster.library_all_reduce(64, 8, 0.0),
            2.0 * 3.0 + 20.0 * 3.0
        );
        assert_eq!(cluster.library_all_reduce(8, 8, 0.0), 6.0);
        assert_eq!(cluster.library_all_reduce(8, 1, 0.0), 60.0);
    }
}
