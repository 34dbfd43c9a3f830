//! Rows multiplied with the matrix that each one's key names: as many products as there are matrices, of all rows of a key at once, wherever
//! these lie.

use super::by_key;
use crate::gemm::{Mat, MatMut};
use crate::scratch::Room;
use crate::{View, ViewMut};
use bytemuck::Pod;

/// Rows that are copied side by side at once, where those of a key are not.
const TOGETHER: usize = 256;

/// A kernel for one product of matrices of extents `m`, `n` and `k`, which is added to what is there if the last argument says so, such as
/// [`gemm`](fn@crate::gemm::gemm).
pub trait OneProduct<E, T>:
    Fn(usize, usize, usize, Mat<'_, E>, Mat<'_, E>, MatMut<'_, T>, bool)
{
}

impl<E, T, F> OneProduct<E, T> for F where
    F: Fn(usize, usize, usize, Mat<'_, E>, Mat<'_, E>, MatMut<'_, T>, bool)
{
}

/// `out[i] = x[i] · w[key of i]` for rows `x` `[rows, k]` and `out` `[rows, n]`. Matrices are `[matrices, k, n]`: those of the table, and those
/// that came from elsewhere, which have the keys behind them. A row whose key is negative gets zeros.
///
/// ```
/// use shard_kernels::gemm::gemm;
/// use shard_kernels::rows::multiply_each;
/// use shard_kernels::{View, ViewMut};
/// // Three rows of one number, two matrices of one.
/// let (x, w, mut out) = ([1.0, 2.0, 3.0], [10.0, 100.0], [7.0; 3]);
/// let table = View::contiguous(&w, &[2, 1, 1]);
/// let none = View::contiguous(&[], &[0, 1, 1]);
/// let to = &mut ViewMut::contiguous(&mut out, &[3, 1]);
/// multiply_each(&[1, -1, 0], &View::contiguous(&x, &[3, 1]), [&table, &none], to, gemm::<f64>);
/// assert_eq!(out, [100.0, 0.0, 30.0]);
/// ```
///
/// # Panics
/// When shapes contradict each other, or a key names no matrix.
pub fn multiply_each<E: Pod, T: Pod>(
    keys: &[i64],
    x: &View<'_, E>,
    tables: [&View<'_, E>; 2],
    out: &mut ViewMut<'_, T>,
    multiply: impl OneProduct<E, T>,
) {
    let [own, others] = tables;
    let ([k, n], rows) = (last_two(own.shape()), keys.len());
    let fits = x.shape() == [rows, k] && out.shape() == [rows, n];
    assert!(
        fits && last_two(others.shape()) == [k, n],
        "rows {:?} by matrices {:?} and {:?} into {:?}, for {rows} keys",
        x.shape(),
        own.shape(),
        others.shape(),
        out.shape()
    );
    for (i, _) in keys.iter().enumerate().filter(|(_, key)| **key < 0) {
        fill(&mut row_mut(out, i), n, |_| T::zeroed());
    }
    let groups = Groups::of(keys, own.shape()[0] + others.shape()[0]);
    groups.for_each(|key, rows| {
        let w = matrix(tables, key);
        if let Some(first) = first_of_run(rows) {
            return multiply(
                rows.len(),
                n,
                k,
                row(x, first),
                w,
                row_mut(out, first),
                false,
            );
        }
        for rows in rows.chunks(TOGETHER) {
            let (mut given, mut made) = (Room::new(), Room::new());
            let given = side_by_side(x, rows, given.numbers(rows.len() * k).take(rows.len() * k));
            let made = made.numbers::<T>(rows.len() * n).take(rows.len() * n);
            multiply(
                rows.len(),
                n,
                k,
                given,
                w,
                MatMut::row_major(made, n),
                false,
            );
            for (made, &i) in made.chunks_exact(n.max(1)).zip(rows) {
                let mut to = row_mut(out, i as usize);
                match to.col_step {
                    1 => to.data[to.offset..][..n].copy_from_slice(made),
                    _ => fill(&mut to, n, |j| made[j]),
                }
            }
        }
    });
}

/// The adjoint of [`multiply_each`] for its matrices: each becomes the sum of `aᵢᵀ bᵢ` over the rows `i` of its key, of `a` `[rows, k]` and `b`
/// `[rows, n]`. Those of the table are added to what is there, if they go on; one without rows is zero otherwise.
///
/// ```
/// use shard_kernels::gemm::gemm;
/// use shard_kernels::rows::outer_each;
/// use shard_kernels::{View, ViewMut};
/// let (a, b, mut sums) = ([1.0, 2.0, 3.0], [1.0, 10.0, 100.0], [7.0; 2]);
/// let [a, b] = [&a, &b].map(|x| View::contiguous(x, &[3, 1]));
/// let (mut table, mut none) = (ViewMut::contiguous(&mut sums, &[2, 1, 1]), ViewMut::contiguous(&mut [], &[0, 1, 1]));
/// outer_each(&[1, -1, 1], [&a, &b], [&mut table, &mut none], false, gemm::<f64>);
/// assert_eq!(sums, [0.0, 301.0]);
/// ```
///
/// # Panics
/// As [`multiply_each`].
pub fn outer_each<E: Pod, T: Pod>(
    keys: &[i64],
    [a, b]: [&View<'_, E>; 2],
    tables: [&mut ViewMut<'_, T>; 2],
    goes_on: bool,
    multiply: impl OneProduct<E, T>,
) {
    let [own, others] = tables;
    let ([k, n], rows) = (last_two(own.shape()), keys.len());
    let fits = a.shape() == [rows, k] && b.shape() == [rows, n];
    assert!(
        fits && last_two(others.shape()) == [k, n],
        "rows {:?} and {:?} into matrices {:?} and {:?}, for {rows} keys",
        a.shape(),
        b.shape(),
        own.shape(),
        others.shape()
    );
    let count = own.shape()[0];
    let groups = Groups::of(keys, count + others.shape()[0]);
    groups.for_each(|key, rows| {
        let (table, at) = match key.checked_sub(count) {
            None => (&mut *own, key),
            Some(at) => (&mut *others, at),
        };
        let mut adds = goes_on && key < count;
        let mut add = |rows: usize, a: Mat<'_, E>, b: Mat<'_, E>| {
            multiply(k, n, rows, a.transposed(), b, matrix_mut(table, at), adds);
            adds = true;
        };
        if let Some(first) = first_of_run(rows) {
            return add(rows.len(), row(a, first), row(b, first));
        }
        if rows.is_empty() && !(goes_on && key < count) {
            return add(0, Mat::row_major(&[], k), Mat::row_major(&[], n));
        }
        for rows in rows.chunks(TOGETHER) {
            let mut rooms = [Room::new(), Room::new()];
            let [to_a, to_b] = &mut rooms;
            let a = side_by_side(a, rows, to_a.numbers(rows.len() * k).take(rows.len() * k));
            let b = side_by_side(b, rows, to_b.numbers(rows.len() * n).take(rows.len() * n));
            add(rows.len(), a, b);
        }
    });
}

/// The rows of each key, in order.
struct Groups {
    order: Vec<i64>,
    starts: Vec<i64>,
}

impl Groups {
    fn of(keys: &[i64], count: usize) -> Self {
        let (order, starts) = by_key(keys, count);
        Self { order, starts }
    }

    fn for_each(&self, mut f: impl FnMut(usize, &[i64])) {
        for (key, ends) in self.starts.windows(2).enumerate() {
            f(key, &self.order[ends[0] as usize..ends[1] as usize]);
        }
    }
}

/// The first of rows that stand one behind the other.
fn first_of_run(rows: &[i64]) -> Option<usize> {
    let (&first, &last) = (rows.first()?, rows.last()?);
    (last - first == rows.len() as i64 - 1).then_some(first as usize)
}

fn last_two(shape: &[usize]) -> [usize; 2] {
    [shape[1], shape[2]]
}

/// The rows from one on.
fn row<'a, E>(of: &View<'a, E>, first: usize) -> Mat<'a, E> {
    Mat {
        data: of.data(),
        offset: of
            .offset()
            .wrapping_add_signed(first as isize * of.strides()[0]),
        row_step: of.strides()[0],
        col_step: of.strides()[1],
    }
}

fn row_mut<'a, T>(of: &'a mut ViewMut<'_, T>, first: usize) -> MatMut<'a, T> {
    let (row_step, col_step) = (of.strides()[0], of.strides()[1]);
    MatMut {
        offset: of.offset().wrapping_add_signed(first as isize * row_step),
        data: of.data_mut(),
        row_step,
        col_step,
    }
}

fn matrix<'a, E>([own, others]: [&View<'a, E>; 2], key: usize) -> Mat<'a, E> {
    let (table, at) = match key.checked_sub(own.shape()[0]) {
        None => (own, key),
        Some(at) => (others, at),
    };
    Mat {
        data: table.data(),
        offset: table
            .offset()
            .wrapping_add_signed(at as isize * table.strides()[0]),
        row_step: table.strides()[1],
        col_step: table.strides()[2],
    }
}

