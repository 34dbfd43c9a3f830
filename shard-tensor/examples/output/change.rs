//! An hour, how it changes, and how it was predicted to.

use crate::Failure;
use crate::fields::{self, Panel};
use crate::forecast::Forecast;
use crate::pieces;
use crate::raster::Scale;
use ndarray::{Array2, Ix2, s};
use plotters::prelude::{ColorMap, ViridisRGB};
use shard_tensor::prelude::*;
use std::fmt;
use std::path::Path;

/// The level of the picture: the lowest.
pub(crate) const PICTURED: usize = 0;

/// The share of the largest change at which colours of changes end.
const CHANGES: f64 = 0.6;

/// The change of the test hour, which is the last but one, in kelvin.
pub(crate) struct Change {
    /// The root of its mean square, and of that of what a model leaves of it.
    change: f64,
    error: f64,
    /// Of the pictured level: what is, what changes, and what was predicted to.
    given: Array2<f64>,
    truth: Array2<f64>,
    prediction: Array2<f64>,
    /// Where pieces begin and end, in rows and columns.
    boundaries: [Vec<usize>; 2],
}

impl Change {
    /// Of changes as they are and as they were predicted, whose rows and columns are dims 2 and 3, in units of so many kelvin.
    /// `pictured` picks the rows and columns of the level of the picture.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn new(
        forecast: &Forecast,
        (truth, prediction): (&ShardTensor, &ShardTensor),
        unit: f64,
        pictured: impl Fn(&ShardTensor) -> Result<ShardTensor>,
    ) -> Result<Self> {
        let rms = |x: &ShardTensor| Ok::<_, Error>(unit * x.square()?.mean_all()?.item()?.sqrt());
        let plane = |x: &ShardTensor| -> Result<Array2<f64>> {
            let plane = pictured(x)?.to(DType::F64)?.to_array::<f64>()?;
            Ok(plane.into_dimensionality::<Ix2>().map_err(Error::custom)? * unit)
        };
        let [hours, ..] = forecast.shape();
        let given = forecast.theta.slice(s![hours - 2, PICTURED, .., ..]);
        Ok(Self {
            change: rms(truth)?,
            error: rms(&prediction.sub(truth)?)?,
            given: given.mapv(f64::from),
            truth: plane(truth)?,
            prediction: plane(prediction)?,
            boundaries: pieces::boundaries(truth.layout()),
        })
    }

    /// Draws three fields beside each other, the last with the names of the pieces; changes have the colours of the true one.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn draw(&self, path: &Path, model: &str) -> std::result::Result<(), Failure> {
        let largest = (self.truth.iter()).fold(f64::MIN_POSITIVE, |most, x| most.max(x.abs()));
        let changes = Scale::diverging(CHANGES * largest);
        let panel = |title: &str, field, scale, names| Panel {
            title: title.to_owned(),
            field,
            scale,
            unit: "K",
            names,
        };
        let hour = Scale::over(|share| ViridisRGB.get_color(share), &self.given);
        let predicted = format!("The change as predicted: rms off by {:.3} K", self.error);
        let panels = [
            panel("Given: potential temperature", &self.given, hour, false),
            panel("Its change within an hour", &self.truth, changes, false),
            panel(&predicted, &self.prediction, changes, true),
        ];
        let caption = format!("{model} on an hour of weather, the lowest level");
        fields::write(path, &panels, &self.boundaries, &caption)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the test hour changes by {:.3} K (rms), of which the model leaves {:.3} K",
            self.change, self.error
        )
    }
}
