//! Fields beside each other, with the pieces they are in: an SVG.

use crate::Failure;
use crate::raster::{Place, Scale};
use ndarray::Array2;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::data::float::pretty_print_float;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Columns and rows of a field; row 0 is the southernmost.
type Grid<'a> = DrawingArea<SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// The largest field, in pixels.
const FIELD: [f64; 2] = [300.0, 340.0];
/// Between panels, and around them.
const GAP: i32 = 24;
// Heights of the line above all, of a panel's title, of its colour bar and of the bar's labels.
const CAPTION: i32 = 48;
const TITLE: i32 = 24;
const BAR: i32 = 12;
const LABELS: i32 = 24;
/// Between a field and its bar.
const SPACE: i32 = 8;
/// Panels beside each other.
const ACROSS: usize = 3;
/// Half the width and half the height of a piece's name.
const NAME: (i32, i32) = (34, 20);
/// Pixels of one dash of a boundary.
const DASH: i32 = 5;
/// Labels of a colour bar.
const TICKS: usize = 5;

/// One field with its colours.
pub(crate) struct Panel<'a> {
    pub(crate) title: String,
    /// Row 0 is the southernmost.
    pub(crate) field: &'a Array2<f64>,
    pub(crate) scale: Scale,
    pub(crate) unit: &'static str,
    /// The ranks of the pieces, row by row, if they have their names on it.
    pub(crate) names: &'a [usize],
}

/// Draws fields of the same extents, from left to right and from above, and where pieces begin and end, in rows and columns.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write(
    path: &Path,
    panels: &[Panel<'_>],
    boundaries: &[Vec<usize>; 2],
    caption: &str,
) -> Result<(), Failure> {
    let svg = draw(panels, boundaries, caption)?;
    std::fs::write(path, svg).map_err(|e| format!("{}: {e}", path.display()).into())
}

fn draw(
    panels: &[Panel<'_>],
    boundaries: &[Vec<usize>; 2],
    caption: &str,
) -> Result<String, Failure> {
    let extents = panels.first().map_or((1, 1), |panel| panel.field.dim());
    let layout = Sizes::of(extents, panels.len());
    // Plotters draws no images into an SVG without a second library of them: they go below what it draws.
    let (mut svg, mut images) = (String::new(), String::new());
    {
        let root = SVGBackend::with_string(&mut svg, layout.all).into_drawing_area();
        root.draw_text(caption, &text(20), (GAP, GAP / 2))?;
        for (i, panel) in panels.iter().enumerate() {
            let area = layout.area(&root, i);
            images += &panel.draw(&area, layout.field, boundaries)?;
        }
        root.present()?;
    }
    let opened = svg.find('>').map_or(0, |end| end + 1);
    let paper = r#"<rect width="100%" height="100%" fill="white"/>"#;
    svg.insert_str(opened, &format!("\n{paper}\n{images}"));
    Ok(svg)
}

/// In pixels.
struct Sizes {
    all: (u32, u32),
    /// One panel, without the gap beside it.
    panel: (i32, i32),
    field: (i32, i32),
}

impl Sizes {
    /// As large as fits, with square points.
    fn of((rows, columns): (usize, usize), panels: usize) -> Self {
        let (rows, columns) = (rows.max(1) as f64, columns.max(1) as f64);
        let point = (FIELD[0] / columns).min(FIELD[1] / rows);
        let side = |points: f64| (points * point).round().max(1.0) as i32;
        let field = (side(columns), side(rows));
        let panel = (
            // A long and thin field has a title too.
            field.0.max(FIELD[0] as i32),
            TITLE + field.1 + SPACE + BAR + LABELS,
        );
        let (across, down) = (ACROSS as i32, panels.div_ceil(ACROSS) as i32);
        let all = (
            GAP + across * (panel.0 + GAP),
            CAPTION + down * (panel.1 + GAP / 2),
        );
        Self {
            all: (all.0 as u32, all.1 as u32),
            panel,
            field,
        }
    }

    fn area<'a>(&self, root: &Area<'a>, panel: usize) -> Area<'a> {
        let (row, column) = ((panel / ACROSS) as i32, (panel % ACROSS) as i32);
        let left = GAP + column * (self.panel.0 + GAP);
        let top = CAPTION + row * (self.panel.1 + GAP / 2);
        root.clone().shrink((left, top), self.panel)
    }
}

