//! The positions of the queries and keys of a kernel call, and which pairs of them are hidden or dropped.

use super::options::Attention;
use super::rule::Masks;
use crate::host::{Held, positions};
use crate::rng::{Stream, least_kept};
use crate::{HostCall, OperandBox};
use shard_comm::{Bool, DType, Element};
use shard_kernels::Positions;
use shard_kernels::attention::{Band, DropoutMask, KeyBlock, Queries, Stored};
use shard_spec::DimPart;

/// Which probabilities are dropped: those whose random word is below the rate. The words of the stream are numbered by place in
/// `[batch, heads, queries, keys]`.
struct Dropped {
    stream: Stream,
    rate: f64,
    /// The smallest word that is kept.
    least: u32,
    /// Global numbers of the batch entries and heads of the call.
    batch: DimPart,
    heads: DimPart,
    /// Extents of the whole problem.
    all_heads: u64,
    queries: u64,
    keys: u64,
}

impl DropoutMask for Dropped {
    fn kept(&self) -> f64 {
        1.0 - self.rate
    }

    fn keep(&self, batch: usize, head: usize, query: i64, keys: &[i64], keep: &mut [bool]) {
        let (batch, head) = (
            self.batch.index(batch) as u64,
            self.heads.index(head) as u64,
        );
        let row = (batch * self.all_heads + head) * self.queries + query as u64;
        let mut drawn = self.stream.drawn();
        for (keep, &key) in keep.iter_mut().zip(keys) {
            *keep = drawn.word(row * self.keys + key as u64) >= self.least;
        }
    }
}

impl Attention {
    /// The dropout for the queries in a box, with `keys` keys in all.
    fn dropped(&self, queries: &OperandBox, keys: usize) -> Option<Dropped> {
        let (rate, stream) = self.dropout?;
        Some(Dropped {
            stream,
            rate,
            least: least_kept(rate),
            batch: queries.held[0].clone(),
            heads: queries.held[1].clone(),
            all_heads: queries.global[1] as u64,
            queries: queries.global[2] as u64,
            keys: keys as u64,
        })
    }
}

/// The positions of the queries and keys of a call, with the band and dropout between them.
pub(super) struct Facing<'a> {
    options: &'a Attention,
    queries: Held,
    pub(super) keys: Held,
    band: Band,
    dropped: Option<Dropped>,
}

impl<'a> Facing<'a> {
    /// For these boxes of queries and keys.
    pub(super) fn new(options: &'a Attention, boxes: &[OperandBox]) -> Self {
        let (queries, keys) = (boxes[0].global[2], boxes[1].global[2]);
        Self {
            options,
            queries: positions(&boxes[0], 2),
            keys: positions(&boxes[1], 2),
            band: options.band(queries, keys),
            dropped: options.dropped(&boxes[0], keys),
        }
    }

    /// The queries of a call.
    pub(super) fn problem<'b, E: Stored + Element>(
        &'b self,
        call: &HostCall<'b, '_>,
        masks: Masks,
    ) -> Queries<'b, E> {
        let mut queries = Queries::new(call.input(0), self.queries.get()).band(self.band);
        if masks.segments {
            queries = queries.segments(call.input(masks.first_segments()));
        }
        if let Some(scale) = self.options.scale {
            queries = queries.scale(scale);
        }
        match &self.dropped {
            Some(dropped) => queries.dropout(dropped),
            None => queries,
        }
    }
}

/// The keys and values of a call, with their masks.
pub(super) fn block<'a, E: Stored + Element>(
    call: &HostCall<'a, '_>,
    masks: Masks,
    positions: Positions<'a>,
) -> KeyBlock<'a, E> {
    let mut block = KeyBlock::new(call.input::<E>(1), call.input::<E>(2), positions);
    if masks.segments {
        block = block.segments(call.input(masks.first_segments() + 1));
    }
    match masks.mask {
        None => block,
        Some(DType::Bool) => block.allow(call.input::<Bool>(3)),
        Some(_) => block.bias(call.input::<E>(3)),
    }
}
