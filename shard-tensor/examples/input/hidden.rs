//! A forecast of which every second level is hidden, in units that suit a model.

use crate::forecast::Forecast;
use ndarray::{Array4, Axis, s};

/// The levels that are given, and what linear interpolation between them lacks.
pub(crate) struct Hidden {
    /// `[hours, given, rows, columns]`: every second level, each without its mean and with the spread one.
    pub(crate) given: Array4<f64>,
    /// `[hours, hidden, rows, columns]`: the levels between, without the mean of the one below and the one above.
    pub(crate) lacking: Array4<f64>,
    /// Kelvin that a number of `lacking` stands for.
    pub(crate) unit: f64,
}

impl Hidden {
    /// Means and spreads are those of all hours but the last, which a model is trained on.
    ///
    /// # Errors
    /// In words for a user, if the forecast has no levels between others.
    pub(crate) fn of(forecast: &Forecast) -> Result<Self, String> {
        let [hours, levels, ..] = forecast.shape();
        if levels < 3 || levels.is_multiple_of(2) {
            return Err(format!(
                "{levels} levels: an odd number from 3 on has levels between others"
            ));
        }
        let theta = forecast.theta.mapv(f64::from);
        let mut given = theta.slice(s![.., ..;2, .., ..]).to_owned();
        let (below, above) = (s![.., ..-1, .., ..], s![.., 1.., .., ..]);
        let between = (&given.slice(below) + &given.slice(above)) / 2.0;
        let lacking = &theta.slice(s![.., 1..;2, .., ..]) - &between;
        let past = lacking.slice(s![..hours - 1, .., .., ..]);
        let unit = (past.iter().map(|x| x * x).sum::<f64>() / past.len() as f64).sqrt();
        for mut level in given.axis_iter_mut(Axis(1)) {
            let past = level.slice(s![..hours - 1, .., ..]);
            let (mean, spread) = (past.mean().unwrap_or(0.0), past.std(0.0).max(1e-6));
            level.mapv_inplace(|x| (x - mean) / spread);
        }
        Ok(Self {
            given,
            lacking: lacking / unit,
            unit,
        })
    }
}
