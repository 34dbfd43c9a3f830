//! Normalisation of channels, run by run: many short ones by one call.

use super::{Along, CellSums, InputGrad, Normalised, Scale};
use crate::Real;
use crate::compiled::compiled;
use crate::pointwise::vectorized;
use pulp::{Simd, WithSimd};

/// Runs one after another, each of a channel; behind those of the last one come those of the first again.
#[derive(Clone, Copy, Debug)]
pub struct Runs<'a, T> {
    /// Elements of a run.
    pub len: usize,
    /// Runs that come before these.
    pub before: usize,
    /// The scale of each channel.
    pub scales: &'a [Scale<T>],
    /// The factor of each channel, if there is one.
    pub gain: Option<&'a [T]>,
}

compiled! { trait CompiledRuns for Real: f32 f64; {
    /// `out = (x - mean) * rstd * gain + shift`, with numbers of each channel.
    ///
    /// ```
    /// use shard_kernels::normalise::{Runs, Scale, normalise_runs};
    /// let scales = [Scale { mean: 2.0, rstd: 1.0 }, Scale { mean: 15.0, rstd: 0.2 }];
    /// let runs = Runs { len: 2, before: 0, scales: &scales, gain: None };
    /// let mut out = [0.0f32; 4];
    /// normalise_runs(&[1.0, 3.0, 10.0, 20.0], &mut out, runs, Some(&[0.0, 1.0]));
    /// assert_eq!(out, [-1.0, 1.0, 0.0, 2.0]);
    /// ```
    ///
    /// # Panics
    /// When operands are not equally many whole runs, or there are not as many numbers of a kind as channels.
    pub fn normalise_runs<T>(x: &[T], out: &mut [T], runs: Runs<'_, T>, shift: Option<&[T]>) = normalise_runs_here;

    /// Adds to the two sums of each channel what [`cell_sums`](super::cell_sums) gives of its runs.
    ///
    /// # Panics
    /// As [`normalise_runs`].
    pub fn add_run_sums<T>(x: &[T], dy: &[T], runs: Runs<'_, T>, sums: &mut [[f64; 2]]) = add_run_sums_here;

    /// As [`input_grad`](super::input_grad), with two means of each channel.
    ///
    /// # Panics
    /// As [`normalise_runs`].
    pub fn input_grad_runs<T>(
        x: &[T],
        dy: &[T],
        out: &mut [T],
        runs: Runs<'_, T>,
        means: &[[T; 2]],
    ) = input_grad_runs_here;
} }

impl<T: Real> Runs<'_, T> {
    fn check(&self, lens: &[usize], numbers: &[Option<usize>]) {
        let (all, channels) = (lens[0], self.scales.len());
        let gain = self.gain.map(<[T]>::len);
        let fits = |n: &usize| *n == channels;
        assert!(
            lens.iter().all(|n| *n == all)
                && (all == 0 || channels > 0 && self.len > 0 && all.is_multiple_of(self.len))
                && numbers.iter().chain([&gain]).flatten().all(fits),
            "normalise: {lens:?} elements in runs of {}, of {channels} channels with {numbers:?} numbers",
            self.len
        );
    }

    /// Where the channel of a run is found.
    #[inline(always)]
    fn channels(&self) -> impl Iterator<Item = usize> {
        let channels = self.scales.len();
        let first = self.before % channels.max(1);
        (first..channels).chain((0..channels).cycle())
    }

    #[inline(always)]
    fn factor(&self, channel: usize) -> Along<'static, T> {
        Along::One(self.gain.map_or(T::one(), |gain| gain[channel]))
    }
}

fn normalise_runs_here<T: Real>(x: &[T], out: &mut [T], runs: Runs<'_, T>, shift: Option<&[T]>) {
    runs.check(&[x.len(), out.len()], &[shift.map(<[T]>::len)]);
    vectorized(Forward {
        x,
        out,
        runs,
        shift,
    });
}

fn add_run_sums_here<T: Real>(x: &[T], dy: &[T], runs: Runs<'_, T>, sums: &mut [[f64; 2]]) {
    runs.check(&[x.len(), dy.len()], &[Some(sums.len())]);
    vectorized(Sums { x, dy, runs, sums });
}

fn input_grad_runs_here<T: Real>(
    x: &[T],
    dy: &[T],
    out: &mut [T],
    runs: Runs<'_, T>,
    means: &[[T; 2]],
) {
    runs.check(&[x.len(), dy.len(), out.len()], &[Some(means.len())]);
    vectorized(Backward {
        x,
        dy,
        out,
        runs,
        means,
    });
}

struct Forward<'a, T> {
    x: &'a [T],
    out: &'a mut [T],
    runs: Runs<'a, T>,
    shift: Option<&'a [T]>,
}

impl<T: Real> WithSimd for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (runs, len) = (self.runs, self.runs.len.max(1));
        let all = self.x.chunks_exact(len).zip(self.out.chunks_exact_mut(len));
        for ((x, out), c) in all.zip(runs.channels()) {
            Normalised {
                x,
                out,
                scale: runs.scales[c],
                gain: runs.factor(c),
                shift: Along::One(self.shift.map_or(T::zero(), |shift| shift[c])),
            }
            .with_simd(simd);
        }
    }
}

struct Sums<'a, T> {
    x: &'a [T],
    dy: &'a [T],
    runs: Runs<'a, T>,
    sums: &'a mut [[f64; 2]],
}

impl<T: Real> WithSimd for Sums<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (runs, len) = (self.runs, self.runs.len.max(1));
        let all = self.x.chunks_exact(len).zip(self.dy.chunks_exact(len));
        for ((x, dy), c) in all.zip(runs.channels()) {
            let (a, b) = CellSums {
                x,
                dy,
                scale: runs.scales[c],
                gain: runs.factor(c),
            }
            .with_simd(simd);
            self.sums[c][0] += a;
            self.sums[c][1] += b;
        }
    }
}

struct Backward<'a, T> {
    x: &'a [T],
    dy: &'a [T],
    out: &'a mut [T],
    runs: Runs<'a, T>,
    means: &'a [[T; 2]],
}

impl<T: Real> WithSimd for Backward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (runs, len) = (self.runs, self.runs.len.max(1));
        let of = self.x.chunks_exact(len).zip(self.dy.chunks_exact(len));
        let all = of.zip(self.out.chunks_exact_mut(len));
        for (((x, dy), out), c) in all.zip(runs.channels()) {
            InputGrad {
                x,
                dy,
                out,
                scale: runs.scales[c],
                means: self.means[c],
                gain: runs.factor(c),
            }
            .with_simd(simd);
        }
    }
}
