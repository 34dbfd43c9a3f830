//! Which pieces cross between two meshes.

use crate::CostModel;
use crate::geometry::{Along, Places, Run, Writer, cover_of, for_each_product, shape_of, share_of};
use crate::path::EXACT_RANKS;
use crate::price::most_overlaps;
use shard_comm::Pieces;
use shard_spec::{DimMap, Layout};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// The source and the destination of a move, with no partial values left to reduce at either end.
pub(super) struct Crossing<'a> {
    from: &'a Layout,
    to: &'a Layout,
    copies: Copies,
    /// Whether pieces are cut over the copies of their owner, rather than read whole from one copy, readers taking turns.
    spread: bool,
}

/// The axes of the source's mesh that hold copies.
struct Copies {
    axes: SmallVec<[usize; 4]>,
    places: Places,
}

impl Copies {
    fn of(layout: &Layout) -> Self {
        let axes: SmallVec<[usize; 4]> = layout.replicate_axes().iter().copied().collect();
        let places = Places::of(layout.mesh(), &axes);
        Self { axes, places }
    }
}

impl<'a> Crossing<'a> {
    pub(super) fn new(from: &'a Layout, to: &'a Layout, spread: bool) -> Self {
        Self {
            from,
            to,
            copies: Copies::of(from),
            spread,
        }
    }

    /// The pieces that the rank reads. Per dim these are the runs that its interval shares with the source's parts, and a
    /// piece is a product of runs.
    pub(super) fn receive(&self, rank: usize) -> Pieces {
        let mut out = Pieces::new();
        let (Some(turn), Some(want)) = (self.to.mesh().index_of(rank), self.to.local_parts(rank))
        else {
            return out;
        };
        if !self.arrives_at(&self.to.mesh().coords_at(turn)) {
            return out;
        }
        let along = |d: usize| {
            let map = DimMap::identity(self.to.shape()[d]);
            Along::reads(self.from, d, &map, want[d].clone(), |_| true)
        };
        let dims: Vec<Along<'_>> = (0..self.to.ndim()).map(along).collect();
        let mut writer = Writer::new(&mut out, &dims, 0, &shape_of(&want), true);
        let ranks = self.from.mesh().ranks();
        let held = self.held_by(rank);
        for_each_product(&dims, |runs, owner| {
            if held == Some(owner) {
                return writer.push(rank, runs, 0);
            }
            for copy in 0..self.copies.places.count() {
                if let Some(cut) = self.share(runs, copy, turn) {
                    let peer = ranks[owner + self.copies.places.at(copy)];
                    writer.push(peer, &cut, 0);
                }
            }
        });
        out
    }

    /// The mirror of [`receive`](Self::receive): the pieces that others read from the rank.
    pub(super) fn send(&self, rank: usize) -> Pieces {
        let mut out = Pieces::new();
        let (mesh, target) = (self.from.mesh(), self.to.mesh());
        let (Some(index), Some(have)) = (mesh.index_of(rank), self.from.local_parts(rank)) else {
            return out;
        };
        let copy = mesh.part_at(&self.copies.axes, &mesh.coords_at(index));
        // Values arrive at coordinate 0 of the partial axes.
        let mut fixed: SmallVec<[Option<usize>; 4]> = SmallVec::from_elem(None, target.ndim());
        self.to
            .partial_axes()
            .iter()
            .for_each(|&a| fixed[a] = Some(0));
        let covers = cover_of(self.to);
        let dims: Vec<Along<'_>> = (0..self.to.ndim())
            .map(|d| {
                let map = DimMap::identity(self.to.shape()[d]);
                Along::sends(target, have[d].clone(), &map, &covers[d], &fixed)
            })
            .collect();
        let mut writer = Writer::new(&mut out, &dims, 0, &shape_of(&have), false);
        let readers = Places::of(target, self.to.replicate_axes());
        let held = self.held_by(rank);
        for_each_product(&dims, |runs, first| {
            for turn in (0..readers.count()).map(|r| first + readers.at(r)) {
                let peer = target.ranks()[turn];
                if self.held_by(peer) == held {
                    if peer == rank {
                        writer.push(rank, runs, 0);
                    }
                } else if let Some(cut) = self.share(runs, copy, turn) {
                    writer.push(peer, &cut, 0);
                }
            }
        });
        out
    }

    /// What a reader takes from copy number `copy` of a piece: a share of it, or all of it where it is that copy's turn.
    fn share(&self, runs: &[Run], copy: usize, turn: usize) -> Option<SmallVec<[Run; 6]>> {
        let count = self.copies.places.count();
        let share = (copy + count - turn % count) % count;
        if self.spread {
            share_of(runs, share, count)
        } else {
            (share == 0).then(|| runs.into())
        }
    }

    /// The block of the source that a rank holds, named by the position of its first copy; `None` off the source's mesh.
    fn held_by(&self, rank: usize) -> Option<usize> {
        let (mesh, copies) = (self.from.mesh(), &self.copies);
        let index = mesh.index_of(rank)?;
        Some(
            index
                - copies
                    .places
                    .at(mesh.part_at(&copies.axes, &mesh.coords_at(index))),
        )
    }

    /// Whether values, and not the zeros of a sum, arrive at these coordinates of the target.
    fn arrives_at(&self, coords: &[usize]) -> bool {
        self.to.partial_axes().iter().all(|&a| coords[a] == 0)
    }

    /// What crossing costs for elements of `size` bytes, over links of the usual kind. On small meshes the pieces are counted,
    /// on large ones the cost is bounded from offset tables.
    pub(super) fn seconds(&self, model: &CostModel, size: usize) -> f64 {
        let link = model.worst(&[]);
        let (source, target) = (self.from.mesh(), self.to.mesh());
        if source.size().max(target.size()) > EXACT_RANKS {
            let overlaps = |d| most_overlaps(self.from, self.to, d);
            let copies = self.copies.places.count();
            let cut = if self.spread { copies } else { 1 };
            let messages = cut * (0..self.to.ndim()).map(overlaps).product::<usize>();
            let readers = Places::of(target, self.to.replicate_axes()).count();
            let sent = self.from.max_local_numel() * readers.div_ceil(copies);
            let most = match model.sender_pays {
                true => sent.max(self.to.max_local_numel()),
                false => self.to.max_local_numel(),
            };
            return link.time(messages as f64, (most * size) as f64);
        }
        let mut out = vec![0.0; source.size()];
        let mut most: f64 = 0.0;
        for &reader in target.ranks() {
            let mut from_peer = BTreeMap::new();
            for piece in self.receive(reader).iter().filter(|p| p.peer != reader) {
                *from_peer.entry(piece.peer).or_insert(0) += piece.numel();
            }
            let mut into = 0.0;
            for (peer, elements) in from_peer {
                let time = link.time(1.0, (elements * size) as f64);
                into += time;
                if let (Some(owner), true) = (source.index_of(peer), model.sender_pays) {
                    out[owner] += time;
                }
            }
            most = most.max(into);
        }
        out.into_iter().fold(most, f64::max)
    }
}
