//! Normalisation of cells that are short enough to stay in a cache from their statistics to their last value: each is read from
//! memory once. So is its derivative, with the sums of weights.

use super::{Along, CellSums, InputGrad, Normalised, Scale, WeightSums};
use crate::Real;
use crate::compiled::compiled;
use crate::moments::{about_zero, of_run};
use crate::pointwise::vectorized;
use crate::prefetch::{AHEAD, next_rows};
use pulp::{Simd, WithSimd};

/// Rows whose sums of weights are taken in the element type before they join those in double precision.
const ROWS: usize = 16;

/// Cells one after another, each of as many runs of consecutive elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WholeCells {
    /// Cells that come before these, whose runs have had weights in turn.
    pub before: usize,
    /// Runs of a cell.
    pub runs: usize,
    /// Elements of a run.
    pub len: usize,
    /// Whether the elements of a run have a weight each, the same for all runs; otherwise a run has one, and run `r` number `r`
    /// modulo the number of weights.
    pub by_element: bool,
    /// Whether a cell is divided by the root of its mean square, and no mean is taken off.
    pub about_zero: bool,
    /// What is added to the variance or to the mean square.
    pub eps: f64,
}

impl WholeCells {
    fn cell(&self) -> usize {
        self.runs * self.len
    }

    /// The weights of a run, or `missing`.
    #[inline(always)]
    fn along<'a, T: Real>(&self, all: Option<&'a [T]>, run: usize, missing: f64) -> Along<'a, T> {
        match all {
            None => Along::One(T::of(missing)),
            Some(all) if self.by_element => Along::Each(all),
            Some(all) => Along::One(all[run % all.len()]),
        }
    }

    fn check(&self, lens: &[usize], weights: &[Option<usize>]) {
        let (all, cell) = (lens[0], self.cell());
        let fits = |n: &usize| match self.by_element {
            true => self.runs == 1 && *n == self.len,
            false => *n > 0,
        };
        assert!(
            lens.iter().all(|n| *n == all) && (all == 0 || all.is_multiple_of(cell)),
            "normalise: {lens:?} elements in cells of {cell}"
        );
        assert!(
            all == 0 || weights.iter().flatten().all(fits),
            "normalise: weights {weights:?} of {self:?}"
        );
    }
}

compiled! { trait CompiledForward for Real: f32 f64; {
    /// `(x - mean) * rstd * gain + shift` by the statistics of every cell, which are written to `stats`: (count, mean, sum of
    /// squared deviations), or about zero (count, 0, sum of squares). `affine` is the gain and the shift.
    ///
    /// # Panics
    /// When the lengths are not those of whole cells, or weights not those of [`WholeCells`].
    pub fn normalise_cells<T>(
        cells: WholeCells,
        x: &[T],
        affine: [Option<&[T]>; 2],
        out: &mut [T],
        stats: &mut [f64],
    ) = normalise_cells_here;
} }

fn normalise_cells_here<T: Real>(
    cells: WholeCells,
    x: &[T],
    affine: [Option<&[T]>; 2],
    out: &mut [T],
    stats: &mut [f64],
) {
    cells.check(&[x.len(), out.len()], &affine.map(|w| w.map(<[T]>::len)));
    if cells.cell() == 0 {
        return stats.fill(0.0);
    }
    assert!(
        stats.len() * cells.cell() == 3 * x.len(),
        "normalise: {} numbers for {} elements of {cells:?}",
        stats.len(),
        x.len()
    );
    vectorized(Forward {
        cells,
        x,
        affine,
        out,
        stats,
    });
}

struct Forward<'a, T> {
    cells: WholeCells,
    x: &'a [T],
    affine: [Option<&'a [T]>; 2],
    out: &'a mut [T],
    stats: &'a mut [f64],
}

impl<T: Real> WithSimd for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.run(simd);
    }
}

