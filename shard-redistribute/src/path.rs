//! Paths from one layout to another, and what each costs.
//!
//! A path is a list of hops, each an exchange or an all-reduce, described by layouts alone. The direct path
//! always exists; the others are tried where a cost model might prefer them:
//!
//! - **relabel** is the name of the direct path where only ranks are permuted;
//! - **spread** and **balanced** are the direct exchange with pieces shared out over the copies of their owner, so that
//!   no owner sends more than its share ([`Owners`]);
//! - **slice, exchange, gather** shards what the destination replicates over the replicas, and lets them gather it last. An
//!   owner of much data then sends it once instead of once per replica;
//! - **axis by axis** moves one mesh axis at a time, which replaces many small messages by few larger ones;
//! - **composed** does both on small meshes: it slices first, then moves one axis at a time, and gathers last (the normal form
//!   of Rink and others, arXiv 2112.01075);
//! - **gather, slice** brings everything to every rank, axis by axis. It serves tensors so small that only the number of
//!   messages counts; the model's staging bounds it.
//!
//! An exchange among many ranks may go in [stages](crate::stages), in which pieces pass through other ranks; a hop is priced so where
//! that is cheaper.
//!
//! Apart from gather and slice, no path holds more between hops than the larger of the source's and the destination's blocks.

use crate::stages::Stages;
use crate::{CostModel, ExchangeBuilder, ExchangeSource, Owners, Result};
use shard_comm::{DType, Monoid, Scalar};
use shard_spec::{DimSharding, Layout, Partition, Placement, ReduceOp};
use smallvec::SmallVec;
use std::fmt;

/// Axes of a mesh.
pub type Axes = SmallVec<[usize; 4]>;

/// Up to this many ranks a hop is priced by its pieces, rank by rank; above, by bounds from the offset tables.
pub(crate) const EXACT_RANKS: usize = 64;
/// Above so many ranks, a tensor of more elements than this is never gathered whole.
const GATHERED: usize = 1 << 20;
/// The most mesh axes whose subsets and orders are tried.
const SEARCH_AXES: usize = 3;

/// The method by which a plan moves an array.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Method {
    /// Every rank reads what it needs from whoever holds it; partial values are reduced before or on the way.
    Direct,
    /// The move is direct, and the reduction is done on the other side of it than a direct plan would choose.
    ReduceElsewhere,
    /// The move is direct, and each copy of an owner sends an even share of every piece.
    Spread,
    /// The move is direct, and the copies of a block share its readers out evenly.
    Balanced,
    /// Only ranks are permuted: each takes over the whole block of one other.
    Relabel,
    /// Replicas share the incoming data out among themselves and gather it last.
    SliceGather,
    /// One mesh axis moves after the other.
    AxisByAxis,
    /// One mesh axis moves after the other, replicas share the incoming data out among themselves, and they gather it
    /// last.
    Composed,
    /// Every rank gathers everything, and then takes its own.
    GatherSlice,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Direct => "direct",
            Self::ReduceElsewhere => "reduce elsewhere",
            Self::Spread => "spread",
            Self::Balanced => "balanced",
            Self::Relabel => "relabel",
            Self::SliceGather => "slice-gather",
            Self::AxisByAxis => "axis by axis",
            Self::Composed => "composed",
            Self::GatherSlice => "gather-slice",
        })
    }
}

/// One step of a path, described for all ranks.
#[derive(Clone, PartialEq, Debug)]
pub enum Hop {
    /// Pieces move.
    Exchange(Move),
    /// Ranks along `axes` combine blocks of equal shape.
    AllReduce {
        /// The mesh axes.
        axes: Axes,
        /// How elements are combined.
        op: ReduceOp,
        /// The layout of the result.
        to: Layout,
    },
}

/// An exchange between two layouts of one mesh.
#[derive(Clone, PartialEq, Debug)]
pub struct Move {
    /// Where elements are.
    pub from: Layout,
    /// Where they go.
    pub to: Layout,
    /// Partial axes whose terms are folded as they arrive.
    pub scatter: Axes,
    /// From which copies replicated pieces are read.
    pub owners: Owners,
    /// The stages in which it goes, if it does.
    pub stages: Option<Box<Stages>>,
}

/// A path from one layout to another.
#[derive(Clone, PartialEq, Debug)]
pub struct Path {
    /// Which method it is.
    pub method: Method,
    /// Its hops, one after the other.
    pub hops: Vec<Hop>,
}