impl Panel<'_> {
    /// Title, boundaries and the labels of the colour bar; returns the images that lie below them.
    fn draw(
        &self,
        area: &Area<'_>,
        (width, height): (i32, i32),
        boundaries: &[Vec<usize>; 2],
    ) -> Result<String, Failure> {
        area.draw_text(&self.title, &text(17), (0, 2))?;

        let field = area.clone().shrink((0, TITLE), (width, height));
        let (rows, columns) = self.field.dim();
        let grid =
            ChartBuilder::on(&field).build_cartesian_2d(0.0..columns as f64, 0.0..rows as f64)?;
        let grid = grid.plotting_area();
        let image = self.scale.field(self.field, place(grid))?;
        self.pieces(grid, boundaries)?;

        let under = TITLE + height + SPACE;
        let bar = area.clone().shrink((0, under), (width, BAR + LABELS));
        let mut bar = ChartBuilder::on(&bar)
            .x_label_area_size(LABELS)
            .build_cartesian_2d(self.scale.low..self.scale.high, 0.0..1.0)?;
        bar.configure_mesh()
            .disable_mesh()
            .disable_y_axis()
            .x_labels(TICKS)
            .label_style(text(15))
            .x_label_formatter(&|&value| {
                // The tick at zero is a little off it.
                let near_zero = value.abs() < 1e-9 * (self.scale.high - self.scale.low);
                let value = if near_zero { 0.0 } else { value };
                format!("{} {}", pretty_print_float(value, false), self.unit)
            })
            .draw()?;
        Ok(image + &self.scale.bar(place(bar.plotting_area()))?)
    }

    /// The lines where pieces meet, and on the last panel their names.
    fn pieces(&self, grid: &Grid<'_>, [rows, columns]: &[Vec<usize>; 2]) -> Result<(), Failure> {
        let (height, width) = self.field.dim();
        let (right, top) = (width as f64, height as f64);
        let across = inside(rows, height).map(|row| [(0.0, row), (right, row)]);
        let down = inside(columns, width).map(|column| [(column, 0.0), (column, top)]);
        for line in across.chain(down) {
            // Black and white by turns, which is seen on any colour.
            grid.draw(&PathElement::new(line, WHITE.stroke_width(2)))?;
            let black = BLACK.stroke_width(2);
            grid.draw(&DashedPathElement::new(line, DASH, DASH, black))?;
        }
        let pieces = (rows.windows(2)).flat_map(|r| columns.windows(2).map(move |c| (r, c)));
        for (&rank, (rows, columns)) in self.names.iter().zip(pieces) {
            self.name(grid, rank, rows, columns)?;
        }
        Ok(())
    }

    /// The name of a piece in its middle, where there is room.
    fn name(
        &self,
        grid: &Grid<'_>,
        rank: usize,
        rows: &[usize],
        columns: &[usize],
    ) -> Result<(), Failure> {
        let (height, width) = (rows[1] - rows[0], columns[1] - columns[0]);
        let (across, down) = grid.dim_in_pixel();
        let (all_down, all_across) = self.field.dim();
        let room = (
            across as usize * width / all_across,
            down as usize * height / all_down,
        );
        if room.0 < 2 * NAME.0 as usize || room.1 < 2 * NAME.1 as usize {
            return Ok(());
        }
        let middle = |ends: &[usize]| (ends[0] + ends[1]) as f64 / 2.0;
        let style = text(15).pos(Pos::new(HPos::Center, VPos::Center));
        let paper = Rectangle::new([(-NAME.0, -NAME.1), NAME], WHITE.mix(0.75).filled());
        let element = EmptyElement::at((middle(columns), middle(rows)))
            + paper
            + Text::new(format!("rank {rank}"), (0, -NAME.1 / 2), style.clone())
            + Text::new(format!("{height} x {width}"), (0, NAME.1 / 2), style);
        Ok(grid.draw(&element)?)
    }
}

