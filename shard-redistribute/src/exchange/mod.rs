//! The exchange: which pieces of which arrays go where, found by intersecting intervals.
//!
//! Along one tensor dim, source parts own intervals, destination parts want intervals (which may overlap, as with a halo), and
//! a [`DimMap`] says which source index each destination index reads. The non-empty overlaps of one dim are few and are found
//! in closed form ([`overlaps`]); the pieces of an N-D exchange are the product of the overlaps of its dims. For example, take
//! one dim of 10 rows over 3 ranks with boundaries 0, 4, 7, 10, and a halo of one row on each side: rank 1 wants rows 3..8,
//! and reads row 3 from rank 0, rows 4..7 from itself, and row 7 from rank 2.

mod owners;
mod pieces;
mod run;

pub use owners::Owners;
pub(crate) use run::start;
pub use run::{Exchange, ExchangeHandle};

use crate::geometry::{cover_of, layout_of};
use crate::path::Move;
use crate::stages::Stages;
use crate::{CostModel, Fingerprint};
use run::Staged;
use shard_comm::{DType, ExchangePlan, Monoid, Pieces, Scalar};
use shard_spec::{ContentHash as _, DeviceMesh, DimCover, DimMap, Dims, Layout, numel};
use smallvec::SmallVec;
use std::sync::Arc;

/// One array that an exchange reads: its layout and, for each of its dims, how destination indices map to its
/// indices.
#[derive(Clone, Debug)]
pub struct ExchangeSource {
    /// Where the array's pieces are.
    pub layout: Layout,
    /// One map per tensor dim; its source extent is the array's extent, its destination extent the target's.
    pub maps: Vec<DimMap>,
}

impl ExchangeSource {
    /// The array as it is: every destination index reads the same source index.
    pub fn identity(layout: &Layout) -> Self {
        let maps = layout
            .shape()
            .iter()
            .map(|&n| DimMap::identity(n))
            .collect();
        Self {
            layout: layout.clone(),
            maps,
        }
    }
}

/// Describes an exchange and derives this rank's part in it.
#[derive(Clone, Debug)]
#[doc(alias = "halo")]
#[doc(alias = "all-to-all")]
pub struct ExchangeBuilder {
    name: &'static str,
    mesh: DeviceMesh,
    sources: Vec<ExchangeSource>,
    /// Boxes to assemble, one after the other in the destination.
    regions: Vec<Vec<DimCover>>,
    fold: Option<Monoid>,
    fill: Option<Scalar>,
    /// Partial axes of the sources whose contributions this exchange sums; the others are kept apart.
    reduce_axes: SmallVec<[usize; 4]>,
    /// Axes over which the target is a partial sum although the sources are not.
    embed_axes: SmallVec<[usize; 4]>,
    /// The hash of the layout whose own blocks are the first region. It stands for the hash of that region's intervals.
    blocks_of: Option<u128>,
    /// From which rank a piece is read that several ranks hold.
    owners: Owners,
    /// The stages in which it goes, if it does.
    stages: Option<Box<Stages>>,
}

impl ExchangeBuilder {
    /// An exchange on `mesh` whose destination on each rank is the product of the covers' intervals.
    pub fn new(name: &'static str, mesh: &DeviceMesh, target: Vec<DimCover>) -> Self {
        Self {
            name,
            mesh: mesh.clone(),
            sources: Vec::new(),
            regions: vec![target],
            fold: None,
            fill: None,
            reduce_axes: SmallVec::new(),
            embed_axes: SmallVec::new(),
            blocks_of: None,
            owners: Owners::Nearest,
            stages: None,
        }
    }

    /// An exchange whose destination on each rank is the block that a layout gives it.
    pub fn onto(name: &'static str, layout: &Layout) -> Self {
        Self {
            blocks_of: Some(layout.hash128()),
            ..Self::new(name, layout.mesh(), cover_of(layout))
        }
    }

