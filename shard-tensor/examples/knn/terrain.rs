//! Points of a real terrain.

use crate::altitude::altitude;
use ndarray::{Array2, Axis};
use std::error::Error;

/// Points of the whole terrain.
pub(crate) const COUNT: usize = 204 * 187;

/// Metres from a column or row to the next.
const SPACING: f32 = 1500.0;

/// How much steeper the terrain is than the real one, which is nearly flat.
const STEEPER: f32 = 10.0;

/// `count` points (column, row, height), in units of the grid, row by row and evenly taken from all.
pub(crate) fn points(count: usize) -> Result<Array2<f32>, Box<dyn Error>> {
    let altitude = altitude()?;
    let cells = altitude.indexed_iter();
    let coordinates = cells.flat_map(|((row, column), metres)| {
        [column as f32, row as f32, metres * STEEPER / SPACING]
    });
    let all = Array2::from_shape_vec((altitude.len(), 3), coordinates.collect())?;
    Ok(evenly(&all, count.min(all.nrows())))
}

/// `count` of the rows, evenly spread.
pub(crate) fn evenly(all: &Array2<f32>, count: usize) -> Array2<f32> {
    let rows: Vec<usize> = (0..count).map(|i| i * all.nrows() / count).collect();
    all.select(Axis(0), &rows)
}
