//! Which pieces this rank reads, which others read from it, and whether anything has to be sent at all.

use super::{ExchangeBuilder, Source};
use crate::geometry::{Overlap, for_each_coord, for_each_product, local_shape, push_piece, whole};
use shard_comm::Pieces;
use shard_spec::{DimCover, Placement, overlaps, overlaps_from, row_major_strides};
use smallvec::SmallVec;

impl ExchangeBuilder {
    /// The pieces this rank reads: per dim the overlaps of its interval with the source's parts; across dims
    /// their product; and for each combination the rank(s) that own it.
    pub(super) fn receive(
        &self,
        s: usize,
        source: &Source,
        region: usize,
        coords: &[usize],
        out: &mut Pieces,
    ) {
        let target = &self.regions[region];
        let mut per_dim: Vec<Vec<Overlap>> = Vec::with_capacity(target.len());
        for (d, cover) in target.iter().enumerate() {
            let want = cover.at(&self.mesh, coords);
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
        let copies = self.copies(source);
        for_each_product(&per_dim, |pieces| {
            let mut owner: SmallVec<[usize; 4]> = coords.iter().copied().collect();
            for (d, piece) in pieces.iter().enumerate() {
                if let Some(sharding) = source.layout.sharding(d) {
                    self.mesh.set_part(&sharding.axes, piece.part, &mut owner);
                }
            }
            if !self.embeds(source, coords, &owner) {
                return;
            }
            let parts: SmallVec<[usize; 6]> = pieces.iter().map(|p| p.part).collect();
            let src_strides = row_major_strides(&local_shape(&source.layout, &parts));
            if let Some(copies) = &copies
                && owner[..] != *coords
            {
                let turn = self.mesh.index_at(coords);
                for share in 0..copies.count {
                    if let Some(run) = share_of(pieces, share, copies.count) {
                        self.mesh
                            .set_part(&copies.axes, (share + turn) % copies.count, &mut owner);
                        let peer = self.mesh.index_at(&owner);
                        push_piece(out, peer, s, &run, &src_strides, base, &dst_strides);
                    }
                }
                return;
            }
            self.for_each_contributor(&mut owner, |owner| {
                let peer = self.mesh.index_at(owner);
                push_piece(out, peer, s, pieces, &src_strides, base, &dst_strides);
            });
        });
    }

    /// The mirror of [`receive`](Self::receive): what the others read from this rank.
    pub(super) fn send(
        &self,
        s: usize,
        source: &Source,
        region: usize,
        coords: &[usize],
        out: &mut Pieces,
    ) {
        let target = &self.regions[region];
        let mut my_parts: SmallVec<[usize; 6]> = SmallVec::new();
        let mut per_dim: Vec<Vec<Overlap>> = Vec::with_capacity(target.len());
        for (d, cover) in target.iter().enumerate() {
            let (part, have) = match source.layout.sharding(d) {
                Some(sharding) => {
                    let part = self.mesh.part_at(&sharding.axes, coords);
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
        let copies = self.copies(source);
        let copied = |a: &usize| copies.as_ref().is_some_and(|c| c.axes.contains(a));
        // Readers may sit anywhere along these axes; along all others they share this rank's coordinate.
        let free: SmallVec<[usize; 4]> = (0..self.mesh.ndim())
            .filter(|a| {
                let covered = target.iter().any(|c| c.axes.contains(a));
                !covered
                    && (shards(source, *a)
                        || copied(a)
                        || self.reduce_axes.contains(a)
                        || self.embed_axes.contains(a))
            })
            .collect();
        let my_copy = copies
            .as_ref()
            .map_or(0, |c| self.mesh.part_at(&c.axes, coords));
        for_each_product(&per_dim, |pieces| {
            let mut reader: SmallVec<[usize; 4]> = coords.iter().copied().collect();
            for (d, piece) in pieces.iter().enumerate() {
                self.mesh.set_part(&target[d].axes, piece.part, &mut reader);
            }
            for_each_coord(&self.mesh, &free, &mut reader, &mut |reader| {
                let turn = self.mesh.index_at(reader);
                let run = match &copies {
                    None => self
                        .reads_from(source, reader, coords)
                        .then(|| pieces.into()),
                    // A reader that holds the same parts reads its own copy.
                    Some(_) if self.holds_same(source, reader, coords) => {
                        (reader == coords).then(|| pieces.into())
                    }
                    Some(c) if self.copies_differ(source, c, reader, coords) => None,
                    Some(c) => share_of(
                        pieces,
                        (my_copy + c.count - turn % c.count) % c.count,
                        c.count,
                    ),
                };
                if let Some(run) = run {
                    let base = self.base(region, reader);
                    let dst_strides = row_major_strides(&self.shape_at(region, reader));
                    push_piece(out, turn, s, &run, &src_strides, base, &dst_strides);
                }
            });
        });
    }

    /// Whether the rank at `reader` reads from the rank at `owner`, given that their intervals overlap: along
    /// axes that don't shard the source, a reader takes its own coordinate's copy (this spreads readers over
    /// replicas, and never leaves home for what is at home), or every coordinate's contribution if this
    /// exchange reduces that axis.
    fn reads_from(&self, source: &Source, reader: &[usize], owner: &[usize]) -> bool {
        let own_copy = (0..self.mesh.ndim())
            .all(|a| shards(source, a) || self.reduce_axes.contains(&a) || reader[a] == owner[a]);
        own_copy && self.embeds(source, reader, owner)
    }

    /// Whether the rank at `reader` is the one coordinate of the embed axes at which an element of `owner`
    /// arrives: the owner's own coordinate where the source is sharded, coordinate 0 where it is replicated.
    fn embeds(&self, source: &Source, reader: &[usize], owner: &[usize]) -> bool {
        self.embed_axes
            .iter()
            .all(|&a| reader[a] == if shards(source, a) { owner[a] } else { 0 })
    }

    /// The copies that travelling pieces are cut over; `None` where each is read whole from one owner.
    fn copies(&self, source: &Source) -> Option<Copies> {
        if !self.spread || !self.reduce_axes.is_empty() || !self.embed_axes.is_empty() {
            return None;
        }
        let axes = source.layout.replicate_axes();
        let count: usize = axes.iter().map(|&a| self.mesh.shape()[a]).product();
        (count > 1).then(|| Copies {
            axes: axes.iter().copied().collect(),
            count,
        })
    }

    /// Whether two ranks hold the same parts of the source, and the same terms of it where it is partial.
    fn holds_same(&self, source: &Source, a: &[usize], b: &[usize]) -> bool {
        let copied = source.layout.replicate_axes();
        (0..self.mesh.ndim()).all(|axis| a[axis] == b[axis] || copied.contains(&axis))
    }

    /// Whether the ranks hold different terms of a partial source, which are never mixed.
    fn copies_differ(&self, source: &Source, copies: &Copies, a: &[usize], b: &[usize]) -> bool {
        (0..self.mesh.ndim())
            .any(|axis| a[axis] != b[axis] && !copies.axes.contains(&axis) && !shards(source, axis))
    }

    /// Calls `f` for every coordinate of the reduced axes, row-major.
    fn for_each_contributor(&self, owner: &mut SmallVec<[usize; 4]>, mut f: impl FnMut(&[usize])) {
        for_each_coord(&self.mesh, &self.reduce_axes, owner, &mut f);
    }

    /// Whether on every rank every piece is its own, from layouts alone: for each dim and source, each
    /// destination part must lie inside the source part that the same coordinates own.
    pub(super) fn is_local(&self) -> bool {
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
            self.mesh.set_part(&cover.axes, part, &mut at);
            let pieces = overlaps(&sharding.partition, &source.maps[d], want.clone());
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

/// The mesh axes along which a source is replicated, and how many copies that makes.
struct Copies {
    axes: SmallVec<[usize; 4]>,
    count: usize,
}

/// Share number `share` of `count` of a piece, cut along its longest dim; `None` if it is empty.
pub(crate) fn share_of(
    dims: &[Overlap],
    share: usize,
    count: usize,
) -> Option<SmallVec<[Overlap; 6]>> {
    let mut run: SmallVec<[Overlap; 6]> = dims.into();
    // The first of the longest.
    let longest = (0..dims.len()).rev().max_by_key(|&d| dims[d].len);
    let Some(d) = longest else {
        return (share == 0).then_some(run);
    };
    let len = dims[d].len;
    let (start, end) = (share * len / count, (share + 1) * len / count);
    run[d] = dims[d].cut(start, end);
    (start < end).then_some(run)
}

/// Whether a mesh axis shards some dim of the source.
fn shards(source: &Source, axis: usize) -> bool {
    matches!(source.layout.placements()[axis], Placement::Shard(_))
}
