//! The exchange: which pieces of which arrays go where, found by intersecting intervals.
//!
//! Along one tensor dim, source parts own intervals, destination parts want intervals (which may overlap: a
//! halo), and a [`DimMap`] says which source index each destination index reads. The non-empty overlaps of one
//! dim are few and found in closed form ([`overlaps`]); the pieces of an N-D exchange are the product of the
//! overlaps of its dims. Worked example, one dim of 10 rows over 3 ranks with boundaries 0, 4, 7, 10, and a
//! halo of one row on each side: rank 1 wants rows 3..8 and reads row 3 from rank 0, rows 4..7 from itself, and
//! row 7 from rank 2.

use crate::{Array, Fingerprint, MeshComm, RedistributeError, Result};
use shard_comm::{
    AgreedError, Buffer, CommError, DType, ExchangePlan, Handle, Monoid, Piece, Request, Scalar,
    Strided, Target,
};
use shard_spec::{
    DeviceMesh, DimCover, DimMap, DimPiece, DimSend, Dims, Layout, Partition, Strides, numel,
    overlaps, overlaps_from, row_major_strides,
};
use smallvec::SmallVec;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

/// One array that an exchange reads: its layout and, for each of its dims, how destination indices map to its
/// indices.
#[derive(Clone, Debug)]
pub struct Source {
    /// Where the array's pieces are.
    pub layout: Layout,
    /// One map per tensor dim; its source extent is the array's extent, its destination extent the target's.
    pub maps: Vec<DimMap>,
}

