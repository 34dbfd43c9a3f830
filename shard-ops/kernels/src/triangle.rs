//! What lies on one side of a diagonal of matrices, and diagonals put into matrices, by the global positions of rows and columns.

use super::copy::copy;
use super::view::for_each_row;
use super::{Positions, View, ViewMut};
use shard_device::Element;

/// Copies the elements of matrices (the last two dims) whose column's position is at most their row's plus `diagonal` (`upper`: at least),
/// and writes zeros elsewhere. Positions ascend.
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
    let (shape, n) = (out.shape().to_vec(), x.ndim());
    let (Some(&height), Some(&width)) = (x.shape().last(), shape.last()) else {
        panic!("embed: a diagonal of shape {:?}", x.shape())
    };
    assert!(
        shape[..n] == *x.shape() && shape.len() == n + 1,
        "embed: shape {:?} into {shape:?}",
        x.shape()
    );
    zero(out);
    let places = columns.list(width);
    for r in 0..height {
        let Ok(c) = places.binary_search(&rows.at(r)) else {
            continue;
        };
        let (mut start, mut extent) = (vec![0; n + 1], shape.clone());
        (start[n - 1], extent[n - 1], start[n], extent[n]) = (r, 1, c, 1);
        let from = x.sub_box(&start[..n], &extent[..n]);
        let mut to = out.reborrow().sub_box(&start, &extent);
        // The same elements, with one more dim of extent 1.
        let mut strides = from.strides().to_vec();
        strides.push(1);
        let from = View::new(from.data(), from.offset(), &extent, &strides);
        copy(&from, &mut to);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triangles_are_cut_at_global_positions() {
        let x: Vec<i32> = (1..=2 * 3 * 4).collect();
        let x = View::contiguous(&x, &[2, 3, 4]);
        let (rows, columns) = ([1, 2, 6], [0, 2, 3, 7]);
        for diagonal in [-9, -2, 0, 1, 3, i64::MAX, i64::MIN] {
            for upper in [false, true] {
                let mut out = vec![-1; 24];
                let to = &mut ViewMut::contiguous(&mut out, &[2, 3, 4]);
                let of = |list| Positions::List(list);
                triangle(upper, diagonal, of(&rows), of(&columns), &x, to);
                for (i, out) in out.iter().enumerate() {
                    let (row, column) = (rows[i / 4 % 3], columns[i % 4]);
                    let apart = i128::from(column - row);
                    let diagonal = i128::from(diagonal);
                    let keeps = if upper { apart >= diagonal } else { apart <= diagonal };
                    assert_eq!(*out, if keeps { i as i32 + 1 } else { 0 }, "{i} {diagonal}");
                }
            }
        }
    }

    #[test]
    fn diagonals_are_put_where_positions_meet() {
        let x = [1, 2, 3, 4, 5, 6];
        let mut out = [-1; 18];
        let to = &mut ViewMut::contiguous(&mut out, &[2, 3, 3]);
        let (rows, columns) = (Positions::List(&[1, 4, 5]), Positions::from(4));
        embed(rows, columns, &View::contiguous(&x, &[2, 3]), to);
        let expected = [0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 5, 0, 0, 0, 6, 0];
        assert_eq!(out, expected);
    }
}