fn text(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into()
}

/// Where pieces meet that are not empty.
fn inside(cuts: &[usize], extent: usize) -> impl Iterator<Item = f64> {
    let mut cuts: Vec<usize> = (cuts.iter().copied())
        .filter(|&cut| 0 < cut && cut < extent)
        .collect();
    cuts.dedup();
    cuts.into_iter().map(|cut| cut as f64)
}

/// Where an area is.
fn place(area: &Grid<'_>) -> Place {
    let (x, y) = area.get_pixel_range();
    Place([x.start, y.start, x.end - x.start, y.end - y.start])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of all attributes of this name in elements of one kind and colour.
    fn numbers(svg: &str, element: &str, colour: &str, attribute: &str) -> Vec<i32> {
        let of = |line: &str| {
            let (_, rest) = line.split_once(&format!(" {attribute}=\""))?;
            rest.split_once('"')?.0.parse().ok()
        };
        svg.lines()
            .filter(|l| l.starts_with(&format!("<{element} ")) && l.contains(colour))
            .filter_map(of)
            .collect()
    }

    /// Six panels of one field, of which the last has names.
    fn drawn(field: &Array2<f64>, boundaries: &[Vec<usize>; 2]) -> String {
        let ranks = [0, 1, 2, 3];
        let panel = |names| Panel {
            title: "a field".to_owned(),
            field,
            scale: Scale::terrain(field),
            unit: "K",
            names,
        };
        let panels: Vec<Panel<'_>> = (0..6).map(|i| panel(&ranks[..4 * (i / 5)])).collect();
        draw(&panels, boundaries, "caption").unwrap()
    }

    fn field() -> Array2<f64> {
        Array2::from_shape_fn((20, 30), |(i, _)| i as f64)
    }

    #[test]
    fn boundaries_are_where_pieces_meet() {
        let svg = drawn(&field(), &[vec![0, 5, 5, 20], vec![0, 30]]);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        // Six fields and their bars, 10 pixels per point.
        let tops = numbers(&svg, "image", "", "y");
        assert_eq!(numbers(&svg, "image", "", "height")[..2], [200, BAR]);
        assert_eq!(tops.len(), 12);
        // Between rows 4 and 5, 15 rows below the top; and nothing at the outer edges or for an empty piece.
        let lines: Vec<&str> = svg
            .lines()
            .filter(|l| l.contains("<polyline") && l.contains("#FFFFFF"))
            .collect();
        assert_eq!(lines.len(), 6);
        let (y, left) = (tops[0] + 150, GAP);
        assert!(
            lines[0].contains(&format!("{left},{y} {},{y} ", left + 299)),
            "{}",
            lines[0]
        );
    }

    #[test]
    fn pieces_have_names_where_there_is_room() {
        let svg = drawn(&field(), &[vec![0, 1, 20], vec![0, 2, 30]]);
        let named = |name: &str| svg.contains(&format!("\n{name}\n"));
        assert!(named("rank 3") && named("19 x 28"));
        // Too low, too low and narrow, too narrow.
        assert!(!named("rank 1") && !named("rank 0") && !named("rank 2"));
    }

    #[test]
    fn what_is_no_number_is_drawn() {
        let mut field = field();
        field.fill(f64::NAN);
        assert!(drawn(&field, &[vec![0, 20], vec![0, 30]]).contains("a field"));
    }
}