impl Source {
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
pub struct ExchangeBuilder {
    name: &'static str,
    mesh: DeviceMesh,
    sources: Vec<Source>,
    /// Boxes to assemble, one after the other in the destination.
    regions: Vec<Vec<DimCover>>,
    fold: Option<Monoid>,
    fill: Option<Scalar>,
    /// Partial axes of the sources whose contributions this exchange sums; the others are kept apart.
    reduce_axes: SmallVec<[usize; 4]>,
    /// Axes over which the target is a partial sum though the sources are not.
    embed_axes: SmallVec<[usize; 4]>,
}

/// This rank's part in an exchange, derived once and run often.
#[derive(Debug)]
pub struct Exchange {
    name: &'static str,
    plan: Arc<ExchangePlan>,
    /// No rank needs anything from another: no communication, known from layouts alone.
    local: bool,
    /// Where each region begins in the destination, and its shape.
    regions: Vec<(usize, Dims)>,
    len: usize,
    fill: Option<Scalar>,
    fold: Option<Monoid>,
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
        }
    }

    /// Adds a further box to assemble, after the others in the destination: the slabs around an interior are
    /// one exchange with a region each.
    #[must_use]
    pub fn region(mut self, target: Vec<DimCover>) -> Self {
        self.regions.push(target);
        self
    }

    /// Adds an array to read from. Sources may write to different places of the destination (`cat`).
    #[must_use]
    pub fn source(mut self, source: Source) -> Self {
        self.sources.push(source);
        self
    }

    /// Folds contributions with `monoid` instead of copying, in the order of (rank, source, position).
    #[must_use]
    pub fn fold(mut self, monoid: Monoid) -> Self {
        self.fold = Some(monoid);
        self
    }

    /// Sums (or otherwise reduces) the sources' partial values over these mesh axes.
    #[must_use]
    pub fn reduce_axes(mut self, axes: &[usize]) -> Self {
        self.reduce_axes = axes.iter().copied().collect();
        self
    }

    /// Makes the result a partial sum over these axes: each element arrives at exactly one coordinate of them.
    #[must_use]
    pub fn embed_axes(mut self, axes: &[usize]) -> Self {
        self.embed_axes = axes.iter().copied().collect();
        self
    }

    /// What destination elements hold that no source element maps to.
    #[must_use]
    pub fn fill(mut self, value: Scalar) -> Self {
        self.fill = Some(value);
        self
    }

    /// Derives the exchange for the member of the mesh at row-major position `index`. No communication.
    ///
    /// Cost: the rank's own overlaps, plus a scan of the boundaries to see whether any rank communicates.
    pub fn build(&self, index: usize) -> Exchange {
        let coords = coords_of(&self.mesh, index);
        let mut recv = Vec::new();
        let mut send = Vec::new();
        for (s, source) in self.sources.iter().enumerate() {
            for region in 0..self.regions.len() {
                self.receive(s, source, region, &coords, &mut recv);
                self.send(s, source, region, &coords, &mut send);
            }
        }
        let order = |p: &Piece| (p.peer, p.source, p.dst_offset, p.src_offset);
        recv.sort_by_key(order);
        send.sort_by_key(order);
        let regions: Vec<(usize, Dims)> = (0..self.regions.len())
            .map(|r| (self.base(r, &coords), self.shape_at(r, &coords)))
            .collect();
        let len = regions
            .last()
            .map_or(0, |(base, shape)| base + numel(shape));
        let plan = ExchangePlan::new(self.name, self.id(), recv, send, self.fold, self.fill);
        Exchange {
            name: self.name,
            plan: Arc::new(plan),
            local: self.is_local(),
            regions,
            len,
            fill: self.fill,
            fold: self.fold,
        }
    }

    /// A number that is equal on all ranks exactly when they describe the same exchange.
    fn id(&self) -> u128 {
        let mut id = Fingerprint::new(self.name)
            .with(&self.mesh.content_hash())
            .with(&self.reduce_axes[..])
            .with(&self.embed_axes[..])
            .with(&format!("{:?} {:?}", self.fold, self.fill));
        for source in &self.sources {
            id = id.with(&source.layout.hash128());
            for map in &source.maps {
                id = id.with(map);
            }
        }
        for cover in self.regions.iter().flatten() {
            id = id.with(&cover.axes[..]).with(&cover.intervals);
        }
        id.finish()
    }

    /// The shape of a region at these coordinates.
    fn shape_at(&self, region: usize, coords: &[usize]) -> Dims {
        self.regions[region]
            .iter()
            .map(|c| interval_at(c, &self.mesh, coords).len())
            .collect()
    }

    /// Where a region begins in the destination at these coordinates.
    fn base(&self, region: usize, coords: &[usize]) -> usize {
        (0..region).map(|r| numel(&self.shape_at(r, coords))).sum()
    }

    /// The pieces this rank reads: per dim the overlaps of its interval with the source's parts; across dims
    /// their product; and for each combination the rank(s) that own it.
    fn receive(
        &self,
        s: usize,
        source: &Source,
        region: usize,
        coords: &[usize],
        out: &mut Vec<Piece>,
    ) {
        let target = &self.regions[region];
        let mut per_dim: Vec<Vec<Overlap>> = Vec::with_capacity(target.len());
        for (d, cover) in target.iter().enumerate() {
            let want = interval_at(cover, &self.mesh, coords);
            let found = match source.layout.sharding(d) {
                Some(sharding) => overlaps(&sharding.partition, &source.maps[d], want),
                None => overlaps(&whole(source.layout.shape()[d]), &source.maps[d], want),
            };
            if found.is_empty() {
                return;
            }
            per_dim.push(found.into_iter().map(Overlap::from).collect());
        }
        let base = self.base(region, coords);
        let dst_strides = row_major_strides(&self.shape_at(region, coords));
        for_each_product(&per_dim, |pieces| {
            let mut owner: SmallVec<[usize; 4]> = coords.iter().copied().collect();
            for (d, piece) in pieces.iter().enumerate() {
                if let Some(sharding) = source.layout.sharding(d) {
                    set_coords(&mut owner, &self.mesh, &sharding.axes, piece.part);
                }
            }
            if !self.embeds(source, coords, &owner) {
                return;
            }
            let parts: SmallVec<[usize; 6]> = pieces.iter().map(|p| p.part).collect();
            let src_strides = row_major_strides(&local_shape(&source.layout, &parts));
            self.for_each_contributor(&mut owner, |owner| {
                out.push(piece_of(
                    index_of(&self.mesh, owner),
                    s,
                    pieces,
                    &src_strides,
                    base,
                    &dst_strides,
                ));
            });
        });
    }

    /// The mirror of [`receive`](Self::receive): what the others read from this rank.
    fn send(
        &self,
        s: usize,
        source: &Source,
        region: usize,
        coords: &[usize],
        out: &mut Vec<Piece>,
    ) {
        let target = &self.regions[region];
        let mut my_parts: SmallVec<[usize; 6]> = SmallVec::new();
        let mut per_dim: Vec<Vec<Overlap>> = Vec::with_capacity(target.len());
        for (d, cover) in target.iter().enumerate() {
            let (part, have) = match source.layout.sharding(d) {
                Some(sharding) => {
                    let part = part_at(&self.mesh, &sharding.axes, coords);
                    (part, sharding.partition.interval(part))
                }
                None => (0, 0..source.layout.shape()[d]),
            };
            my_parts.push(part);
            let found = overlaps_from(have, &source.maps[d], &cover.intervals);
            if found.is_empty() {
                return;
            }
            per_dim.push(found.into_iter().map(Overlap::from).collect());
        }
        let src_strides = row_major_strides(&local_shape(&source.layout, &my_parts));
        // Readers may sit anywhere along these axes; along all others they share this rank's coordinate.
        let free: SmallVec<[usize; 4]> = (0..self.mesh.ndim())
            .filter(|a| {
                let covered = target.iter().any(|c| c.axes.contains(a));
                let shards = (0..target.len()).any(|d| {
                    source
                        .layout
                        .sharding(d)
                        .is_some_and(|sh| sh.axes.contains(a))
                });
                !covered && (shards || self.reduce_axes.contains(a) || self.embed_axes.contains(a))
            })
            .collect();
        for_each_product(&per_dim, |pieces| {
            let mut reader: SmallVec<[usize; 4]> = coords.iter().copied().collect();
            for (d, piece) in pieces.iter().enumerate() {
                set_coords(&mut reader, &self.mesh, &target[d].axes, piece.part);
            }
            for_each_coord(&self.mesh, &free, &mut reader, &mut |reader| {
                if self.reads_from(source, reader, coords) {
                    let base = self.base(region, reader);
                    let dst_strides = row_major_strides(&self.shape_at(region, reader));
                    out.push(piece_of(
                        index_of(&self.mesh, reader),
                        s,
                        pieces,
                        &src_strides,
                        base,
                        &dst_strides,
                    ));
                }
            });
        });
    }

    /// Whether the rank at `reader` reads from the rank at `owner`, given that their intervals overlap: along
    /// axes that don't shard the source, a reader takes its own coordinate's copy (this spreads readers over
    /// replicas, and never leaves home for what is at home), or every coordinate's contribution if this
    /// exchange reduces that axis.
    fn reads_from(&self, source: &Source, reader: &[usize], owner: &[usize]) -> bool {
        let shards = |a: usize| {
            (0..source.layout.ndim()).any(|d| {
                source
                    .layout
                    .sharding(d)
                    .is_some_and(|s| s.axes.contains(&a))
            })
        };
        let own_copy = (0..self.mesh.ndim())
            .all(|a| shards(a) || self.reduce_axes.contains(&a) || reader[a] == owner[a]);
        own_copy && self.embeds(source, reader, owner)
    }

    /// Whether the rank at `reader` is the one coordinate of the embed axes at which an element of `owner`
    /// arrives: the owner's own coordinate where the source is sharded, coordinate 0 where it is replicated.
    fn embeds(&self, source: &Source, reader: &[usize], owner: &[usize]) -> bool {
        self.embed_axes.iter().all(|&a| {
            let shards = (0..source.layout.ndim()).any(|d| {
                source
                    .layout
                    .sharding(d)
                    .is_some_and(|s| s.axes.contains(&a))
            });
            reader[a] == if shards { owner[a] } else { 0 }
        })
    }

    /// Calls `f` for every coordinate of the reduced axes, row-major.
    fn for_each_contributor(&self, owner: &mut SmallVec<[usize; 4]>, mut f: impl FnMut(&[usize])) {
        for_each_coord(&self.mesh, &self.reduce_axes, owner, &mut f);
    }

    /// Whether on every rank every piece is its own, from layouts alone: for each dim and source, each
    /// destination part must lie inside the source part that the same coordinates own.
    fn is_local(&self) -> bool {
        self.reduce_axes.is_empty()
            && self.regions.iter().all(|target| {
                self.sources
                    .iter()
                    .all(|s| (0..target.len()).all(|d| self.dim_is_local(s, d, &target[d])))
            })
    }

    fn dim_is_local(&self, source: &Source, d: usize, cover: &DimCover) -> bool {
        let Some(sharding) = source.layout.sharding(d) else {
            return true;
        };
        // Axes whose coordinate a reader shares with the owners it reads from, by construction.
        let pinned = |a: &usize| self.mesh.shape()[*a] == 1 || self.embed_axes.contains(a);
        if !sharding
            .axes
            .iter()
            .all(|a| cover.axes.contains(a) || pinned(a))
        {
            return false;
        }
        let embedded: SmallVec<[usize; 4]> = sharding
            .axes
            .iter()
            .copied()
            .filter(|a| !cover.axes.contains(a) && pinned(a))
            .collect();
        let mut local = true;
        let mut at: SmallVec<[usize; 4]> = SmallVec::from_elem(0, self.mesh.ndim());
        for (part, want) in cover.intervals.iter().enumerate() {
            set_coords(&mut at, &self.mesh, &cover.axes, part);
            let pieces = overlaps(&sharding.partition, &source.maps[d], want.clone());
            for_each_coord(&self.mesh, &embedded, &mut at, &mut |at| {
                let own = part_at(&self.mesh, &sharding.axes, at);
                let mut owner: SmallVec<[usize; 4]> = at.iter().copied().collect();
                local &= pieces.iter().all(|p| {
                    set_coords(&mut owner, &self.mesh, &sharding.axes, p.src_part);
                    p.src_part == own || embedded.iter().any(|&a| owner[a] != at[a])
                });
            });
        }
        local
    }
}