fn matrix_mut<'a, T>(of: &'a mut ViewMut<'_, T>, at: usize) -> MatMut<'a, T> {
    let steps = [of.strides()[0], of.strides()[1], of.strides()[2]];
    MatMut {
        offset: of.offset().wrapping_add_signed(at as isize * steps[0]),
        data: of.data_mut(),
        row_step: steps[1],
        col_step: steps[2],
    }
}

/// Writes the numbers of a row.
fn fill<T>(to: &mut MatMut<'_, T>, columns: usize, of: impl Fn(usize) -> T) {
    for j in 0..columns {
        to.data[to.offset.wrapping_add_signed(j as isize * to.col_step)] = of(j);
    }
}

/// A copy of these rows.
fn side_by_side<'t, E: Copy>(of: &View<'_, E>, rows: &[i64], to: &'t mut [E]) -> Mat<'t, E> {
    let (width, step) = (of.shape()[1], of.strides()[1]);
    for (to, &i) in to.chunks_exact_mut(width.max(1)).zip(rows) {
        let from = row(of, i as usize);
        match step {
            1 => to.copy_from_slice(&from.data[from.offset..][..width]),
            _ => {
                for (j, to) in to.iter_mut().enumerate() {
                    *to = from.data[from.offset.wrapping_add_signed(j as isize * step)];
                }
            }
        }
    }
    Mat::row_major(to, width)
}
