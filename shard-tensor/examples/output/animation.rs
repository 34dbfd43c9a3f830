//! Fields one after the other, with the pieces they are in: an animated PNG.

use crate::Failure;
use crate::raster::{NO_NUMBER, Scale};
use ndarray::Array2;
use png::{BitDepth, ColorType, Compression, Encoder};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

/// Pixels of a cell, each way.
const CELL: usize = 2;

/// Frames per second.
const SPEED: u16 = 15;

/// Draws fields of the same extents, row 0 below, with grey lines where pieces begin, in rows and columns. The film has no end.
///
/// # Errors
/// If the file cannot be written, or there are no fields.
pub(crate) fn write(
    path: &Path,
    fields: &[Array2<f64>],
    scale: &Scale,
    boundaries: &[Vec<usize>; 2],
) -> Result<(), Failure> {
    let (rows, columns) = fields.first().map_or((0, 0), Array2::dim);
    let file = File::create(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let (width, height) = (columns * CELL, rows * CELL);
    let mut encoder = Encoder::new(BufWriter::new(file), width as u32, height as u32);
    encoder.set_color(ColorType::Indexed);
    encoder.set_depth(BitDepth::Eight);
    encoder.set_palette(scale.palette());
    encoder.set_compression(Compression::High);
    encoder.set_animated(fields.len() as u32, 0)?;
    encoder.set_frame_delay(1, SPEED)?;
    let mut writer = encoder.write_header()?;
    let begins = |dim: usize, pixel: usize| {
        let inner = boundaries[dim].iter().filter(|&&at| at > 0);
        pixel.is_multiple_of(CELL) && inner.into_iter().any(|&at| at * CELL == pixel)
    };
    for field in fields {
        let mut shades = Vec::with_capacity(width * height);
        for y in (0..height).rev() {
            for x in 0..width {
                shades.push(match begins(0, y) || begins(1, x) {
                    true => NO_NUMBER,
                    false => scale.shade(field[[y / CELL, x / CELL]]),
                });
            }
        }
        writer.write_image_data(&shades)?;
    }
    writer.finish()?;
    Ok(())
}
