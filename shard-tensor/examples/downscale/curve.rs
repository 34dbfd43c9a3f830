//! The loss curve, as SVG.

use plotters::prelude::*;
use std::error::Error;
use std::path::Path;

/// What interpolation scores: losses are in units of its error.
const BILINEAR: f64 = 1.0;

/// Draws the loss of every step on a logarithmic scale, and the loss of interpolation.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write(path: &Path, losses: &[f64], caption: &str) -> Result<(), Box<dyn Error>> {
    let svg = draw(losses, caption)?;
    Ok(std::fs::write(path, svg)?)
}

fn draw(losses: &[f64], caption: &str) -> Result<String, Box<dyn Error>> {
    let drawn = || losses.iter().copied().filter(|l| l.is_finite() && *l > 0.0);
    let low = drawn().fold(BILINEAR, f64::min) * 0.8;
    let high = drawn().fold(BILINEAR, f64::max) * 1.25;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (800, 450)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(caption, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(0..losses.len().max(2), (low..high).log_scale())?;
        chart
            .configure_mesh()
            .x_desc("step")
            .y_desc("mean squared error")
            .y_label_formatter(&|y| format!("{y:.2}"))
            .light_line_style(WHITE)
            .draw()?;
        let line = (1..)
            .zip(losses.iter().copied())
            .filter(|(_, l)| l.is_finite() && *l > 0.0);
        chart
            .draw_series(LineSeries::new(line, BLUE.stroke_width(2)))?
            .label("U-Net, training hours")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], BLUE));
        chart
            .draw_series(LineSeries::new(
                [(0, BILINEAR), (losses.len().max(2), BILINEAR)],
                RED,
            ))?
            .label("bilinear interpolation")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], RED));
        chart
            .configure_series_labels()
            .background_style(WHITE)
            .border_style(BLACK)
            .draw()?;
        root.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_has_a_point_per_step_even_if_some_are_no_numbers() {
        let svg = draw(&[1.5, f64::NAN, 0.5, 0.0, 0.25], "title").unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("title"));
        let lines: Vec<&str> = svg.lines().filter(|l| l.contains("#0000FF")).collect();
        let curve = lines.iter().find(|l| l.contains("<polyline")).unwrap();
        let points = curve
            .split("points=\"")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap();
        assert_eq!(points.split_whitespace().count(), 3, "{curve}");
    }

    #[test]
    fn one_step_is_enough() {
        assert!(draw(&[0.7], "").unwrap().ends_with("</svg>\n"));
    }
}
