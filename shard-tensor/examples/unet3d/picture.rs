//! A hidden level, and what is wrong with it where it was interpolated and where it was restored.

use crate::Failure;
use crate::fields::{self, Panel};
use crate::raster::Scale;
use crate::train::Panels;
use ndarray::Array2;
use plotters::prelude::{ColorMap, ViridisRGB};
use std::path::Path;

/// The colours of errors end at this many times the root mean square of those of interpolation.
const ERRORS: f64 = 3.0;

/// Draws three fields beside each other, the last with the names of the pieces.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write(path: &Path, panels: &Panels) -> Result<(), Failure> {
    let [plain, restored] = [&panels.plain, &panels.prediction].map(|x| x - &panels.truth);
    let rms = |x: &Array2<f64>| (x.iter().map(|e| e * e).sum::<f64>() / x.len() as f64).sqrt();
    let errors = Scale::diverging((ERRORS * rms(&plain)).max(f64::MIN_POSITIVE));
    let panel = |title, field, scale, names| Panel {
        title,
        field,
        scale,
        unit: "K",
        names,
    };
    let kelvin = Scale::over(|share| ViridisRGB.get_color(share), &panels.truth);
    let error = |of: &str, x| format!("Error {of}: rms {:.3} K", rms(x));
    let interpolated = error("of interpolation", &plain);
    let by_model = error("of the U-Net", &restored);
    let all = [
        panel(
            "Hidden: potential temperature".to_owned(),
            &panels.truth,
            kelvin,
            false,
        ),
        panel(interpolated, &plain, errors, false),
        panel(by_model, &restored, errors, true),
    ];
    let caption = format!(
        "Level {} restored from the levels above and below",
        panels.level
    );
    fields::write(path, &all, &panels.boundaries, &caption)
}
