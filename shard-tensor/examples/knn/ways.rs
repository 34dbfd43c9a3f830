//! Three ways to find the nearest neighbours.

use ndarray::ArrayD;
use shard_tensor::{DType, FoldBy, Result, ShardTensor, replicate};

/// A way to find neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// All distances of a tile of queries, written out; the engine aligns the operands.
    Aligned,
    /// `nearest`, the points' blocks going round a ring.
    Ring,
    /// `nearest` as it comes.
    Nearest,
}

impl Way {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Aligned => "aligned",
            Self::Ring => "ring",
            Self::Nearest => "nearest",
        }
    }

    /// Distances `[queries, k]`, ascending, and [`indices`]; equal distances go to the lower index.
    pub(crate) fn search(
        self,
        queries: &ShardTensor,
        points: &ShardTensor,
        k: usize,
        tile: usize,
    ) -> Result<(ShardTensor, ShardTensor)> {
        match self {
            Self::Aligned => aligned(queries, points, k, tile),
            Self::Ring => queries.nearest_by(points, k, FoldBy::Ring),
            Self::Nearest => queries.nearest(points, k),
        }
    }
}

/// Farther than any point of the terrain from any other, squared.
const TAKEN: f64 = 1e30;

fn aligned(
    queries: &ShardTensor,
    points: &ShardTensor,
    k: usize,
    tile: usize,
) -> Result<(ShardTensor, ShardTensor)> {
    let (m, n) = (queries.shape()[0], points.shape()[0]);
    let points = points.unsqueeze(0)?;
    // Numbers of the points, in the tensors' own type: exact, and as long as there are fewer than 2^23, also with n added.
    let number = queries.mesh().arange(n, [replicate()])?.unsqueeze(0)?;
    let beyond = number.add_scalar(n as f64)?;
    let (mut distances, mut indices) = (Vec::new(), Vec::new());
    for first in (0..m).step_by(tile.max(1)) {
        let some = queries.narrow(0, first..m.min(first + tile.max(1)))?;
        let apart = some.unsqueeze(1)?.sub(&points)?;
        let mut squares = apart.square()?.sum([2], false)?;
        let (mut near, mut at) = (Vec::new(), Vec::new());
        for _ in 0..k {
            let least = squares.amin([1], true)?;
            // Of the points at this distance the first: the others' numbers are moved beyond n.
            let hit = squares.eq(&least)?;
            let first = hit.where_(&number, &beyond)?.amin([1], true)?;
            squares = squares.masked_fill(&number.eq(&first)?, TAKEN)?;
            near.push(least);
            at.push(first);
        }
        distances.push(ShardTensor::cat(&near.iter().collect::<Vec<_>>(), 1)?);
        indices.push(ShardTensor::cat(&at.iter().collect::<Vec<_>>(), 1)?);
    }
    let all = |tiles: &[ShardTensor]| ShardTensor::cat(&tiles.iter().collect::<Vec<_>>(), 0);
    Ok((all(&distances)?.sqrt()?, all(&indices)?))
}

/// Indices in whichever type a way gives them.
pub(crate) fn indices(found: &ShardTensor) -> Result<ArrayD<i64>> {
    if found.dtype() == DType::I64 {
        found.to_array()
    } else {
        Ok(found.to_array::<f32>()?.mapv(|i| i as i64))
    }
}
