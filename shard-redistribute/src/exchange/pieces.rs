//! Which pieces this rank reads, which ones others read from it, and whether anything has to be sent at all.

use super::owners::Copies;
use super::{ExchangeBuilder, ExchangeSource};
use crate::geometry::{Along, Places, Writer, for_each_coord, for_each_product, product_len};
use shard_comm::Pieces;
use shard_spec::{DimCover, Placement, overlaps};
use smallvec::SmallVec;

impl ExchangeBuilder {
    /// Adds the pieces that this rank reads. Along each dim, the rank's interval shares runs with the source's parts; a piece
    /// is a product of one run per dim, read from the rank or ranks that own it.
    ///
    /// Along axes that don't shard the source, a reader takes its own coordinate's copy (this spreads readers over replicas,
    /// and never fetches what the reader holds), or every coordinate's contribution if this exchange reduces that axis. Along
    /// an axis being embedded, elements arrive at the one coordinate of their owner, or at coordinate 0 if the source is
    /// replicated.
    pub(super) fn receive(
        &self,
        (s, source): (usize, &ExchangeSource),
        region: usize,
        coords: &[usize],
        copies: &Option<Copies>,
        out: &mut Pieces,
    ) {
        let (target, mesh) = (&self.regions[region], &self.mesh);
        if (self.embed_axes.iter()).any(|&a| !shards(source, a) && coords[a] != 0) {
            return;
        }
        let me = mesh.index_at(coords);
        // The position of the owner: the sum of what its parts add and, along the other axes, this rank's coordinates.
        let mut place = me;
        let mut dims: Vec<Along<'_>> = Vec::with_capacity(target.len());
        for (d, cover) in target.iter().enumerate() {
            let axes = source.layout.axis_order(d);
            place -= Places::of(mesh, axes).at(mesh.part_at(axes, coords));
            let (want, map) = (cover.at(mesh, coords), &source.maps[d]);
            let arrives = |part| !self.embeds_along(axes) || self.arrives(axes, part, coords);
            let found = Along::reads(&source.layout, d, map, want, arrives);
            if found.is_empty() {
                return;
            }
            dims.push(found);
        }
        let base = self.base(region, coords);
        let mut writer = Writer::new(out, &dims, s, &self.shape_at(region, coords), true);
        if let Some(copies) = copies {
            let mine = copies.places.at(mesh.part_at(&copies.axes, coords));
            for_each_product(&dims, |runs, parts| {
                let owner = place + parts;
                if owner == me {
                    return writer.push(owner, runs, base);
                }
                let block = owner - mine;
                for copy in 0..copies.count {
                    if let Some(cut) = copies.taken(runs, block, me, copy) {
                        writer.push(block + copies.places.at(copy), &cut, base);
                    }
                }
            });
            return;
        }
        let terms = Places::of(mesh, &self.reduce_axes);
        writer.reserve(terms.count() * product_len(&dims));
        place -= terms.at(mesh.part_at(&self.reduce_axes, coords));
        for_each_product(&dims, |runs, parts| {
            let owner = place + parts;
            for term in 0..terms.count() {
                writer.push(owner + terms.at(term), runs, base);
            }
        });
    }

    /// The mirror of [`receive`](Self::receive): adds the pieces that others read from this rank.
    pub(super) fn send(
        &self,
        (s, source): (usize, &ExchangeSource),
        region: usize,
        coords: &[usize],
        copies: &Option<Copies>,
        out: &mut Pieces,
    ) {
        let (target, mesh) = (&self.regions[region], &self.mesh);
        let Some(fixed) = self.readers(source, copies, coords) else {
            return;
        };
        let me = mesh.index_at(coords);
        let (place, free) = self.first_reader(target, &fixed, coords);
        let mut mine = SmallVec::<[usize; 6]>::new();
        let mut dims: Vec<Along<'_>> = Vec::with_capacity(target.len());
        for (d, cover) in target.iter().enumerate() {
            let part = mesh.part_at(source.layout.axis_order(d), coords);
            let have = source.layout.part(d, part);
            mine.push(have.len());
            let found = Along::sends(mesh, have, &source.maps[d], cover, &fixed);
            if found.is_empty() {
                return;
            }
            dims.push(found);
        }
        let readers = Places::of(mesh, &free);
        let mut writer = Writer::new(out, &dims, s, &mine, false);
        writer.reserve(readers.count() * product_len(&dims));
        // The first region begins at the start of every rank's destination.
        let base = |reader: usize| match region {
            0 => 0,
            _ => self.base(region, &mesh.coords_at(reader)),
        };
        for_each_product(&dims, |runs, parts| {
            let first = place + parts;
            for reader in (0..readers.count()).map(|r| first + readers.at(r)) {
                let Some(copies) = copies else {
                    writer.push(reader, runs, base(reader));
                    continue;
                };
                // A reader that holds the same parts reads its own copy.
                if copies.without(mesh, reader) == copies.without(mesh, me) {
                    if reader == me {
                        writer.push(me, runs, base(me));
                    }
                    continue;
                }
                let copy = mesh.part_at(&copies.axes, coords);
                if let Some(cut) = copies.taken(runs, copies.without(mesh, me), reader, copy) {
                    writer.push(reader, &cut, base(reader));
                }
            }
        });
    }

