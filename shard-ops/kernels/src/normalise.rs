//! Normalisation and its derivative: over one run of consecutive elements with common moments, and of cells and columns of such.

mod cells;
mod columns;
mod runs;

pub use self::cells::{
    CellGrad, WeightGrads, WholeCells, add_cell_grad, cell_grad, normalise_cells,
};
pub(crate) use self::cells::{CompiledCells, CompiledForward};
pub(crate) use self::columns::CompiledColumns;
pub use self::columns::{ROWS, add_column_sums, input_grad_rows, normalise_rows};
pub(crate) use self::runs::CompiledRuns;
pub use self::runs::{Runs, add_run_sums, input_grad_runs, normalise_runs};

use super::Real;
use super::pointwise::vectorized;
use super::reduce::{BLOCK, FEW, LANES, SHORT_RUN, sum_of_lanes};
use crate::compiled::compiled;
use pulp::{Simd, WithSimd};

/// A factor or summand of a run's elements.
#[derive(Clone, Copy, Debug)]
pub enum Along<'a, T> {
    /// One number for all elements.
    One(T),
    /// A number for each element.
    Each(&'a [T]),
}

/// The mean of a run's cell, and one over its standard deviation.
#[derive(Clone, Copy, Debug)]
pub struct Scale<T> {
    /// The mean.
    pub mean: T,
    /// One over the standard deviation.
    pub rstd: T,
}

impl<T: Real> Scale<T> {
    /// That of a cell with these (count, mean, sum of squared deviations), whose variance gets `eps` added.
    #[inline(always)]
    pub fn of([count, mean, m2]: [f64; 3], eps: f64) -> Self {
        Self {
            mean: T::of(mean),
            rstd: T::of(1.0 / (m2 / count + eps).sqrt()),
        }
    }
}

compiled! { trait Compiled for Real: f32 f64; {
    /// `out = (x - mean) * rstd * gain + shift`
    ///
    /// # Panics
    /// When a slice is shorter than `out`.
    pub fn normalise<T>(
        x: &[T],
        out: &mut [T],
        scale: Scale<T>,
        gain: Along<'_, T>,
        shift: Along<'_, T>,
    ) = normalise_here;

    /// Σ gain·dy and Σ gain·dy·x̂, with x̂ = (x - mean) * rstd.
    ///
    /// # Panics
    /// When a slice is shorter than `x`.
    pub fn cell_sums<T>(
        x: &[T],
        dy: &[T],
        scale: Scale<T>,
        gain: Along<'_, T>,
    ) -> (f64, f64) = cell_sums_here;

    /// `sums += dy`, `along += dy * x̂`, element by element.
    ///
    /// # Panics
    /// When a slice is shorter than `x`.
    pub fn add_weight_sums<T>(
        x: &[T],
        dy: &[T],
        scale: Scale<T>,
        sums: &mut [f64],
        along: &mut [f64],
    ) = add_weight_sums_here;

    /// `out = rstd * (gain * dy - a - x̂ * b)`, where `a` and `b` are the means of the sums that [`cell_sums`] gives.
    ///
    /// # Panics
    /// When a slice is shorter than `out`.
    pub fn input_grad<T>(
        x: &[T],
        dy: &[T],
        out: &mut [T],
        scale: Scale<T>,
        means: [T; 2],
        gain: Along<'_, T>,
    ) = input_grad_here;
} }

fn normalise_here<T: Real>(
    x: &[T],
    out: &mut [T],
    scale: Scale<T>,
    gain: Along<'_, T>,
    shift: Along<'_, T>,
) {
    let x = &x[..out.len()];
    vectorized(Normalised {
        x,
        out,
        scale,
        gain,
        shift,
    });
}

fn cell_sums_here<T: Real>(x: &[T], dy: &[T], scale: Scale<T>, gain: Along<'_, T>) -> (f64, f64) {
    let dy = &dy[..x.len()];
    vectorized(CellSums { x, dy, scale, gain })
}

fn add_weight_sums_here<T: Real>(
    x: &[T],
    dy: &[T],
    scale: Scale<T>,
    sums: &mut [f64],
    along: &mut [f64],
) {
    let n = x.len();
    vectorized(WeightSums {
        x,
        dy: &dy[..n],
        scale,
        sums: &mut sums[..n],
        along: &mut along[..n],
    });
}

fn input_grad_here<T: Real>(
    x: &[T],
    dy: &[T],
    out: &mut [T],
    scale: Scale<T>,
    means: [T; 2],
    gain: Along<'_, T>,
) {
    let n = out.len();
    vectorized(InputGrad {
        x: &x[..n],
        dy: &dy[..n],
        out,
        scale,
        means,
        gain,
    });
}

struct Normalised<'a, T> {
    x: &'a [T],
    out: &'a mut [T],
    scale: Scale<T>,
    gain: Along<'a, T>,
    shift: Along<'a, T>,
}

impl<T: Real> WithSimd for Normalised<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Scale { mean, rstd } = self.scale;
        let (x, out, n) = (self.x, self.out, self.x.len());
        match (self.gain, self.shift) {
            (Along::One(gain), Along::One(shift)) => {
                let gain = gain * rstd;
                each(out, x, x, |x, _| (x - mean) * gain + shift);
            }
            (Along::Each(gain), Along::One(shift)) => {
                each(out, x, &gain[..n], |x, g| (x - mean) * rstd * g + shift);
            }
            (Along::One(gain), Along::Each(shift)) => {
                each(out, x, &shift[..n], |x, s| (x - mean) * rstd * gain + s);
            }
            (Along::Each(gain), Along::Each(shift)) => {
                let operands = x.iter().zip(&gain[..n]).zip(&shift[..n]);
                for (out, ((&x, &gain), &shift)) in out.iter_mut().zip(operands) {
                    *out = (x - mean) * rstd * gain + shift;
                }
            }
        }
    }
}

