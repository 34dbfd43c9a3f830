//! From hours of the forecast to samples, in pieces from the start.

use crate::args::{MeshShape, Split};
use crate::forecast::{ALTITUDE, THETA};
use shard_tensor::data::load_npy;
use shard_tensor::{
    AxisPlacement, DType, Mesh, Placements, PoolOptions, ResampleMode, Result, ShardTensor, shard,
};
use std::path::Path;

/// Fine points per coarse one, in rows and columns.
const COARSENING: usize = 4;

/// Keeps a level on which nothing varies from dividing by zero.
const FLOOR: f64 = 1e-12;

/// Some hours as the model sees them.
pub(crate) struct Samples {
    /// `[hours, levels + 1, rows, columns]`: the interpolated coarse field and the altitude, standardised.
    pub(crate) inputs: ShardTensor,
    /// `[hours, levels, rows, columns]`: the interpolated coarse field, in units of its own error.
    pub(crate) bilinear: ShardTensor,
    /// `[hours, levels, rows, columns]`: the field, in the same units.
    pub(crate) target: ShardTensor,
}

/// The task on one mesh: the test hour, and what the training hours say about scales.
pub(crate) struct Task {
    /// `[1, levels, rows, columns]`: the last hour, in kelvin.
    pub(crate) test: ShardTensor,
    /// `[1, 1, rows, columns]`: the altitude, standardised.
    lift: ShardTensor,
    /// `[1, levels, 1, 1]`: what zero stands for.
    mean: ShardTensor,
    /// `[1, levels, 1, 1]`: kelvin per unit of the input, the spread of the field.
    spread: ShardTensor,
    /// `[1, levels, 1, 1]`: kelvin per unit of the target, the error of interpolation.
    unit: ShardTensor,
}

impl Task {
    /// Every rank reads its piece of the files; whatever is computed from then on is computed in pieces. In double
    /// precision, whatever the model trains in: kelvin are large beside their errors.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn new(mesh: &Mesh, folder: &Path, split: &Split) -> Result<Self> {
        let piece = |file, rows| {
            let placements = placements(mesh, split, rows);
            load_npy(folder.join(file), mesh, placements)?.to(DType::F64)
        };
        let (theta, altitude) = (piece(THETA, 2)?, piece(ALTITUDE, 0)?);
        let hours = theta.shape()[0];
        let past = theta.narrow(0, 0..hours - 1)?;
        let mean = past.mean([0, 2, 3], true)?.reduced()?;
        let lift = altitude.sub(&altitude.mean_all()?)?;
        let lift = lift.div(&rms_all(&lift)?)?;
        Ok(Self {
            test: theta.narrow(0, hours - 1..hours)?,
            lift: lift.unsqueeze(0)?.unsqueeze(0)?,
            spread: rms(&past.sub(&mean)?)?,
            unit: rms(&past.sub(&coarsened(&past)?)?)?,
            mean,
        })
    }

    /// What the model sees of some hours `[hours, levels, rows, columns]` in kelvin.
    pub(crate) fn samples(&self, theta: &ShardTensor, dtype: DType) -> Result<Samples> {
        let theta = theta.to(DType::F64)?;
        let (coarse, fine) = (coarsened(&theta)?.sub(&self.mean)?, theta.sub(&self.mean)?);
        let shape = theta.shape();
        let lift = self.lift.expand([shape[0], 1, shape[2], shape[3]])?;
        let inputs = ShardTensor::cat(&[&coarse.div(&self.spread)?, &lift], 1)?;
        Ok(Samples {
            inputs: inputs.to(dtype)?,
            bilinear: coarse.div(&self.unit)?.to(dtype)?,
            target: fine.div(&self.unit)?.to(dtype)?,
        })
    }

    /// Back to kelvin, in double precision.
    pub(crate) fn kelvin(&self, x: &ShardTensor) -> Result<ShardTensor> {
        x.to(DType::F64)?.mul(&self.unit)?.add(&self.mean)
    }
}

/// What is known of the field: means over blocks, fewer points at the edges, interpolated back to the fine grid.
fn coarsened(field: &ShardTensor) -> Result<ShardTensor> {
    let (rows, columns) = (field.shape()[2], field.shape()[3]);
    let blocks = field.avg_pool(PoolOptions::new(COARSENING).ceil_mode(true))?;
    // By the factor and not to the size: otherwise the short blocks at the edges would stretch the others.
    let factor = COARSENING as f64;
    blocks
        .interpolate_by(&[factor, factor], ResampleMode::Linear)?
        .narrow(2, 0..rows)?
        .narrow(3, 0..columns)?
        .redistribute(field.layout())
}

