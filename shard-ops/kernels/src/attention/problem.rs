//! Queries against one block of keys: shapes, masks, and the walk over tiles that some query sees.

use super::band::{Band, Sight};
use super::cover::{self, Extremes, PIECE};
use super::dropout::DropoutMask;
use super::segments::Segments;
use super::stored::{Stored, gather, start};
use crate::gemm::Lines;
use crate::pointwise::vectorized;
use crate::{Positions, View};
use pulp::{Simd, WithSimd};
use shard_device::Bool;
use std::borrow::Cow;
use std::ops::Range;

/// The queries of a fold, with everything that does not change from block to block.
#[derive(Clone)]
pub struct Queries<'a, E> {
    pub(super) q: View<'a, E>,
    pub(super) positions: Positions<'a>,
    pub(super) scale: f64,
    pub(super) band: Band,
    pub(super) segments: Option<View<'a, i64>>,
    pub(super) dropout: Option<&'a dyn DropoutMask>,
}

impl<'a, E: Stored> Queries<'a, E> {
    /// Queries `[batch, heads, queries, dim]` at these global positions, with scale `1 / sqrt(dim)`, no band and no dropout.
    ///
    /// # Panics
    /// When `q` does not have four dims.
    pub fn new(q: View<'a, E>, positions: Positions<'a>) -> Self {
        assert!(q.ndim() == 4, "attention: queries of shape {:?}", q.shape());
        let scale = 1.0 / (q.shape()[3].max(1) as f64).sqrt();
        Self {
            q,
            positions,
            scale,
            band: Band::ALL,
            segments: None,
            dropout: None,
        }
    }

    /// Sets another scale of the logits.
    #[must_use]
    pub fn scale(self, scale: f64) -> Self {
        Self { scale, ..self }
    }

    /// Lets queries see only the keys of a band.
    #[must_use]
    pub fn band(self, band: Band) -> Self {
        Self { band, ..self }
    }

    /// Lets queries see only the keys of their own segment: numbers of segments are broadcast to `[batch, queries]`, and those of keys are
    /// [the block's](KeyBlock::segments). Both have them or neither: folding panics otherwise.
    #[must_use]
    pub fn segments(self, segments: View<'a, i64>) -> Self {
        Self {
            segments: Some(segments),
            ..self
        }
    }

    /// Applies dropout to probabilities.
    #[must_use]
    pub fn dropout(self, dropout: &'a dyn DropoutMask) -> Self {
        Self {
            dropout: Some(dropout),
            ..self
        }
    }

    /// The tiles of at most `most` keys that folding a block in computes: they hold every pair that the band leaves once, and little
    /// else.
    ///
    /// ```
    /// use shard_kernels::attention::{Band, KeyBlock, Queries};
    /// use shard_kernels::{Positions, View};
    /// let zeros = [0.0f32; 1000];
    /// let x = View::contiguous(&zeros, &[1, 1, 1000, 1]);
    /// let queries = Queries::new(x.clone(), Positions::from(0)).band(Band::causal());
    /// let block = KeyBlock::new(x.clone(), x, Positions::from(0));
    /// let pairs: usize = queries.tiles(&block, 100).iter().map(|tile| tile.area()).sum();
    /// assert!((500_500..560_000).contains(&pairs));
    /// ```
    ///
    /// # Panics
    /// When the shapes differ in more than the number of queries and keys; if `most` is 0.
    pub fn tiles(&self, block: &KeyBlock<'a, E>, most: usize) -> Vec<Tile> {
        let problem = Problem::new(self, block);
        let e = &problem.extents;
        let mut tiles = Vec::new();
        for batch in 0..e.batch {
            for kv_head in 0..e.kv_heads {
                let visit = &mut |tile| tiles.push(tile);
                let all = [0..e.rows(), 0..e.keys];
                problem.for_each_tile([batch, kv_head], all, most, visit);
            }
        }
        tiles
    }
}

