//! The forecast, read from NumPy files and checked.

use ndarray::{Array2, Array4, Dimension};
use shard_tensor::data::Npy;
use std::path::{Path, PathBuf};

/// The files of a folder.
pub(crate) const THETA: &str = "uk_hires_theta.npy";
pub(crate) const ALTITUDE: &str = "uk_hires_altitude.npy";

/// Model levels of the forecast, as its producers number them.
const LEVELS: [usize; 7] = [1, 4, 7, 10, 13, 16, 19];

/// The smallest field the U-Net can halve twice and the blocks can cover.
const SMALLEST: usize = 8;

/// A forecast of several hours on several levels.
#[derive(Clone, Debug)]
pub(crate) struct Forecast {
    /// `[hours, levels, rows, columns]` in kelvin, row 0 the southernmost. The last hour is for testing.
    pub(crate) theta: Array4<f32>,
    /// `[rows, columns]` in metres.
    pub(crate) altitude: Array2<f32>,
}

/// Why there is no forecast.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DataError {
    #[error(
        "{source}; point --data at the folder with the two .npy files, this one a NumPy file of float32 with {ndim} dims"
    )]
    File {
        ndim: usize,
        source: shard_tensor::data::DataError,
    },
    #[error("{path}: expected {expected}, got shape {got:?}")]
    Shape {
        path: PathBuf,
        expected: String,
        got: Vec<usize>,
    },
    #[error("{path}: element {index:?} is {value}; every element must be finite")]
    NonFinite {
        path: PathBuf,
        index: Vec<usize>,
        value: f32,
    },
}

impl Forecast {
    /// Reads both files of a folder.
    pub(crate) fn read(folder: &Path) -> Result<Self, DataError> {
        let (theta, altitude) = (folder.join(THETA), folder.join(ALTITUDE));
        let forecast = Self {
            theta: read(&theta)?,
            altitude: read(&altitude)?,
        };
        let [hours, levels, rows, columns] = forecast.shape();
        if hours < 2 || levels == 0 || rows < SMALLEST || columns < SMALLEST {
            return Err(DataError::Shape {
                path: theta,
                expected: format!(
                    "2 hours or more, a level or more, {SMALLEST} x {SMALLEST} points or more"
                ),
                got: vec![hours, levels, rows, columns],
            });
        }
        if forecast.altitude.dim() != (rows, columns) {
            return Err(DataError::Shape {
                path: altitude,
                expected: format!("{rows} x {columns}, as the forecast has"),
                got: forecast.altitude.shape().to_vec(),
            });
        }
        Ok(forecast)
    }

    /// What a level is called.
    pub(crate) fn level(&self, at: usize) -> String {
        match LEVELS.get(at) {
            Some(level) if self.theta.dim().1 == LEVELS.len() => level.to_string(),
            _ => format!("#{at}"),
        }
    }

    /// `[hours, levels, rows, columns]`
    pub(crate) fn shape(&self) -> [usize; 4] {
        self.theta.dim().into()
    }
}

/// An array of finite numbers.
fn read<D: Dimension>(path: &Path) -> Result<ndarray::Array<f32, D>, DataError> {
    let array = Npy::open(path).and_then(|file| file.to_array());
    let array: ndarray::Array<f32, D> = array.map_err(|source| DataError::File {
        ndim: D::NDIM.unwrap_or(0),
        source,
    })?;
    match array.iter().position(|x| !x.is_finite()) {
        None => Ok(array),
        Some(position) => Err(DataError::NonFinite {
            path: path.to_owned(),
            index: index_of(position, array.shape()),
            value: array.iter().copied().nth(position).unwrap_or(f32::NAN),
        }),
    }
}

