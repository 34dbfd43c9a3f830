//! What a hop costs by a model: summed over its pieces on small meshes, bounded from offset tables on large ones.

use crate::CostModel;
use crate::path::{Axes, EXACT_RANKS, Hop, Move};
use shard_comm::{DType, Monoid, all_reduce_received, staged_all_reduce};
use shard_spec::{DimSharding, Layout};

/// What one hop costs, over all ranks.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct HopCost {
    /// Seconds, by the model.
    pub time: f64,
    /// Most elements that one rank receives from others.
    pub received: usize,
    /// Most elements that one rank sends to others.
    pub sent: usize,
    /// Most ranks that one rank receives from.
    pub messages: usize,
}

/// Prices of hops, each found once, since methods have many hops in common.
pub struct Prices<'a> {
    model: &'a CostModel,
    size: usize,
    known: Vec<(Hop, f64)>,
}

impl<'a> Prices<'a> {
    /// For elements of `size` bytes.
    pub fn new(model: &'a CostModel, size: usize) -> Self {
        Self {
            model,
            size,
            known: Vec::new(),
        }
    }

    /// Seconds by the model, with the hops one after the other.
    pub fn seconds(&mut self, hops: &[Hop]) -> f64 {
        hops.iter().map(|hop| self.hop(hop)).sum()
    }

    fn hop(&mut self, hop: &Hop) -> f64 {
        if let Some((_, seconds)) = self.known.iter().find(|(h, _)| h == hop) {
            return *seconds;
        }
        let seconds = hop.cost(self.model, self.size).time;
        self.known.push((hop.clone(), seconds));
        seconds
    }
}

impl Hop {
    /// What the hop costs for elements of `size` bytes.
    pub fn cost(&self, model: &CostModel, size: usize) -> HopCost {
        match self {
            Self::AllReduce { axes, op, to } => {
                let ranks = to.mesh().part_count(axes);
                let len = to.max_local_numel();
                let (all, link) = (len * size, model.worst(axes));
                let in_stages =
                    || staged_all_reduce(all, DType::U8, (0, ranks), Monoid::Op(*op), link);
                let stages = model.sender_pays.then(in_stages).flatten();
                let received = match &stages {
                    Some(moves) => (moves.bytes as usize).div_ceil(size),
                    None => all_reduce_received(len, size, ranks, 0, 1),
                };
                HopCost {
                    time: model.all_reduce(axes, ranks, all),
                    received,
                    sent: received,
                    messages: stages.map_or(ranks - 1, |moves| moves.messages as usize),
                }
            }
            Self::Exchange(e) => e.cost(model, size),
        }
    }
}

impl Move {
    /// What the exchange costs for elements of `size` bytes.
    pub fn cost(&self, model: &CostModel, size: usize) -> HopCost {
        match &self.stages {
            Some(stages) => stages.cost(model, size),
            None if self.to.mesh().size() <= EXACT_RANKS => self.exact(model, size),
            None => self.bound(model, size),
        }
    }

    /// Calls `f` with (reader, owner, elements) for every pair of ranks between which something moves. Both are positions on
    /// the mesh, and the pairs of one reader come together.
    fn for_each_pair(&self, mut f: impl FnMut(usize, usize, usize)) {
        let builder = self.builder();
        let ranks = self.to.mesh().size();
        let mut from_peer = vec![0_usize; ranks];
        builder.for_each_reader(|me, pieces| {
            from_peer.fill(0);
            for piece in pieces.iter() {
                from_peer[piece.peer] += piece.numel();
            }
            for (peer, &elements) in from_peer.iter().enumerate() {
                if peer != me && elements > 0 {
                    f(me, peer, elements);
                }
            }
        });
    }