/// One block of keys and values, and the masks of all queries against it.
#[derive(Clone, Debug)]
pub struct KeyBlock<'a, E> {
    pub(super) k: View<'a, E>,
    pub(super) v: View<'a, E>,
    pub(super) positions: Positions<'a>,
    pub(super) allow: Option<View<'a, Bool>>,
    pub(super) bias: Option<View<'a, E>>,
    pub(super) segments: Option<View<'a, i64>>,
}

impl<'a, E: Stored> KeyBlock<'a, E> {
    /// Keys `[batch, kv heads, keys, dim]` and values `[batch, kv heads, keys, value dim]` at these global positions, unmasked.
    ///
    /// # Panics
    /// When the shapes contradict each other.
    pub fn new(k: View<'a, E>, v: View<'a, E>, positions: Positions<'a>) -> Self {
        assert!(
            k.ndim() == 4 && v.ndim() == 4 && k.shape()[..3] == v.shape()[..3],
            "attention: keys of shape {:?}, values of shape {:?}",
            k.shape(),
            v.shape()
        );
        Self {
            k,
            v,
            positions,
            allow: None,
            bias: None,
            segments: None,
        }
    }

    /// Says of which segment each key is, broadcast to `[batch, keys]`, for [queries](Queries::segments) that are of one, too.
    #[must_use]
    pub fn segments(self, segments: View<'a, i64>) -> Self {
        Self {
            segments: Some(segments),
            ..self
        }
    }

    /// Applies a mask of the pairs that count, broadcast to `[batch, heads, queries, keys]`.
    #[must_use]
    pub fn allow(self, allow: View<'a, Bool>) -> Self {
        Self {
            allow: Some(allow),
            ..self
        }
    }

    /// Adds a mask to the scaled logits, broadcast to `[batch, heads, queries, keys]`; -inf hides a key.
    #[must_use]
    pub fn bias(self, bias: View<'a, E>) -> Self {
        Self {
            bias: Some(bias),
            ..self
        }
    }
}

/// Extents of a fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extents {
    pub(super) batch: usize,
    pub(super) kv_heads: usize,
    /// Query heads per kv head.
    pub(super) group: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) dim: usize,
    pub(super) value_dim: usize,
}

impl Extents {
    /// The rows that share keys: the queries of a group of heads.
    pub(super) fn rows(&self) -> usize {
        self.group * self.queries
    }
}

/// Queries and a block that fit each other.
pub(super) struct Problem<'a, 'b, E> {
    pub(super) extents: Extents,
    pub(super) queries: &'b Queries<'a, E>,
    row_positions: Cow<'a, [i64]>,
    key_positions: Cow<'a, [i64]>,
    /// Unless all keys are seen by their positions.
    pub(super) key_pieces: Vec<Extremes>,
    pub(super) segments: Option<Segments>,
    /// The masks, broadcast to all pairs.
    allow: Option<View<'a, Bool>>,
    bias: Option<View<'a, E>>,
}

/// Rows and keys of one kv head that are computed together. Row `r` is query `r % queries` of the group's head `r / queries`.
#[derive(Clone, Debug)]
pub struct Tile {
    /// The batch entry.
    pub batch: usize,
    /// The kv head.
    pub kv_head: usize,
    /// The rows.
    pub rows: Range<usize>,
    /// The keys, as they lie in the block.
    pub keys: Range<usize>,
    /// Whether the band hides some pair, or segments do.
    pub banded: bool,
    /// Whether the boolean mask hides some pair.
    pub masked: bool,
}

impl Tile {
    /// Number of pairs.
    pub fn area(&self) -> usize {
        self.rows.len() * self.keys.len()
    }
}

/// What a fold comes to.
pub(super) enum Step {
    /// Some keys of a head.
    Keys([usize; 2], Range<usize>),
    /// Some rows of the same head, before their first tile.
    Rows(Range<usize>),
    /// A tile of these rows and keys.
    Tile(Tile),
    /// The end of these keys.
    Left([usize; 2], Range<usize>),
}