    /// Adds a further box to assemble, after the others in the destination. For example, the slabs around an interior are one
    /// exchange with a region each.
    #[must_use]
    pub fn region(mut self, target: Vec<DimCover>) -> Self {
        self.stages = None;
        self.regions.push(target);
        self
    }

    /// Adds an array to read from. Sources may write to different places of the destination (`cat`).
    #[must_use]
    pub fn source(mut self, source: ExchangeSource) -> Self {
        self.stages = None;
        self.sources.push(source);
        self
    }

    /// Folds contributions with `monoid` instead of copying, in the order of (rank, source, position).
    #[must_use]
    pub fn fold(mut self, monoid: Monoid) -> Self {
        self.stages = None;
        self.fold = Some(monoid);
        self
    }

    /// Sums (or otherwise reduces) the sources' partial values over these mesh axes.
    #[must_use]
    pub fn reduce_axes(mut self, axes: &[usize]) -> Self {
        self.stages = None;
        self.reduce_axes = axes.iter().copied().collect();
        self
    }

    /// Makes the result a partial sum over these axes: each element arrives at exactly one coordinate of them.
    #[must_use]
    pub fn embed_axes(mut self, axes: &[usize]) -> Self {
        self.stages = None;
        self.embed_axes = axes.iter().copied().collect();
        self
    }

    /// Sets from which rank a piece is read that several ranks hold. A reader never asks for what it holds itself. Exchanges
    /// that reduce or embed always read the nearest copy.
    #[must_use]
    pub fn owners(mut self, owners: Owners) -> Self {
        self.stages = None;
        self.owners = owners;
        self
    }