impl<T: Real> Forward<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (cells, [gain, shift]) = (self.cells, self.affine);
        let (cell, len) = (cells.cell(), cells.len);
        let all = (self.x.chunks_exact(cell))
            .zip(self.out.chunks_exact_mut(cell))
            .zip(pulp::as_arrays_mut::<3, f64>(self.stats).0);
        for (c, ((x, out), to)) in (cells.before..).zip(all) {
            next_rows(x, AHEAD, cell);
            let found = of_run(simd, x);
            let has_nan = || x.iter().any(|x| x.is_nan());
            *to = match cells.about_zero {
                true => [found[0], 0.0, about_zero(found, has_nan)],
                false => found,
            };
            next_rows(&*out, AHEAD, cell);
            let scale = Scale::of(*to, cells.eps);
            let runs = x.chunks_exact(len).zip(out.chunks_exact_mut(len));
            for (r, (x, out)) in runs.enumerate() {
                let run = c * cells.runs + r;
                Normalised {
                    x,
                    out,
                    scale,
                    gain: cells.along(gain, run, 1.0),
                    shift: cells.along(shift, run, 0.0),
                }
                .with_simd(simd);
            }
        }
    }
}

/// What the derivative of [`normalise_cells`] is computed from, and where to.
#[derive(Debug)]
pub struct CellGrad<'a, T> {
    /// The elements that were normalised.
    pub x: &'a [T],
    /// The statistics that were found.
    pub stats: &'a [f64],
    /// The cotangent.
    pub dy: &'a [T],
    /// The factors, if there are any.
    pub gain: Option<&'a [T]>,
    /// The cotangent of `x`.
    pub dx: &'a mut [T],
    /// Cotangents of factors and summands, if these are wanted.
    pub weights: Option<[&'a mut [T]; 2]>,
}

/// Sums of weights' cotangents over cells, of which some come after others.
#[derive(Debug)]
pub struct WeightGrads<T> {
    /// Of weights of elements: those along the normalised elements and plain ones, over few rows.
    partial: Vec<T>,
    /// How many those are.
    pending: usize,
    /// Along the normalised elements, and plain.
    totals: [Vec<f64>; 2],
}

impl<T: Real> WeightGrads<T> {
    /// Of no cells so far, for so many weights; with none no sums are taken.
    pub fn new(cells: WholeCells, weights: usize) -> Self {
        let partial = if cells.by_element { 2 * weights } else { 0 };
        Self {
            partial: vec![T::zero(); partial],
            pending: 0,
            totals: [(); 2].map(|()| vec![0.0; weights]),
        }
    }

    /// The sums along the normalised elements, and plain ones.
    pub fn totals(mut self) -> [Vec<f64>; 2] {
        self.join();
        self.totals
    }

    /// Adds what few rows came to, which start anew.
    #[inline(always)]
    fn join(&mut self) {
        if self.pending > 0 {
            let parts = self.partial.chunks_mut(self.totals[0].len());
            for (totals, parts) in self.totals.iter_mut().zip(parts) {
                for (total, part) in totals.iter_mut().zip(parts) {
                    *total += part.wide();
                    *part = T::zero();
                }
            }
            self.pending = 0;
        }
    }
}

