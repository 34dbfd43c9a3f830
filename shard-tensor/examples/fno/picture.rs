//! An hour, how it changes, and how it was predicted to: an SVG.

use crate::Failure;
use crate::raster::{Place, Scale};
use ndarray::Array2;
use std::fmt::Write;
use std::path::Path;

/// Pixels of a point, and around fields.
const POINT: usize = 2;
const GAP: i32 = 16;
const TITLE: i32 = 28;

/// Draws three fields beside each other; changes have the colours of the true one.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write(
    path: &Path,
    given: &Array2<f64>,
    truth: &Array2<f64>,
    prediction: &Array2<f64>,
) -> Result<(), Failure> {
    let most = truth.iter().fold(f64::MIN_POSITIVE, |m, x| m.max(x.abs()));
    let changes = Scale::diverging(0.6 * most);
    let panels = [
        (
            "Given: potential temperature",
            given,
            Scale::sequential(given),
        ),
        ("Its change within an hour", truth, changes),
        ("The change as predicted", prediction, changes),
    ];
    let (rows, columns) = given.dim();
    let (width, height) = ((columns * POINT) as i32, (rows * POINT) as i32);
    let all = [GAP + 3 * (width + GAP), TITLE + height + GAP];
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{}" height="{}" font-family="sans-serif" font-size="15">
<rect width="100%" height="100%" fill="white"/>
"#,
        all[0], all[1]
    );
    for (i, (title, field, scale)) in panels.into_iter().enumerate() {
        let left = GAP + i as i32 * (width + GAP);
        svg += &scale.field(field, Place([left, TITLE, width, height]))?;
        writeln!(svg, r#"<text x="{left}" y="{}">{title}</text>"#, TITLE - 9)?;
    }
    svg += "</svg>\n";
    std::fs::write(path, svg).map_err(|e| format!("{}: {e}", path.display()).into())
}