    /// Lets pieces pass through other ranks, in stages of few messages, where a model finds that cheaper for elements of this type.
    /// The elements that arrive are the same to the last bit; the model's staging bounds what ranks hold in between.
    ///
    /// This is for exchanges among many ranks that bring one array as it is to a layout of the same mesh; others stay as they are. It is
    /// asked last: an exchange that is changed afterwards is another one, and goes straight.
    ///
    /// ```
    /// use shard_comm::DType;
    /// use shard_redistribute::{CostModel, ExchangeBuilder, LinkCost, ExchangeSource};
    /// use shard_spec::{DeviceMesh, Layout};
    /// let mesh = DeviceMesh::new(&[100])?;
    /// let (rows, columns) = (Layout::parse(&mesh, &[200, 300], "S(0)")?, Layout::parse(&mesh, &[200, 300], "S(1)")?);
    /// let model = CostModel::network(LinkCost::new(10e-6, 50e9));
    /// let exchange = ExchangeBuilder::onto("columns", &columns).source(ExchangeSource::identity(&rows));
    /// let staged = exchange.staged(DType::F32, &model).build(7);
    /// let messages: usize = staged.stages().map(|stage| stage.remote_messages(7)).sum();
    /// assert_eq!((staged.plan().remote_messages(7), messages), (99, 13));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn staged(mut self, dtype: DType, model: &CostModel) -> Self {
        let as_move = || {
            let [source] = &self.sources[..] else {
                return None;
            };
            let plain = self.regions.len() == 1
                && self.fill.is_none()
                && self.embed_axes.is_empty()
                && source.maps.iter().all(DimMap::is_identity);
            let to = plain.then(|| layout_of(&self.mesh, source.layout.shape(), &self.regions[0]));
            let fold = source
                .layout
                .partial_op()
                .filter(|_| !self.reduce_axes.is_empty());
            (self.fold == fold.map(Monoid::Op)).then_some(Move {
                from: source.layout.clone(),
                to: to.flatten()?,
                scatter: self.reduce_axes.clone(),
                owners: self.owners,
                stages: None,
            })
        };
        let stages = as_move().and_then(|of| Stages::best(&of, dtype, model, model.staging));
        self.stages = stages.map(Box::new);
        self
    }

    /// Seconds by a model of messages, if the exchange goes in [stages](Self::staged), and the most bytes that some rank holds between
    /// them.
    pub fn in_stages(&self, dtype: DType, model: &CostModel) -> Option<(f64, usize)> {
        let stages = self.stages.as_ref().filter(|_| model.sender_pays)?;
        let seconds = stages.cost(model, dtype.size()).time;
        Some((seconds, stages.staging() * dtype.size()))
    }

    /// The value of destination elements that no source element maps to.
    #[must_use]
    pub fn fill(mut self, value: Scalar) -> Self {
        self.stages = None;
        self.fill = Some(value);
        self
    }

    /// Derives the exchange for the member of the mesh at row-major position `index`. No communication.
    ///
    /// Cost: the rank's own overlaps, plus a scan of the boundaries to see whether any rank communicates.
    pub fn build(&self, index: usize) -> Exchange {
        let coords = self.mesh.coords_at(index);
        let (mut recv, mut send) = (Pieces::new(), Pieces::new());
        for (s, source) in self.sources.iter().enumerate() {
            let copies = self.copies(source);
            for region in 0..self.regions.len() {
                self.receive((s, source), region, &coords, &copies, &mut recv);
                self.send((s, source), region, &coords, &copies, &mut send);
            }
        }
        recv.sort();
        send.sort();
        let regions: Vec<(usize, Dims)> = (0..self.regions.len())
            .map(|r| (self.base(r, &coords), self.shape_at(r, &coords)))
            .collect();
        let len = regions
            .last()
            .map_or(0, |(base, shape)| base + numel(shape));
        let plan = ExchangePlan::new(self.name, self.id(), recv, send, self.fold, self.fill);
        let staged = self.stages.as_ref().map(|stages| {
            let exchange = |of: &Move| of.named(self.name).build(index);
            Box::new(Staged::new(&plan, stages.moves.iter().map(exchange)))
        });
        Exchange {
            name: self.name,
            plan: Arc::new(plan),
            staged,
            local: self.is_local(),
            regions,
            len,
            fill: self.fill,
            fold: self.fold,
        }
    }

    pub(crate) fn by(mut self, stages: Option<Box<Stages>>) -> Self {
        self.stages = stages;
        self
    }

    /// Calls `f` with each member's position and the pieces it reads, without deriving what it sends.
    pub(crate) fn for_each_reader(&self, mut f: impl FnMut(usize, &Pieces)) {
        // Who reads which copy is the same for all readers, so it is found once.
        let copies: Vec<_> = self.sources.iter().map(|s| self.copies(s)).collect();
        for index in 0..self.mesh.size() {
            let coords = self.mesh.coords_at(index);
            let mut recv = Pieces::new();
            for (source, copies) in self.sources.iter().enumerate().zip(&copies) {
                for region in 0..self.regions.len() {
                    self.receive(source, region, &coords, copies, &mut recv);
                }
            }
            f(index, &recv);
        }
    }

    /// A number that is equal on all ranks exactly when they describe the same exchange.
    fn id(&self) -> u128 {
        let mut id = Fingerprint::new(self.name)
            .with(&self.mesh.content_hash())
            .with(&self.reduce_axes[..])
            .with(&self.embed_axes[..])
            .with(&self.owners)
            .with(&format!("{:?} {:?}", self.fold, self.fill));
        for source in &self.sources {
            id = id.with(&source.layout.hash128());
            for map in &source.maps {
                id = id.with(map);
            }
        }
        // A layout's hash stands for all its boundaries, of which there may be thousands.
        let listed = &self.regions[usize::from(self.blocks_of.is_some())..];
        id = id.with(&self.blocks_of);
        for cover in listed.iter().flatten() {
            id = id.with(&cover.content_hash());
        }
        id.finish()
    }

    /// The shape of a region at these coordinates.
    fn shape_at(&self, region: usize, coords: &[usize]) -> Dims {
        self.regions[region]
            .iter()
            .map(|c| c.size(self.mesh.part_at(&c.axes, coords)))
            .collect()
    }

    /// Where a region begins in the destination at these coordinates.
    fn base(&self, region: usize, coords: &[usize]) -> usize {
        (0..region).map(|r| numel(&self.shape_at(r, coords))).sum()
    }
}
