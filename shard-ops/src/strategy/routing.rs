//! Rows that an operand asks for by index: whose they are, and whether they are asked for or gathered.
//!
//! Along the mesh axes that shard a routed dim, owners differ in that dim alone: what else a row is made of, and what else it
//! belongs to, is divided alike on all of them. So who asks whom is a matter of these axes, and a row comes from one owner.
//! Contributions go the same way back. Ranks that hold copies of the operand that names the rows hold copies of contributions,
//! too, so that each owner has those it needs at hand: nothing is sent between copies.

use super::choice::Choice;
use super::intervals::Axes;
use super::site::{Site, Spans};
use crate::{Access, MergedRuns, RouteBy, Routes, Rule};
use shard_kernels::cuts::rounds;
use shard_redistribute::Fingerprint;
use shard_spec::{ContentHash as _, DimCover, DimPart, DimSharding, Dims, Layout, Partition};
use smallvec::SmallVec;
use std::fmt;

/// How one rank looks up the rows that an operand names.
#[derive(Debug)]
pub struct Routing {
    /// The operand whose elements name rows.
    pub index: usize,
    /// This rank's part of it: its shape, and the global indices along each dim.
    pub part: OperandPart,
    /// Extent of the routed dim.
    pub extent: usize,
    /// Whether negative indices count from the end.
    pub from_end: bool,
    /// The index whose elements are left out.
    pub skips: Option<i64>,
    /// The index that names no row.
    pub absent: Option<i64>,
    /// What this rank's boxes have of the routed dim.
    pub own: DimPart,
    /// What a key counts through.
    pub keyed: SmallVec<[Keyed; 4]>,
    /// The ranks among which rows are asked for; `None` where all rows are at hand, or nobody asks for others.
    pub group: Option<Group>,
    /// Whether four bytes hold the number of any row.
    pub narrow: bool,
    /// The inputs whose rows are fetched, each with its keyed dims.
    pub fetched: Vec<(usize, KeyedDims)>,
    /// The outputs whose contributions go home, each with its keyed dims.
    pub home: Vec<(usize, KeyedDims)>,
    /// Equal for what is looked up alike.
    pub id: u128,
    /// How rows come here.
    pub by: RouteBy,
    /// What the ways cost of which that is one.
    pub considered: SmallVec<[RouteCost; 2]>,
    /// How runs are merged, where that is what the rows are for.
    pub merging: Option<Merging>,
}

/// How a rank finds its stretch of merged runs.
#[derive(Debug)]
pub struct Merging {
    /// The runs.
    pub runs: MergedRuns,
    /// The dim along which runs lie.
    pub dim: usize,
    /// How many elements of each line are asked for by all ranks together.
    pub wanted: usize,
    /// How many places of each run are looked at in a round.
    pub places: usize,
    /// How many rounds it takes to find a stretch.
    pub rounds: usize,
}

/// Which dims of an operand a key counts through.
pub type KeyedDims = SmallVec<[bool; 6]>;

/// A rank's part of an operand.
#[derive(Debug)]
pub struct OperandPart {
    /// Its extents.
    pub shape: Dims,
    /// The global indices along each dim.
    pub held: SmallVec<[DimPart; 4]>,
}

/// One dim that a key counts through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Keyed {
    /// The routed one.
    Routed,
    /// One that the operand that names rows has as well.
    Shared {
        /// Its number there.
        dim: usize,
        /// This rank's extent, which is that of the owners.
        extent: usize,
    },
}

/// Ranks that ask each other for rows.
#[derive(Debug)]
pub struct Group {
    /// How the routed dim is divided.
    pub partition: Partition,
    /// In the order of their positions on the mesh.
    pub peers: Vec<Peer>,
    /// This rank among them.
    pub me: usize,
}

/// A rank that has rows.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Row-major position on the mesh.
    pub at: usize,
    /// Its part of the routed dim.
    pub part: usize,
}

/// An operand that has rows which are named.
struct Table<'a> {
    dims: &'a [Access],
    /// How many rows there are.
    extent: usize,
    /// What ranks have of them.
    own: DimCover,
}

