//! Sums over the coordinates of pairs of points: powers of what two rows differ by.

use super::{Real, View, ViewMut};
use crate::arrays::{each, numbered};
use crate::compiled::compiled;
use crate::pointwise::vectorized;
use crate::reduce::halve;
use core::ops::Range;
use pulp::{Simd, WithSimd};

/// What is summed over the coordinates of two points, for a power `p` above 0: `|a - b|^p`, and its derivative with respect to `a`,
/// which is 0 where the coordinates are equal.
trait Power<T> {
    fn of(&self, difference: T) -> T;
    fn slope(&self, difference: T) -> T;
}

struct One;
struct Two;
struct Any<T>(T);

impl<T: Real> Power<T> for One {
    #[inline(always)]
    fn of(&self, d: T) -> T {
        d.abs()
    }

    #[inline(always)]
    fn slope(&self, d: T) -> T {
        sign(d)
    }
}

impl<T: Real> Power<T> for Two {
    #[inline(always)]
    fn of(&self, d: T) -> T {
        d * d
    }

    #[inline(always)]
    fn slope(&self, d: T) -> T {
        d + d
    }
}

impl<T: Real> Power<T> for Any<T> {
    fn of(&self, d: T) -> T {
        d.abs().powf(self.0)
    }

    fn slope(&self, d: T) -> T {
        match d == T::zero() {
            true => d,
            false => sign(d) * self.0 * d.abs().powf(self.0 - T::one()),
        }
    }
}

/// NaN has none.
fn sign<T: Real>(d: T) -> T {
    if d > T::zero() {
        T::one()
    } else if d < T::zero() {
        -T::one()
    } else {
        d
    }
}

compiled! { trait Compiled for Real: f32 f64; {
    /// `out[.., i, j] = Σ_k |x[.., i, k] - y[.., j, k]|^p`. Leading dims of `x` and `y` broadcast to those of `out`.
    ///
    /// ```
    /// use shard_kernels::{pairwise::powers, View, ViewMut};
    /// let (x, y, mut out) = ([0.0, 0.0, 3.0, 4.0], [0.0, 4.0], [0.0; 2]);
    /// let to = &mut ViewMut::contiguous(&mut out, &[2, 1]);
    /// powers(&View::contiguous(&x, &[2, 2]), &View::contiguous(&y, &[1, 2]), 2.0, to);
    /// assert_eq!(out, [16.0, 9.0]);
    /// ```
    ///
    /// # Panics
    /// When the shapes contradict each other.
    pub fn powers<T>(
        x: &View<'_, T>,
        y: &View<'_, T>,
        p: f64,
        out: &mut ViewMut<'_, T>,
    ) = powers_here;

    /// The adjoint of [`powers`] with respect to `x`, for cotangents `g` of its results: `out[.., i, k] = Σ_j g[.., i, j] s` with the
    /// derivative `s` of `|x[.., i, k] - y[.., j, k]|^p`.
    ///
    /// # Panics
    /// When the shapes contradict each other.
    pub fn slopes<T>(
        x: &View<'_, T>,
        y: &View<'_, T>,
        g: &View<'_, T>,
        p: f64,
        out: &mut ViewMut<'_, T>,
    ) = slopes_here;
} }

fn powers_here<T: Real>(x: &View<'_, T>, y: &View<'_, T>, p: f64, out: &mut ViewMut<'_, T>) {
    match p {
        1.0 => powers_by(&One, x, y, out),
        2.0 => powers_by(&Two, x, y, out),
        p => powers_by(&Any(T::of(p)), x, y, out),
    }
}

fn slopes_here<T: Real>(
    x: &View<'_, T>,
    y: &View<'_, T>,
    g: &View<'_, T>,
    p: f64,
    out: &mut ViewMut<'_, T>,
) {
    match p {
        1.0 => slopes_by(&One, x, y, g, out),
        2.0 => slopes_by(&Two, x, y, g, out),
        p => slopes_by(&Any(T::of(p)), x, y, g, out),
    }
}

fn powers_by<T: Real>(
    power: &impl Power<T>,
    x: &View<'_, T>,
    y: &View<'_, T>,
    out: &mut ViewMut<'_, T>,
) {
    let (rows, columns) = (Rows::of(x, out.shape()), Rows::of(y, out.shape()));
    for_each_matrix(out, |batch, mut out| {
        let [count, width] = [out.shape()[0], out.shape()[1]];
        let (mut a, mut b) = (Vec::new(), Vec::new());
        let coordinates = x.shape().last().copied().unwrap_or(0);
        let mut points = Vec::with_capacity(count * coordinates);
        for i in 0..count {
            points.extend_from_slice(rows.row(x, batch, i, &mut a));
        }
        let mut panel = vec![T::zero(); coordinates * WIDE];
        let mut sums = [[T::zero(); WIDE]; POINTS];
        for first in (0..width).step_by(WIDE) {
            let here = WIDE.min(width - first);
            columns.turn(y, batch, first..first + here, &mut panel, &mut b);
            for block in (0..count).step_by(POINTS) {
                let some = POINTS.min(count - block);
                vectorized(PowerSums {
                    power,
                    // What is left over is the last point again.
                    points: numbered(|i| {
                        &points[(block + i.min(some - 1)) * coordinates..][..coordinates]
                    }),
                    panel: panel.as_chunks().0,
                    sums: &mut sums,
                });
                for (i, sums) in sums[..some].iter().enumerate() {
                    put_row(&mut out, [block + i, first], &sums[..here]);
                }
            }
        }
    });
}

