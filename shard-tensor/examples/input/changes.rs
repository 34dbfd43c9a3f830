//! Hours of a forecast and the changes that follow, in units that suit a model.

use crate::forecast::Forecast;
use ndarray::{Array4, s};
use shard_tensor::{Error, Result};

/// Fields without their mean and with the spread one, level by level; changes with the spread one.
pub(crate) struct Changes {
    /// `[hours, levels, rows, columns]`
    pub(crate) fields: Array4<f64>,
    /// From each hour but the last to the next.
    pub(crate) changes: Array4<f64>,
    /// Kelvin that a change of one stands for.
    pub(crate) unit: f64,
}

impl Changes {
    /// Means and spreads are those of all hours but the last two, which a model is trained on.
    pub(crate) fn of(forecast: &Forecast) -> Result<Self> {
        let theta: Array4<f64> = forecast.theta.mapv(f64::from);
        let hours = theta.dim().0;
        if hours < 3 {
            return Err(Error::custom("two changes need three hours"));
        }
        let change = &theta.slice(s![1.., .., .., ..]) - &theta.slice(s![..-1, .., .., ..]);
        let known = change.slice(s![..hours - 2, .., .., ..]);
        let unit = (known.iter().map(|x| x * x).sum::<f64>() / known.len() as f64).sqrt();
        let mut fields = theta;
        for level in 0..fields.dim().1 {
            let of_level = fields.slice(s![..hours - 2, level, .., ..]);
            let mean = of_level.mean().unwrap_or(0.0);
            let spread = of_level.std(0.0).max(1e-6);
            fields
                .slice_mut(s![.., level, .., ..])
                .mapv_inplace(|x| (x - mean) / spread);
        }
        Ok(Self {
            fields,
            changes: change / unit,
            unit,
        })
    }
}

/// Each part two thirds as large as the one before.
pub(crate) fn uneven(parts: usize) -> Vec<f64> {
    (0..parts)
        .map(|part| (2f64 / 3.0).powi(part as i32))
        .collect()
}