    /// The rank that has the first part of each dim of a region and, along other axes, the coordinate that is fixed; and the axes along which
    /// none is.
    fn first_reader(
        &self,
        target: &[DimCover],
        fixed: &[Option<usize>],
        coords: &[usize],
    ) -> (usize, SmallVec<[usize; 4]>) {
        let mesh = &self.mesh;
        let mut place = mesh.index_at(coords);
        for cover in target {
            place -= Places::of(mesh, &cover.axes).at(mesh.part_at(&cover.axes, coords));
        }
        let mut free = SmallVec::new();
        let is_covered = |a: &usize| target.iter().any(|cover| cover.axes.contains(a));
        for (a, at) in fixed.iter().enumerate().filter(|(a, _)| !is_covered(a)) {
            let along = Places::of(mesh, &[a]);
            place -= along.at(coords[a]);
            match at {
                Some(at) => place += along.at(*at),
                None => free.push(a),
            }
        }
        (place, free)
    }

    /// Per mesh axis, the one coordinate at which ranks read from this rank, or `None` where ranks at all coordinates do. The
    /// whole is `None` if nobody reads from this rank.
    fn readers(
        &self,
        source: &ExchangeSource,
        copies: &Option<Copies>,
        coords: &[usize],
    ) -> Option<SmallVec<[Option<usize>; 4]>> {
        let copied = |a| copies.as_ref().is_some_and(|c| c.axes.contains(&a));
        (0..self.mesh.ndim())
            .map(|a| {
                let reduced = self.reduce_axes.contains(&a);
                match (self.embed_axes.contains(&a), shards(source, a)) {
                    (true, true) => Some(Some(coords[a])),
                    (true, false) => (reduced || coords[a] == 0).then_some(Some(0)),
                    (false, true) => Some(None),
                    (false, false) if reduced || copied(a) => Some(None),
                    (false, false) => Some(Some(coords[a])),
                }
            })
            .collect()
    }

    fn embeds_along(&self, axes: &[usize]) -> bool {
        axes.iter().any(|a| self.embed_axes.contains(a))
    }

    /// Whether elements of this part arrive at these coordinates of the embedded axes.
    fn arrives(&self, axes: &[usize], part: usize, coords: &[usize]) -> bool {
        let mut owner: SmallVec<[usize; 4]> = coords.into();
        self.mesh.set_part(axes, part, &mut owner);
        (self.embed_axes.iter()).all(|&a| !axes.contains(&a) || owner[a] == coords[a])
    }

    /// Whether every rank reads only its own pieces, decided from layouts alone: for each dim and source, each destination
    /// part must lie inside the source part that the same coordinates own.
    pub(crate) fn is_local(&self) -> bool {
        self.reduce_axes.is_empty()
            && self.regions.iter().all(|target| {
                self.sources
                    .iter()
                    .all(|s| (0..target.len()).all(|d| self.dim_is_local(s, d, &target[d])))
            })
    }

    fn dim_is_local(&self, source: &ExchangeSource, d: usize, cover: &DimCover) -> bool {
        let Some(sharding) = source.layout.sharding(d) else {
            return true;
        };
        // Axes along which a reader has the same coordinate as the owners it reads from, by construction.
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
        for part in 0..cover.count() {
            self.mesh.set_part(&cover.axes, part, &mut at);
            let pieces = overlaps(&sharding.partition, &source.maps[d], cover.part(part));
            for_each_coord(&self.mesh, &embedded, &mut at, &mut |at| {
                let own = self.mesh.part_at(&sharding.axes, at);
                let mut owner: SmallVec<[usize; 4]> = at.iter().copied().collect();
                local &= pieces.iter().all(|p| {
                    self.mesh.set_part(&sharding.axes, p.src_part, &mut owner);
                    p.src_part == own || embedded.iter().any(|&a| owner[a] != at[a])
                });
            });
            if !local {
                return false;
            }
        }
        local
    }
}

/// Whether a mesh axis shards some dim of the source.
fn shards(source: &ExchangeSource, axis: usize) -> bool {
    matches!(source.layout.placements()[axis], Placement::Shard(_))
}
