//! A field as an image: a PNG within an SVG.

use base64::prelude::{BASE64_STANDARD, Engine};
use ndarray::Array2;
use plotters::prelude::{ColorMap, DerivedColorMap, RGBColor};
use png::{BitDepth, ColorType, Compression, Encoder, EncodingError};

/// Of what is not a number.
const GREY: RGBColor = RGBColor(128, 128, 128);

/// Points of a colour bar.
const STEPS: usize = 255;

/// The number that stands for grey in an image; those below are the colours of its scale.
pub(crate) const NO_NUMBER: u8 = STEPS as u8;

/// Blue below, white in the middle, red above.
const DIVERGING: [RGBColor; 5] = [
    RGBColor(5, 48, 97),
    RGBColor(67, 147, 195),
    RGBColor(247, 247, 247),
    RGBColor(214, 96, 77),
    RGBColor(103, 0, 31),
];

/// Sea and lowland green, hills ochre, mountains brown, summits white.
const TERRAIN: [RGBColor; 6] = [
    RGBColor(58, 124, 108),
    RGBColor(151, 184, 118),
    RGBColor(222, 204, 142),
    RGBColor(176, 127, 84),
    RGBColor(133, 98, 86),
    RGBColor(245, 243, 240),
];

/// What values look like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// From 0 to 1.
    colour: fn(f64) -> RGBColor,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Scale {
    /// The colours of a map, from the least of the heights to the largest.
    pub(crate) fn terrain(heights: &Array2<f64>) -> Self {
        let colour = |share| DerivedColorMap::new(&TERRAIN).get_color(share);
        Self::over(colour, heights)
    }

    /// White at zero, and darkest from `most` on, on both sides.
    pub(crate) fn diverging(most: f64) -> Self {
        Self {
            colour: |share| DerivedColorMap::new(&DIVERGING).get_color(share),
            low: -most,
            high: most,
        }
    }

    /// Colours for 0 to 1, from the least of the values to the largest. Values that are all one have a scale too.
    pub(crate) fn over(colour: fn(f64) -> RGBColor, values: &Array2<f64>) -> Self {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = match high - low {
            extent if extent > 0.0 && extent.is_finite() => (low, high),
            _ if low.is_finite() => (low, low + 1.0),
            _ => (0.0, 1.0),
        };
        Self { colour, low, high }
    }

    /// The number of a value's colour.
    pub(crate) fn shade(&self, value: f64) -> u8 {
        let share = (value - self.low) / (self.high - self.low);
        if share.is_nan() {
            return NO_NUMBER;
        }
        (share.clamp(0.0, 1.0) * (STEPS - 1) as f64).round() as u8
    }

    /// Red, green and blue of every number.
    pub(crate) fn palette(&self) -> Vec<u8> {
        let shades = (0..STEPS).map(|i| (self.colour)(i as f64 / (STEPS - 1) as f64));
        let colours = shades.chain([GREY]);
        colours.flat_map(|RGBColor(r, g, b)| [r, g, b]).collect()
    }

    /// The scale itself from left to right, as an element of an SVG that fills a place there.
    ///
    /// # Errors
    /// None that is known.
    pub(crate) fn bar(&self, place: Place) -> Result<String, EncodingError> {
        let shades: Vec<u8> = (0..NO_NUMBER).collect();
        element(place, &self.png(STEPS, &shades)?)
    }

    /// A field, its first row below, as an element of an SVG that fills a place there.
    ///
    /// # Errors
    /// If the field has no points.
    pub(crate) fn field(&self, field: &Array2<f64>, place: Place) -> Result<String, EncodingError> {
        let northernmost_first = field.rows().into_iter().rev();
        let shades: Vec<u8> = northernmost_first
            .flat_map(|row| row.into_iter().map(|&value| self.shade(value)))
            .collect();
        element(place, &self.png(field.ncols(), &shades)?)
    }

    /// The file of an image.
    fn png(&self, width: usize, shades: &[u8]) -> Result<Vec<u8>, EncodingError> {
        let mut file = Vec::new();
        let height = shades.len().checked_div(width).unwrap_or(0);
        let mut encoder = Encoder::new(&mut file, width as u32, height as u32);
        encoder.set_color(ColorType::Indexed);
        encoder.set_depth(BitDepth::Eight);
        encoder.set_palette(self.palette());
        encoder.set_compression(Compression::High);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(shades)?;
        writer.finish()?;
        Ok(file)
    }
}

/// Left, top, width and height in an SVG.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Place(pub(crate) [i32; 4]);

/// An image with hard edges between its points.
fn element(Place([x, y, width, height]): Place, png: &[u8]) -> Result<String, EncodingError> {
    let data = BASE64_STANDARD.encode(png);
    Ok(format!(
        r#"<image x="{x}" y="{y}" width="{width}" height="{height}" preserveAspectRatio="none" style="image-rendering:pixelated" href="data:image/png;base64,{data}"/>
"#
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    const PLACE: Place = Place([3, 4, 50, 60]);

    /// The pixels of an element, row by row.
    fn pixels(element: &str) -> (u32, Vec<[u8; 3]>) {
        let (_, data) = element.split_once("base64,").unwrap();
        let (data, _) = data.split_once('"').unwrap();
        let png = BASE64_STANDARD.decode(data).unwrap();
        let mut decoder = png::Decoder::new(Cursor::new(png));
        decoder.set_transformations(png::Transformations::EXPAND);
        let mut reader = decoder.read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        let pixels = bytes[..info.buffer_size()].chunks_exact(3);
        (info.width, pixels.map(|p| [p[0], p[1], p[2]]).collect())
    }

    #[test]
    fn the_first_row_is_below_and_what_is_no_number_is_grey() {
        let field = ndarray::array![[-1.0, 0.0, f64::NAN], [1.0, 9.0, f64::NEG_INFINITY]];
        let element = Scale::diverging(1.0).field(&field, PLACE).unwrap();
        assert!(element.contains(r#"x="3" y="4" width="50" height="60""#));
        let (width, pixels) = pixels(&element);
        let [lowest, _, zero, _, highest] = DIVERGING.map(|RGBColor(r, g, b)| [r, g, b]);
        assert_eq!(width, 3);
        assert_eq!(pixels[..3], [highest, highest, lowest]);
        assert_eq!(pixels[3..], [lowest, zero, [128; 3]]);
    }

    #[test]
    fn a_bar_runs_from_end_to_end() {
        let scale = Scale::terrain(&ndarray::array![[2.0, 7.0]]);
        assert_eq!((scale.low, scale.high), (2.0, 7.0));
        let (width, bar) = pixels(&scale.bar(PLACE).unwrap());
        let (_, ends) = pixels(&scale.field(&ndarray::array![[2.0, 7.0]], PLACE).unwrap());
        assert_eq!(width as usize, STEPS);
        assert_eq!([bar[0], bar[STEPS - 1]], [ends[0], ends[1]]);
    }

    #[test]
    fn every_field_has_a_scale() {
        let of = |values: [f64; 2]| {
            let scale = Scale::terrain(&ndarray::array![values]);
            (scale.low, scale.high)
        };
        assert_eq!(of([5.0, 5.0]), (5.0, 6.0));
        assert_eq!(of([f64::NAN, f64::NAN]), (0.0, 1.0));
        assert_eq!(of([f64::NAN, 3.0]), (3.0, 4.0));
    }
}
