//! Orders of rows as interchanges, one row after the other, which is how LAPACK tells them.

use super::{for_each_of, list, matrices, read, write, write_each};
use crate::{Real, View, ViewMut};
use faer::Mat;

/// Of the permutation of [`Lu`](super::Factors::Lu) for every matrix, `p`, the row, counted from 1, that each of the first ones was interchanged
/// with. What is no permutation interchanges nothing.
///
/// ```
/// use shard_kernels::linalg::interchanges;
/// use shard_kernels::{View, ViewMut};
/// // The last of three rows is the first one.
/// let (p, mut pivots) = ([0.0f64, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0], [0; 2]);
/// interchanges(&View::contiguous(&p, &[3, 3]), &mut ViewMut::contiguous(&mut pivots, &[2]));
/// assert_eq!(pivots, [3, 2]);
/// ```
///
/// # Panics
/// When shapes do not belong together.
pub fn interchanges<T: Real>(p: &View<'_, T>, pivots: &mut ViewMut<'_, i32>) {
    let (batch, m, _) = matrices(p.shape());
    let count = pivots.shape().last().copied().unwrap_or(0);
    for_each_of(batch, |index| {
        let p = read(p, index, m, m);
        let mut rows: Vec<usize> = (0..m).collect();
        let found: Vec<i32> = (0..count)
            .map(|i| {
                let row = (i..m).find(|&row| p[(rows[row], i)] == 1.0).unwrap_or(i);
                rows.swap(i, row);
                row as i32 + 1
            })
            .collect();
        write_each(pivots, index, |i, _| found[i]);
    });
}

/// The permutation that interchanges of rows make, for every list of them; NaN where one is not of rows that there are.
///
/// ```
/// use shard_kernels::linalg::permutations;
/// use shard_kernels::{View, ViewMut};
/// let mut p = [9.0f64; 9];
/// permutations(&View::contiguous(&[3, 2], &[2]), &mut ViewMut::contiguous(&mut p, &[3, 3]));
/// assert_eq!(p, [0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
/// ```
///
/// # Panics
/// When shapes do not belong together.
pub fn permutations<T: Real>(pivots: &View<'_, i32>, p: &mut ViewMut<'_, T>) {
    let shape = p.shape().to_vec();
    let (batch, m, _) = matrices(&shape);
    for_each_of(batch, |index| {
        let mut rows: Vec<usize> = (0..m).collect();
        let each = list(pivots, index);
        let are_rows =
            each.len() <= m && each.iter().all(|&row| (1..=m as i64).contains(&row.into()));
        if are_rows {
            for (i, row) in each.into_iter().enumerate() {
                rows.swap(i, row as usize - 1);
            }
        }
        let made = are_rows.then(|| Mat::from_fn(m, m, |i, j| f64::from(u8::from(rows[j] == i))));
        write(p, index, made.as_ref());
    });
}
