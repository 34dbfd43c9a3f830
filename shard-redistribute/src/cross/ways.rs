//! Ways to cross between meshes: what is reduced before crossing, and what is gathered after it.

use super::{Crossing, OP};
use crate::budget::{check_pieces, pieces_between, pieces_of};
use crate::path::{self, EXACT_RANKS, Hop, finer};
use crate::price::Prices;
use crate::trace::placements;
use crate::{Considered, CostModel, Method, RedistributeError, Result};
use shard_comm::DType;
use shard_spec::Layout;

/// A way from one mesh to another, for values that are not partial.
pub(super) struct Way {
    pub(super) method: Method,
    /// The layout in which the values arrive. From there they are gathered to the destination.
    pub(super) arriving: Layout,
    /// Whether pieces are cut over the copies of their owner.
    pub(super) spread: bool,
}

impl Way {
    pub(super) fn direct(crossing: &Layout, to: &Layout) -> Self {
        let permuted = !to.is_partial() && path::same_blocks(crossing, to);
        Self {
            method: if permuted {
                Method::Relabel
            } else {
                Method::Direct
            },
            arriving: to.clone(),
            spread: false,
        }
    }

    pub(super) fn spread(to: &Layout) -> Self {
        Self {
            method: Method::Spread,
            arriving: to.clone(),
            spread: true,
        }
    }

    /// Refuses a way of more pieces than a rank can list, on either mesh or between them: every rank looks at all of it, whichever
    /// part it takes.
    pub(super) fn check(&self, from: &Layout, crossing: &Layout, to: &Layout) -> Result<()> {
        let count = |layout: &Layout| layout.mesh().part_count(layout.replicate_axes());
        let (copies, readers) = (count(crossing), count(&self.arriving));
        let cut = if self.spread { copies } else { 1 };
        let times = cut.max(readers.div_ceil(copies));
        let crosses = pieces_between(crossing, &self.arriving).saturating_mul(times);
        let [before, after] = [(from, crossing), (&self.arriving, to)].map(|(from, to)| {
            let hops = hops(from, to)?;
            Ok::<_, RedistributeError>(pieces_of(&hops))
        });
        let pieces = [before?, crosses, after?].into_iter();
        check_pieces(OP, from, to, pieces.fold(0, usize::saturating_add))
    }
}

/// The ways whose pieces ranks can list, the direct one first; an error if there are none.
pub(super) fn affordable(from: &Layout, crossing: &Layout, to: &Layout) -> Result<Vec<Way>> {
    let mut found = ways(crossing, to)?;
    let check = |way: &Way| way.check(from, crossing, to);
    let refused = found.first().map_or(Ok(()), check);
    found.retain(|way| check(way).is_ok());
    match found.is_empty() {
        true => refused.map(|()| found),
        false => Ok(found),
    }
}

/// All ways worth pricing, the direct one first, in an order that is the same on every rank.
fn ways(crossing: &Layout, to: &Layout) -> Result<Vec<Way>> {
    let mut found = vec![Way::direct(crossing, to)];
    let copied = several(crossing);
    if copied {
        found.push(Way::spread(to));
    }
    if to.is_partial() || to.numel() == 0 || !several(to) {
        return Ok(found);
    }
    for arriving in sliced(to)? {
        for spread in [false, true] {
            if copied || !spread {
                found.push(Way {
                    method: Method::SliceGather,
                    arriving: arriving.clone(),
                    spread,
                });
            }
        }
    }
    Ok(found)
}

/// Whether a layout holds copies of anything.
fn several(layout: &Layout) -> bool {
    let size = |&a: &usize| layout.mesh().shape()[a] > 1;
    layout.replicate_axes().iter().any(size)
}

/// The destination with its copies sharding one of its dims among themselves: on small meshes any dim, otherwise the largest.
fn sliced(to: &Layout) -> Result<Vec<Layout>> {
    let axes = to.replicate_axes();
    let count = to.mesh().part_count(axes);
    let size = |d: usize| path::size(to, d);
    let mut dims: Vec<usize> = (0..to.ndim()).filter(|&d| size(d) > 1).collect();
    dims.sort_by_key(|&d| (std::cmp::Reverse(size(d).min(count)), d));
    if to.mesh().size() > EXACT_RANKS {
        dims.truncate(1);
    }
    let slice = |d| Ok(to.with_sharding(d, Some(finer(to, d, axes, count)?))?);
    dims.into_iter().map(slice).collect()
}

/// What each way costs.
pub(super) fn considered(
    from: &Layout,
    crossing: &Layout,
    to: &Layout,
    ways: &[Way],
    dtype: DType,
    model: &CostModel,
) -> Result<Vec<Considered>> {
    let mut prices = Prices::new(model, dtype.size());
    let before = prices.seconds(&hops(from, crossing)?);
    let price = |way: &Way| -> Result<Considered> {
        let pieces = Crossing::new(crossing, &way.arriving, way.spread);
        let after = prices.seconds(&hops(&way.arriving, to)?);
        Ok(Considered {
            method: way.method,
            trace: trace(from, crossing, &way.arriving, to),
            seconds: before + pieces.seconds(model, dtype.size()) + after,
            staging: match &way.arriving == to {
                true => 0,
                false => way.arriving.max_local_numel() * dtype.size(),
            },
        })
    };
    ways.iter().map(price).collect()
}

/// The hops of the direct path on one mesh.
fn hops(from: &Layout, to: &Layout) -> Result<Vec<Hop>> {
    Ok(path::direct(from, to, false)?.unwrap_or_default())
}

/// The placements passed through, with `⇒` where the values cross.
pub(super) fn trace(from: &Layout, crossing: &Layout, arriving: &Layout, to: &Layout) -> String {
    let mut text = placements(from);
    if from != crossing {
        text = format!("{text} → {}", placements(crossing));
    }
    text = format!("{text} ⇒ {}", placements(arriving));
    if arriving != to {
        text = format!("{text} → {}", placements(to));
    }
    text
}

/// The layout with its partial axes sharding its largest dim, as a reduce-scatter leaves it. They replicate if there is no dim
/// to shard.
pub(super) fn scattered(from: &Layout) -> Result<Layout> {
    let whole = from.with_partial_reduced();
    let axes = from.partial_axes();
    let largest = (0..whole.ndim())
        .rev()
        .max_by_key(|&d| path::size(&whole, d));
    match largest {
        Some(d) if !axes.is_empty() => {
            let count = from.mesh().part_count(axes);
            Ok(whole.with_sharding(d, Some(finer(&whole, d, axes, count)?))?)
        }
        _ => Ok(whole),
    }
}