/// Whether two dims are indexed by one factor, or by none.
fn is_same(a: &Access, b: &Access) -> bool {
    a.factor_index() == b.factor_index()
}

/// What a way to serve a routed dim makes the busiest rank receive, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteCost {
    /// The way.
    pub by: RouteBy,
    /// Bytes, with those of the requests. Rows that several elements name come once, and how many those are only the data tells.
    pub bytes: usize,
}

impl fmt::Display for RouteCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = match self.by {
            RouteBy::Ask => "at most ",
            _ => "",
        };
        write!(f, "{:?} ({most}{} bytes)", self.by, self.bytes)
    }
}

/// Bytes of a request.
pub(crate) const REQUEST_BYTES: usize = 8;

/// Bytes of a number that ranks tell each other while they cut runs.
pub(crate) const CUT_BYTES: usize = 8;

/// How many places of each run are looked at in a round. More rounds cost time, and more places bytes: with few lines and ranks the
/// first counts.
fn places(lines: usize, runs: usize) -> usize {
    match lines {
        0..=16 => (4096 / runs.max(1)).clamp(31, 255),
        _ => 31,
    }
}

/// Sizes that the price of a route depends on: those of the rank that has most. They count rows that nothing may be in, and so may
/// be beyond all memory.
struct Sizes {
    /// Rows that a rank may have to ask for.
    asked: usize,
    /// Rows that a rank has not.
    missing: usize,
    /// Bytes of a row.
    row: usize,
    /// The same in elements.
    row_len: usize,
    /// How often a rank has the routed dim: its indices of the other dims that a key counts through.
    lines: usize,
}

impl<'a> Site<'a> {
    /// A choice for operands of these layouts, seen from the first rank, with those who are asked for rows.
    pub(super) fn serving(rule: &'a Rule, choice: &'a Choice, layouts: &[&'a Layout]) -> Self {
        let mut site = Self::new(rule, choice, layouts[0].mesh(), 0);
        if let Some((RouteBy::Ask, owners, _)) = site.route(layouts) {
            site.routed = Some(owners);
        }
        site
    }
}

impl Site<'_> {
    /// The routed factor.
    pub(super) fn routed_factor(&self) -> Option<usize> {
        let mut all = self.rule.operands().flatten();
        all.find(|a| a.is_routed())?.factor_index()
    }

    /// How the routed dim is divided among those who are asked; `None` where nobody is, because a choice divides the dim,
    /// because nothing does, or because its axes divide something else.
    fn owners(&self, layouts: &[&Layout]) -> Option<DimSharding> {
        let factor = self.routed_factor()?;
        if self.choice.factors[factor].is_some() {
            return None;
        }
        let routed = |dims: &[Access]| dims.iter().position(Access::is_routed);
        let own = (self.rule.inputs.iter().zip(layouts))
            .find_map(|(dims, layout)| layout.sharding(routed(dims)?).cloned())?;
        let taken = |axis: &usize| {
            self.choice.carry.contains(axis)
                || self.routed_operands().any(|dims| {
                    dims.iter()
                        .any(|a| !a.is_routed() && self.divides(a, &[*axis]))
                })
        };
        let several = own.partition.parts() > 1;
        (several && !own.axes.iter().any(taken)).then_some(own)
    }

    /// The dims of operands that have a routed one.
    fn routed_operands(&self) -> impl Iterator<Item = &Vec<Access>> {
        let all = self.rule.operands();
        all.filter(|dims| dims.iter().any(Access::is_routed))
    }

    /// Whether contributions to rows are sent, and not rows.
    fn sends_home(&self) -> bool {
        let mut outputs = self.rule.outputs.iter();
        outputs.any(|o| o.dims.iter().any(Access::is_routed))
    }

    /// Takes the way to serve the routed dim; which, and what was compared.
    pub(super) fn take_route(&mut self, layouts: &[Layout]) -> (RouteBy, SmallVec<[RouteCost; 2]>) {
        let Some((by, owners, compared)) = self.route(&layouts.iter().collect::<Vec<_>>()) else {
            return (RouteBy::Auto, SmallVec::new());
        };
        self.routed = (by == RouteBy::Ask).then_some(owners);
        (by, compared)
    }

