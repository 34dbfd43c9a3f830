//! Elements beside what belongs to their cells: all elements that share their indices outside of some dims.

use super::pointwise::assert_shapes;
use super::view::{for_each_row, row_major};
use super::{Real, Strides, View, ViewMut};

/// From an element to the next along each dim of a shape, how many cells further that is; cells are row-major over all dims but
/// `dims`.
///
/// ```
/// use shard_kernels::cells::cell_steps;
/// assert_eq!(cell_steps(&[4, 5, 6], &[1])[..], [6, 0, 1]);
/// ```
pub fn cell_steps(shape: &[usize], dims: &[usize]) -> Strides {
    let kept: Vec<usize> = (0..shape.len()).filter(|d| !dims.contains(d)).collect();
    let extents: Vec<usize> = kept.iter().map(|&d| shape[d]).collect();
    let mut steps: Strides = shape.iter().map(|_| 0).collect();
    for (&d, &step) in kept.iter().zip(&row_major(&extents)) {
        steps[d] = step;
    }
    steps
}

/// `out = f(x, cell)` for every element and the number of its cell over `dims`.
///
/// # Panics
/// When the shapes differ.
pub fn map_cells<T: Real>(
    x: &View<'_, T>,
    dims: &[usize],
    out: &mut ViewMut<'_, T>,
    f: impl Fn(T, usize) -> T,
) {
    assert_shapes(&[x.shape()], out.shape());
    let cells = cell_steps(x.shape(), dims);
    let (shape, strides, offset) = out.geometry();
    let data = out.data_mut();
    for_each_row(
        &shape,
        [x.strides(), &cells, &strides],
        [x.offset(), 0, offset],
        |at, n, steps| {
            for i in 0..n as isize {
                let [from, cell, to] =
                    core::array::from_fn(|k| at[k].wrapping_add_signed(i * steps[k]));
                data[to] = f(x.data()[from], cell);
            }
        },
    );
}
