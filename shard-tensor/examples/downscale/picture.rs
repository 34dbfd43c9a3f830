//! Input, prediction and forecast of one level, what is wrong with each, and the ground with its pieces.

use crate::Failure;
use crate::fields::{self, Panel};
use crate::raster::Scale;
use crate::train::Panels;
use ndarray::Array2;
use plotters::prelude::{ColorMap, ViridisRGB};
use std::path::Path;

/// The colours of errors end at this many times the root mean square of those of interpolation.
const ERRORS: f64 = 3.0;

/// Draws all panels.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write(path: &Path, panels: &Panels, caption: &str) -> Result<(), Failure> {
    let before = &panels.input - &panels.target;
    let after = &panels.prediction - &panels.target;
    let all = arranged(panels, [&before, &after]);
    fields::write(path, &all, &panels.boundaries, caption)
}

/// What is drawn, from left to right and from above.
fn arranged<'a>(panels: &'a Panels, [before, after]: [&'a Array2<f64>; 2]) -> Vec<Panel<'a>> {
    // Fields have the colours of the target, errors those of interpolation.
    let kelvin = Scale::over(|share| ViridisRGB.get_color(share), &panels.target);
    let errors = Scale::diverging((ERRORS * rms(before)).max(f64::MIN_POSITIVE));
    let panel = |title: &str, field, scale| Panel {
        title: title.to_owned(),
        field,
        scale,
        unit: "K",
        names: &[],
    };
    let pieces = panels.ranks.len();
    let error = |of: &str, field| {
        let title = format!("Error {of}: rms {:.3} K", rms(field));
        panel(&title, field, errors)
    };
    vec![
        panel("Given: 4 x 4 means, interpolated", &panels.input, kelvin),
        panel("Predicted by the U-Net", &panels.prediction, kelvin),
        panel("The forecast itself", &panels.target, kelvin),
        error("of interpolation", before),
        error("of the U-Net", after),
        Panel {
            unit: "m",
            names: &panels.ranks,
            ..panel(
                &format!("Also given: altitude. {pieces} pieces"),
                &panels.ground,
                Scale::terrain(&panels.ground),
            )
        },
    ]
}

fn rms(errors: &Array2<f64>) -> f64 {
    (errors.iter().map(|e| e * e).sum::<f64>() / errors.len().max(1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_has_a_title() {
        let field = Array2::from_shape_fn((20, 30), |(i, _)| i as f64);
        let panels = Panels {
            input: field.clone(),
            prediction: Array2::from_elem((20, 30), f64::NAN),
            ground: field.clone(),
            target: field,
            boundaries: [vec![0, 20], vec![0, 30]],
            ranks: vec![0],
        };
        let before = &panels.input - &panels.target;
        let after = &panels.prediction - &panels.target;
        let all = arranged(&panels, [&before, &after]);
        assert_eq!(all[3].title, "Error of interpolation: rms 0.000 K");
        assert_eq!(all[4].title, "Error of the U-Net: rms NaN K");
    }
}
