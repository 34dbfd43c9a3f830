//! Which rows experts have, and where these lie.

use super::{ExpertRouting, MixtureOfExperts};
use crate::{DType, Result, ShardTensor};
use shard_ops::decided;
use shard_spec::{DimSharding, Layout, Partition};

/// What decides where rows lie is found by.
const OP: &str = "MixtureOfExperts";

/// The rows that experts with room for so many have, of `[experts, rows]`.
pub(super) struct Padded {
    /// The token in a row, 0 in one that is empty. Routes are kept with this value, so that all that moves by it asks once.
    pub(super) token: ShardTensor,
    /// Which of the token's choices the expert is, `[experts, rows, 1]`.
    pub(super) choice: ShardTensor,
    /// Whether there is a token, `[experts, rows, 1]`.
    pub(super) filled: ShardTensor,
}

/// A row for each choice, those of an expert one behind the other, in the order of their tokens.
pub(super) struct Sorted {
    /// The token in a row. As of [`Padded`].
    pub(super) token: ShardTensor,
    /// Which of the token's choices the expert is, `[rows, 1]`.
    pub(super) choice: ShardTensor,
    /// The expert.
    pub(super) expert: ShardTensor,
}

impl Padded {
    /// The rows of experts that have room for `factor` times as many as if all had as many; what finds none is noted.
    pub(super) fn of(
        moe: &MixtureOfExperts,
        tokens: &ShardTensor,
        routing: &mut ExpertRouting,
        (experts, factor): (usize, f64),
    ) -> Result<Self> {
        let (count, top) = (tokens.shape()[0], moe.top);
        let even = (count * top) as f64 / experts as f64;
        let room = count.min((factor * even).ceil() as usize);
        let chosen = &routing.experts;
        let mut hot = chosen.one_hot(experts)?; // [tokens, top, experts]
        let real = match &routing.real {
            Some(real) => Some(real.unsqueeze(1)?),
            None => None,
        };
        if let Some(real) = &real {
            hot = real.unsqueeze(2)?.where_(&hot, 0.0)?;
        }
        let load = hot.sum(0, false)?.reduced()?;
        // First choices of all tokens stand before the second ones.
        let before = load.cumsum(0)?.sub(&load)?;
        let up_to = hot.cumsum(0)?.add(&before)?;
        let place = up_to
            .gather(2, &chosen.unsqueeze(2)?)?
            .squeeze(2)?
            .add_scalar(-1.0)?;

        let slot = chosen.mul_scalar(room as f64)?.add(&place)?;
        let numbers = tokens.mesh().with_dtype(DType::I64);
        // Numbers of choices from 1 on, as 0 says that there is none.
        let number = numbers.arange(count * top, slot.reshape([count * top])?.layout())?;
        let number = number.add_scalar(1.0)?.reshape([count, top])?;
        let mut kept = place.lt_scalar(room as f64)?;
        if let Some(real) = &real {
            kept = kept.logical_and(real)?;
        }
        // What adds 0 may do so anywhere.
        let (slot, number) = (kept.where_(&slot, 0.0)?, kept.where_(&number, 0.0)?);
        routing.kept = Some(kept);

        let layouts = padded_layouts(moe, tokens.layout(), [experts, room])?;
        let empty = numbers.zeros([experts, room], &layouts[0])?;
        let put = empty.reshape([experts * room])?.index_add(
            0,
            &slot.reshape([count * top])?,
            &number.reshape([count * top])?,
        )?;
        let number = put.reshape([experts, room])?.redistribute(&layouts[1])?;
        let choice = number.add_scalar(-1.0)?.clamp_min(0.0)?;
        Ok(Self {
            token: choice.floor_div_scalar(top as f64)?,
            choice: choice.remainder_scalar(top as f64)?.unsqueeze(2)?,
            filled: number.gt_scalar(0.0)?.unsqueeze(2)?,
        })
    }
}

