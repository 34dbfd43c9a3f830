//! Masks that are functions of numbers: a query sees the keys of its own segment.

use super::band::Sight;
use super::cover::{Extremes, PIECE, extremes};
use crate::View;
use std::ops::Range;

/// The segment of each query and each key of a block, for all batch entries.
pub(super) struct Segments {
    queries: Vec<i64>,
    keys: Vec<i64>,
    /// Of every entry, the extremes of each piece of its keys.
    pieces: Vec<Extremes>,
    /// How many queries, keys and pieces an entry has.
    of_entry: [usize; 3],
}

impl Segments {
    /// Of queries and keys that both have them, `[batch, queries, keys]` in number.
    ///
    /// # Panics
    /// When one has them alone, or not as many as there are.
    pub(super) fn of(
        [queries, keys]: [&Option<View<'_, i64>>; 2],
        [batch, of_queries, of_keys]: [usize; 3],
    ) -> Option<Self> {
        let all = |view: &View<'_, i64>, n: usize| match view.broadcast_to(&[batch, n]) {
            Some(view) => view.to_vec(),
            None => panic!("attention: segments {:?} for {batch} x {n}", view.shape()),
        };
        let (queries, keys) = match (queries, keys) {
            (None, None) => return None,
            (Some(queries), Some(keys)) => (all(queries, of_queries), all(keys, of_keys)),
            _ => panic!("attention: segments of queries or of keys alone"),
        };
        let entries = keys.chunks_exact(of_keys.max(1));
        let pieces = entries
            .flat_map(|entry| entry.chunks(PIECE))
            .filter_map(|piece| extremes(piece.iter().copied()));
        Some(Self {
            pieces: pieces.collect(),
            queries,
            keys,
            of_entry: [of_queries, of_keys, of_keys.div_ceil(PIECE)],
        })
    }

    /// How some queries of an entry meet each piece of its keys.
    pub(super) fn sights(
        &self,
        batch: usize,
        queries: impl Iterator<Item = usize>,
    ) -> impl Fn(usize) -> Sight {
        let [of_queries, _, of_pieces] = self.of_entry;
        let own = extremes(queries.map(|query| self.queries[batch * of_queries + query]));
        let pieces = &self.pieces[batch * of_pieces..][..of_pieces];
        move |piece| {
            let (Some(own), keys) = (own, pieces[piece]) else {
                return Sight::None;
            };
            if own.1 < keys.0 || keys.1 < own.0 {
                Sight::None
            } else if own == keys && own.0 == own.1 {
                Sight::All
            } else {
                Sight::Some
            }
        }
    }

    /// Hides the keys that a query does not see among some: their logits become `hidden`.
    pub(super) fn hide<T: Copy>(
        &self,
        batch: usize,
        query: usize,
        keys: Range<usize>,
        logits: &mut [T],
        hidden: T,
    ) {
        let [of_queries, of_keys, _] = self.of_entry;
        let own = self.queries[batch * of_queries + query];
        let keys = &self.keys[batch * of_keys..][keys];
        for (logit, &of) in logits.iter_mut().zip(keys) {
            *logit = if of == own { *logit } else { hidden };
        }
    }
}
