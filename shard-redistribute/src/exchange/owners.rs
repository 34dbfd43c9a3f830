//! Which copy of a replicated source each reader reads.
//!
//! Ranks that hold copies of one block hold no other block, so readers of different blocks never compete. The least that the
//! busiest owner of a block can send is what the block's readers need, divided by the number of copies. `Spread` and
//! `Balanced` both reach this bound, up to the grain of a piece; no other assignment can do better.

use super::{ExchangeBuilder, ExchangeSource};
use crate::geometry::{Along, Places, Run, cut_of, for_each_product, share_of};
use shard_spec::DeviceMesh;
use smallvec::SmallVec;

/// From whom a replicated piece is read by a rank that does not hold it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Owners {
    /// A piece is read whole, from the copy at the reader's own coordinates: fewest messages.
    #[default]
    Nearest,
    /// A piece is cut evenly over all copies. All of them send the same, and a reader gets a message from each.
    Spread,
    /// The readers of a block are lined up in a row, which is cut into as many equal lengths as there are copies. All copies
    /// send the same, in about one message per reader. Planning takes time in the square of the number of ranks.
    Balanced,
}

/// The mesh axes along which a source is replicated, and who reads what from which copy.
pub(super) struct Copies {
    pub(super) axes: SmallVec<[usize; 4]>,
    pub(super) count: usize,
    pub(super) places: Places,
    rows: Option<Rows>,
}

/// Per block, its readers lined up in a row.
struct Rows {
    ranks: usize,
    /// At `block * ranks + reader`: where the reader's elements begin in the row and how many there are.
    spans: Vec<(usize, usize)>,
    /// Per block, the length of the row.
    totals: Vec<usize>,
}

impl Copies {
    /// A position on the mesh with its coordinates along the copied axes set to 0: the same for all copies of a block.
    pub(super) fn without(&self, mesh: &DeviceMesh, index: usize) -> usize {
        index
            - self
                .places
                .at(mesh.part_at(&self.axes, &mesh.coords_at(index)))
    }

    /// What a reader takes from copy number `copy` of a piece of the block whose first copy is at `block`.
    pub(super) fn taken(
        &self,
        runs: &[Run],
        block: usize,
        reader: usize,
        copy: usize,
    ) -> Option<SmallVec<[Run; 6]>> {
        let Some(rows) = &self.rows else {
            // Readers take turns, so that rounding affects all copies alike.
            let turn = (copy + self.count - reader % self.count) % self.count;
            return share_of(runs, turn, self.count);
        };
        let (start, len) = rows.spans[block * rows.ranks + reader];
        let within = |copy: usize| {
            let cut = copy as u128 * rows.totals[block] as u128 / self.count as u128;
            (cut as usize).clamp(start, start + len) - start
        };
        cut_of(runs, within(copy), within(copy + 1), len)
    }
}

impl ExchangeBuilder {
    /// The copies that share out the pieces to be sent; `None` where each piece is read whole from the nearest copy.
    pub(super) fn copies(&self, source: &ExchangeSource) -> Option<Copies> {
        if self.owners == Owners::Nearest
            || !self.reduce_axes.is_empty()
            || !self.embed_axes.is_empty()
        {
            return None;
        }
        let axes = source.layout.replicate_axes();
        let places = Places::of(&self.mesh, axes);
        if places.count() <= 1 {
            return None;
        }
        let mut copies = Copies {
            axes: axes.iter().copied().collect(),
            count: places.count(),
            places,
            rows: None,
        };
        if self.owners == Owners::Balanced {
            copies.rows = Some(self.rows(source, &copies));
        }
        Some(copies)
    }

    /// Lines up the readers of each block in order of position.
    fn rows(&self, source: &ExchangeSource, copies: &Copies) -> Rows {
        let ranks = self.mesh.size();
        let mut spans = vec![(0, 0); ranks * ranks];
        for reader in 0..ranks {
            let coords = self.mesh.coords_at(reader);
            let home = copies.without(&self.mesh, reader);
            for target in &self.regions {
                let mut place = home;
                let along = |(d, cover): (usize, &shard_spec::DimCover)| {
                    let axes = source.layout.axis_order(d);
                    place -= Places::of(&self.mesh, axes).at(self.mesh.part_at(axes, &coords));
                    let want = cover.at(&self.mesh, &coords);
                    Along::reads(&source.layout, d, &source.maps[d], want, |_| true)
                };
                let dims: Vec<Along<'_>> = target.iter().enumerate().map(along).collect();
                for_each_product(&dims, |runs, parts| {
                    let block = place + parts;
                    if block != home {
                        let len: usize = runs.iter().map(|run| run.len).product();
                        spans[block * ranks + reader].1 += len;
                    }
                });
            }
        }
        let row = |block: &mut [(usize, usize)]| {
            block.iter_mut().fold(0, |start, span| {
                span.0 = start;
                start + span.1
            })
        };
        let totals = spans.chunks_mut(ranks).map(row).collect();
        Rows {
            ranks,
            spans,
            totals,
        }
    }
}