impl Path {
    /// Lets exchanges go in stages where a model finds that cheaper. They hold no more than the model's staging in between.
    pub(crate) fn stage(&mut self, dtype: DType, model: &CostModel) {
        let mut room = (model.staging).saturating_sub(self.staging(dtype.size(), model.staging));
        for hop in &mut self.hops {
            if let Hop::Exchange(e) = hop
                && let Some(stages) = Stages::best(e, dtype, model, room)
            {
                room -= stages.staging() * dtype.size();
                e.stages = Some(Box::new(stages));
            }
        }
    }

    /// Whether ranks combine blocks of which all have the result.
    pub(crate) fn all_reduces(&self) -> bool {
        let sums = |hop: &Hop| matches!(hop, Hop::AllReduce { .. });
        self.hops.iter().any(sums)
    }

    /// Most elements that some rank holds between the stages of the exchanges.
    fn within(&self) -> usize {
        let of = |hop: &Hop| match hop {
            Hop::Exchange(e) => e.stages.as_ref().map_or(0, |stages| stages.staging()),
            Hop::AllReduce { .. } => 0,
        };
        self.hops.iter().map(of).sum()
    }

    /// Most bytes that some rank holds beyond its source and its destination: the sum of all that the hops and their stages leave in
    /// between, since slower ranks may still be reading it.
    ///
    /// For a path with an all-reduce the result is at most `cap`, since such a plan then runs by rounds.
    pub(crate) fn staging(&self, size: usize, cap: usize) -> usize {
        let before = (self.hops.split_last()).map_or(&[][..], |(_, before)| before);
        let between = before.iter().map(|h| h.to().max_local_numel());
        let held = (between.sum::<usize>() + self.within()) * size;
        match self.all_reduces() {
            true => held.min(cap),
            false => held,
        }
    }
}

/// The direct path, or with `other_way` the path that reduces on the other side of the move (`None` if there is nothing to
/// choose).
///
/// A partial source is reduced, never gathered: axes that shard the destination reduce in the exchange itself (a
/// reduce-scatter), the others by an all-reduce, which by default runs on the smaller of the two blocks.
pub(crate) fn direct(from: &Layout, to: &Layout, other_way: bool) -> Result<Option<Vec<Hop>>> {
    let (scatter, all) = reductions(from, to);
    let mut hops = Vec::new();
    if let (Some(op), false) = (from.partial_op(), all.is_empty()) {
        let first = (from.max_local_numel() <= to.max_local_numel()) != other_way;
        if first {
            let at = reduced(from, &all)?;
            let exchange = exchange(&at, to, &scatter, Owners::Nearest);
            hops.push(Hop::AllReduce {
                axes: all,
                op,
                to: at,
            });
            hops.extend(exchange);
        } else {
            let between = to.with_partial(&all, op)?;
            hops.extend(exchange(from, &between, &scatter, Owners::Nearest));
            hops.push(Hop::AllReduce {
                axes: all,
                op,
                to: to.clone(),
            });
        }
    } else if other_way {
        return Ok(None);
    } else {
        hops.extend(exchange(from, to, &scatter, Owners::Nearest));
    }
    Ok(Some(hops))
}

/// The name of the direct path: a relabelling where both layouts cut the tensor into the same blocks.
pub(crate) fn direct_way(from: &Layout, to: &Layout) -> Method {
    let whole_values = !from.is_partial() && !to.is_partial();
    if whole_values && from != to && same_blocks(from, to) {
        Method::Relabel
    } else {
        Method::Direct
    }
}

/// Whether both layouts cut the tensor into the same blocks, even if other ranks hold them.
pub(crate) fn same_blocks(a: &Layout, b: &Layout) -> bool {
    let cuts = |l: &Layout, d: usize| {
        let divided = |s: &&DimSharding| s.partition.parts() > 1;
        l.sharding(d).filter(divided).map(|s| s.partition.clone())
    };
    (0..b.ndim()).all(|d| cuts(a, d) == cuts(b, d))
}