impl Exchange {
    /// The shape of the destination's first (usually only) region on this rank.
    pub fn local_shape(&self) -> &[usize] {
        &self.regions[0].1
    }

    /// Where each region begins in the destination, and its shape.
    pub fn regions(&self) -> &[(usize, Dims)] {
        &self.regions
    }

    /// Whether no rank needs anything from another, so that running it does not communicate.
    pub fn is_local(&self) -> bool {
        self.local
    }

    /// The pieces, for inspection.
    pub fn plan(&self) -> &ExchangePlan {
        &self.plan
    }

    /// Elements this rank receives from others.
    pub fn received(&self, index: usize) -> usize {
        self.plan
            .recv
            .iter()
            .filter(|p| p.peer != index)
            .map(|p| numel(&p.shape))
            .sum()
    }

    /// Starts the exchange: posts this rank's sources and returns at once.
    ///
    /// # Collective
    /// All members of the mesh, with the same exchange; nobody communicates if [`is_local`](Self::is_local).
    ///
    /// # Errors
    /// What the communicator or the device reports.
    #[track_caller]
    pub fn start(&self, cx: &Rc<MeshComm>, dtype: DType, sources: &[Buffer]) -> Result<Pending> {
        if self.local {
            return self.run_local(cx, dtype, sources).map(Pending::Ready);
        }
        let Some(comm) = cx.all() else {
            return Err(RedistributeError::NotMember {
                op: self.name,
                rank: cx.rank(),
            });
        };
        let allocated = cx.device().alloc(dtype, self.len);
        // A rank that cannot allocate still joins, with nothing to write to, so that all ranks fail alike.
        let (dst, status) = match allocated {
            Ok(dst) => (dst, Ok(())),
            Err(e) => (
                cx.device().alloc(dtype, 0)?,
                Err(AgreedError::from_local(self.name, e)),
            ),
        };
        let request = Request::exchange(
            self.plan.clone(),
            sources,
            Target::Write(dst),
            Location::caller(),
        );
        let argument = Some(("the calls before it", cx.history()));
        Ok(Pending::Flying(
            comm.post(Request {
                status,
                argument,
                ..request
            })?,
            cx.clone(),
        ))
    }

