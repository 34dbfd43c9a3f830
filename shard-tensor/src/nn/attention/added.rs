//! Keys that a layer adds behind those it is given, and masks that leave them seen.

use crate::{Attention, DType, EdgeMap, Placements, Result, ShardTensor};
use shard_spec::Layout;

/// Keys or values of heads, `[batch, heads, tokens, features]`, with one of the layer's own behind them, and one of zeros.
#[track_caller]
pub(super) fn behind(
    tokens: ShardTensor,
    own: Option<&ShardTensor>,
    nothing: bool,
) -> Result<ShardTensor> {
    let mut all = tokens;
    if let (Some(own), &[batch, heads, _, features]) = (own, all.shape()) {
        let own = own.to(all.dtype())?.reshape([1, heads, 1, features])?;
        let own = own.expand([batch, heads, 1, features])?;
        all = ShardTensor::cat(&[&all, &own], 2)?;
    }
    if nothing {
        all = all.pad(&[(0, 0), (0, 0), (0, 1), (0, 0)], EdgeMap::Zeros, 0.0)?;
    }
    Ok(all)
}

/// What hides some of `keys` from queries `[batch, heads, queries, features]`, by a mask or by position, and none of so many behind them;
/// and options by which position hides nothing.
#[track_caller]
pub(super) fn mask(
    queries: &ShardTensor,
    keys: usize,
    mask: Option<&ShardTensor>,
    options: Attention,
    added: usize,
) -> Result<(Option<ShardTensor>, Attention)> {
    let rows = queries.shape().get(2).copied().unwrap_or_default();
    let (options, bounds) = options.without_bounds(rows, keys);
    let mask = match (mask, near(queries, keys, bounds)?) {
        (None, None) => return Ok((None, options)),
        (None, Some(near)) => near,
        (Some(mask), None) => mask.clone(),
        (Some(mask), Some(near)) if mask.dtype() == DType::Bool => mask.logical_and(&near)?,
        (Some(mask), Some(near)) => near.where_(mask, f64::NEG_INFINITY)?,
    };
    // Of a mask that serves all keys with one column there is one for each.
    let mut shape = mask.shape().to_vec();
    match shape.last_mut() {
        Some(columns) if *columns == 1 => *columns = keys,
        Some(_) => {}
        None => shape.push(keys),
    }
    let shown = f64::from(u8::from(mask.dtype() == DType::Bool));
    let mut pads = vec![(0, 0); shape.len()];
    if let Some(last) = pads.last_mut() {
        last.1 = added as isize;
    }
    let mask = mask.expand(shape)?.pad(&pads, EdgeMap::Zeros, shown)?;
    Ok((Some(mask), options))
}

/// Which keys are no nearer to a query than `low` and no farther than `high`, `[queries, keys]`, with the queries; nothing without such bounds.
#[track_caller]
fn near(queries: &ShardTensor, keys: usize, [low, high]: [i64; 2]) -> Result<Option<ShardTensor>> {
    if [low, high] == [i64::MIN, i64::MAX] {
        return Ok(None);
    }
    let layout = queries.layout();
    let shape = [queries.shape()[2], keys];
    let of = [layout.sharding(2).cloned(), None];
    let layout = Layout::from_dims(layout.mesh(), &shape, of, None)?;
    let all = queries.mesh().with_dtype(DType::Bool);
    let all = all.ones(shape, Placements::from(layout))?;
    let below = match high {
        i64::MAX => all,
        high => all.tril(high)?,
    };
    Ok(Some(match low {
        i64::MIN => below,
        low => below.triu(low)?,
    }))
}
