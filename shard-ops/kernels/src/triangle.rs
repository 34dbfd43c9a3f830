//! What lies on one side of a diagonal of matrices, and diagonals put into matrices, by the global positions of rows and columns.

use super::copy::copy;
use super::view::for_each_row;
use super::{Positions, View, ViewMut};
use shard_device::Element;

/// Copies the elements of matrices (the last two dims) whose column's position is at most their row's plus `diagonal`
/// (`upper`: at least), and writes zeros elsewhere. Positions ascend.
///
/// ```
/// use shard_kernels::{triangle::triangle, Positions, View, ViewMut};
/// let mut out = [9; 6];
/// let x = [1, 2, 3, 4, 5, 6];
/// // Rows 1 and 2 of a matrix.
/// let (rows, columns) = (Positions::from(1), Positions::from(0));
/// let to = &mut ViewMut::contiguous(&mut out, &[2, 3]);
/// triangle(false, 0, rows, columns, &View::contiguous(&x, &[2, 3]), to);
/// assert_eq!(out, [1, 2, 0, 4, 5, 6]);
/// ```
///
/// # Panics
/// When the shapes differ, or have fewer than two dims.
pub fn triangle<T: Element>(
    upper: bool,
    diagonal: i64,
    rows: Positions<'_>,
    columns: Positions<'_>,
    x: &View<'_, T>,
    out: &mut ViewMut<'_, T>,
) {
    let &[.., height, width] = x.shape() else {
        panic!("triangle: matrices of shape {:?}", x.shape())
    };
    assert!(
        x.shape() == out.shape(),
        "triangle: shape {:?} into {:?}",
        x.shape(),
        out.shape()
    );
    let places = columns.list(width);
    let (row, column) = (x.ndim() - 2, x.ndim() - 1);
    for r in 0..height {
        let last = rows.at(r).saturating_add(diagonal);
        // Columns from `cut` on are right of the diagonal (`upper`: on it, or right of it).
        let cut = places.partition_point(|&at| if upper { at < last } else { at <= last });
        let (mut start, mut extent) = (vec![0; x.ndim()], x.shape().to_vec());
        (start[row], extent[row]) = (r, 1);
        let mut part = |from: usize, to: usize, keeps: bool| {
            (start[column], extent[column]) = (from, to - from);
            let mut out = out.reborrow().sub_box(&start, &extent);
            match keeps {
                true => copy(&x.sub_box(&start, &extent), &mut out),
                false => zero(&mut out),
            }
        };
        part(0, cut, !upper);
        part(cut, width, upper);
    }
}

/// Matrices whose diagonals hold the last dim of `x`, and zeros elsewhere. Positions ascend.
///
/// # Panics
/// When `out` has other shapes than `x` and another dim.
pub fn embed<T: Element>(
    rows: Positions<'_>,
    columns: Positions<'_>,
    x: &View<'_, T>,
    out: &mut ViewMut<'_, T>,
) {
    zero(out);
    let shape = out.shape().to_vec();
    on_diagonal(rows, columns, x.shape(), &shape, |line, matrix, one| {
        let from = x.sub_box(line, one);
        let mut to = out.reborrow().sub_box(matrix, &with_column(one));
        copy(&widened(&from), &mut to);
    });
}

/// The diagonals of matrices, as the last dim of `out`: zero where the column is not there. Positions ascend.
///
/// # Panics
/// When `x` has other shapes than `out` and another dim.
pub fn take<T: Element>(
    rows: Positions<'_>,
    columns: Positions<'_>,
    x: &View<'_, T>,
    out: &mut ViewMut<'_, T>,
) {
    zero(out);
    let line_shape = out.shape().to_vec();
    on_diagonal(
        rows,
        columns,
        &line_shape,
        x.shape(),
        |line, matrix, one| {
            let from = x.sub_box(matrix, &with_column(one));
            let strides = &from.strides()[..line.len()];
            let from = View::new(from.data(), from.offset(), one, strides);
            copy(&from, &mut out.reborrow().sub_box(line, one));
        },
    );
}

/// Visits the rows that have a column at their own position: where each begins among the lines and the matrices, and the
/// extents of one element per line.
fn on_diagonal(
    rows: Positions<'_>,
    columns: Positions<'_>,
    lines: &[usize],
    matrices: &[usize],
    mut visit: impl FnMut(&[usize], &[usize], &[usize]),
) {
    let n = lines.len();
    assert!(
        n > 0 && matrices.len() == n + 1 && matrices[..n] == *lines,
        "diagonal: lines {lines:?} of matrices {matrices:?}"
    );
    let places = columns.list(matrices[n]);
    let mut one = lines.to_vec();
    one[n - 1] = 1;
    for r in 0..lines[n - 1] {
        if let Ok(c) = places.binary_search(&rows.at(r)) {
            let mut at = vec![0; n + 1];
            (at[n - 1], at[n]) = (r, c);
            visit(&at[..n], &at, &one);
        }
    }
}

/// These extents, and one column.
fn with_column(extent: &[usize]) -> Vec<usize> {
    extent.iter().copied().chain([1]).collect()
}

/// The same elements with one more dim of extent 1.
fn widened<'a, T>(x: &View<'a, T>) -> View<'a, T> {
    let strides: Vec<isize> = x.strides().iter().copied().chain([1]).collect();
    View::new(x.data(), x.offset(), &with_column(x.shape()), &strides)
}

fn zero<T: Element>(out: &mut ViewMut<'_, T>) {
    let (shape, strides, offset) = out.geometry();
    let data = out.data_mut();
    for_each_row(&shape, [&strides], [offset], |[at], n, [step]| {
        if step == 1 {
            return data[at..at + n].fill(T::default());
        }
        for i in 0..n as isize {
            data[at.wrapping_add_signed(i * step)] = T::default();
        }
    });
}