    /// Starts the exchange and waits for it.
    ///
    /// # Collective
    /// As [`start`](Self::start).
    ///
    /// # Errors
    /// As [`start`](Self::start).
    #[track_caller]
    pub fn run(&self, cx: &Rc<MeshComm>, dtype: DType, sources: &[Buffer]) -> Result<Buffer> {
        self.start(cx, dtype, sources)?.wait()
    }

    /// Copies between this rank's own buffers; shares storage where the result is one run of one source.
    fn run_local(&self, cx: &MeshComm, dtype: DType, sources: &[Buffer]) -> Result<Buffer> {
        let len = self.len;
        if let [piece] = &self.plan.recv[..]
            && numel(&piece.shape) == len
            && piece.dst_offset == 0
            && is_run(&piece.shape, &piece.src_strides)
            && is_run(&piece.shape, &piece.dst_strides)
        {
            return Ok(sources[piece.source].slice(piece.src_offset..piece.src_offset + len));
        }
        let device = cx.device();
        let mut dst = device.alloc(dtype, len)?;
        let identity = self.fold.and_then(|m| m.identity(dtype).first().copied());
        if let Some(value) = self.fill.or(identity) {
            device.fill(&mut dst, &Strided::contiguous(&[len]), value)?;
        }
        for p in &self.plan.recv {
            let (source, from, to) = (&sources[p.source], p.src_view(), p.dst_view());
            match self.fold {
                Some(monoid) => device.fold(monoid, source, &from, &mut dst, &to)?,
                None => device.copy(source, &from, &mut dst, &to)?,
            }
        }
        Ok(dst.freeze())
    }
}

