//! Normalisation of cells whose elements lie apart: rows with one of each, so that every column has a mean and a factor of its own.

use super::super::Real;
use crate::compiled::compiled;
use crate::pointwise::vectorized;
use pulp::{Simd, WithSimd};

/// Rows whose sums are taken in the element type before they join those in double precision.
pub const ROWS: usize = 16;

compiled! { trait CompiledColumns for Real: f32 f64; {
    /// `out = (x - mean) * gain + shift` in rows as long as `mean`, with a mean, a gain and a shift for each column.
    ///
    /// ```
    /// use shard_kernels::normalise::normalise_rows;
    /// let (x, mut out) = ([1.0f32, 10.0, 3.0, 20.0], [0.0; 4]);
    /// normalise_rows(&x, &mut out, [&[2.0, 15.0], &[1.0, 0.2], &[0.0, 1.0]]);
    /// assert_eq!(out, [-1.0, 0.0, 1.0, 2.0]);
    /// ```
    ///
    /// # Panics
    /// When operands are not equally many whole rows, or there are not as many numbers of a kind as columns.
    pub fn normalise_rows<T>(x: &[T], out: &mut [T], by: [&[T]; 3]) = normalise_rows_here;

    /// `sums += dy`, `along += dy * (x - mean)`, over each column of rows as long as `mean`.
    ///
    /// # Panics
    /// As [`normalise_rows`].
    pub fn add_column_sums<T>(
        x: &[T],
        dy: &[T],
        mean: &[T],
        sums: &mut [f64],
        along: &mut [f64],
    ) = add_column_sums_here;

    /// `out = by[1] * dy - by[2] - (x - by[0]) * by[3]`, with numbers for each column: the mean, and factors of the cotangent, of 1 and of the
    /// distance from the mean.
    ///
    /// # Panics
    /// As [`normalise_rows`].
    pub fn input_grad_rows<T>(x: &[T], dy: &[T], out: &mut [T], by: [&[T]; 4]) = input_grad_rows_here;
} }

/// How long rows are, of so many elements in each operand.
fn width(lens: &[usize], numbers: &[usize]) -> usize {
    let width = numbers[0];
    assert!(
        numbers.iter().all(|n| *n == width)
            && lens.iter().all(|n| *n == lens[0])
            && (lens[0] == 0 || width > 0 && lens[0].is_multiple_of(width)),
        "normalise: {lens:?} elements in rows of {numbers:?}"
    );
    width.max(1)
}

fn normalise_rows_here<T: Real>(x: &[T], out: &mut [T], by: [&[T]; 3]) {
    let width = width(&[x.len(), out.len()], &by.map(<[T]>::len));
    vectorized(Rows { x, out, by, width });
}

fn add_column_sums_here<T: Real>(
    x: &[T],
    dy: &[T],
    mean: &[T],
    sums: &mut [f64],
    along: &mut [f64],
) {
    let width = width(&[x.len(), dy.len()], &[mean.len(), sums.len(), along.len()]);
    vectorized(Sums {
        x,
        dy,
        mean,
        totals: [sums, along],
        width,
    });
}

fn input_grad_rows_here<T: Real>(x: &[T], dy: &[T], out: &mut [T], by: [&[T]; 4]) {
    let width = width(&[x.len(), dy.len(), out.len()], &by.map(<[T]>::len));
    vectorized(InputGrad {
        x,
        dy,
        out,
        by,
        width,
    });
}

struct Rows<'a, T> {
    x: &'a [T],
    out: &'a mut [T],
    by: [&'a [T]; 3],
    width: usize,
}

impl<T: Real> WithSimd for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let [mean, gain, shift] = self.by;
        let rows = self.x.chunks_exact(self.width);
        for (x, out) in rows.zip(self.out.chunks_exact_mut(self.width)) {
            let by = mean.iter().zip(gain).zip(shift);
            for ((out, &x), ((&mean, &gain), &shift)) in out.iter_mut().zip(x).zip(by) {
                *out = (x - mean) * gain + shift;
            }
        }
    }
}

struct Sums<'a, T> {
    x: &'a [T],
    dy: &'a [T],
    mean: &'a [T],
    totals: [&'a mut [f64]; 2],
    width: usize,
}

impl<T: Real> WithSimd for Sums<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (width, [sums, along]) = (self.width, self.totals);
        let mut partial = vec![T::zero(); 2 * width];
        let (plain, times) = partial.split_at_mut(width);
        let blocks = self
            .x
            .chunks(ROWS * width)
            .zip(self.dy.chunks(ROWS * width));
        for (x, dy) in blocks {
            for (x, dy) in x.chunks_exact(width).zip(dy.chunks_exact(width)) {
                let of = x.iter().zip(dy).zip(self.mean);
                let to = plain.iter_mut().zip(times.iter_mut());
                for ((plain, times), ((&x, &dy), &mean)) in to.zip(of) {
                    *plain += dy;
                    *times += dy * (x - mean);
                }
            }
            for (totals, partial) in [(&mut *sums, &mut *plain), (&mut *along, &mut *times)] {
                for (total, part) in totals.iter_mut().zip(partial) {
                    *total += part.wide();
                    *part = T::zero();
                }
            }
        }
    }
}

struct InputGrad<'a, T> {
    x: &'a [T],
    dy: &'a [T],
    out: &'a mut [T],
    by: [&'a [T]; 4],
    width: usize,
}

impl<T: Real> WithSimd for InputGrad<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let [mean, of_dy, of_one, of_x] = self.by;
        let rows = (self.x.chunks_exact(self.width)).zip(self.dy.chunks_exact(self.width));
        for ((x, dy), out) in rows.zip(self.out.chunks_exact_mut(self.width)) {
            let by = mean.iter().zip(of_dy).zip(of_one.iter().zip(of_x));
            let of = x.iter().zip(dy).zip(by);
            for (out, ((&x, &dy), ((&mean, &of_dy), (&of_one, &of_x)))) in out.iter_mut().zip(of) {
                *out = of_dy * dy - of_one - (x - mean) * of_x;
            }
        }
    }
}