compiled! { trait CompiledCells for Real: f32 f64; {
    /// `rstd * (gain * dy - a - x̂ * b)` with the means `a` and `b` of `gain * dy` and `gain * dy * x̂` over a cell, `a` being 0 about
    /// zero; and the sums of `dy * x̂` and `dy` of every weight.
    ///
    /// # Panics
    /// As [`normalise_cells`].
    pub fn cell_grad<T>(cells: WholeCells, grad: CellGrad<'_, T>) = cell_grad_here;

    /// [`cell_grad`] of some cells, whose sums of weights join those of others; `weights` of `grad` are none.
    ///
    /// # Panics
    /// As [`normalise_cells`].
    pub fn add_cell_grad<T>(
        cells: WholeCells,
        grad: CellGrad<'_, T>,
        sums: &mut WeightGrads<T>,
    ) = add_cell_grad_here;
} }

fn cell_grad_here<T: Real>(cells: WholeCells, mut grad: CellGrad<'_, T>) {
    let weights = grad.weights.take();
    let lens = weights
        .as_ref()
        .map(|[units, sums]| [units.len(), sums.len()]);
    let [units, sums] = lens.unwrap_or([0; 2]);
    assert!(
        units == sums,
        "normalise: sums of {units:?} and {sums:?} weights"
    );
    let mut found = WeightGrads::new(cells, units);
    add_cell_grad(cells, grad, &mut found);
    for (to, totals) in weights.into_iter().flatten().zip(found.totals()) {
        for (to, total) in to.iter_mut().zip(totals) {
            *to = T::of(total);
        }
    }
}

fn add_cell_grad_here<T: Real>(
    cells: WholeCells,
    grad: CellGrad<'_, T>,
    weights: &mut WeightGrads<T>,
) {
    let CellGrad {
        x,
        stats,
        dy,
        gain,
        dx,
        weights: _,
    } = grad;
    let count = weights.totals[0].len();
    cells.check(
        &[x.len(), dy.len(), dx.len()],
        &[gain.map(<[T]>::len), (count > 0).then_some(count)],
    );
    if x.is_empty() {
        return;
    }
    assert!(
        stats.len() * cells.cell() == 3 * x.len(),
        "normalise: statistics of {cells:?}"
    );
    vectorized(Backward {
        cells,
        x,
        stats,
        dy,
        gain,
        dx,
        weights,
    });
}

struct Backward<'a, T> {
    cells: WholeCells,
    x: &'a [T],
    stats: &'a [f64],
    dy: &'a [T],
    gain: Option<&'a [T]>,
    dx: &'a mut [T],
    weights: &'a mut WeightGrads<T>,
}

impl<T: Real> WithSimd for Backward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.run(simd);
    }
}

impl<T: Real> Backward<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (cells, weights) = (self.cells, self.weights);
        let (cell, len) = (cells.cell(), cells.len);
        let count = weights.totals[0].len();
        let all = (self.x.chunks_exact(cell))
            .zip(self.dy.chunks_exact(cell))
            .zip(self.dx.chunks_exact_mut(cell))
            .zip(pulp::as_arrays::<3, f64>(self.stats).0);
        for (c, (((x, dy), dx), state)) in (cells.before..).zip(all) {
            next_rows(x, AHEAD, cell);
            let first = c * cells.runs;
            let scale = Scale::of(*state, cells.eps);
            let mut found = [0.0; 2];
            let runs = || x.chunks_exact(len).zip(dy.chunks_exact(len)).enumerate();
            for (r, (x, dy)) in runs() {
                let gain = cells.along(self.gain, first + r, 1.0);
                let (a, b) = if cells.by_element || count == 0 {
                    CellSums { x, dy, scale, gain }.with_simd(simd)
                } else {
                    let one = Along::One(T::one());
                    let all = CellSums {
                        x,
                        dy,
                        scale,
                        gain: one,
                    };
                    let (sum, unit) = all.with_simd(simd);
                    let weight = (first + r) % count;
                    let [units, sums] = &mut weights.totals;
                    units[weight] += unit;
                    sums[weight] += sum;
                    let gain = self.gain.map_or(1.0, |gain| gain[weight].wide());
                    (gain * sum, gain * unit)
                };
                found[0] += if cells.about_zero { 0.0 } else { a };
                found[1] += b;
            }
            next_rows(dy, AHEAD, cell);
            // The last run first: a cache may hold it still.
            for ((r, (x, dy)), out) in runs().zip(dx.chunks_exact_mut(len)).rev() {
                let ([a, b], count) = (found, state[0]);
                InputGrad {
                    x,
                    dy,
                    out,
                    scale,
                    means: [T::of(a / count), T::of(b / count)],
                    gain: cells.along(self.gain, first + r, 1.0),
                }
                .with_simd(simd);
            }
            next_rows(&*dx, AHEAD, cell);
            if cells.by_element && count > 0 {
                let (along, plain) = weights.partial.split_at_mut(len);
                for (_, (x, dy)) in runs() {
                    WeightSums {
                        x,
                        dy,
                        scale,
                        sums: &mut *plain,
                        along: &mut *along,
                    }
                    .with_simd(simd);
                }
                weights.pending += 1;
                if weights.pending >= ROWS {
                    weights.join();
                }
            }
        }
    }
}