impl<'a, 'b, E: Stored> Problem<'a, 'b, E> {
    pub(super) fn new(queries: &'b Queries<'a, E>, block: &KeyBlock<'a, E>) -> Self {
        let (q, k, v) = (queries.q.shape(), block.k.shape(), block.v.shape());
        let fits = q[0] == k[0]
            && q[3] == k[3]
            && (if k[1] == 0 {
                q[1] == 0
            } else {
                q[1].is_multiple_of(k[1])
            });
        assert!(
            fits,
            "attention: queries of shape {q:?} against keys of shape {k:?}"
        );
        let pairs = [q[0], q[1], q[2], k[2]];
        let key_positions = block.positions.list(k[2]);
        let segments = Segments::of([&queries.segments, &block.segments], [q[0], q[2], k[2]]);
        let key_pieces = if queries.band == Band::ALL && segments.is_none() {
            Vec::new()
        } else {
            cover::pieces(&key_positions)
        };
        Self {
            extents: Extents {
                batch: q[0],
                kv_heads: k[1],
                group: q[1].checked_div(k[1]).unwrap_or(0),
                queries: q[2],
                keys: k[2],
                dim: q[3],
                value_dim: v[3],
            },
            queries,
            row_positions: queries.positions.list(q[2]),
            key_positions,
            key_pieces,
            segments,
            allow: block
                .allow
                .as_ref()
                .map(|m| broadcast("boolean", m, &pairs)),
            bias: block
                .bias
                .as_ref()
                .map(|m| broadcast("additive", m, &pairs)),
        }
    }

    /// The scale of the logits in the type they are computed in.
    pub(super) fn scale(&self) -> E::Acc {
        <E::Acc as crate::Real>::of(self.queries.scale)
    }

    /// Place of row `r` of a kv head among all rows of the queries.
    pub(super) fn row(&self, batch: usize, kv_head: usize, r: usize) -> usize {
        (batch * self.extents.kv_heads + kv_head) * self.extents.rows() + r
    }

    /// The shape of all pairs, `[batch, heads, queries, keys]`.
    pub(super) fn pairs(&self) -> [usize; 4] {
        let e = &self.extents;
        [e.batch, e.kv_heads * e.group, e.queries, e.keys]
    }

    /// Head and query of row `r`.
    pub(super) fn place(&self, kv_head: usize, r: usize) -> (usize, usize) {
        let e = &self.extents;
        (kv_head * e.group + r / e.queries, r % e.queries)
    }

    /// Visits everything that a fold goes through, in order: spans of a head's keys; of each, stripes of rows of which some see some of these
    /// keys; of each, tiles.
    pub(super) fn walk(&self, [rows, keys]: [usize; 2], span: usize, visit: &mut impl FnMut(Step)) {
        let (e, span) = (self.extents, span.max(1).next_multiple_of(PIECE));
        for at in (0..e.batch).flat_map(|batch| (0..e.kv_heads).map(move |head| [batch, head])) {
            for first in (0..e.keys).step_by(span) {
                let these = first..(first + span).min(e.keys);
                visit(Step::Keys(at, these.clone()));
                for first in (0..e.rows()).step_by(rows) {
                    let stripe = first..(first + rows).min(e.rows());
                    let mut are_there = false;
                    let within = [stripe.clone(), these.clone()];
                    self.for_each_tile(at, within, keys, &mut |tile| {
                        if !are_there {
                            visit(Step::Rows(stripe.clone()));
                            are_there = true;
                        }
                        visit(Step::Tile(tile));
                    });
                }
                visit(Step::Left(at, these));
            }
        }
    }

    /// The queries of rows of a kv head.
    pub(super) fn queries_of(&self, rows: &Range<usize>) -> impl Iterator<Item = usize> + use<E> {
        let queries = self.extents.queries;
        rows.clone().map(move |r| r % queries)
    }

