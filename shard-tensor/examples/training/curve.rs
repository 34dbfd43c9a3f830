//! The loss curve, as SVG.

use crate::Failure;
use crate::progress::Course;
use plotters::coord::combinators::BindKeyPoints;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

/// What losses are compared with scores: they are in units of its error.
const BASELINE: f64 = 1.0;

/// Labels of the logarithmic axis.
const MOST_TICKS: usize = 10;

const FONT: &str = "sans-serif";

/// What the lines are called.
#[derive(Clone, Copy)]
pub(crate) struct Names<'a> {
    pub(crate) caption: &'a str,
    /// What scores 1.
    pub(crate) baseline: &'a str,
    /// What is trained, and on what.
    pub(crate) model: &'a str,
}

/// Draws the loss of every step on a logarithmic scale, and the line at 1.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write(path: &Path, course: &Course, names: Names<'_>) -> Result<(), Failure> {
    let svg = draw(course.first, &course.losses, names)?;
    std::fs::write(path, svg).map_err(|e| format!("{}: {e}", path.display()).into())
}

fn draw(first: usize, losses: &[f64], names: Names<'_>) -> Result<String, Failure> {
    let curve: Vec<(usize, f64)> = (first + 1..)
        .zip(losses.iter().copied())
        .filter(|(_, loss)| loss.is_finite() && *loss > 0.0)
        .collect();
    let low = curve.iter().map(|p| p.1).fold(BASELINE, f64::min) * 0.75;
    let high = curve.iter().map(|p| p.1).fold(BASELINE, f64::max) * 1.25;
    let last = first + losses.len().max(2);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (800, 450)).into_drawing_area();
        root.fill(&WHITE)?;
        let scale = (low..high).log_scale().with_key_points(ticks(low, high));
        let mut chart = ChartBuilder::on(&root)
            .caption(names.caption, (FONT, 20))
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(first..last, scale)?;
        chart
            .configure_mesh()
            .x_desc("step")
            .y_desc(format!("mean squared error (1: {})", names.baseline))
            .axis_desc_style((FONT, 17))
            .label_style((FONT, 15))
            .x_labels(10)
            .y_labels(MOST_TICKS)
            .y_label_formatter(&f64::to_string)
            .bold_line_style(BLACK.mix(0.12))
            .light_line_style(TRANSPARENT)
            .draw()?;
        let baseline = [(first, BASELINE), (last, BASELINE)];
        chart.draw_series(DashedLineSeries::new(baseline, 8, 5, RED.stroke_width(2)))?;
        chart.draw_series(LineSeries::new(curve.iter().copied(), BLUE.stroke_width(2)))?;
        // Above the end of the one line and below that of the other, which falls.
        let label = |text: String, at, colour: &'static RGBColor, y, side| {
            let style = TextStyle::from((FONT, 17)).color(colour);
            let style = style.pos(Pos::new(HPos::Right, side));
            EmptyElement::at(at) + Text::new(text, (-4, y), style)
        };
        let area = chart.plotting_area();
        area.draw(&label(
            names.baseline.into(),
            (last, BASELINE),
            &RED,
            -4,
            VPos::Bottom,
        ))?;
        if let Some(&end) = curve.last() {
            let text = format!("{}: {:.3}", names.model, end.1);
            area.draw(&label(text, end, &BLUE, 6, VPos::Top))?;
        }
        root.present()?;
    }
    Ok(svg)
}

/// Round numbers within a range, as many as can be read: in steps of the first digit, or the powers of ten alone.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let tens = low.log10().floor() as i32..=high.log10().floor() as i32;
    let digits: [&[u8]; 3] = [&[1, 2, 3, 4, 5, 6, 8], &[1, 2, 5], &[1]];
    let within = digits.map(|digits| -> Vec<f64> {
        let all = (tens.clone()).flat_map(|ten| digits.iter().map(move |d| format!("{d}e{ten}")));
        // As it would be read: a product would have digits that nobody wants.
        all.filter_map(|text| text.parse().ok())
            .filter(|tick| (low..=high).contains(tick))
            .collect()
    });
    let [.., powers] = &within;
    let every = powers.len().div_ceil(MOST_TICKS).max(1);
    match within.iter().find(|ticks| ticks.len() <= MOST_TICKS) {
        Some(ticks) => ticks.clone(),
        None => powers.iter().copied().step_by(every).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: Names<'static> = Names {
        caption: "title",
        baseline: "by hand",
        model: "trained",
    };

    #[test]
    fn a_curve_has_a_point_per_step_even_if_some_are_no_numbers() {
        let svg = draw(0, &[1.5, f64::NAN, 0.5, 0.0, 0.25], NAMES).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("title") && svg.contains("trained: 0.250"));
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
        assert!(draw(40, &[0.7], NAMES).unwrap().ends_with("</svg>\n"));
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(0.1, 1.4), [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0]);
        assert_eq!(ticks(0.8, 1.3), [0.8, 1.0]);
        assert_eq!(
            ticks(0.02, 30.0),
            [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0]
        );
        assert_eq!(ticks(0.5, 1e4), [1.0, 10.0, 100.0, 1e3, 1e4]);
        assert!((3..=MOST_TICKS).contains(&ticks(1e-300, 1e300).len()));
    }
}
