//! The graph, its shards and its traffic.

use ndarray::{Array2, ArrayD};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;
use std::path::Path;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;

/// Points drawn of the whole terrain.
const DOTS: usize = 6000;

/// Half the sides of the window that shows edges, in units of the grid.
const WINDOW: (f32, f32) = (14.0, 9.0);

/// Draws all points by shard, the edges of some at a boundary between shards, and the `bytes` that each rank received from each.
pub(crate) fn draw(
    path: &Path,
    points: &Array2<f32>,
    neighbours: &ArrayD<i64>,
    shards: &[usize],
    bytes: &[Vec<u64>],
) -> Drawn {
    let root = SVGBackend::new(path, (1100, 640)).into_drawing_area();
    root.fill(&WHITE)?;
    let (left, right) = root.split_horizontally(560);
    let (above, below) = right.split_vertically(400);
    let shards = Shards(shards);
    terrain(&left, points, shards)?;
    boundary(&above, points, neighbours, shards)?;
    matrix(&below, bytes)?;
    root.present()?;
    Ok(())
}

/// The first point of each rank, and how many there are.
#[derive(Clone, Copy)]
struct Shards<'a>(&'a [usize]);

impl Shards<'_> {
    fn of(self, point: usize) -> usize {
        self.0.partition_point(|&first| first <= point) - 1
    }

    fn color(self, point: usize) -> RGBColor {
        color(self.of(point))
    }
}

fn color(rank: usize) -> RGBColor {
    let (r, g, b) = Palette99::COLORS[rank % Palette99::COLORS.len()];
    RGBColor(r, g, b)
}

fn terrain(area: &Area<'_>, points: &Array2<f32>, shards: Shards<'_>) -> Drawn {
    let most = |axis: usize| points.column(axis).iter().fold(1.0_f32, |m, &x| m.max(x));
    let (right, top) = (most(0) + 1.0, most(1) + 1.0);
    let caption = format!("{} points on {} ranks", points.nrows(), shards.0.len() - 1);
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(28)
        .y_label_area_size(36)
        .build_cartesian_2d(-1.0..right, -1.0..top)?;
    let whole = |x: &f32| format!("{x:.0}");
    chart
        .configure_mesh()
        .disable_mesh()
        .label_style(("sans-serif", 14))
        .x_label_formatter(&whole)
        .y_label_formatter(&whole)
        .draw()?;
    let step = points.nrows().div_ceil(DOTS).max(1);
    let some = (0..points.nrows()).step_by(step);
    chart.draw_series(some.map(|i| {
        // Higher ground is darker.
        let height = f64::from(points[[i, 2]]).clamp(0.0, 5.0) / 5.0;
        let color = shards.color(i).mix(0.5 + 0.5 * height);
        Circle::new((points[[i, 0]], points[[i, 1]]), 2, color.filled())
    }))?;
    Ok(())
}

fn boundary(
    area: &Area<'_>,
    points: &Array2<f32>,
    neighbours: &ArrayD<i64>,
    shards: Shards<'_>,
) -> Drawn {
    // Around the first point of rank 1.
    let first = shards.0[1].min(points.nrows() - 1);
    let middle = points.column(0).iter().fold(0.0_f32, |m, &x| m.max(x)) / 2.0;
    let (x, y) = (middle, points[[first, 1]]);
    let window = (x - WINDOW.0..x + WINDOW.0, y - WINDOW.1..y + WINDOW.1);
    let within =
        |i: usize| window.0.contains(&points[[i, 0]]) && window.1.contains(&points[[i, 1]]);
    let mut chart = ChartBuilder::on(area)
        .caption("edges; black ones cross between ranks", ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(28)
        .y_label_area_size(36)
        .build_cartesian_2d(window.0.clone(), window.1.clone())?;
    let whole = |x: &f32| format!("{x:.0}");
    chart
        .configure_mesh()
        .disable_mesh()
        .label_style(("sans-serif", 14))
        .x_label_formatter(&whole)
        .y_label_formatter(&whole)
        .draw()?;
    let place = |i: usize| (points[[i, 0]], points[[i, 1]]);
    for i in (0..points.nrows()).filter(|&i| within(i)) {
        for &j in neighbours.index_axis(ndarray::Axis(0), i) {
            let Some(j) = usize::try_from(j).ok().filter(|&j| j != i && within(j)) else {
                continue;
            };
            let style = if shards.of(i) == shards.of(j) {
                shards.color(i).mix(0.45).stroke_width(1)
            } else {
                BLACK.stroke_width(1)
            };
            chart.draw_series([PathElement::new([place(i), place(j)], style)])?;
        }
    }
    let some = (0..points.nrows()).filter(|&i| within(i));
    chart.draw_series(some.map(|i| Circle::new(place(i), 2, shards.color(i).filled())))?;
    Ok(())
}

/// A cell per pair of ranks: what the row's rank received from the column's.
fn matrix(area: &Area<'_>, bytes: &[Vec<u64>]) -> Drawn {
    let ranks = bytes.len();
    if ranks < 2 {
        return Ok(());
    }
    let most = bytes.iter().flatten().max().copied().unwrap_or(0).max(1);
    let axis = || (0..ranks - 1).into_segmented();
    let mut chart = ChartBuilder::on(area)
        .caption(
            "KiB a rank received (row) from another (column)",
            ("sans-serif", 18),
        )
        .margin(10)
        .x_label_area_size(24)
        .y_label_area_size(36)
        .build_cartesian_2d(axis(), axis())?;
    let rank = |x: &SegmentValue<usize>| match x {
        SegmentValue::CenterOf(rank) => rank.to_string(),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_mesh()
        .label_style(("sans-serif", 14))
        .x_label_formatter(&rank)
        .y_label_formatter(&rank)
        .draw()?;
    let at = |rank| {
        if rank < ranks {
            SegmentValue::Exact(rank)
        } else {
            SegmentValue::Last
        }
    };
    for (to, row) in bytes.iter().enumerate() {
        for (from, &bytes) in row.iter().enumerate() {
            let shade = color(from).mix(0.8 * bytes as f64 / most as f64);
            let corners = [(at(from), at(to)), (at(from + 1), at(to + 1))];
            chart.draw_series([Rectangle::new(corners, shade.filled())])?;
            let middle = (SegmentValue::CenterOf(from), SegmentValue::CenterOf(to));
            let text = format!("{:.0}", bytes as f64 / 1024.0);
            let style = ("sans-serif", 14).into_font().color(&BLACK);
            let style = style.pos(Pos::new(HPos::Center, VPos::Center));
            chart.draw_series([Text::new(text, middle, style)])?;
        }
    }
    Ok(())
}