    /// The way to serve the routed dim, and what was compared; `None` where all rows are at hand or each rank looks at its own.
    pub(super) fn route(
        &self,
        layouts: &[&Layout],
    ) -> Option<(RouteBy, DimSharding, SmallVec<[RouteCost; 2]>)> {
        let routes = self.rule.routes.as_ref()?;
        let owners = self.owners(layouts)?;
        let sizes = self.sizes(&owners);
        let asks = sizes.asked.min(sizes.missing);
        if let Some(runs) = &routes.merging {
            return Some(self.merged_route(runs, routes.by, owners, &sizes));
        }
        let ask = RouteCost {
            by: RouteBy::Ask,
            bytes: asks.saturating_mul(sizes.row.saturating_add(REQUEST_BYTES)),
        };
        if self.sends_home() {
            return Some((RouteBy::Ask, owners, smallvec::smallvec![ask]));
        }
        let gather = RouteCost {
            by: RouteBy::Gather,
            bytes: sizes.missing.saturating_mul(sizes.row),
        };
        // How many distinct rows are asked for only the data tells; where edges are local they are few. So the table is gathered
        // only where requests alone could be more.
        let by = match routes.by {
            RouteBy::Auto if gather.bytes <= asks.saturating_mul(REQUEST_BYTES) => RouteBy::Gather,
            RouteBy::Auto => RouteBy::Ask,
            by => by,
        };
        Some((by, owners, smallvec::smallvec![ask, gather]))
    }

    /// The way to merge runs. Each rank has one of them, or all are gathered.
    fn merged_route(
        &self,
        runs: &MergedRuns,
        by: RouteBy,
        owners: DimSharding,
        sizes: &Sizes,
    ) -> (RouteBy, DimSharding, SmallVec<[RouteCost; 2]>) {
        let parts = owners.partition.parts();
        let (places, rounds) = self.looks(parts, sizes);
        // For both cuts of a run a round looks at places, of what every round but the first asks for; in the end each rank tells them.
        let numbers = 2 * places * rounds + 4 * (rounds - 1) + 2;
        let looked = sizes
            .lines
            .saturating_mul((parts - 1) * numbers * CUT_BYTES);
        let read = sizes.asked.min(sizes.missing).saturating_mul(sizes.row);
        let ask = RouteCost {
            by: RouteBy::Ask,
            bytes: read.saturating_add(looked),
        };
        let gather = RouteCost {
            by: RouteBy::Gather,
            bytes: sizes.missing.saturating_mul(sizes.row),
        };
        let is_run_each = (owners.partition.offsets()).is_some_and(|at| at[1..] == runs.ends[..]);
        let by = match by {
            RouteBy::Auto if ask.bytes < gather.bytes => RouteBy::Ask,
            RouteBy::Auto => RouteBy::Gather,
            by => by,
        };
        match is_run_each {
            true => (by, owners, smallvec::smallvec![ask, gather]),
            false => (RouteBy::Gather, owners, smallvec::smallvec![gather]),
        }
    }

    /// How many places of each run are looked at in a round, and in how many rounds: the same on all ranks.
    fn looks(&self, parts: usize, sizes: &Sizes) -> (usize, usize) {
        let elements = self.routed_factor().map_or(0, |f| self.rule.factors[f]);
        let places = places(sizes.lines, parts);
        (places, rounds(elements, places))
    }

    /// Elements that the busiest rank receives of rows it asks for, or sends home, and a request for each.
    pub(super) fn asked(&self) -> usize {
        let Some(owners) = &self.routed else {
            return 0;
        };
        let sizes = self.sizes(owners);
        let rows = sizes.asked.min(sizes.missing);
        rows.saturating_mul(sizes.row_len + 1)
    }