/// Columns whose sums stay in registers.
const WIDE: usize = 64;

/// Points whose sums with them do.
const POINTS: usize = 4;

/// Sums over the coordinates of some points and of many, of which those of a coordinate lie side by side.
struct PowerSums<'a, T, P> {
    power: &'a P,
    points: [&'a [T]; POINTS],
    panel: &'a [[T; WIDE]],
    sums: &'a mut [[T; WIDE]; POINTS],
}

impl<T: Real, P: Power<T>> WithSimd for PowerSums<'_, T, P> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        // 32 registers hold the sums of all columns, 16 those of a few.
        match (S::F32_LANES, T::lanes::<S>()) {
            (16.., _) => self.by::<WIDE>(),
            (_, 8) => self.by::<{ WIDE / 4 }>(),
            _ => self.by::<{ WIDE / 8 }>(),
        }
    }
}

impl<T: Real, P: Power<T>> PowerSums<'_, T, P> {
    /// So many columns at a time.
    #[inline(always)]
    fn by<const SOME: usize>(self) {
        for part in 0..WIDE / SOME {
            let mut all = [[T::zero(); SOME]; POINTS];
            for (k, row) in self.panel.iter().enumerate() {
                let row = &pulp::as_arrays::<SOME, T>(row).0[part];
                for (sums, point) in all.iter_mut().zip(self.points) {
                    let a = point[k];
                    for (sum, b) in sums.iter_mut().zip(row) {
                        *sum += self.power.of(a - *b);
                    }
                }
            }
            for (to, sums) in self.sums.iter_mut().zip(all) {
                pulp::as_arrays_mut::<SOME, T>(to).0[part] = sums;
            }
        }
    }
}

fn slopes_by<T: Real>(
    power: &impl Power<T>,
    x: &View<'_, T>,
    y: &View<'_, T>,
    g: &View<'_, T>,
    out: &mut ViewMut<'_, T>,
) {
    let rows = Rows::of(x, out.shape());
    let columns = Rows::of(y, out.shape());
    let weights = Rows::of(g, out.shape());
    let coordinates = out.shape().last().copied().unwrap_or(0);
    let width = y.shape()[y.ndim() - 2];
    let mut turned = vec![T::zero(); coordinates * width];
    for_each_matrix(out, |batch, mut out| {
        let (mut a, mut b, mut w) = (Vec::new(), Vec::new(), Vec::new());
        columns.turn(y, batch, 0..width, &mut turned, &mut b);
        let mut sums = vec![T::zero(); coordinates];
        for i in 0..out.shape()[0] {
            vectorized(SlopeSums {
                power,
                point: rows.row(x, batch, i, &mut a),
                turned: &turned,
                weights: weights.row(g, batch, i, &mut w),
                sums: &mut sums,
            });
            put_row(&mut out, [i, 0], &sums);
        }
    });
}

/// The sums of slopes with respect to a point's coordinates, to those of all columns, with weights.
struct SlopeSums<'a, T, P> {
    power: &'a P,
    point: &'a [T],
    turned: &'a [T],
    weights: &'a [T],
    sums: &'a mut [T],
}

impl<T: Real, P: Power<T>> WithSimd for SlopeSums<'_, T, P> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        /// Coordinates whose sums stay in registers.
        const SOME: usize = 4;
        let width = self.weights.len();
        let (mut points, mut to) = (
            self.point.chunks_exact(SOME),
            self.sums.chunks_exact_mut(SOME),
        );
        let mut first = 0;
        for (point, to) in points.by_ref().zip(to.by_ref()) {
            let point: [T; SOME] = numbered(|i| point[i]);
            let others = numbered(|i| &self.turned[(first + i) * width..][..width]);
            to.copy_from_slice(&slope_sums(self.power, point, others, self.weights));
            first += SOME;
        }
        for (&a, to) in points.remainder().iter().zip(to.into_remainder()) {
            let others = [&self.turned[first * width..][..width]];
            [*to] = slope_sums(self.power, [a], others, self.weights);
            first += 1;
        }
    }
}