    /// The positions of rows of a kv head.
    pub(super) fn positions(&self, rows: &Range<usize>) -> impl Iterator<Item = i64> {
        self.queries_of(rows).map(|query| self.row_positions[query])
    }

    /// How the queries and keys of a tile meet under the boolean mask.
    pub(super) fn allowed(&self, tile: &Tile) -> Sight {
        let Some(mask) = &self.allow else {
            return Sight::All;
        };
        let (mut some, mut all) = (false, true);
        let one_row = self.extents.group == 1 && mask.strides()[2] == 0;
        let rows = if one_row {
            tile.rows.start..tile.rows.start + 1
        } else {
            tile.rows.clone()
        };
        for r in rows {
            let (at, step) = self.pair(mask, tile, r);
            let count = if step == 1 {
                mask.data()[at..at + tile.keys.len()]
                    .iter()
                    .map(|m| usize::from(m.get()))
                    .sum()
            } else {
                (0..tile.keys.len())
                    .filter(|&j| mask.data()[at.wrapping_add_signed(j as isize * step)].get())
                    .count()
            };
            some |= count > 0;
            all &= count == tile.keys.len();
            if some && !all {
                return Sight::Some;
            }
        }
        if all { Sight::All } else { Sight::None }
    }

    /// Position of a tile's row in a mask of pairs, and the step from key to key.
    fn pair<M>(&self, mask: &View<'_, M>, tile: &Tile, r: usize) -> (usize, isize) {
        let (head, query) = self.place(tile.kv_head, r);
        let steps = mask.strides();
        let at = start(mask, [tile.batch, head])
            .wrapping_add_signed(query as isize * steps[2] + tile.keys.start as isize * steps[3]);
        (at, steps[3])
    }