    fn sizes(&self, owners: &DimSharding) -> Sizes {
        let index = self.rule.routes.as_ref().map_or(0, |r| r.index);
        let most = |dims: &[Access], shape: &[usize], wanted: &dyn Fn(&Access) -> bool| {
            let covers = dims.iter().zip(shape).filter(|(a, _)| wanted(a));
            covers
                .map(|(a, &n)| self.cover_with_halo(a, n, &Spans::Full).max_size())
                .product::<usize>()
        };
        let asked = most(
            &self.rule.inputs[index],
            &self.rule.metas[index].shape,
            &|_| true,
        );
        let outputs = self.rule.outputs.iter().map(|o| (&o.dims, &o.meta));
        let inputs = self.rule.inputs.iter().zip(&self.rule.metas);
        let tables: SmallVec<[_; 2]> = match self.sends_home() {
            true => outputs.collect(),
            false => inputs.collect(),
        };
        let tables = tables
            .into_iter()
            .filter(|(dims, _)| dims.iter().any(Access::is_routed));
        let (mut row, mut row_len, mut shared) = (0, 0, 1);
        for (dims, meta) in tables {
            let len = most(dims, &meta.shape, &|a| !a.is_routed() && !self.is_shared(a));
            shared = most(dims, &meta.shape, &|a| self.is_shared(a));
            row_len += len;
            row = len.saturating_mul(meta.dtype.size()).saturating_add(row);
        }
        let least = owners.partition.sizes().min().unwrap_or(0);
        Sizes {
            asked,
            missing: (owners.partition.extent() - least).saturating_mul(shared),
            row,
            row_len,
            lines: shared,
        }
    }

    /// Whether the operand that names rows has this dim as well.
    fn is_shared(&self, access: &Access) -> bool {
        let index = self
            .rule
            .routes
            .as_ref()
            .map(|r| &self.rule.inputs[r.index]);
        let factor = access.factor_index();
        index
            .is_some_and(|dims| factor.is_some() && dims.iter().any(|a| a.factor_index() == factor))
    }

    /// How this rank looks up rows, once it is known how the routed dim is served.
    pub(super) fn routing(
        &self,
        by: RouteBy,
        considered: SmallVec<[RouteCost; 2]>,
    ) -> Option<Routing> {
        let routes = self.rule.routes.as_ref()?;
        let table = self.table()?;
        let covers = self.covers_with_halos(routes.index, &Spans::Full);
        let at = |cover: &DimCover| cover.at(self.mesh, &self.coords);
        let held: SmallVec<[DimPart; 4]> = covers.iter().map(at).collect();
        let keyed = self.keyed(&table, routes.index, &held);
        let group = self.group(&self.rule.inputs[routes.index]);
        Some(Routing {
            index: routes.index,
            id: self.lookup(routes, &table, &keyed, &covers, group.is_some()),
            part: OperandPart {
                shape: held.iter().map(DimPart::len).collect(),
                held,
            },
            extent: table.extent,
            from_end: routes.from_end,
            skips: routes.skips,
            absent: routes.absent,
            own: at(&table.own),
            keyed,
            group,
            narrow: self.is_narrow(&table, routes.index),
            fetched: match self.sends_home() {
                true => Vec::new(),
                false => self.with_rows(self.rule.inputs.iter().map(Vec::as_slice)),
            },
            home: self.with_rows(self.rule.outputs.iter().map(|output| &output.dims[..])),
            by,
            considered,
            merging: self.merging(),
        })
    }

