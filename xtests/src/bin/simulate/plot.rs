//! The picture: how many ranks' worth of computing is done, against how many there are.

use plotters::prelude::*;
use std::error::Error;
use std::path::Path;

/// A question, and per number of ranks how many of them are at work, by the library's own all-reduce and by a network's.
pub(crate) struct Curve {
    pub(crate) name: &'static str,
    pub(crate) points: Vec<(f64, f64, f64)>,
}

/// Draws curves on logarithmic scales.
pub(crate) fn draw(path: &Path, curves: &[Curve]) -> Result<(), Box<dyn Error>> {
    let all = || curves.iter().flat_map(|c| &c.points);
    let right = all().fold(1.0, |m: f64, p| m.max(p.0)) * 1.2;
    let low = all().fold(1.0, |m: f64, p| m.min(p.1).min(p.2)) * 0.8;
    let root = SVGBackend::new(path, (900, 560)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("Ranks at work, forecast", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d((0.9..right).log_scale(), (low..right).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("ranks")
        .y_desc("ranks' worth of operations per second (dashed: library all-reduce)")
        .light_line_style(WHITE)
        .draw()?;
    chart.draw_series(LineSeries::new(
        [(1.0, 1.0), (right, right)],
        BLACK.mix(0.3),
    ))?;
    for (i, curve) in curves.iter().enumerate() {
        let color = Palette99::pick(i).to_rgba();
        let own = curve.points.iter().map(|p| (p.0, p.1));
        let library = curve.points.iter().map(|p| (p.0, p.2));
        chart
            .draw_series(LineSeries::new(own, color.stroke_width(2)))?
            .label(curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color));
        chart.draw_series(DashedLineSeries::new(library, 6, 4, color.stroke_width(1)))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    root.present()?;
    Ok(())
}