/// An exchange under way.
#[must_use = "the destination is returned by `wait`"]
#[derive(Debug)]
pub enum Pending {
    /// Nothing had to be communicated.
    Ready(Buffer),
    /// In flight, on this mesh.
    Flying(Handle, Rc<MeshComm>),
}

impl Pending {
    /// Completes this rank's reads and returns the destination.
    ///
    /// # Errors
    /// What the communicator reports.
    pub fn wait(self) -> Result<Buffer> {
        match self {
            Self::Ready(buffer) => Ok(buffer),
            Self::Flying(handle, cx) => {
                let result = handle.wait();
                if matches!(result, Err(CommError::Mismatch(_))) {
                    cx.forget();
                }
                Ok(result?)
            }
        }
    }

    /// Whether anything is in flight.
    pub fn is_flying(&self) -> bool {
        matches!(self, Self::Flying(..))
    }
}

/// The covers that describe a layout: its own intervals, without overlap.
pub(crate) fn cover_of(layout: &Layout) -> Vec<DimCover> {
    (0..layout.ndim())
        .map(|d| match layout.sharding(d) {
            Some(sharding) => DimCover::from(sharding),
            None => whole_cover(layout.shape()[d]),
        })
        .collect()
}

/// A dim that every rank wants whole.
fn whole_cover(n: usize) -> DimCover {
    DimCover {
        axes: SmallVec::new(),
        intervals: std::iter::once(0..n).collect(),
    }
}

fn whole(n: usize) -> Partition {
    Partition::chunk(n, 1)
}

/// Whether strides walk the shape as one run of consecutive elements.
fn is_run(shape: &[usize], strides: &[isize]) -> bool {
    let mut expect = 1;
    shape.iter().zip(strides).rev().all(|(&n, &s)| {
        let fits = n == 1 || s == expect;
        expect *= n as isize;
        fits
    })
}

fn local_shape(layout: &Layout, parts: &[usize]) -> Dims {
    parts
        .iter()
        .enumerate()
        .map(|(d, &p)| layout.interval(d, p).len())
        .collect()
}

/// One overlap of one dim: a run of elements shared with part `part` of the other side, in local coordinates.
#[derive(Clone, Copy)]
struct Overlap {
    part: usize,
    len: usize,
    src_start: usize,
    src_step: isize,
    dst_start: usize,
    dst_step: isize,
}

impl From<DimPiece> for Overlap {
    fn from(p: DimPiece) -> Self {
        let DimPiece {
            src_part,
            len,
            src_start,
            src_step,
            dst_start,
            dst_step,
        } = p;
        Self {
            part: src_part,
            len,
            src_start,
            src_step,
            dst_start,
            dst_step,
        }
    }
}

