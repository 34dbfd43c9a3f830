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
    // Columns from there on are right of the diagonal (`upper`: on it, or right of it).
    let cut_of = |r: usize| {
        let last = rows.at(r).saturating_add(diagonal);
        places.partition_point(|&at| if upper { at < last } else { at <= last })
    };
    if let (Some(x), Some(out)) = (x.as_slice(), out.as_slice_mut()) {
        let lines = x.chunks_exact(width.max(1));
        for (number, (x, out)) in lines.zip(out.chunks_exact_mut(width.max(1))).enumerate() {
            let cut = cut_of(number % height);
            let (kept, others) = if upper {
                (cut..width, 0..cut)
            } else {
                (0..cut, cut..width)
            };
            out[kept.clone()].copy_from_slice(&x[kept]);
            out[others].fill(T::default());
        }
        return;
    }
    let (row, column) = (x.ndim() - 2, x.ndim() - 1);
    for r in 0..height {
        let cut = cut_of(r);
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
    let (shape, strides, offset) = out.geometry();
    on_diagonal(rows, columns, x.shape(), &shape, |run| {
        let at = run.place(&strides, offset);
        let mut to = ViewMut::new(out.data_mut(), at, &run.shape, &run.steps(&strides));
        copy(&x.sub_box(&run.start, &run.shape), &mut to);
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
    let lines = out.shape().to_vec();
    on_diagonal(rows, columns, &lines, x.shape(), |run| {
        let at = run.place(x.strides(), x.offset());
        let from = View::new(x.data(), at, &run.shape, &run.steps(x.strides()));
        copy(&from, &mut out.reborrow().sub_box(&run.start, &run.shape));
    });
}

/// Elements one behind the other on the diagonals of matrices, of which each next one is a row and a column on.
struct Run {
    /// Where they begin among the lines, and their extents there.
    start: Vec<usize>,
    shape: Vec<usize>,
    /// The first one's column.
    column: usize,
}

impl Run {
    /// Where the first is in matrices of these strides.
    fn place(&self, strides: &[isize], offset: usize) -> usize {
        let row = self.start.len() - 1;
        let within =
            self.start[row] as isize * strides[row] + self.column as isize * strides[row + 1];
        offset.wrapping_add_signed(within)
    }

    /// How far they lie apart there, along each dim of the lines.
    fn steps(&self, strides: &[isize]) -> Vec<isize> {
        let mut steps = strides[..self.start.len()].to_vec();
        steps[self.start.len() - 1] += strides[self.start.len()];
        steps
    }
}

/// Visits the runs of rows that have a column at their own position.
fn on_diagonal(
    rows: Positions<'_>,
    columns: Positions<'_>,
    lines: &[usize],
    matrices: &[usize],
    mut visit: impl FnMut(&Run),
) {
    let n = lines.len();
    assert!(
        n > 0 && matrices.len() == n + 1 && matrices[..n] == *lines,
        "diagonal: lines {lines:?} of matrices {matrices:?}"
    );
    let places = columns.list(matrices[n]);
    let column = |r: usize| places.binary_search(&rows.at(r)).ok();
    let mut run = Run {
        start: vec![0; n],
        shape: lines.to_vec(),
        column: 0,
    };
    let mut r = 0;
    while r < lines[n - 1] {
        let Some(first) = column(r) else {
            r += 1;
            continue;
        };
        let goes_on = |k: &usize| places.get(first + k) == Some(&rows.at(r + k));
        let len = 1 + (1..lines[n - 1] - r).take_while(goes_on).count();
        (run.start[n - 1], run.shape[n - 1], run.column) = (r, len, first);
        visit(&run);
        r += len;
    }
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