/// The sums of slopes with respect to a few coordinates. How many there are makes no difference to any.
#[inline(always)]
fn slope_sums<T: Real, const N: usize>(
    power: &impl Power<T>,
    point: [T; N],
    others: [&[T]; N],
    weights: &[T],
) -> [T; N] {
    /// Sums side by side, as many on each processor: the order of additions is the same.
    const SUMS: usize = 32;
    let (weights, rest_weights) = weights.as_chunks::<SUMS>();
    let (others, rest): ([_; N], [_; N]) = {
        let split = each(others, |others| others.as_chunks::<SUMS>());
        (
            each(split, |of| &of.0[..weights.len()]),
            each(split, |of| of.1),
        )
    };
    let mut sums = [[T::zero(); SUMS]; N];
    for (block, weights) in weights.iter().enumerate() {
        for ((sums, &a), others) in sums.iter_mut().zip(&point).zip(others) {
            for ((sum, w), b) in sums.iter_mut().zip(weights).zip(&others[block]) {
                *sum += *w * power.slope(a - *b);
            }
        }
    }
    for ((sums, &a), rest) in sums.iter_mut().zip(&point).zip(rest) {
        for ((sum, &b), &w) in sums.iter_mut().zip(rest).zip(rest_weights) {
            *sum += w * power.slope(a - b);
        }
    }
    each(sums, |sums| halve(sums, |a, b| a + b))
}

/// Where the rows of matrices lie whose leading dims broadcast.
struct Rows {
    batch: Vec<isize>,
    step: isize,
    along: isize,
    n: usize,
}

impl Rows {
    fn of<T>(view: &View<'_, T>, to: &[usize]) -> Self {
        let (own, lead) = (view.ndim() - 2, to.len() - 2);
        let first = lead - own;
        let step = |d: usize| match d.checked_sub(first) {
            Some(d) if view.shape()[d] == to[first + d] => view.strides()[d],
            _ => 0,
        };
        Self {
            batch: (0..lead).map(step).collect(),
            step: view.strides()[own],
            along: view.strides()[own + 1],
            n: view.shape()[own + 1],
        }
    }

    /// A row, in place or copied side by side.
    fn row<'a, T: Real>(
        &self,
        view: &View<'a, T>,
        batch: &[usize],
        row: usize,
        copy: &'a mut Vec<T>,
    ) -> &'a [T] {
        let lead = batch.iter().zip(&self.batch);
        let lead: isize = lead.map(|(&i, &step)| i as isize * step).sum();
        let start = view.offset() as isize + lead + row as isize * self.step;
        if self.n == 0 {
            return &[];
        }
        if self.along == 1 || self.n == 1 {
            return &view.data()[start as usize..start as usize + self.n];
        }
        copy.clear();
        copy.extend((0..self.n).map(|k| view.data()[(start + k as isize * self.along) as usize]));
        copy
    }
}

impl Rows {
    /// Some rows coordinate by coordinate: the numbers that one coordinate has in all rows lie side by side.
    fn turn<T: Real>(
        &self,
        view: &View<'_, T>,
        batch: &[usize],
        some: Range<usize>,
        to: &mut [T],
        copy: &mut Vec<T>,
    ) {
        let width = to.len().checked_div(self.n).unwrap_or(0);
        for (j, row) in some.enumerate() {
            for (k, &b) in self.row(view, batch, row, copy).iter().enumerate() {
                to[k * width + j] = b;
            }
        }
    }
}

/// Visits the matrices of a view: the indices of its leading dims, and the last two dims.
fn for_each_matrix<T: Real>(
    out: &mut ViewMut<'_, T>,
    mut visit: impl FnMut(&[usize], ViewMut<'_, T>),
) {
    let (shape, strides, offset) = out.geometry();
    let lead = shape.len() - 2;
    if shape.contains(&0) {
        return;
    }
    let mut batch = vec![0; lead];
    for number in 0..shape[..lead].iter().product() {
        let (mut rest, mut at): (usize, isize) = (number, offset as isize);
        for d in (0..lead).rev() {
            batch[d] = rest % shape[d];
            rest /= shape[d];
            at += batch[d] as isize * strides[d];
        }
        let matrix = ViewMut::new(
            out.data_mut(),
            at as usize,
            &shape[lead..],
            &strides[lead..],
        );
        visit(&batch, matrix);
    }
}

/// Writes numbers of a row side by side.
fn put_row<T: Real>(out: &mut ViewMut<'_, T>, [i, j]: [usize; 2], values: &[T]) {
    let (down, across) = (out.strides()[0], out.strides()[1]);
    let at = out.offset() as isize + i as isize * down + j as isize * across;
    let data = out.data_mut();
    if across == 1 && !values.is_empty() {
        return data[at as usize..][..values.len()].copy_from_slice(values);
    }
    for (k, &value) in values.iter().enumerate() {
        data[(at + k as isize * across) as usize] = value;
    }
}