impl Sorted {
    /// The rows of experts that are divided so over ranks.
    pub(super) fn of(
        moe: &MixtureOfExperts,
        tokens: &ShardTensor,
        routing: &ExpertRouting,
        by_expert: &DimSharding,
    ) -> Result<Self> {
        let (chosen, experts) = (&routing.experts, routing.logits.shape()[1]);
        let (top, all) = (moe.top, chosen.numel());
        let picks = chosen.one_hot(experts)?.sum(1, false)?; // [tokens, experts]
        let load = picks.sum(0, false)?.reduced()?;
        let first = load.cumsum(0)?.sub(&load)?;
        let up_to = picks.cumsum(0)?.add(&first)?;
        let slot = up_to.gather(1, chosen)?.add_scalar(-1.0)?.reshape([all])?;
        let numbers = tokens.mesh().with_dtype(DType::I64);
        let number = numbers.arange(all, slot.layout())?;
        let told = number
            .mul_scalar(experts as f64)?
            .add(&chosen.reshape([all])?)?;

        // Ranks that are not on the mesh know where rows lie, too. Where nobody does, all experts are liked alike.
        let known = decided::known::<i64>(&**tokens.context().engine(), OP, &load.value())?;
        let load: Vec<usize> = match known {
            Some(load) => load.iter().map(|&n| n.unsigned_abs() as usize).collect(),
            None => Partition::balanced(all, experts).sizes().collect(),
        };
        let layout = sorted_layout(moe, tokens.layout(), by_expert, &load)?;
        let put = numbers.zeros([all], &layout)?.index_add(0, &slot, &told)?;
        let choice = put.floor_div_scalar(experts as f64)?;
        Ok(Self {
            token: choice.floor_div_scalar(top as f64)?,
            choice: choice.remainder_scalar(top as f64)?.unsqueeze(1)?,
            expert: put.remainder_scalar(experts as f64)?,
        })
    }
}

/// The axes along which tokens are divided and weights are copies, and what share of the tokens each part along them has, if that can be told.
fn free_axes(moe: &MixtureOfExperts, tokens: &Layout) -> Option<(Vec<usize>, Option<Vec<f64>>)> {
    let weights = moe.w1.layout_in_use();
    let divides = |axis: &usize| {
        let mut all = weights.shardings().iter().flatten();
        all.any(|s| s.axes.contains(axis))
    };
    let own = tokens
        .sharding(0)
        .filter(|_| tokens.mesh() == weights.mesh())?;
    let axes: Vec<usize> = own.axes.iter().copied().filter(|a| !divides(a)).collect();
    let sizes: Vec<f64> = own.partition.sizes().map(|n| n as f64).collect();
    let told = axes.len() == own.axes.len() && sizes.iter().any(|&n| n > 0.0);
    (!axes.is_empty()).then_some((axes, told.then_some(sizes)))
}

/// So many rows over these axes, where each part asks for about as many as it has tokens.
fn divided(count: usize, parts: usize, shares: Option<&[f64]>) -> Result<Partition> {
    Ok(match shares {
        Some(shares) => Partition::weighted(count, shares)?,
        None => Partition::balanced(count, parts),
    })
}

/// Where the rows of experts lie, `[experts, rows]`: divided as the experts are; and then also over [free axes](free_axes).
fn padded_layouts(
    moe: &MixtureOfExperts,
    tokens: &Layout,
    shape: [usize; 2],
) -> Result<[Layout; 2]> {
    let weights = moe.w1.layout_in_use();
    let by_expert = weights.sharding(0).cloned();
    let mesh = weights.mesh();
    let first = Layout::from_dims(mesh, &shape, [by_expert.clone(), None], None)?;
    let Some((axes, shares)) = free_axes(moe, tokens) else {
        return Ok([first.clone(), first]);
    };
    let rows = DimSharding {
        partition: divided(shape[1], mesh.part_count(&axes), shares.as_deref())?,
        axes: axes.into(),
    };
    let second = Layout::from_dims(mesh, &shape, [by_expert, Some(rows)], None)?;
    Ok([first, second])
}

/// Where rows lie of which each expert has so many: with the expert; and those of one rank's experts also over [free axes](free_axes).
fn sorted_layout(
    moe: &MixtureOfExperts,
    tokens: &Layout,
    by_expert: &DimSharding,
    load: &[usize],
) -> Result<Layout> {
    let weights = moe.w1.layout_in_use();
    let mesh = weights.mesh();
    let (free, shares) = free_axes(moe, tokens).unwrap_or_default();
    let parts = mesh.part_count(&free);
    let all: usize = load.iter().sum();
    let axes: Vec<usize> = by_expert.axes.iter().copied().chain(free).collect();
    let partition = match by_expert.partition.offsets() {
        Some(offsets) => {
            let mut sizes = Vec::new();
            for ends in offsets.windows(2) {
                let rows = load[ends[0]..ends[1]].iter().sum();
                sizes.extend(divided(rows, parts, shares.as_deref())?.sizes());
            }
            Partition::from_sizes(&sizes)?
        }
        // Rows of experts that are not neighbours are none either: matrices come to them.
        None => Partition::balanced(all, mesh.part_count(&axes)),
    };
    let rows = DimSharding {
        axes: axes.into(),
        partition,
    };
    Ok(Layout::from_dims(mesh, &[all], [Some(rows)], None)?)
}
