//! An hour, how it changes, and how it was predicted to.

use crate::fields::{self, Panel};
use crate::raster::Scale;
use crate::{Failure, Outcome};
use plotters::prelude::{ColorMap, ViridisRGB};
use std::path::Path;

/// The share of the largest change at which colours of changes end.
const CHANGES: f64 = 0.6;

/// Draws three fields beside each other, the last with the names of the pieces; changes have the colours of the true one.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write(path: &Path, found: &Outcome, model: &str) -> Result<(), Failure> {
    let largest = (found.truth.iter()).fold(f64::MIN_POSITIVE, |most, x| most.max(x.abs()));
    let changes = Scale::diverging(CHANGES * largest);
    let panel = |title: &str, field, scale, names| Panel {
        title: title.to_owned(),
        field,
        scale,
        unit: "K",
        names,
    };
    let hour = Scale::over(|share| ViridisRGB.get_color(share), &found.given);
    let predicted = format!("The change as predicted: rms off by {:.3} K", found.error);
    let panels = [
        panel("Given: potential temperature", &found.given, hour, false),
        panel("Its change within an hour", &found.truth, changes, false),
        panel(&predicted, &found.prediction, changes, true),
    ];
    let caption = format!("{model} on an hour of weather, the lowest level");
    fields::write(path, &panels, &found.boundaries, &caption)
}