/// All paths worth pricing, the direct one first, in an order that is the same on every rank.
pub fn paths(from: &Layout, to: &Layout) -> Result<Vec<Path>> {
    let mut found = Found {
        from,
        to,
        most: from.max_local_numel().max(to.max_local_numel()),
        small: to.mesh().size() <= EXACT_RANKS,
        paths: Vec::new(),
    };
    found.add(direct_way(from, to), direct(from, to, false)?);
    found.add(Method::ReduceElsewhere, direct(from, to, true)?);
    if from == to || to.is_partial() || to.numel() == 0 {
        return Ok(found.paths);
    }
    found.in_one_hop();
    found.sliced()?;
    if !from.is_partial() {
        found.along_axes()?;
    }
    Ok(found.paths)
}

/// The paths that have been found.
struct Found<'a> {
    from: &'a Layout,
    to: &'a Layout,
    /// The most elements that a rank holds at either end.
    most: usize,
    /// Whether ranks are few enough to compare them one by one.
    small: bool,
    paths: Vec<Path>,
}

impl Found<'_> {
    fn add(&mut self, method: Method, hops: Option<Vec<Hop>>) {
        if let Some(hops) = hops
            && !self.paths.iter().any(|path| path.hops == hops)
        {
            self.paths.push(Path { method, hops });
        }
    }

    fn through(&mut self, method: Method, stops: &[Layout], owners: Owners) {
        let hops = through(self.from, stops, self.to, owners, self.most);
        self.add(method, hops);
    }

    /// Other owners than the nearest are asked.
    fn in_one_hop(&mut self) {
        if self.small {
            self.through(Method::Balanced, &[], Owners::Balanced);
        }
        self.through(Method::Spread, &[], Owners::Spread);
    }

    /// Copies slice what they send, and gather it.
    fn sliced(&mut self) -> Result<()> {
        let shared = match self.small {
            true => Owners::Balanced,
            false => Owners::Spread,
        };
        for between in sliced(self.from, self.to)? {
            for owners in [Owners::Nearest, shared] {
                self.through(Method::SliceGather, std::slice::from_ref(&between), owners);
            }
        }
        Ok(())
    }

    /// One mesh axis moves after the other.
    fn along_axes(&mut self) -> Result<()> {
        let (from, to) = (self.from, self.to);
        for stops in axis_orders(from, to)? {
            self.through(Method::AxisByAxis, &stops, Owners::Nearest);
        }
        // With two axes it was never the cheapest, since there is no third axis to move meanwhile.
        let deep = self.small && to.mesh().shape().iter().filter(|&&n| n > 1).count() > 2;
        for between in sliced(from, to)?.iter().take(usize::from(deep)) {
            for mut stops in axis_orders(from, between)? {
                stops.push(between.clone());
                self.through(Method::Composed, &stops, Owners::Nearest);
            }
        }
        let whole = Layout::replicated(to.mesh(), to.shape());
        if from != &whole && to != &whole && (self.small || whole.numel() <= GATHERED) {
            for mut stops in axis_orders(from, &whole)? {
                stops.push(whole.clone());
                let hops = through(from, &stops, to, Owners::Nearest, whole.numel());
                self.add(Method::GatherSlice, hops);
            }
        }
        Ok(())
    }
}

/// The hops through these stops. `None` if one of them would need more than an exchange, or if a stop holds more than `most`
/// elements.
fn through(
    from: &Layout,
    stops: &[Layout],
    to: &Layout,
    owners: Owners,
    most: usize,
) -> Option<Vec<Hop>> {
    if stops.iter().any(|s| s.max_local_numel() > most) {
        return None;
    }
    let mut hops = Vec::new();
    let mut at = from;
    for next in stops.iter().chain([to]) {
        let (scatter, all) = reductions(at, next);
        if !all.is_empty() {
            return None;
        }
        // There is no choice where nothing is replicated, or where a reduction decides who reads what.
        let choice = scatter.is_empty() && !at.replicate_axes().is_empty();
        let owners = if choice { owners } else { Owners::Nearest };
        hops.extend(exchange(at, next, &scatter, owners));
        at = next;
    }
    Some(hops)
}

