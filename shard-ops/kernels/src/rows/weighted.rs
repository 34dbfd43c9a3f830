//! Sums of rows with weights: several keys, one after the other, name the rows of one place on the other side, whose list has a last dim
//! with a step of 0 for them.

use super::{Here, Rows};
use crate::Real;
use crate::compiled::compiled;
use crate::pointwise::vectorized;
use crate::reduce::{BLOCK, halve};
use pulp::{Simd, WithSimd};

compiled! { trait CompiledWeighted for Real: f32 f64; {
    /// Writes to each place the sum of the rows that its keys name, each times its weight. What names no row adds nothing.
    ///
    /// ```
    /// use shard_kernels::rows::{RowDim, Rows, weigh};
    /// // Three rows of two; two places, of two rows each.
    /// let table = [0.0f32, 1.0, 10.0, 11.0, 20.0, 21.0];
    /// let rows = Rows::new(&[(3, 2)], &[(2, 2), (2, 0)], &[RowDim::new(2, 1, 1)]);
    /// let mut out = [9.0; 4];
    /// weigh(&rows, &table, &[], &[2, 0, 1, -1], &[0.5, 0.5, 2.0, 7.0], &mut out);
    /// assert_eq!(out, [10.0, 11.0, 20.0, 22.0]);
    /// ```
    ///
    /// # Panics
    /// When a key or a place lies outside of what it names, or there are fewer weights than keys.
    pub fn weigh<T>(
        rows: &Rows,
        table: &[T],
        ghosts: &[T],
        keys: &[i64],
        weights: &[T],
        out: &mut [T],
    ) = weigh_here;

    /// The adjoint of [`weigh`] for its rows: adds to each row that a place's keys name what is there, times the weight, in the order of the list.
    ///
    /// # Panics
    /// As [`weigh`].
    pub fn spread<T>(
        rows: &Rows,
        table: &mut [T],
        ghosts: &mut [T],
        keys: &[i64],
        weights: &[T],
        src: &[T],
    ) = spread_here;

    /// The adjoint of [`weigh`] for its weights: of every key the product of the row that it names with what is at its place; 0 where it names none.
    ///
    /// # Panics
    /// As [`weigh`].
    pub fn row_dots<T>(
        rows: &Rows,
        table: &[T],
        ghosts: &[T],
        keys: &[i64],
        src: &[T],
        out: &mut [T],
    ) = row_dots_here;
} }

fn weigh_here<T: Real>(
    rows: &Rows,
    table: &[T],
    ghosts: &[T],
    keys: &[i64],
    weights: &[T],
    out: &mut [T],
) {
    out.fill(T::zero());
    vectorized(ByKey {
        rows,
        keys,
        visit: Weigh {
            from: [table, ghosts],
            weights,
            out,
        },
    });
}

fn spread_here<T: Real>(
    rows: &Rows,
    table: &mut [T],
    ghosts: &mut [T],
    keys: &[i64],
    weights: &[T],
    src: &[T],
) {
    vectorized(ByKey {
        rows,
        keys,
        visit: Spread {
            to: [table, ghosts],
            weights,
            src,
        },
    });
}

fn row_dots_here<T: Real>(
    rows: &Rows,
    table: &[T],
    ghosts: &[T],
    keys: &[i64],
    src: &[T],
    out: &mut [T],
) {
    out[..keys.len()].fill(T::zero());
    vectorized(ByKey {
        rows,
        keys,
        visit: Dots {
            from: [table, ghosts],
            src,
            out,
        },
    });
}

/// What is done with a run of a row.
pub(super) trait Visit {
    /// Of the key of this number: where the run begins in the table (or, of ghosts, there), and on the other side, and how long it is.
    fn run(&mut self, number: usize, is_ghost: bool, at: usize, other: usize, len: usize);
}

pub(super) struct ByKey<'a, V> {
    pub(super) rows: &'a Rows,
    pub(super) keys: &'a [i64],
    pub(super) visit: V,
}

impl<V: Visit> WithSimd for ByKey<'_, V> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self {
            rows,
            keys,
            mut visit,
        } = self;
        let (mut first, run) = (0, rows.run);
        if rows.row_len == 0 {
            return;
        }
        rows.visit_lines(
            keys,
            #[inline(always)]
            |line, place, step| {
                for (i, &key) in line.iter().enumerate() {
                    let Ok(key) = usize::try_from(key) else {
                        continue;
                    };
                    let is_ghost = key >= rows.keys;
                    let at = match is_ghost {
                        true => (key - rows.keys) * rows.row_len,
                        false => rows.at(key),
                    };
                    let other = place + i * step;
                    if rows.outer.is_empty() {
                        visit.run(first + i, is_ghost, at, other, run);
                        continue;
                    }
                    let here = match is_ghost {
                        true => Here::Ghosts,
                        false => Here::Table,
                    };
                    rows.runs(
                        here,
                        (at, other),
                        #[inline(always)]
                        |at, other| visit.run(first + i, is_ghost, at, other, run),
                    );
                }
                first += line.len();
            },
        );
    }
}

struct Weigh<'a, T> {
    from: [&'a [T]; 2],
    weights: &'a [T],
    out: &'a mut [T],
}

impl<T: Real> Visit for Weigh<'_, T> {
    #[inline(always)]
    fn run(&mut self, number: usize, is_ghost: bool, at: usize, other: usize, len: usize) {
        let from = &self.from[usize::from(is_ghost)][at..at + len];
        add(
            &mut self.out[other..other + len],
            from,
            self.weights[number],
        );
    }
}

struct Spread<'a, T> {
    to: [&'a mut [T]; 2],
    weights: &'a [T],
    src: &'a [T],
}

impl<T: Real> Visit for Spread<'_, T> {
    #[inline(always)]
    fn run(&mut self, number: usize, is_ghost: bool, at: usize, other: usize, len: usize) {
        let to = &mut self.to[usize::from(is_ghost)][at..at + len];
        add(to, &self.src[other..other + len], self.weights[number]);
    }
}

struct Dots<'a, T> {
    from: [&'a [T]; 2],
    src: &'a [T],
    out: &'a mut [T],
}

impl<T: Real> Visit for Dots<'_, T> {
    #[inline(always)]
    fn run(&mut self, number: usize, is_ghost: bool, at: usize, other: usize, len: usize) {
        let from = &self.from[usize::from(is_ghost)][at..at + len];
        self.out[number] += dot(from, &self.src[other..other + len]);
    }
}

/// Adds numbers times a weight. Products are rounded, as on a device that forms them first.
#[inline(always)]
fn add<T: Real>(to: &mut [T], from: &[T], weight: T) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to += weight * from;
    }
}

/// The sum of products.
#[inline(always)]
fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    /// Sums side by side, as many on each processor.
    const SUMS: usize = 16;
    let mut total = 0.0;
    for (a, b) in a.chunks(BLOCK).zip(b.chunks(BLOCK)) {
        let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<SUMS>(), b.as_chunks::<SUMS>());
        let mut sums = [T::zero(); SUMS];
        for (a, b) in a.iter().zip(b) {
            for ((sum, &a), &b) in sums.iter_mut().zip(a).zip(b) {
                *sum += a * b;
            }
        }
        for ((sum, &a), &b) in sums.iter_mut().zip(rest_a).zip(rest_b) {
            *sum += a * b;
        }
        total += halve(sums, |a, b| a + b).wide();
    }
    T::of(total)
}