struct CellSums<'a, T> {
    x: &'a [T],
    dy: &'a [T],
    scale: Scale<T>,
    gain: Along<'a, T>,
}

impl<T: Real> WithSimd for CellSums<'_, T> {
    type Output = (f64, f64);

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> (f64, f64) {
        let (x, dy, mean) = (self.x, self.dy, self.scale.mean);
        let (a, b) = match self.gain {
            Along::One(gain) => {
                let (a, b) = Sums {
                    x,
                    dy,
                    gain: dy,
                    f: |x: T, dy: T, _| (dy, dy * (x - mean)),
                }
                .with_simd(simd);
                (a * gain.wide(), b * gain.wide())
            }
            Along::Each(gain) => Sums {
                x,
                dy,
                gain: &gain[..x.len()],
                f: |x: T, dy: T, g: T| (g * dy, g * dy * (x - mean)),
            }
            .with_simd(simd),
        };
        (a, b * self.scale.rstd.wide())
    }
}

struct InputGrad<'a, T> {
    x: &'a [T],
    dy: &'a [T],
    out: &'a mut [T],
    scale: Scale<T>,
    means: [T; 2],
    gain: Along<'a, T>,
}

impl<T: Real> WithSimd for InputGrad<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (Scale { mean, rstd }, [a, b]) = (self.scale, self.means);
        let (x, dy, out) = (self.x, self.dy, self.out);
        match self.gain {
            Along::One(gain) => each(out, x, dy, |x, dy| {
                rstd * (gain * dy - a - (x - mean) * rstd * b)
            }),
            Along::Each(gain) => {
                let operands = x.iter().zip(dy).zip(&gain[..x.len()]);
                for (out, ((&x, &dy), &gain)) in out.iter_mut().zip(operands) {
                    *out = rstd * (gain * dy - a - (x - mean) * rstd * b);
                }
            }
        }
    }
}

/// Writes a function of two operands.
#[inline(always)]
fn each<T: Real>(out: &mut [T], p: &[T], q: &[T], f: impl Fn(T, T) -> T) {
    for ((out, &p), &q) in out.iter_mut().zip(p).zip(q) {
        *out = f(p, q);
    }
}

/// Sums two numbers per element: in lanes within blocks, and in f64 over blocks.
struct Sums<'a, T, F> {
    x: &'a [T],
    dy: &'a [T],
    gain: &'a [T],
    f: F,
}

impl<T: Real, F: Fn(T, T, T) -> (T, T)> WithSimd for Sums<'_, T, F> {
    type Output = (f64, f64);

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> (f64, f64) {
        let (mut total, mut along) = (0.0, 0.0);
        let blocks = (self.x.chunks(BLOCK))
            .zip(self.dy.chunks(BLOCK))
            .zip(self.gain.chunks(BLOCK));
        for ((x, dy), gain) in blocks {
            // To join many lanes takes longer than what few elements gain by them.
            let [sum, unit] = match x.len() {
                ..=SHORT_RUN => self.in_lanes::<S, FEW>(simd, [x, dy, gain]),
                _ => self.in_lanes::<S, LANES>(simd, [x, dy, gain]),
            };
            total += sum.wide();
            along += unit.wide();
        }
        (total, along)
    }
}

impl<T: Real, F: Fn(T, T, T) -> (T, T)> Sums<'_, T, F> {
    /// The sums of a block.
    #[inline(always)]
    fn in_lanes<S: Simd, const N: usize>(&self, simd: S, block: [&[T]; 3]) -> [T; 2] {
        let mut sums = [[T::zero(); N]; 2];
        let [(x, ends_x), (dy, ends_dy), (gain, ends_gain)] = block.map(pulp::as_arrays::<N, T>);
        for ((x, dy), gain) in x.iter().zip(dy).zip(gain) {
            self.join(&mut sums, [x, dy, gain]);
        }
        if !ends_x.is_empty() {
            // What fills up the lanes has no cotangent.
            let mut last = [[T::zero(); N]; 3];
            for (last, end) in last.iter_mut().zip([ends_x, ends_dy, ends_gain]) {
                last[..end.len()].copy_from_slice(end);
            }
            self.join(&mut sums, [&last[0], &last[1], &last[2]]);
        }
        [sum_of_lanes(simd, &sums[0]), sum_of_lanes(simd, &sums[1])]
    }

    #[inline(always)]
    fn join<const N: usize>(&self, sums: &mut [[T; N]; 2], [x, dy, gain]: [&[T; N]; 3]) {
        let [a, b] = sums;
        for l in 0..N {
            let (p, q) = (self.f)(x[l], dy[l], gain[l]);
            a[l] += p;
            b[l] += q;
        }
    }
}

struct WeightSums<'a, T, A> {
    x: &'a [T],
    dy: &'a [T],
    scale: Scale<T>,
    sums: &'a mut [A],
    along: &'a mut [A],
}

impl<T: Real, A: Real> WithSimd for WeightSums<'_, T, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Scale { mean, rstd } = self.scale;
        let to = self.sums.iter_mut().zip(self.along);
        for ((&x, &dy), (sum, along)) in self.x.iter().zip(self.dy).zip(to) {
            *sum += A::of(dy.wide());
            *along += A::of((dy * (x - mean) * rstd).wide());
        }
    }
}