/// The index at a row-major position.
fn index_of(mut position: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (i, &extent) in index.iter_mut().zip(shape).rev() {
        *i = position % extent;
        position /= extent;
    }
    index
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use ndarray::{Array, Dimension};
    use shard_tensor::data::npy_bytes;

    fn write_npy<T: shard_tensor::Element, D: Dimension>(path: PathBuf, array: &Array<T, D>) {
        std::fs::write(path, npy_bytes(array).unwrap()).unwrap();
    }

    /// A forecast in a folder of its own, which goes with it.
    pub(crate) struct Folder {
        pub(crate) path: PathBuf,
        pub(crate) forecast: Forecast,
    }

    impl Folder {
        pub(crate) fn of(name: &str, theta: &Array4<f32>, altitude: &Array2<f32>) -> Self {
            let path = folder(name);
            write_npy(path.join(THETA), theta);
            write_npy(path.join(ALTITUDE), altitude);
            let forecast = Forecast::read(&path).unwrap();
            Self { path, forecast }
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.path).ok();
        }
    }

    /// A folder of its own with a small, valid forecast.
    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("downscale-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let (theta, altitude) = (
            Array4::from_elem((2, 1, 8, 9), 280f32),
            Array2::from_elem((8, 9), 5f32),
        );
        write_npy(path.join(THETA), &theta);
        write_npy(path.join(ALTITUDE), &altitude);
        path
    }

    fn error(folder: &Path) -> String {
        let text = Forecast::read(folder).unwrap_err().to_string();
        std::fs::remove_dir_all(folder).unwrap();
        text
    }

    #[test]
    fn the_forecast_that_comes_along_is_whole() {
        let here = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data");
        let forecast = Forecast::read(Path::new(here)).unwrap();
        assert_eq!(forecast.shape(), [3, 7, 204, 187]);
        assert!(forecast.theta.iter().all(|t| (260.0..330.0).contains(t)));
        assert!(forecast.altitude.iter().all(|z| (-15.0..814.0).contains(z)));
    }

    #[test]
    fn a_missing_file_is_named() {
        let folder = folder("missing");
        std::fs::remove_file(folder.join("uk_hires_altitude.npy")).unwrap();
        assert!(error(&folder).contains("uk_hires_altitude.npy"));
    }

    #[test]
    fn a_short_file_and_a_lying_header_are_refused() {
        let whole = folder("short");
        let theta = whole.join("uk_hires_theta.npy");
        let bytes = std::fs::read(&theta).unwrap();
        std::fs::write(&theta, &bytes[..bytes.len() - 4]).unwrap();
        assert!(error(&whole).contains("a NumPy file of float32 with 4 dims"));

        let whole = folder("lying");
        let theta = whole.join("uk_hires_theta.npy");
        let shape = b"(2, 1, 8, 9)";
        let at = bytes.windows(shape.len()).position(|w| w == shape).unwrap();
        let mut lying = bytes;
        // More elements than there are.
        lying[at + 1] = b'9';
        std::fs::write(&theta, &lying).unwrap();
        assert!(error(&whole).contains("a NumPy file of float32 with 4 dims"));
    }

    #[test]
    fn another_type_or_number_of_dims_is_refused() {
        let whole = folder("type");
        write_npy(
            whole.join("uk_hires_altitude.npy"),
            &Array2::from_elem((8, 9), 5f64),
        );
        assert!(error(&whole).contains("float32 with 2 dims"));

        let whole = folder("dims");
        write_npy(
            whole.join("uk_hires_altitude.npy"),
            &Array4::from_elem((1, 1, 8, 9), 5f32),
        );
        assert!(error(&whole).contains("float32 with 2 dims"));
    }

    #[test]
    fn grids_must_be_one_and_large_enough() {
        let whole = folder("grid");
        write_npy(
            whole.join("uk_hires_altitude.npy"),
            &Array2::from_elem((9, 8), 5f32),
        );
        assert!(error(&whole).contains("expected 8 x 9, as the forecast has, got shape [9, 8]"));

        let whole = folder("small");
        write_npy(
            whole.join("uk_hires_theta.npy"),
            &Array4::from_elem((1, 1, 8, 9), 5f32),
        );
        assert!(error(&whole).contains("2 hours or more"));
    }

    #[test]
    fn a_number_that_is_none_is_found() {
        let whole = folder("nan");
        let mut theta = Array4::from_elem((2, 1, 8, 9), 280f32);
        theta[[1, 0, 3, 4]] = f32::INFINITY;
        write_npy(whole.join("uk_hires_theta.npy"), &theta);
        assert!(error(&whole).contains("element [1, 0, 3, 4] is inf"));
    }
}