    /// Rows `rows` of a kv head's group as they lie in `view`, which has the form of the queries, if they lie equally far apart and without gaps.
    pub(super) fn rows_in_place<'v>(
        &self,
        view: &View<'v, E>,
        [batch, kv_head]: [usize; 2],
        rows: &Range<usize>,
    ) -> Option<Lines<'v, E>> {
        let (steps, queries) = (view.strides(), self.extents.queries);
        let (head, query) = self.place(kv_head, rows.start);
        let in_one_head = query + rows.len() <= queries;
        let follow = in_one_head || steps[1] == queries as isize * steps[2];
        (follow && steps[3] == 1 && steps[2] >= 0).then(|| Lines {
            data: view.data(),
            offset: start(view, [batch, head]).wrapping_add_signed(query as isize * steps[2]),
            line: steps[2],
            step: 1,
        })
    }

    /// Copies rows `rows` of a kv head's group, times `factor`, out of `view`, which has the form of the queries.
    pub(super) fn pack(
        &self,
        view: &View<'_, E>,
        [batch, kv_head]: [usize; 2],
        rows: Range<usize>,
        factor: Option<E::Acc>,
        to: &mut Vec<E::Acc>,
    ) {
        let cols = view.shape()[3];
        to.resize(rows.len() * cols, num_traits::Zero::zero());
        if cols == 0 {
            return;
        }
        for (r, to) in rows.zip(to.chunks_exact_mut(cols)) {
            let (head, query) = self.place(kv_head, r);
            let at =
                start(view, [batch, head]).wrapping_add_signed(query as isize * view.strides()[2]);
            gather(view.data(), at, view.strides()[3], to);
            if let Some(factor) = factor {
                to.iter_mut().for_each(|x| *x *= factor);
            }
        }
    }

    /// Adds the additive mask to a tile of logits and makes hidden pairs -inf. Logits are still to be multiplied by `factor`, which is positive,
    /// and then by what is returned.
    pub(super) fn mask(&self, tile: &Tile, factor: E::Acc, logits: &mut [E::Acc]) -> E::Acc {
        let hidden = <E::Acc as num_traits::Float>::neg_infinity();
        let keys = &self.key_positions[tile.keys.clone()];
        if !(tile.banded || tile.masked || self.bias.is_some()) {
            return factor;
        }
        let follow = |pair: &[i64]| pair[1].checked_sub(pair[0]) == Some(1);
        let run = (keys.first().copied()).filter(|_| keys.windows(2).all(follow));
        for (r, row) in tile.rows.clone().zip(logits.chunks_exact_mut(keys.len())) {
            if let Some(bias) = &self.bias {
                let (at, step) = self.pair(bias, tile, r);
                if step == 1 {
                    for (t, b) in row.iter_mut().zip(&bias.data()[at..]) {
                        *t = *t * factor + b.widen();
                    }
                } else {
                    for (j, t) in row.iter_mut().enumerate() {
                        let b = bias.data()[at.wrapping_add_signed(j as isize * step)];
                        *t = *t * factor + b.widen();
                    }
                }
            }
            let query = r % self.extents.queries;
            if tile.banded
                && let Some(segments) = &self.segments
            {
                segments.hide(tile.batch, query, tile.keys.clone(), row, hidden);
            }
            if tile.banded && self.queries.band != Band::ALL {
                let query = self.row_positions[query];
                let band = self.queries.band;
                if let Some(first) = run {
                    let seen = band.seen_of_run(query, first, keys.len());
                    row[seen.end..].fill(hidden);
                    row[..seen.start].fill(hidden);
                } else {
                    for (t, &key) in row.iter_mut().zip(keys) {
                        *t = if band.sees(query, key) { *t } else { hidden };
                    }
                }
            }
            if tile.masked
                && let Some(allow) = &self.allow
            {
                let (at, step) = self.pair(allow, tile, r);
                if step == 1 {
                    let seen = &allow.data()[at..][..keys.len()];
                    vectorized(Hide { row, seen, hidden });
                } else {
                    for (j, t) in row.iter_mut().enumerate() {
                        let seen = allow.data()[at.wrapping_add_signed(j as isize * step)].get();
                        *t = if seen { *t } else { hidden };
                    }
                }
            }
        }
        match self.bias {
            Some(_) => <E::Acc as num_traits::One>::one(),
            None => factor,
        }
    }

    /// Writes the factor by which each pair's probability is multiplied: 0 where it is dropped.
    pub(super) fn drop_factors(
        &self,
        dropout: &dyn DropoutMask,
        tile: &Tile,
        factors: &mut [E::Acc],
    ) {
        let keys = &self.key_positions[tile.keys.clone()];
        let mut keep = vec![false; keys.len()];
        let factor = <E::Acc as crate::Real>::of(1.0 / dropout.kept());
        for (r, row) in tile.rows.clone().zip(factors.chunks_exact_mut(keys.len())) {
            let (head, query) = self.place(tile.kv_head, r);
            dropout.keep(tile.batch, head, self.row_positions[query], keys, &mut keep);
            for (f, &keep) in row.iter_mut().zip(&keep) {
                *f = if keep {
                    factor
                } else {
                    num_traits::Zero::zero()
                };
            }
        }
    }
}

/// Hides the keys that a query does not see: their logits become `hidden`. Which are seen nobody can foresee, so it is a choice between
/// values.
struct Hide<'a, A> {
    row: &'a mut [A],
    seen: &'a [Bool],
    hidden: A,
}

impl<A: Copy> WithSimd for Hide<'_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (logit, seen) in self.row.iter_mut().zip(self.seen) {
            *logit = if seen.get() { *logit } else { self.hidden };
        }
    }
}

fn broadcast<'a, M>(name: &str, mask: &View<'a, M>, pairs: &[usize; 4]) -> View<'a, M> {
    mask.broadcast_to(pairs).unwrap_or_else(|| {
        panic!(
            "attention: {name} mask of shape {:?} for pairs of shape {pairs:?}",
            mask.shape()
        )
    })
}
