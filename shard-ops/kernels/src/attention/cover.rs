//! Tiles that hold every pair of a query and a key that a band leaves, and few others.

use super::band::{Band, Sight};
use super::forward::row_tile;
use super::problem::{Problem, Tile};
use super::stored::Stored;
use std::ops::Range;

/// Keys of a block that are seen or not together. Tiles begin with one, unless fewer keys are asked for.
pub(super) const PIECE: usize = 32;

/// Rows that a band tells apart are halved until there are so few.
const FEWEST: usize = 64;

/// The smallest and the largest position.
pub(super) type Extremes = (i64, i64);

/// The extremes of each piece of a block's keys.
pub(super) fn pieces(keys: &[i64]) -> Vec<Extremes> {
    let extremes = |piece: &[i64]| extremes(piece.iter().copied());
    keys.chunks(PIECE).filter_map(extremes).collect()
}

impl<E: Stored> Problem<'_, '_, E> {
    /// Calls `visit` for tiles of at most `most` keys that together hold every visible pair of some rows and keys of a kv head. The keys
    /// begin with a piece.
    ///
    /// Of 256 rows that see the keys up to their own, say those from 1024 on, a tile for all rows has the first 1024 keys; the other
    /// 256 make a tile for each 64 rows, of 64, 128, 192 and 256 keys.
    pub(super) fn for_each_tile(
        &self,
        [batch, kv_head]: [usize; 2],
        [rows, keys]: [Range<usize>; 2],
        most: usize,
        visit: &mut impl FnMut(Tile),
    ) {
        let tile = Tile {
            batch,
            kv_head,
            rows,
            keys,
            banded: false,
            masked: false,
        };
        if self.queries.band == Band::ALL && self.segments.is_none() {
            self.cut(&tile, most, |_| Sight::All, visit);
        } else {
            self.cover(&tile, most, visit);
        }
    }

    /// Visits tiles for each run of keys of which some row sees some.
    fn cover(&self, tile: &Tile, most: usize, visit: &mut impl FnMut(Tile)) {
        let Some(rows) = extremes(self.positions(&tile.rows)) else {
            return;
        };
        let by_segments = self.segments.as_ref();
        let by_segments = by_segments.map(|of| of.sights(tile.batch, self.queries_of(&tile.rows)));
        let sight = |piece: usize| {
            let by_band = self.queries.band.sight(rows, self.key_pieces[piece]);
            (by_segments.as_ref()).map_or(by_band, |of_piece| by_band.and(of_piece(piece)))
        };
        let are_few = tile.rows.len() <= FEWEST;
        for seen in runs(pieces_of(&tile.keys), |piece| sight(piece) != Sight::None) {
            let whole = runs(seen.clone(), |piece| sight(piece) == Sight::All)
                .max_by_key(ExactSizeIterator::len)
                .unwrap_or(seen.end..seen.end);
            let with = |pieces: Range<usize>| Tile {
                keys: pieces.start * PIECE..(pieces.end * PIECE).min(tile.keys.end),
                ..tile.clone()
            };
            // More tiles than that, which are smaller, take longer than they leave out.
            let are_most = 2 * whole.len() > seen.len();
            if are_few || whole == seen {
                self.cut(&with(seen), most, sight, visit);
            } else if are_most {
                self.halve(&with(seen.start..whole.start), most, visit);
                self.cut(&with(whole.clone()), most, sight, visit);
                self.halve(&with(whole.end..seen.end), most, visit);
            } else {
                self.halve(&with(seen), most, visit);
            }
        }
    }

    /// The same for each half of the rows.
    fn halve(&self, tile: &Tile, most: usize, visit: &mut impl FnMut(Tile)) {
        let rows = &tile.rows;
        let middle = rows.start + (rows.len() / 2).next_multiple_of(FEWEST / 2);
        for rows in [rows.start..middle, middle..rows.end] {
            let half = Tile {
                rows,
                ..tile.clone()
            };
            self.cover(&half, most, visit);
        }
    }

    /// Visits tiles of about as many keys each that together have all keys of one, unless the boolean mask hides all of theirs.
    fn cut(
        &self,
        tile: &Tile,
        most: usize,
        sight: impl Fn(usize) -> Sight,
        visit: &mut impl FnMut(Tile),
    ) {
        let keys = tile.keys.clone();
        let step = row_tile(keys.len(), most).next_multiple_of(PIECE).min(most);
        for first in keys.clone().step_by(step) {
            let keys = first..(first + step).min(keys.end);
            let banded = pieces_of(&keys).any(|piece| sight(piece) != Sight::All);
            let mut tile = Tile {
                keys,
                banded,
                ..tile.clone()
            };
            match self.allowed(&tile) {
                Sight::None => {}
                allowed => {
                    tile.masked = allowed == Sight::Some;
                    visit(tile);
                }
            }
        }
    }
}

/// The pieces that have some of these keys.
fn pieces_of(keys: &Range<usize>) -> Range<usize> {
    keys.start / PIECE..keys.end.div_ceil(PIECE)
}

/// The longest runs of those that are so, in order.
fn runs(all: Range<usize>, are_so: impl Fn(usize) -> bool) -> impl Iterator<Item = Range<usize>> {
    let mut next = all.start;
    std::iter::from_fn(move || {
        let first = (next..all.end).find(|&i| are_so(i))?;
        let end = (first..all.end).find(|&i| !are_so(i)).unwrap_or(all.end);
        next = end;
        Some(first..end)
    })
}

/// The least and the greatest of some numbers.
pub(super) fn extremes(positions: impl Iterator<Item = i64>) -> Option<Extremes> {
    positions.fold(None, |seen, p| match seen {
        None => Some((p, p)),
        Some((low, high)) => Some((low.min(p), high.max(p))),
    })
}