impl From<DimSend> for Overlap {
    fn from(p: DimSend) -> Self {
        let DimSend {
            dst_part,
            len,
            src_start,
            src_step,
            dst_start,
            dst_step,
        } = p;
        Self {
            part: dst_part,
            len,
            src_start,
            src_step,
            dst_start,
            dst_step,
        }
    }
}

fn piece_of(
    peer: usize,
    source: usize,
    dims: &[Overlap],
    src: &Strides,
    base: usize,
    dst: &Strides,
) -> Piece {
    let mut piece = Piece {
        peer,
        source,
        shape: Dims::new(),
        src_offset: 0,
        src_strides: Strides::new(),
        dst_offset: base,
        dst_strides: Strides::new(),
    };
    for (d, run) in dims.iter().enumerate() {
        piece.shape.push(run.len);
        piece.src_offset += run.src_start * src[d] as usize;
        piece.src_strides.push(run.src_step * src[d]);
        piece.dst_offset += run.dst_start * dst[d] as usize;
        piece.dst_strides.push(run.dst_step * dst[d]);
    }
    piece
}

fn interval_at(cover: &DimCover, mesh: &DeviceMesh, coords: &[usize]) -> std::ops::Range<usize> {
    cover.intervals[part_at(mesh, &cover.axes, coords)].clone()
}

/// The flat part index of `coords` over `axes`, major to minor.
fn part_at(mesh: &DeviceMesh, axes: &[usize], coords: &[usize]) -> usize {
    axes.iter()
        .fold(0, |part, &a| part * mesh.shape()[a] + coords[a])
}

/// Sets the coordinates along `axes` to those of flat part `part`.
fn set_coords(coords: &mut [usize], mesh: &DeviceMesh, axes: &[usize], mut part: usize) {
    for &a in axes.iter().rev() {
        coords[a] = part % mesh.shape()[a];
        part /= mesh.shape()[a];
    }
}

fn coords_of(mesh: &DeviceMesh, mut index: usize) -> SmallVec<[usize; 4]> {
    let mut coords = SmallVec::from_elem(0, mesh.ndim());
    for a in (0..mesh.ndim()).rev() {
        coords[a] = index % mesh.shape()[a];
        index /= mesh.shape()[a];
    }
    coords
}

fn index_of(mesh: &DeviceMesh, coords: &[usize]) -> usize {
    coords
        .iter()
        .zip(mesh.shape())
        .fold(0, |i, (&c, &n)| i * n + c)
}

/// Calls `f` with every combination of one element per list, the last list fastest.
fn for_each_product<T: Copy>(lists: &[Vec<T>], mut f: impl FnMut(&[T])) {
    fn step<T: Copy>(lists: &[Vec<T>], chosen: &mut SmallVec<[T; 6]>, f: &mut impl FnMut(&[T])) {
        let Some((first, rest)) = lists.split_first() else {
            return f(chosen);
        };
        for &item in first {
            chosen.push(item);
            step(rest, chosen, f);
            chosen.pop();
        }
    }
    step(lists, &mut SmallVec::new(), &mut f);
}

/// Calls `f` with `coords` set to every combination along `axes`, row-major; restores them afterwards.
fn for_each_coord(
    mesh: &DeviceMesh,
    axes: &[usize],
    coords: &mut SmallVec<[usize; 4]>,
    f: &mut impl FnMut(&[usize]),
) {
    let saved = coords.clone();
    let count: usize = axes.iter().map(|&a| mesh.shape()[a]).product();
    for part in 0..count {
        set_coords(coords, mesh, axes, part);
        f(coords);
    }
    *coords = saved;
}

/// Starts an exchange over arrays of one mesh.
pub(crate) fn start(exchange: &Exchange, cx: &Rc<MeshComm>, arrays: &[&Array]) -> Result<Pending> {
    let dtype = arrays[0].dtype();
    let buffers: Vec<Buffer> = arrays.iter().filter_map(|a| a.buffer().cloned()).collect();
    exchange.start(cx, dtype, &buffers)
}