/// Destinations sharded further, over the axes that they replicate.
fn sliced(from: &Layout, to: &Layout) -> Result<Vec<Layout>> {
    let mesh = to.mesh();
    let axes: Axes = to
        .replicate_axes()
        .iter()
        .copied()
        .filter(|&a| mesh.shape()[a] > 1)
        .collect();
    let (_, reduced) = reductions(from, to);
    let whole = (1_usize << axes.len().min(SEARCH_AXES)) - 1;
    let exact = mesh.size() <= EXACT_RANKS && axes.len() <= SEARCH_AXES;
    let mut found = Vec::new();
    for mask in (1..=whole).rev() {
        let subset: Axes = if axes.len() <= SEARCH_AXES {
            (0..axes.len())
                .filter(|i| mask >> i & 1 == 1)
                .map(|i| axes[i])
                .collect()
        } else {
            axes.clone()
        };
        if reduced.iter().all(|a| subset.contains(a)) {
            let count = mesh.part_count(&subset);
            // The dims in order of size, so that the pieces of the final gather are as long as possible.
            let mut dims: SmallVec<[usize; 6]> =
                (0..to.ndim()).filter(|&d| size(to, d) > 1).collect();
            dims.sort_by_key(|&d| (std::cmp::Reverse(size(to, d).min(count)), d));
            dims.truncate(if exact { dims.len() } else { 1 });
            for d in dims {
                // The axes are nested as in the source, so that what is in place already stays there.
                let nested = from.axis_order(d).iter().filter(|a| subset.contains(a));
                let others = subset.iter().filter(|a| !from.axis_order(d).contains(a));
                let order: Axes = nested.chain(others).copied().collect();
                // A sharding with too many tiles to write out is not worth considering.
                if let Ok(sharding) = finer(to, d, &order, count) {
                    found.push(to.with_sharding(d, Some(sharding))?);
                }
            }
        }
        if !exact {
            break;
        }
    }
    Ok(found)
}

/// The largest part of a dim.
pub(crate) fn size(layout: &Layout, d: usize) -> usize {
    layout
        .sharding(d)
        .map_or(layout.shape()[d], |s| s.partition.max_size())
}

/// A dim's sharding with each part divided evenly over further axes, as minor ones.
pub(crate) fn finer(to: &Layout, d: usize, axes: &[usize], count: usize) -> Result<DimSharding> {
    let evenly = |n| Ok(Partition::balanced(n, count));
    DimSharding::further(to.sharding(d), to.shape()[d], axes, evenly)
}

/// For each order in which the changed mesh axes may move, the layouts in between.
fn axis_orders(from: &Layout, to: &Layout) -> Result<Vec<Vec<Layout>>> {
    let changes: Axes = (0..to.mesh().ndim())
        .filter(|&a| to.mesh().shape()[a] > 1 && from.placements()[a] != to.placements()[a])
        .collect();
    if !(2..=SEARCH_AXES).contains(&changes.len()) {
        return Ok(Vec::new());
    }
    let mut orders: Vec<Axes> = vec![Axes::new()];
    for _ in 0..changes.len() {
        let longer = orders.iter().flat_map(|order| {
            let rest = changes.iter().filter(|a| !order.contains(a));
            rest.map(|&a| order.iter().copied().chain([a]).collect::<Axes>())
        });
        orders = longer.collect();
    }
    if to.mesh().size() > EXACT_RANKS {
        // Outermost first and innermost first.
        orders = [orders.first(), orders.last()]
            .into_iter()
            .flatten()
            .cloned()
            .collect();
    }
    // The layout depends on which axes have moved, not on their order.
    let mut known: Vec<(usize, Layout)> = Vec::new();
    let mut at = |moved: &[usize]| -> Result<Layout> {
        let bit = |a: &usize| changes.iter().position(|c| c == a).map_or(0, |i| 1 << i);
        let set = moved.iter().fold(0, |set, a| set | bit(a));
        if let Some((_, layout)) = known.iter().find(|(s, _)| *s == set) {
            return Ok(layout.clone());
        }
        let layout = partway(from, to, moved)?;
        known.push((set, layout.clone()));
        Ok(layout)
    };
    let stops = |order: &Axes| (1..order.len()).map(|n| at(&order[..n])).collect();
    orders.iter().map(stops).collect()
}

