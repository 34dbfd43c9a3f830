//! Products with few columns, of a matrix on the left that lies in rows.
//!
//! The crate packs what is on the left in columns, which here is nearly all there is to read: 32 rows of inputs times a layer's weights
//! took two to five times as long as without. What is on the right it reads as it lies. So the product is computed with rows and
//! columns exchanged, and its few results are put in their places afterwards.

use super::{Mat, MatMut};
use crate::copy::copy;
use crate::scratch::Scratch;
use crate::{Real, View, ViewMut};

/// The most columns that are few.
const FEW: usize = 128;

/// Fewer products than these take less time than putting results in their places.
const LEAST: usize = 1 << 16;

/// The most results at a time, which a cache holds until they are put in their places.
const MOST: usize = 1 << 18;

/// Whether a product of these extents is one of few columns, of a matrix in rows.
pub(super) fn pays<T>([m, n, k]: [usize; 3], a: &Mat<'_, T>) -> bool {
    let products = m.saturating_mul(n).saturating_mul(k);
    // What is saved is of `m k` numbers, what is put in its place of `m n`.
    n <= FEW && 4 * n <= m && 2 * n <= k && a.col_step == 1 && a.row_step > 1 && products >= LEAST
}

/// Writes the product, or adds it to `c`, whose rows lie side by side.
pub(super) fn product<T: Real>(
    [m, n, k]: [usize; 3],
    a: &Mat<'_, T>,
    b: &Mat<'_, T>,
    c: &mut MatMut<'_, T>,
    accumulate: bool,
) {
    let rows = (MOST / n).min(m);
    Scratch::with(rows * n, |mut room| {
        let room = room.take(rows * n);
        for first in (0..m).step_by(rows) {
            let count = rows.min(m - first);
            let turned = &mut room[..count * n];
            let (shape, steps) = ([count, n], [c.row_step, c.col_step]);
            let at = c.offset.wrapping_add_signed(first as isize * c.row_step);
            if accumulate {
                let now = View::new(c.data, at, &shape, &steps);
                copy(&now, &mut ViewMut::contiguous(turned, &shape));
            }
            let mut results = MatMut {
                data: &mut *turned,
                offset: 0,
                row_step: 1,
                col_step: n as isize,
            };
            let (left, right) = (b.transposed(), a.part(first, 0).transposed());
            T::product().forward([n, count, k], &left, &right, &mut results, accumulate);
            let mut to = ViewMut::new(c.data, at, &shape, &steps);
            copy(&View::contiguous(turned, &shape), &mut to);
        }
    });
}
