//! From the forecast to training and test samples, in pieces from the start.

use crate::args::{MeshShape, Split};
use crate::data::Forecast;
use shard_tensor::{
    AxisPlacement, DType, Mesh, Placements, Pool, ResampleMode, Result, ShardTensor, shard,
};
use std::ops::Range;

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

/// The task on one mesh, and how to get back to kelvin.
pub(crate) struct Task {
    /// All hours but the last.
    pub(crate) train: Samples,
    /// The last hour.
    pub(crate) test: Samples,
    /// `[1, levels, 1, 1]`: kelvin per unit, the error of interpolation on the training hours.
    pub(crate) unit: ShardTensor,
    /// `[1, levels, 1, 1]`: what zero stands for.
    pub(crate) mean: ShardTensor,
}

impl Task {
    /// Rank 0 sends every rank its piece; whatever is computed from then on is computed in pieces. In double
    /// precision, whatever the model trains in: kelvin are large beside their errors.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn new(mesh: &Mesh, forecast: &Forecast, split: &Split) -> Result<Self> {
        let [hours, levels, rows, columns] = forecast.shape();
        let placements = placements(mesh, split);
        let is_root = mesh.context().rank() == 0;
        let theta = is_root.then(|| forecast.theta.mapv(f64::from));
        let theta = mesh.scatter(0, theta.as_ref().map(|t| t.view().into_dyn()), &placements)?;
        let altitude = is_root.then(|| forecast.altitude.mapv(f64::from));
        let altitude = altitude
            .as_ref()
            .map(|z| z.view().insert_axis(ndarray::Axis(0)))
            .map(|z| z.insert_axis(ndarray::Axis(0)).into_dyn());
        let altitude = mesh.scatter(0, altitude, &placements)?;

        let bilinear = coarsened(&theta)?;
        let train = 0..hours - 1;
        let during = |x: &ShardTensor, hours: Range<usize>| x.narrow(0, hours);
        let past = during(&theta, train.clone())?;
        let mean = past.mean([0, 2, 3], true)?.reduced()?;
        let spread = past.sub(&mean)?;
        let unit = past.sub(&during(&bilinear, train.clone())?)?;
        let (spread, unit) = (rms(&spread)?, rms(&unit)?);
        let lift = altitude.sub(&altitude.mean_all()?)?;
        let lift = lift.div(&rms_all(&lift)?)?;

        let dtype = mesh.context().dtype();
        let samples = |hours: Range<usize>| -> Result<Samples> {
            let (coarse, fine) = (
                during(&bilinear, hours.clone())?.sub(&mean)?,
                during(&theta, hours.clone())?.sub(&mean)?,
            );
            let lift = lift.expand([hours.len(), 1, rows, columns])?;
            let inputs = ShardTensor::cat(&[&coarse.div(&spread)?, &lift], 1)?;
            Ok(Samples {
                inputs: inputs.to(dtype)?,
                bilinear: coarse.div(&unit)?.to(dtype)?,
                target: fine.div(&unit)?.to(dtype)?,
            })
        };
        debug_assert_eq!(mean.shape(), [1, levels, 1, 1]);
        Ok(Self {
            train: samples(train)?,
            test: samples(hours - 1..hours)?,
            mean,
            unit,
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
    let blocks = field.avg_pool(Pool::new(COARSENING).ceil_mode(true))?;
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

/// The axes of the mesh divide rows and columns, in this order.
fn placements(mesh: &Mesh, split: &Split) -> Placements {
    let axes = mesh.shape().iter().enumerate();
    axes.map(|(axis, &ranks)| match split {
        Split::Even => shard(2 + axis).even(),
        Split::Uneven => shard(2 + axis).weights(uneven(ranks)),
        Split::Sizes(sizes) => shard(2 + axis).sizes(sizes[axis].clone()),
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
                    let x = mesh.distribute(&field.mapv(f64::from), placements(&mesh, &split))?;
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