    /// Every piece of every rank, summed.
    fn exact(&self, model: &CostModel, size: usize) -> HopCost {
        #[derive(Clone, Copy, Default)]
        struct Port {
            time: f64,
            elements: usize,
            messages: usize,
        }
        let mesh = self.to.mesh();
        let mut ports = vec![[Port::default(); 2]; mesh.size()];
        self.for_each_pair(|reader, owner, elements| {
            let link = model.link(&mesh.coords_at(reader), &mesh.coords_at(owner));
            let time = link.time(1.0, (elements * size) as f64);
            for (rank, side) in [(reader, 0), (owner, 1)] {
                let port = &mut ports[rank][side];
                port.time += time;
                port.elements += elements;
                port.messages += 1;
            }
        });
        let mut cost = HopCost::default();
        for [into, out] in ports {
            cost.time = cost.time.max(into.time);
            if model.sender_pays {
                cost.time = cost.time.max(out.time);
            }
            cost.received = cost.received.max(into.elements);
            cost.sent = cost.sent.max(out.elements);
            cost.messages = cost.messages.max(into.messages);
        }
        cost
    }

    /// An estimate from the offset tables of each dim, for meshes too large to sum over all ranks. No rank receives more than
    /// the largest destination block, or from more ranks than the product of the most overlaps per dim. No rank sends more
    /// than its block once to every reader of it, shared among the copies.
    fn bound(&self, model: &CostModel, size: usize) -> HopCost {
        let (from, to, scatter) = (&self.from, &self.to, &self.scatter);
        let mesh = to.mesh();
        let count = |axes: &[usize]| mesh.part_count(axes);
        let terms = count(scatter);
        let mut owners = terms;
        let mut moved: Axes = scatter.iter().copied().collect();
        for d in 0..to.ndim() {
            if from.sharding(d) == to.sharding(d) {
                continue;
            }
            owners *= most_overlaps(from, to, d);
            let kept = kept_axes(from, to, d);
            for &a in from.axis_order(d)[kept..]
                .iter()
                .chain(&to.axis_order(d)[kept..])
            {
                if !moved.contains(&a) {
                    moved.push(a);
                }
            }
        }
        if owners == 1 && from.replicate_axes().len() == mesh.ndim() {
            return HopCost::default();
        }
        let received = to.max_local_numel() * terms;
        let readers = count(to.replicate_axes());
        let copies = count(from.replicate_axes()).max(1);
        let sent = from.max_local_numel() * readers.div_ceil(copies);
        let link = model.worst(&moved);
        let busiest = if model.sender_pays {
            received.max(sent)
        } else {
            received
        };
        HopCost {
            time: link.time(owners as f64, (busiest * size) as f64),
            received,
            sent,
            messages: owners,
        }
    }
}

/// How many of the axes that divide a dim, from the first on, divide it alike before and after a move: nothing moves along them.
fn kept_axes(from: &Layout, to: &Layout, d: usize) -> usize {
    let (Some(a), Some(b)) = (from.sharding(d), to.sharding(d)) else {
        return 0;
    };
    let common = a.axes.iter().zip(&b.axes).take_while(|(a, b)| a == b);
    let alike = |&kept: &usize| {
        let parts = to.mesh().part_count(&a.axes[..kept]);
        let joined = |s: &DimSharding| s.partition.joined(s.partition.parts() / parts).ok();
        joined(a).is_some_and(|whole| joined(b) == Some(whole))
    };
    (1..=common.count()).rev().find(alike).unwrap_or(0)
}

/// The most source parts that one destination part of a dim overlaps, found by walking through both tables once; all source
/// parts where parts consist of several intervals.
pub(crate) fn most_overlaps(from: &Layout, to: &Layout, d: usize) -> usize {
    let Some(source) = from.sharding(d) else {
        return 1;
    };
    let whole = [0, to.shape()[d]];
    let wanted = to
        .sharding(d)
        .map_or(Some(&whole[..]), |s| s.partition.offsets());
    let (Some(offsets), Some(wanted)) = (source.partition.offsets(), wanted) else {
        return source.partition.parts();
    };
    let (mut most, mut first, mut end) = (1, 0, 0);
    for want in wanted.windows(2) {
        while first + 1 < offsets.len() && offsets[first + 1] <= want[0] {
            first += 1;
        }
        end = end.max(first);
        while end < offsets.len() && offsets[end] < want[1] {
            end += 1;
        }
        most = most.max(end - first);
    }
    most
}