/// The root of the mean square per level: `[1, levels, 1, 1]`.
pub(crate) fn rms(x: &ShardTensor) -> Result<ShardTensor> {
    let square = x.square()?.mean([0, 2, 3], true)?;
    square.add_scalar(FLOOR)?.sqrt()
}

fn rms_all(x: &ShardTensor) -> Result<ShardTensor> {
    x.square()?.mean_all()?.add_scalar(FLOOR)?.sqrt()
}

/// The axes of the mesh divide the rows, of this dim, and the columns that follow.
pub(crate) fn placements(mesh: &Mesh, split: &Split, rows: usize) -> Placements {
    let axes = mesh.shape().iter().enumerate();
    axes.map(|(axis, &ranks)| match split {
        Split::Even => shard(rows + axis).even(),
        Split::Uneven => shard(rows + axis).weights(uneven(ranks)),
        Split::Sizes(sizes) => shard(rows + axis).sizes(sizes[axis].clone()),
    })
    .collect::<Vec<AxisPlacement>>()
    .into()
}

/// Each part 38/62 as large as the one before.
fn uneven(parts: usize) -> Vec<f64> {
    let ratio: f64 = 0.38 / 0.62;
    (0..parts).map(|part| ratio.powi(part as i32)).collect()
}

/// A mesh whose axes, named `rows` and `columns`, divide those of the field.
///
/// # Collective
/// All ranks.
pub(crate) fn mesh_of(ctx: &shard_tensor::Context, shape: &MeshShape) -> Result<Mesh> {
    Ok(match shape.0[..] {
        [rows, columns] => ctx.mesh([("rows", rows), ("columns", columns)])?,
        _ => ctx.mesh([("rows", shape.ranks())])?,
    }
    .with_dtype(ctx.dtype()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{Array4, Ix4};
    use shard_tensor::Launch;

    /// Block means and interpolation written out for one point.
    fn by_hand(field: &Array4<f32>, level: usize, row: usize, column: usize) -> f64 {
        let (rows, columns) = (field.dim().2, field.dim().3);
        let block = |i: usize, j: usize| {
            let (i, j) = (4 * i..rows.min(4 * i + 4), 4 * j..columns.min(4 * j + 4));
            let block = field.slice(ndarray::s![0, level, i, j]);
            block.iter().map(|&x| f64::from(x)).sum::<f64>() / block.len() as f64
        };
        let around = |at: usize, extent: usize| {
            let at = ((at as f64 + 0.5) / 4.0 - 0.5).max(0.0);
            let low = at as usize;
            (low, (low + 1).min(extent.div_ceil(4) - 1), at - low as f64)
        };
        let ((i, i1, v), (j, j1, u)) = (around(row, rows), around(column, columns));
        let along = |i| (1.0 - u) * block(i, j) + u * block(i, j1);
        (1.0 - v) * along(i) + v * along(i1)
    }

    #[test]
    fn the_coarse_field_is_block_means_interpolated_on_any_mesh() {
        let field = Array4::from_shape_fn((1, 2, 22, 19), |(_, l, i, j)| {
            (31 * l + i * i % 17 + 3 * j * i % 11) as f32
        });
        for (shape, split) in [("1", "even"), ("2x2", "uneven"), ("3x2", "9,0,13/1,18")] {
            let (shape, split): (MeshShape, Split) =
                (shape.parse().unwrap(), split.parse().unwrap());
            let coarse = Launch::new(shape.ranks())
                .dtype(DType::F64)
                .run(|ctx| {
                    let mesh = mesh_of(ctx, &shape)?;
                    let x =
                        mesh.distribute(&field.mapv(f64::from), placements(&mesh, &split, 2))?;
                    let coarse = coarsened(&x)?;
                    assert_eq!(coarse.layout(), x.layout());
                    coarse.to_array::<f64>()
                })
                .unwrap()
                .swap_remove(0)
                .into_dimensionality::<Ix4>()
                .unwrap();
            for ((_, level, row, column), &got) in coarse.indexed_iter() {
                let expected = by_hand(&field, level, row, column);
                assert!(
                    (got - expected).abs() < 1e-12 * expected.abs().max(1.0),
                    "{shape} at {level} {row} {column}: {got}, by hand {expected}"
                );
            }
        }
    }
}
