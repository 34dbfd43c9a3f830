//! Layouts to try: any placement, with even, uneven, partly empty and scattered shards.

use super::Rng;
use shard_spec::{DeviceMesh, Layout, Partition, ReduceOp, SpecError};

/// What one mesh axis does to one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AxisChoice {
    /// Every rank along the axis has the same.
    Replicate,
    /// The axis splits this dim, with the other axes that split it.
    Shard(usize),
    /// Ranks along the axis hold terms of a sum.
    Partial,
}

/// How a split dim is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// As `torch.chunk` cuts, nested in mesh-axis order.
    Even,
    /// Parts of random sizes, nested axes in random order.
    Uneven,
    /// As uneven, but at least one part of several is empty.
    Gaps,
    /// Several intervals per part: zigzag, striped, block-cyclic, or tiles of random owners and sizes.
    Scattered,
}

impl Split {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Even, Self::Uneven, Self::Gaps, Self::Scattered];

    /// Cuts `extent` in `parts`.
    pub fn partition(self, extent: usize, parts: usize, rng: &mut Rng) -> Partition {
        let mut weights: Vec<f64> = match self {
            Self::Even => return Partition::chunk(extent, parts),
            Self::Scattered => return scattered(extent, parts, rng),
            Self::Uneven | Self::Gaps => (0..parts).map(|_| (1 + rng.below(5)) as f64).collect(),
        };
        if self == Self::Gaps && parts > 1 {
            let mut order: Vec<usize> = (0..parts).collect();
            rng.shuffle(&mut order);
            let empty = 1 + rng.below(parts - 1);
            for &part in &order[..empty] {
                weights[part] = 0.0;
            }
        }
        // Positive weights are valid; the even cut is only a formality.
        Partition::weighted(extent, &weights).unwrap_or_else(|_| Partition::chunk(extent, parts))
    }
}

fn scattered(extent: usize, parts: usize, rng: &mut Rng) -> Partition {
    let tiles = |rng: &mut Rng, count: usize| -> Vec<(usize, usize)> {
        (0..count)
            .map(|_| (rng.below(parts), 1 + rng.below(3)))
            .collect()
    };
    match rng.below(4) {
        0 => Partition::zigzag(extent, parts),
        1 => Partition::striped(extent, parts),
        2 => Partition::block_cyclic(extent, parts, 1 + rng.below(3)),
        // Tiles to repeat; there are some, and their owners exist.
        _ => Partition::from_repeated(extent, parts, &tiles(rng, 2 * parts + 1))
            .unwrap_or_else(|_| Partition::chunk(extent, parts)),
    }
}

/// The layout in which each mesh axis does what it is told, cut as told.
///
/// # Errors
/// [`SpecError`] for a dim the shape does not have.
pub fn layout(
    mesh: &DeviceMesh,
    shape: &[usize],
    axes: &[AxisChoice],
    split: Split,
    rng: &mut Rng,
) -> Result<Layout, SpecError> {
    let mut builder = Layout::builder(mesh, shape);
    for (dim, &extent) in shape.iter().enumerate() {
        let mut by: Vec<usize> = (0..axes.len())
            .filter(|&a| axes[a] == AxisChoice::Shard(dim))
            .collect();
        if by.is_empty() {
            continue;
        }
        if split == Split::Even {
            builder = builder.shard_chunk(dim, &by);
        } else {
            rng.shuffle(&mut by);
            let parts = mesh.part_count(&by);
            builder = builder.shard(dim, &by, split.partition(extent, parts, rng));
        }
    }
    for (axis, _) in axes
        .iter()
        .enumerate()
        .filter(|&(_, &c)| c == AxisChoice::Partial)
    {
        builder = builder.partial(axis, ReduceOp::Sum);
    }
    builder.build()
}

/// What an axis may do to a tensor; terms of a sum make sense for floats, not for indices or masks.
pub fn choices(ndim: usize, sums: bool) -> Vec<AxisChoice> {
    let mut all = vec![AxisChoice::Replicate];
    all.extend((0..ndim).map(AxisChoice::Shard));
    if sums {
        all.push(AxisChoice::Partial);
    }
    all
}
