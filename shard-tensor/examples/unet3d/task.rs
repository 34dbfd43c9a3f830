//! Hours of the forecast as volumes, of which every second level is hidden.

use crate::forecast::THETA;
use crate::uneven::uneven;
use shard_tensor::ResampleMode;
use shard_tensor::data::load_npy;
use shard_tensor::prelude::*;
use std::path::Path;

/// Channels that the model is given.
pub(crate) const INPUTS: usize = 3;

/// Some hours as the model sees them.
pub(crate) struct Samples {
    /// `[hours, 3, levels, rows, columns]`: the interpolated field and the altitude, standardised, and where levels are hidden.
    pub(crate) inputs: ShardTensor,
    /// `[hours, 1, levels, rows, columns]`: what interpolation lacks, in units of its own error.
    pub(crate) target: ShardTensor,
}

/// The task on one mesh: the test hour, and what the training hours say about scales.
pub(crate) struct Task {
    /// `[1, levels, rows, columns]`: the last hour, in kelvin.
    pub(crate) test: ShardTensor,
    /// Kelvin per unit of the target.
    pub(crate) unit: f64,
    /// `[1, 1, levels, rows, columns]`: the altitude, standardised, and 1 where a level is hidden.
    ground: ShardTensor,
    hidden: ShardTensor,
    /// `[1, 1, levels, 1, 1]`: of a level.
    mean: ShardTensor,
    spread: ShardTensor,
}

impl Task {
    /// Every rank reads its piece of the file; whatever is computed from then on is computed in pieces, in double precision.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn new(mesh: &Mesh, folder: &Path, altitude: &ndarray::Array2<f32>) -> Result<Self> {
        let theta = load_npy(folder.join(THETA), mesh, placements(mesh))?.to(DType::F64)?;
        let [hours, levels, rows, columns] = theta.shape()[..] else {
            unreachable!("the forecast was checked")
        };
        let past = theta.narrow(0, 0..hours - 1)?.unsqueeze(1)?;
        let mean = past.mean([0, 3, 4], true)?.reduced()?;
        let apart = past.sub(&mean)?;
        let lacking = past.sub(&interpolated(&past)?)?;
        let (middle, lift) = (altitude.mean().unwrap_or(0.0), altitude.std(0.0).max(1e-6));
        let volume = |of: &dyn Fn(&[usize]) -> f64| {
            let f64s = mesh.with_dtype(DType::F64);
            f64s.from_fn([1, levels, rows, columns], placements(mesh), of)?
                .unsqueeze(1)
        };
        Ok(Self {
            test: theta.narrow(0, hours - 1..hours)?,
            unit: lacking.square()?.mean_all()?.item()?.sqrt(),
            ground: volume(&|at| f64::from((altitude[[at[2], at[3]]] - middle) / lift))?,
            hidden: volume(&|at| (at[1] % 2) as f64)?,
            spread: apart.square()?.mean([0, 3, 4], true)?.sqrt()?,
            mean,
        })
    }

    /// What the model sees of some hours `[hours, levels, rows, columns]` in kelvin.
    pub(crate) fn samples(&self, theta: &ShardTensor, dtype: DType) -> Result<Samples> {
        let theta = theta.to(DType::F64)?.unsqueeze(1)?;
        let plain = interpolated(&theta)?;
        let field = plain.sub(&self.mean)?.div(&self.spread)?;
        let [ground, hidden] = [&self.ground, &self.hidden].map(|x| x.expand(field.shape()));
        let inputs = ShardTensor::cat(&[&field, &ground?, &hidden?], 1)?;
        let target = theta.sub(&plain)?.mul_scalar(1.0 / self.unit)?;
        Ok(Samples {
            inputs: inputs.to(dtype)?,
            target: target.to(dtype)?,
        })
    }
}

/// The axes of the mesh divide levels, rows and columns, each part two thirds as large as the one before.
pub(crate) fn placements(mesh: &Mesh) -> Placements {
    let divided = |axis| shard(1 + axis).weights(uneven(mesh.shape()[axis]));
    let [levels, rows, columns] = [0, 1, 2].map(divided);
    [levels, rows, columns].into()
}

/// A volume `[hours, 1, levels, rows, columns]` of which every second level was forgotten, and is the mean of those around it.
fn interpolated(field: &ShardTensor) -> Result<ShardTensor> {
    let extents = &field.shape()[2..];
    field
        .slice(2, 0, 2, extents[0].div_ceil(2))?
        .interpolate(extents, ResampleMode::LinearAligned)?
        .redistribute(field.layout())
}
