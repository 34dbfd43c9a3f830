//! The largest or smallest element of every cell of a reduction, with its index.

use super::View;
use super::pointwise::vectorized;
use super::reduce::{COLUMNS, Split};
use super::view::{for_each_row, join_dims};
use super::whole::Number;
use crate::compiled::compiled;
use pulp::{Simd, WithSimd};
use shard_device::Bool;

compiled! { trait Compiled for Number: f32 f64 i64 i32 u8 Bool; {
    /// The largest (or smallest) element of `x` over `dims` for each index of the remaining dims: `put` gets the cell, row-major, the
    /// element and its index, or nothing where the cell is empty. NaN comes before all numbers, and of equal elements the first.
    ///
    /// The index of an element is `steps` times its indices along `dims`, in the order of the dims; the steps are at least 0 and must
    /// let the index ascend in row-major order.
    ///
    /// ```
    /// use shard_kernels::{best::best, View};
    /// let x = [1.0, 5.0, 5.0, 4.0, 2.0, 2.0];
    /// let mut found = Vec::new();
    /// best(false, &View::contiguous(&x, &[2, 3]), &[1], &[1], &mut |_, least| found.push(least));
    /// assert_eq!(found, [Some((1.0, 0)), Some((2.0, 1))]);
    /// ```
    ///
    /// # Panics
    /// When a dim is out of range or named twice.
    pub fn best<T>(
        largest: bool,
        x: &View<'_, T>,
        dims: &[usize],
        steps: &[isize],
        put: &mut dyn FnMut(usize,
        Option<(T, i64)>),
    ) = best_here;
} }

fn best_here<T: Number>(
    largest: bool,
    x: &View<'_, T>,
    dims: &[usize],
    steps: &[isize],
    put: &mut dyn FnMut(usize, Option<(T, i64)>),
) {
    let split = Split::new(x.shape(), x.strides(), dims);
    let data = x.data();
    let wins = |new: T, old: T| {
        let further = if largest { new > old } else { new < old };
        further || (new.is_nan() && !old.is_nan())
    };
    if let Some(n) = split.short_rows()
        && let [[_, step]] = join_dims(&split.reduced, [&split.reduced_steps, steps]).1[..]
    {
        let rows = &data[x.offset()..][..split.cells() * n];
        return vectorized(ShortRows {
            largest,
            rows,
            n,
            step: step as i64,
            put,
        });
    }
    // Made once: to make it takes longer than to look at a short row.
    let mut found: [Option<(T, i64)>; COLUMNS] = [None; COLUMNS];
    split.for_each_cell(x.offset(), COLUMNS, |cell, at, width, cell_step| {
        let found = &mut found[..width];
        found.fill(None);
        for_each_row(
            &split.reduced,
            [&split.reduced_steps, steps],
            [at, 0],
            |[at, index], n, [step, index_step]| {
                // Of a run first the value, then where it is.
                if width == 1
                    && step == 1
                    && n >= LONG
                    && let Some(value) = T::extreme(largest, &data[at..at + n])
                {
                    let first = first_of(value, &data[at..at + n]);
                    let new = data[at + first];
                    if found[0].is_none_or(|(old, _)| !old.is_nan() && wins(new, old)) {
                        let index = index as i64 + (first as isize * index_step) as i64;
                        found[0] = Some((new, index));
                    }
                    return;
                }
                for i in 0..n as isize {
                    let from = at.wrapping_add_signed(i * step);
                    let index = index as i64 + (i * index_step) as i64;
                    for (found, &new) in found.iter_mut().zip(&data[from..from + width]) {
                        // What NaN has been found stays.
                        if found.is_none_or(|(old, _)| !old.is_nan() && wins(new, old)) {
                            *found = Some((new, index));
                        }
                    }
                }
            },
        );
        for (j, found) in found.iter().enumerate() {
            put(cell.wrapping_add_signed(j as isize * cell_step), *found);
        }
    });
}

/// Rows of `n` elements, one behind the other, and how far apart the indices of elements are.
struct ShortRows<'a, 'p, T> {
    largest: bool,
    rows: &'a [T],
    n: usize,
    step: i64,
    put: &'p mut dyn FnMut(usize, Option<(T, i64)>),
}

impl<T: Number> WithSimd for ShortRows<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        match self.largest {
            true => self.find(|new, old| new > old),
            false => self.find(|new, old| new < old),
        }
    }
}

impl<T: Number> ShortRows<'_, '_, T> {
    /// Many rows side by side: vectors are of the elements with one index in each.
    #[inline(always)]
    fn find(self, is_further: impl Fn(T, T) -> bool) {
        const MANY: usize = 16;
        let (n, put) = (self.n, self.put);
        for (block, rows) in self.rows.chunks(MANY * n).enumerate() {
            let (mut best, mut index) = ([T::default(); MANY], [0_i32; MANY]);
            for i in 0..n {
                let mut column = [T::default(); MANY];
                for (x, row) in column.iter_mut().zip(rows.chunks_exact(n)) {
                    *x = row[i];
                }
                for ((best, index), new) in best.iter_mut().zip(&mut index).zip(column) {
                    // What NaN has been found stays.
                    let further = is_further(new, *best) | new.is_nan();
                    let wins = (i == 0) | (further & !best.is_nan());
                    *best = if wins { new } else { *best };
                    *index = if wins { i as i32 } else { *index };
                }
            }
            for (row, (best, index)) in (0..rows.len() / n).zip(best.into_iter().zip(index)) {
                put(
                    block * MANY + row,
                    Some((best, i64::from(index) * self.step)),
                );
            }
        }
    }
}

/// Elements of a run from which on its extreme is found before its index is.
const LONG: usize = 16;

/// Where the first element is that equals one of them, or the first NaN if that is none.
fn first_of<T: Number>(value: T, run: &[T]) -> usize {
    const CHUNK: usize = 64;
    let is = |x: T| x == value || x.is_nan();
    // Without a way out of the loop, so that it is one of vectors.
    let has = |chunk: &[T]| chunk.iter().fold(false, |has, &x| has | is(x));
    let chunk = run.chunks(CHUNK).position(has).unwrap_or(0);
    let within = run[CHUNK * chunk..].iter().position(|&x| is(x));
    CHUNK * chunk + within.unwrap_or(0)
}
