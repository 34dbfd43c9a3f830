//! A picture of colours, and its PNG file.

use crate::font;
use png::{BitDepth, ColorType, Encoder, EncodingError};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

/// Red, green, blue.
pub(crate) type Colour = [u8; 3];

pub(crate) const BLACK: Colour = [0; 3];
pub(crate) const WHITE: Colour = [255; 3];

/// Of what is not a number.
const GREY: Colour = [128; 3];

/// Dark to bright, evenly perceived: points of the viridis map.
pub(crate) const SEQUENTIAL: &[Colour] = &[
    [68, 1, 84],
    [72, 40, 120],
    [62, 74, 137],
    [49, 104, 142],
    [38, 130, 142],
    [31, 158, 137],
    [53, 183, 121],
    [109, 205, 89],
    [180, 222, 44],
    [253, 231, 37],
];

/// Blue below, white at zero, red above.
pub(crate) const DIVERGING: &[Colour] = &[
    [5, 48, 97],
    [67, 147, 195],
    [247, 247, 247],
    [214, 96, 77],
    [103, 0, 31],
];

/// The colour at a share of the way through a map; ends for what lies beyond them.
pub(crate) fn colour(map: &[Colour], share: f64) -> Colour {
    if share.is_nan() || map.is_empty() {
        return GREY;
    }
    let at = share.clamp(0.0, 1.0) * (map.len() - 1) as f64;
    let low = at as usize;
    let (a, b) = (map[low], map[(low + 1).min(map.len() - 1)]);
    std::array::from_fn(|i| {
        let (a, b) = (f64::from(a[i]), f64::from(b[i]));
        (a + (at - low as f64) * (b - a)).round() as u8
    })
}

/// Pixels, row by row from the top.
pub(crate) struct Canvas {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pixels: Vec<u8>,
}

impl Canvas {
    /// A white canvas.
    pub(crate) fn new(width: usize, height: usize) -> Self {
        Self {
            width,
            height,
            pixels: vec![255; 3 * width * height],
        }
    }

    /// Sets a pixel; nothing beyond the edges.
    pub(crate) fn set(&mut self, x: usize, y: usize, colour: Colour) {
        if x < self.width && y < self.height {
            let at = 3 * (y * self.width + x);
            self.pixels[at..at + 3].copy_from_slice(&colour);
        }
    }

    /// The colour of a pixel; white beyond the edges.
    #[cfg(test)]
    pub(crate) fn get(&self, x: usize, y: usize) -> Colour {
        let at = 3 * (y * self.width + x);
        match self.pixels.get(at..at + 3) {
            Some(&[r, g, b]) if x < self.width => [r, g, b],
            _ => WHITE,
        }
    }

    /// Fills a rectangle.
    pub(crate) fn fill(&mut self, x: usize, y: usize, width: usize, height: usize, c: Colour) {
        for y in y..y + height {
            (x..x + width).for_each(|x| self.set(x, y, c));
        }
    }

    /// Writes text in black, its upper left corner here, a point of a letter `scale` pixels wide.
    pub(crate) fn text(&mut self, x: usize, y: usize, scale: usize, text: &str) {
        for (i, letter) in text.chars().enumerate() {
            let left = x + i * Self::advance(scale);
            for (row, column) in
                (0..font::HEIGHT).flat_map(|r| (0..font::WIDTH).map(move |c| (r, c)))
            {
                if font::ink(letter, row, column) {
                    self.fill(left + column * scale, y + row * scale, scale, scale, BLACK);
                }
            }
        }
    }

    /// How wide text is.
    pub(crate) fn text_width(scale: usize, text: &str) -> usize {
        text.chars().count() * Self::advance(scale)
    }

    /// From one letter to the next.
    fn advance(scale: usize) -> usize {
        (font::WIDTH + 1) * scale
    }

    /// Writes a PNG file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn save(&self, path: &Path) -> Result<(), EncodingError> {
        let file = BufWriter::new(File::create(path)?);
        let mut encoder = Encoder::new(file, self.width as u32, self.height as u32);
        encoder.set_color(ColorType::Rgb);
        encoder.set_depth(BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.pixels)?;
        writer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_run_from_end_to_end() {
        let map = &[[0, 0, 0], [100, 200, 50], [200, 0, 50]];
        assert_eq!(colour(map, 0.25), [50, 100, 25]);
        assert_eq!((colour(map, -3.0), colour(map, 3.0)), (map[0], map[2]));
        assert_eq!(colour(map, f64::NAN), GREY);
    }

    #[test]
    fn text_is_ink_where_the_letter_is() {
        let mut canvas = Canvas::new(20, 20);
        canvas.text(1, 1, 2, "-");
        assert_eq!(canvas.get(1, 7), BLACK);
        assert_eq!(canvas.get(10, 8), BLACK);
        assert_eq!(canvas.get(1, 6), WHITE);
        assert_eq!(canvas.get(11, 7), WHITE);
        canvas.text(19, 19, 2, "8"); // beyond the edge: nothing happens
    }
}