    /// The first operand that has rows which are named.
    fn table(&self) -> Option<Table<'_>> {
        self.routed_operands().find_map(|dims| {
            let d = dims.iter().position(Access::is_routed)?;
            let extent = self.rule.factors[dims[d].factor_index()?];
            let own = self.cover_with_halo(&dims[d], extent, &Spans::Full);
            Some(Table { dims, extent, own })
        })
    }

    /// What a key counts through: of the operand `index`, which names rows, this rank has the parts `held`.
    fn keyed(&self, table: &Table<'_>, index: usize, held: &[DimPart]) -> SmallVec<[Keyed; 4]> {
        let keyed = |access: &Access| {
            if access.is_routed() {
                return Some(Keyed::Routed);
            }
            let named_by = &self.rule.inputs[index];
            let dim = named_by.iter().position(|a| is_same(a, access))?;
            let extent = held[dim].len();
            Some(Keyed::Shared { dim, extent })
        };
        table.dims.iter().filter_map(keyed).collect()
    }

    /// The operands that have rows which are named, each with its keyed dims.
    fn with_rows<'b>(
        &self,
        operands: impl Iterator<Item = &'b [Access]>,
    ) -> Vec<(usize, KeyedDims)> {
        let keyed = |a: &Access| a.is_routed() || self.is_shared(a);
        let with_rows = operands
            .enumerate()
            .filter(|(_, dims)| dims.iter().any(Access::is_routed));
        with_rows
            .map(|(i, dims)| (i, dims.iter().map(keyed).collect()))
            .collect()
    }

    /// Whether four bytes hold the number of any row.
    fn is_narrow(&self, table: &Table<'_>, index: usize) -> bool {
        let dims = self.rule.inputs[index].iter();
        let shared = (dims.zip(&self.rule.metas[index].shape))
            .filter(|(a, _)| table.dims.iter().any(|b| is_same(a, b)));
        let each: usize = shared.map(|(_, &n)| n).product();
        i32::try_from(each.saturating_mul(table.extent)).is_ok()
    }

    /// A number that is equal for what is looked up alike.
    fn lookup(
        &self,
        routes: &Routes,
        table: &Table<'_>,
        keyed: &[Keyed],
        covers: &[DimCover],
        asks: bool,
    ) -> u128 {
        let axes = match asks {
            true => self.group_axes(&self.rule.inputs[routes.index]),
            false => Axes::new(),
        };
        let shape = &self.rule.metas[routes.index].shape;
        let mut id = Fingerprint::new("route")
            .with(&self.mesh.content_hash())
            .with(&(
                routes.from_end,
                routes.absent,
                table.extent,
                &shape[..],
                &axes[..],
            ))
            .with(&table.own.content_hash());
        for keyed in keyed {
            id = id.with(&match keyed {
                Keyed::Routed => usize::MAX,
                Keyed::Shared { dim, .. } => *dim,
            });
        }
        for cover in covers {
            id = id.with(&cover.content_hash());
        }
        id.finish()
    }

    /// How this rank finds its stretch of merged runs.
    fn merging(&self) -> Option<Merging> {
        let runs = self.rule.routes.as_ref()?.merging.clone()?;
        let mut operands = self.routed_operands();
        let dim = operands.find_map(|dims| dims.iter().position(Access::is_routed))?;
        let looks = (self.routed.as_ref())
            .map(|owners| self.looks(owners.partition.parts(), &self.sizes(owners)));
        let (places, rounds) = looks.unwrap_or_default();
        let index = self.rule.routes.as_ref()?.index;
        Some(Merging {
            runs,
            dim,
            wanted: self.rule.metas[index].shape[dim],
            places,
            rounds,
        })
    }

    /// The axes along which rows are asked for. Contributions that ranks hold copies of stay where they are.
    fn group_axes(&self, index: &[Access]) -> Axes {
        let owners = self.routed.as_ref().map_or(&[][..], |s| &s.axes);
        let asks = |a: &&usize| !self.sends_home() || index.iter().any(|x| self.divides(x, &[**a]));
        owners.iter().filter(asks).copied().collect()
    }

    fn group(&self, index: &[Access]) -> Option<Group> {
        let owners = self.routed.as_ref()?;
        let mut axes = self.group_axes(index);
        axes.sort_unstable();
        let count = self.mesh.part_count(&axes);
        if count <= 1 {
            return None;
        }
        let mut peers = Vec::with_capacity(count);
        let mut coords = self.coords.clone();
        for member in 0..count {
            self.mesh.set_part(&axes, member, &mut coords);
            peers.push(Peer {
                at: self.mesh.index_at(&coords),
                part: self.mesh.part_at(&owners.axes, &coords),
            });
        }
        let me = peers.iter().position(|p| p.at == self.index)?;
        Some(Group {
            partition: owners.partition.clone(),
            peers,
            me,
        })
    }
}
