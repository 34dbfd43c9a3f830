//! Input, prediction, target and error of one level, side by side, with the pieces' boundaries.

use crate::canvas::{BLACK, Canvas, Colour, DIVERGING, SEQUENTIAL, WHITE, colour};
use crate::font;
use crate::train::Panels;
use ndarray::Array2;
use png::EncodingError;
use std::path::Path;

/// Pixels per point of the field.
const POINT: usize = 2;
/// Pixels per point of a letter.
const LETTER: usize = 2;
/// Pixels around everything.
const GAP: usize = 14;
/// Pixels of the colour bar.
const BAR: usize = 10;
/// Pixels of one dash of a boundary.
const DASH: usize = 6;
/// The error's colours end at this many times its root mean square.
const ERRORS: f64 = 4.0;

/// One field with its colours.
struct Panel<'a> {
    title: String,
    field: &'a Array2<f64>,
    map: &'static [Colour],
    range: [f64; 2],
    /// Decimals of the labels.
    digits: usize,
}

/// Writes the four panels as PNG.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write(path: &Path, panels: &Panels) -> Result<(), EncodingError> {
    draw(panels).save(path)
}

fn draw(panels: &Panels) -> Canvas {
    let error = &panels.prediction - &panels.target;
    let rms = (error.iter().map(|e| e * e).sum::<f64>() / error.len().max(1) as f64).sqrt();
    // The three fields share their colours, those of the target.
    let range = panels
        .target
        .iter()
        .fold([f64::INFINITY, f64::NEG_INFINITY], |r, &t| {
            [r[0].min(t), r[1].max(t)]
        });
    let field = |title: &str, field| Panel {
        title: title.to_owned(),
        field,
        map: SEQUENTIAL,
        range,
        digits: 1,
    };
    let all = [
        field("input", &panels.input),
        field("prediction", &panels.prediction),
        field("target", &panels.target),
        Panel {
            title: format!("error rms {rms:.3} K"),
            field: &error,
            map: DIVERGING,
            range: [-ERRORS * rms, ERRORS * rms],
            digits: 2,
        },
    ];
    let (rows, columns) = panels.target.dim();
    let line = font::HEIGHT * LETTER;
    let height = GAP + line + GAP / 2 + rows * POINT + GAP / 2 + BAR + GAP / 2 + line + GAP;
    let mut canvas = Canvas::new(GAP + all.len() * (columns * POINT + GAP), height);
    for (i, panel) in all.iter().enumerate() {
        let left = GAP + i * (columns * POINT + GAP);
        panel.draw(&mut canvas, left, &panels.boundaries);
    }
    canvas
}

impl Panel<'_> {
    /// Title, field, boundaries, and a colour bar with its ends.
    fn draw(&self, canvas: &mut Canvas, left: usize, boundaries: &[Vec<usize>; 2]) {
        let (rows, columns) = self.field.dim();
        let (width, height) = (columns * POINT, rows * POINT);
        canvas.text(left, GAP, LETTER, &self.title);
        let top = GAP + font::HEIGHT * LETTER + GAP / 2;
        let [low, high] = self.range;
        for ((row, column), &value) in self.field.indexed_iter() {
            let c = colour(self.map, (value - low) / (high - low));
            // Row 0 is the southernmost.
            let (x, y) = (left + column * POINT, top + (rows - 1 - row) * POINT);
            canvas.fill(x, y, POINT, POINT, c);
        }
        let inside = |cuts: &[usize], extent: usize| -> Vec<usize> {
            cuts.iter()
                .copied()
                .filter(|&c| 0 < c && c < extent)
                .collect()
        };
        for cut in inside(&boundaries[0], rows) {
            let y = top + (rows - cut) * POINT;
            (0..width).for_each(|i| dashed(canvas, i, |c, w| c.fill(left + i, y - 1, 1, 2, w)));
        }
        for cut in inside(&boundaries[1], columns) {
            let x = left + cut * POINT;
            (0..height).for_each(|i| dashed(canvas, i, |c, w| c.fill(x - 1, top + i, 2, 1, w)));
        }
        let bar = top + height + GAP / 2;
        for i in 0..width {
            let c = colour(self.map, i as f64 / (width - 1).max(1) as f64);
            canvas.fill(left + i, bar, 1, BAR, c);
        }
        let digits = self.digits;
        let (low, high) = (format!("{low:.digits$} K"), format!("{high:.digits$} K"));
        let below = bar + BAR + GAP / 2;
        canvas.text(left, below, LETTER, &low);
        let right = left + width;
        let high_width = Canvas::text_width(LETTER, &high) - LETTER;
        canvas.text(right.saturating_sub(high_width), below, LETTER, &high);
    }
}

/// Draws in black and white by turns, which is seen on any colour.
fn dashed(canvas: &mut Canvas, i: usize, draw: impl FnOnce(&mut Canvas, Colour)) {
    let c = if (i / DASH).is_multiple_of(2) {
        BLACK
    } else {
        WHITE
    };
    draw(canvas, c);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn south_is_down_and_boundaries_are_where_pieces_meet() {
        let field = Array2::from_shape_fn((20, 10), |(i, _)| i as f64);
        let panels = Panels {
            input: field.clone(),
            prediction: &field + 0.5,
            target: field,
            boundaries: [vec![0, 5, 5, 20], vec![0, 10]],
        };
        let canvas = draw(&panels);
        let top = GAP + font::HEIGHT * LETTER + GAP / 2;
        // The largest value, in the northernmost row, is at the top.
        assert_eq!(canvas.get(GAP, top), SEQUENTIAL[SEQUENTIAL.len() - 1]);
        assert_eq!(canvas.get(GAP, top + 39), SEQUENTIAL[0]);
        // Between rows 4 and 5, 15 rows below the top; and nothing at the outer edges or for an empty piece.
        let black = |y: usize| canvas.get(GAP, top + y) == BLACK;
        let lines: Vec<usize> = (0..40).filter(|&y| black(y)).collect();
        assert_eq!(lines, [29, 30]);
    }
}