/// The source's layout with these axes moved already, as in the destination.
pub(crate) fn partway(from: &Layout, to: &Layout, moved: &[usize]) -> Result<Layout> {
    let mesh = to.mesh();
    let dims = (0..to.ndim()).map(|d| {
        let stay = from.axis_order(d).iter().filter(|a| !moved.contains(a));
        let come = to.axis_order(d).iter().filter(|a| moved.contains(a));
        let axes: SmallVec<[usize; 2]> = stay.chain(come).copied().collect();
        let parts = mesh.part_count(&axes);
        let known = [from, to]
            .into_iter()
            .filter_map(|l| l.sharding(d))
            .find(|s| s.axes.starts_with(&axes));
        let partition = match known {
            // Neighbouring parts are joined, so every boundary is one that the source or the destination has.
            Some(s) => s.partition.joined(s.partition.parts() / parts),
            None => Ok(joined_or_even(from, to, d, parts)),
        };
        Ok((!axes.is_empty()).then_some(DimSharding {
            axes,
            partition: partition?,
        }))
    });
    let dims: Vec<Option<DimSharding>> = dims.collect::<Result<_>>()?;
    Ok(Layout::from_dims(mesh, to.shape(), dims, None)?)
}

/// So many parts of a dim, each of several neighbouring ones of the destination or of the source, so that few of these are cut; even
/// ones where such parts would be far from even.
fn joined_or_even(from: &Layout, to: &Layout, d: usize, parts: usize) -> Partition {
    let n = to.shape()[d];
    let joined = |layout: &Layout| {
        let own = &layout.sharding(d)?.partition;
        let whole = own.parts().is_multiple_of(parts) && own.offsets().is_some();
        let joined = own.joined(own.parts() / parts).ok().filter(|_| whole)?;
        (joined.max_size() <= 2 * n.div_ceil(parts)).then_some(joined)
    };
    joined(to)
        .or_else(|| joined(from))
        .unwrap_or_else(|| Partition::balanced(n, parts))
}

/// The partial axes that a move reduces: those that shard the destination, which the exchange reduces, and the others.
pub(crate) fn reductions(from: &Layout, to: &Layout) -> (Axes, Axes) {
    from.partial_axes()
        .iter()
        .copied()
        .filter(|a| !to.partial_axes().contains(a))
        .partition(|&a| matches!(to.placements()[a], Placement::Shard(_)))
}

/// The exchange between two layouts, unless nothing changes.
fn exchange(from: &Layout, to: &Layout, scatter: &[usize], owners: Owners) -> Option<Hop> {
    (from != to).then(|| {
        Hop::Exchange(Move {
            from: from.clone(),
            to: to.clone(),
            scatter: scatter.iter().copied().collect(),
            owners,
            stages: None,
        })
    })
}

/// The layout with these partial axes replicated.
pub(crate) fn reduced(layout: &Layout, axes: &[usize]) -> Result<Layout> {
    let keep: Axes = layout
        .partial_axes()
        .iter()
        .copied()
        .filter(|a| !axes.contains(a))
        .collect();
    let whole = layout.with_partial_reduced();
    match layout.partial_op() {
        Some(op) if !keep.is_empty() => Ok(whole.with_partial(&keep, op)?),
        _ => Ok(whole),
    }
}

impl Hop {
    /// The layout after the hop.
    pub(crate) fn to(&self) -> &Layout {
        match self {
            Self::Exchange(e) => &e.to,
            Self::AllReduce { to, .. } => to,
        }
    }

    /// The same hop, but where readers took lengths of a row they take even shares of every copy.
    pub(crate) fn in_even_shares(&self) -> Self {
        match self {
            Self::Exchange(e) if e.owners == Owners::Balanced => Self::Exchange(Move {
                owners: Owners::Spread,
                ..e.clone()
            }),
            other => other.clone(),
        }
    }
}

impl Move {
    /// The exchange to build.
    pub(crate) fn builder(&self) -> ExchangeBuilder {
        self.named("redistribute")
    }

    /// The exchange under another name.
    pub(crate) fn named(&self, name: &'static str) -> ExchangeBuilder {
        let fresh: Axes = self
            .to
            .partial_axes()
            .iter()
            .copied()
            .filter(|a| !self.from.partial_axes().contains(a))
            .collect();
        let mut builder = ExchangeBuilder::onto(name, &self.to)
            .source(ExchangeSource::identity(&self.from))
            .embed_axes(&fresh)
            .reduce_axes(&self.scatter)
            .owners(self.owners);
        if let (Some(op), false) = (self.from.partial_op(), self.scatter.is_empty()) {
            builder = builder.fold(Monoid::Op(op));
        }
        if !fresh.is_empty() {
            builder = builder.fill(Scalar::ZERO);
        }
        builder.by(self.stages.clone())
    }
}
