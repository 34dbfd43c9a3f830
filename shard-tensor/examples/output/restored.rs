//! Hidden levels, and how well a model restored them: tables and a picture.

use crate::Failure;
use crate::fields::{self, Panel};
use crate::forecast::Forecast;
use crate::pieces;
use crate::raster::Scale;
use crate::scores::Score;
use ndarray::{Array2, Ix2, s};
use plotters::prelude::{ColorMap, ViridisRGB};
use shard_tensor::prelude::*;
use std::path::Path;

/// The colours of errors end at this many times the root mean square of those of interpolation.
const ERRORS: f64 = 3.0;

/// What a model made of the hidden levels of the last hour.
pub(crate) struct Restored {
    /// Per hidden level.
    pub(crate) scores: Vec<Score>,
    /// Of the last of them, in kelvin: what is there, and what is wrong where it was interpolated and where it was restored.
    truth: Array2<f64>,
    plain: Array2<f64>,
    model: Array2<f64>,
    /// Where pieces begin and end, in rows and columns, and which ranks have them.
    boundaries: [Vec<usize>; 2],
    ranks: Vec<usize>,
}

impl Restored {
    /// Of what interpolation lacks and of what the model found that it does, both `[1, hidden, rows, columns]`, in units of so
    /// many kelvin.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn new(
        forecast: &Forecast,
        lacking: &ShardTensor,
        found: &ShardTensor,
        unit: f64,
    ) -> Result<Self> {
        let kelvin = |x: &ShardTensor| x.to(DType::F64)?.mul_scalar(unit);
        let (plain, model) = (kelvin(&lacking.neg()?)?, kelvin(&found.sub(lacking)?)?);
        let rms = |x: &ShardTensor| {
            let squares = x.square()?.mean([0, 2, 3], false)?;
            squares.sqrt()?.to_array::<f64>()
        };
        let errors = rms(&plain)?.into_iter().zip(rms(&model)?);
        let score = |(hidden, (plain, model))| Score {
            level: forecast.level(2 * hidden + 1),
            plain,
            model,
        };
        let last = lacking.shape()[1] - 1;
        let level = |x: &ShardTensor| {
            let plane = x.select(1, last)?.select(0, 0)?.to_array::<f64>()?;
            plane.into_dimensionality::<Ix2>().map_err(Error::custom)
        };
        let [hours, ..] = forecast.shape();
        let truth = forecast.theta.slice(s![hours - 1, 2 * last + 1, .., ..]);
        Ok(Self {
            scores: errors.enumerate().map(score).collect(),
            truth: truth.mapv(f64::from),
            plain: level(&plain)?,
            model: level(&model)?,
            boundaries: pieces::boundaries(lacking.layout()),
            ranks: pieces::ranks(lacking.layout(), last),
        })
    }

    /// Draws the last hidden level and what is wrong with it, with the names of the pieces.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn draw(&self, path: &Path, by: &str) -> std::result::Result<(), Failure> {
        let Some(score) = self.scores.last() else {
            return Ok(());
        };
        let errors = Scale::diverging((ERRORS * score.plain).max(f64::MIN_POSITIVE));
        let panel = |title: String, field, scale, names| Panel {
            title,
            field,
            scale,
            unit: "K",
            names,
        };
        let error = |of: &str, rms: f64| format!("Error of {of}: rms {rms:.3} K");
        let kelvin = Scale::over(|share| ViridisRGB.get_color(share), &self.truth);
        let hidden = format!("Level {}, which was hidden", score.level);
        let panels = [
            panel(hidden, &self.truth, kelvin, &[][..]),
            panel(
                error("interpolation", score.plain),
                &self.plain,
                errors,
                &[],
            ),
            panel(
                error("the model", score.model),
                &self.model,
                errors,
                &self.ranks,
            ),
        ];
        let caption = format!("Potential temperature restored from the levels around by {by}");
        fields::write(path, &panels, &self.boundaries, &caption)
    }
}
