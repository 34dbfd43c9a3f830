//! Sampling at coordinates: which elements each place reads, and with what weights, by PyTorch's rules.
//!
//! A coordinate runs from -1 to 1 over a dim, or counts elements. Along each dim a place reads up to four indices, its *taps*; over several dims it reads
//! their product, row-major. Coordinates are computed in f64.

use super::Real;
use crate::arrays::{each, numbered};
use crate::compiled::compiled;
use crate::pointwise::vectorized;
use pulp::{Simd, WithSimd};

/// How elements around a coordinate are weighed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SampleMode {
    /// The nearest element; of two the one with the even index.
    Nearest,
    /// Linearly between two along each dim.
    #[default]
    Linear,
    /// A cubic through four along each dim.
    Cubic,
}

/// What lies beyond the ends of a dim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SampleEdge {
    /// Zeros.
    #[default]
    Zeros,
    /// The last element.
    Border,
    /// The dim, reflected.
    Reflection,
}

/// How coordinates are sampled. Linearly, with zeros beyond outer edges at -1 and 1, by default, which is PyTorch's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sampling {
    /// The weights.
    pub mode: SampleMode,
    /// What lies beyond.
    pub edge: SampleEdge,
    /// Whether -1 and 1 are the centres of the first and last elements, and not their outer edges.
    pub aligned: bool,
}

/// What coordinates say, and how they are sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reading {
    /// How.
    pub sampling: Sampling,
    /// Whether coordinates are elements, from the centre of the first on, and do not run from -1 to 1.
    pub in_elements: bool,
}

impl From<Sampling> for Reading {
    fn from(sampling: Sampling) -> Self {
        Self {
            sampling,
            in_elements: false,
        }
    }
}

/// What a coordinate reads along one dim.
#[derive(Clone, Copy, Debug, Default)]
pub struct DimTaps {
    /// The indices; those beyond the dim read zeros.
    pub index: [Option<usize>; 4],
    /// The weights.
    pub weight: [f64; 4],
    /// How the weights grow with the coordinate.
    pub slope: [f64; 4],
}

impl SampleMode {
    /// How many indices a coordinate reads along a dim.
    pub const fn taps(self) -> usize {
        match self {
            Self::Nearest => 1,
            Self::Linear => 2,
            Self::Cubic => 4,
        }
    }
}

impl Reading {
    /// The element that a coordinate is at, of `n`, and how many elements a coordinate is.
    #[inline(always)]
    fn element(self, coordinate: f64, n: f64) -> (f64, f64) {
        match (self.in_elements, self.sampling.aligned) {
            (true, _) => (coordinate, 1.0),
            (false, true) => ((coordinate + 1.0) / 2.0 * (n - 1.0), (n - 1.0) / 2.0),
            (false, false) => (((coordinate + 1.0) * n - 1.0) / 2.0, n / 2.0),
        }
    }

    /// What a coordinate reads along a dim of `extent`: nothing, if it is NaN, or infinite without a border.
    #[inline(always)]
    pub fn taps(self, coordinate: f64, extent: usize) -> DimTaps {
        let n = extent as f64;
        let (at, per) = self.element(coordinate, n);
        self.sampling.taps_at(at, per, extent)
    }

    /// How the indices that a coordinate reads along a dim of `extent` are weighed, differentiated so many times by the coordinate. Where two
    /// pieces meet, a derivative is that of the one that the weights are of.
    #[inline(always)]
    pub fn weights_after(self, coordinate: f64, extent: usize, order: u8) -> [f64; 4] {
        let taps = self.taps(coordinate, extent);
        let n = extent as f64;
        let (at, per) = self.element(coordinate, n);
        let at = self.sampling.within_reach(at, n);
        match order {
            0 => taps.weight,
            1 => taps.slope,
            2 | 3 if self.sampling.mode == SampleMode::Cubic && at.is_finite() && extent > 0 => {
                numbered(|k| {
                    let (bend, twist) = keys_bends(k as f64 - 1.0 - (at - at.floor()));
                    match order {
                        2 => bend * per * per,
                        _ => -twist * per * per * per,
                    }
                })
            }
            _ => [0.0; 4],
        }
    }
}

impl Sampling {
    /// What is read at an element of a dim of `extent`, where a coordinate is so many.
    #[inline(always)]
    fn taps_at(self, at: f64, per: f64, extent: usize) -> DimTaps {
        let mut taps = DimTaps::default();
        let n = extent as f64;
        let at = self.within_reach(at, n);
        if !at.is_finite() || extent == 0 {
            return taps;
        }
        let inside = |i: f64| (i >= 0.0 && i < n).then_some(i as usize);
        if self.mode == SampleMode::Cubic {
            let first = at.floor();
            for k in 0..4 {
                let apart = k as f64 - 1.0 - (at - first);
                let (weight, slope) = keys_cubic(apart);
                taps.index[k] = inside(self.at_edge(first + k as f64 - 1.0, n).0);
                taps.weight[k] = weight;
                taps.slope[k] = -slope * per;
            }
            return taps;
        }
        let (at, turned) = self.at_edge(at, n);
        if self.mode == SampleMode::Nearest {
            taps.index[0] = inside(at.round_ties_even());
            taps.weight[0] = 1.0;
            return taps;
        }
        let (first, per) = (at.floor(), per * turned);
        taps.index = [inside(first), inside(first + 1.0), None, None];
        taps.weight = [first + 1.0 - at, at - first, 0.0, 0.0];
        taps.slope = [-per, per, 0.0, 0.0];
        taps
    }

    /// A position, as far from a border as matters.
    #[inline(always)]
    fn within_reach(self, at: f64, n: f64) -> f64 {
        match self.edge {
            SampleEdge::Border if at < -4.0 => -4.0,
            SampleEdge::Border if at > n + 4.0 => n + 4.0,
            _ => at,
        }
    }

    /// Where a position comes to lie that is beyond the ends, and how fast it moves there.
    #[inline(always)]
    fn at_edge(self, at: f64, n: f64) -> (f64, f64) {
        let clip = |at: f64, per: f64| match at {
            at if at <= 0.0 => (0.0, 0.0),
            at if at >= n - 1.0 => (n - 1.0, 0.0),
            at => (at, per),
        };
        match self.edge {
            SampleEdge::Zeros => (at, 1.0),
            SampleEdge::Border => clip(at, 1.0),
            SampleEdge::Reflection => {
                let (low, span) = match self.aligned {
                    true => (0.0, n - 1.0),
                    false => (-0.5, n),
                };
                if span == 0.0 {
                    return (0.0, 0.0);
                }
                let from = at - low;
                let per = if from < 0.0 { -1.0 } else { 1.0 };
                let from = from.abs();
                let (rest, flips) = (from % span, (from / span).floor());
                match flips % 2.0 == 0.0 {
                    true => clip(rest + low, per),
                    false => clip(span - rest + low, -per),
                }
            }
        }
    }
}

/// The cubic convolution kernel of Keys (1981) with a slope of -0.75 at 1, and its derivative.
fn keys_cubic(x: f64) -> (f64, f64) {
    const A: f64 = -0.75;
    let (sign, x) = (x.signum(), x.abs());
    let (value, slope) = if x <= 1.0 {
        (
            ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
            (3.0 * (A + 2.0) * x - 2.0 * (A + 3.0)) * x,
        )
    } else if x < 2.0 {
        (
            ((x - 5.0) * x + 8.0) * x * A - 4.0 * A,
            ((3.0 * x - 10.0) * x + 8.0) * A,
        )
    } else {
        (0.0, 0.0)
    };
    (value, sign * slope)
}

/// The second and third derivative of [`keys_cubic`].
fn keys_bends(x: f64) -> (f64, f64) {
    const A: f64 = -0.75;
    let (sign, x) = (x.signum(), x.abs());
    let (bend, twist) = if x <= 1.0 {
        (6.0 * (A + 2.0) * x - 2.0 * (A + 3.0), 6.0 * (A + 2.0))
    } else if x < 2.0 {
        ((6.0 * x - 10.0) * A, 6.0 * A)
    } else {
        (0.0, 0.0)
    };
    (bend, sign * twist)
}

/// The product of a place's taps over the dims of a plane, of which there are `N`.
struct Product<'a, const N: usize> {
    taps: [DimTaps; 3],
    each: usize,
    plane: &'a [usize],
}

impl<'a, const N: usize> Product<'a, N> {
    /// Of coordinates, the last dim's first.
    #[inline(always)]
    fn new<T: Real>(reading: Reading, plane: &'a [usize], at: &[T]) -> Self {
        let mut taps = [DimTaps::default(); 3];
        for (d, &n) in plane.iter().enumerate() {
            taps[d] = reading.taps(at[plane.len() - 1 - d].wide(), n);
        }
        Self {
            taps,
            each: reading.sampling.mode.taps(),
            plane,
        }
    }

    /// The flat index in the plane of each product, or `absent` where a tap lies outside.
    #[inline(always)]
    fn flat(&self, absent: i64) -> [i64; N] {
        let flat = self.each_product(Some(0), |flat, d, tap| {
            Some(flat? * self.plane[d] + self.taps[d].index[tap]?)
        });
        flat.map(|at| at.map_or(absent, |at| at as i64))
    }

    #[inline(always)]
    fn weights(&self) -> [f64; N] {
        self.each_product(1.0, |weight, d, tap| weight * self.taps[d].weight[tap])
    }

    /// How the weights grow with dim `along`'s coordinate.
    #[inline(always)]
    fn slopes(&self, along: usize) -> [f64; N] {
        self.each_product(1.0, |slope, d, tap| {
            let taps = &self.taps[d];
            slope
                * if d == along {
                    taps.slope[tap]
                } else {
                    taps.weight[tap]
                }
        })
    }

    /// What comes of `start` when one dim's tap after the other is joined to it, of every product: the last dim's taps change first.
    #[inline(always)]
    fn each_product<V: Copy>(&self, start: V, join: impl Fn(V, usize, usize) -> V) -> [V; N] {
        let (mut of, mut count) = ([start; N], 1);
        for d in 0..self.plane.len() {
            // From the last one on, so that none is written before it was read.
            for k in (0..count).rev() {
                let before = of[k];
                for tap in 0..self.each {
                    of[k * self.each + tap] = join(before, d, tap);
                }
            }
            count *= self.each;
        }
        of
    }
}

compiled! { trait Compiled for Real: f32 f64; {
    /// For every place, whose coordinates are a row of `grid`, the flat indices in a plane that it reads, `absent` for none, and their weights.
    ///
    /// ```
    /// use shard_kernels::grid::{SampleEdge, SampleMode, Sampling, taps};
    /// let linear = Sampling { mode: SampleMode::Linear, edge: SampleEdge::Zeros, aligned: true };
    /// let (mut weight, mut index) = ([0.0f32; 2], [0; 2]);
    /// taps(linear.into(), &[5], -1, &[0.25f32], &mut weight, &mut index);
    /// assert_eq!((weight, index), ([0.5, 0.5], [2, 3]));
    /// ```
    ///
    /// # Panics
    /// When the slices do not hold as many places, or the plane has not one to three dims.
    pub fn taps<T>(
        reading: Reading,
        plane: &[usize],
        absent: i64,
        grid: &[T],
        weight: &mut [T],
        index: &mut [i64],
    ) = taps_here;

    /// The gradient of coordinates from that of the weights of [`taps`].
    ///
    /// # Panics
    /// As [`taps`].
    pub fn taps_grad<T>(
        reading: Reading,
        plane: &[usize],
        grid: &[T],
        dweight: &[T],
        dgrid: &mut [T],
    ) = taps_grad_here;

    /// The weights of [`taps`], differentiated by the coordinate of each dim of the plane as often as `orders` says.
    ///
    /// ```
    /// use shard_kernels::grid::{Reading, Sampling, taps_after};
    /// let counted = Reading { sampling: Sampling::default(), in_elements: true };
    /// // Of 0.75 * 0.5, 0.75 * 0.5, 0.25 * 0.5 and 0.25 * 0.5 how they grow with the row.
    /// let mut weight = [0.0f64; 4];
    /// taps_after(counted, &[3, 3], [1, 0, 0], &[0.5, 1.25], &mut weight);
    /// assert_eq!(weight, [-0.5, -0.5, 0.5, 0.5]);
    /// ```
    ///
    /// # Panics
    /// As [`taps`].
    pub fn taps_after<T>(
        reading: Reading,
        plane: &[usize],
        orders: [u8; 3],
        grid: &[T],
        weight: &mut [T],
    ) = taps_after_here;

    /// The coordinates of an affine map's places: `out[n, p, j] = Σ theta[n, j, i] base[p, i]`, where `base` holds the place's own coordinates,
    /// the last dim's first, and 1. The box of places begins at `start` and has extents `shape`, of a plane.
    ///
    /// # Panics
    /// When the slices do not hold as many elements.
    pub fn affine<T>(
        theta: &[T],
        out: &mut [T],
        plane: &[usize],
        start: &[usize],
        shape: &[usize],
        aligned: bool,
    ) = affine_here;

    /// The gradient of `theta` from that of the coordinates of [`affine`].
    ///
    /// # Panics
    /// As [`affine`].
    pub fn affine_grad<T>(
        dy: &[T],
        dtheta: &mut [T],
        plane: &[usize],
        start: &[usize],
        shape: &[usize],
        aligned: bool,
    ) = affine_grad_here;
} }

fn taps_here<T: Real>(
    reading: Reading,
    plane: &[usize],
    absent: i64,
    grid: &[T],
    weight: &mut [T],
    index: &mut [i64],
) {
    check(plane, reading.products(plane), grid.len(), weight.len());
    assert!(index.len() == weight.len(), "taps: weights without indices");
    each_place(
        reading,
        plane,
        Taps {
            absent,
            grid,
            weight,
            index,
        },
    );
}

fn taps_grad_here<T: Real>(
    reading: Reading,
    plane: &[usize],
    grid: &[T],
    dweight: &[T],
    dgrid: &mut [T],
) {
    check(plane, reading.products(plane), grid.len(), dweight.len());
    each_place(
        reading,
        plane,
        TapsGrad {
            grid,
            dweight,
            dgrid,
        },
    );
}

fn taps_after_here<T: Real>(
    reading: Reading,
    plane: &[usize],
    orders: [u8; 3],
    grid: &[T],
    weight: &mut [T],
) {
    check(plane, reading.products(plane), grid.len(), weight.len());
    each_place(
        reading,
        plane,
        TapsAfter {
            orders,
            grid,
            weight,
        },
    );
}

impl Reading {
    /// How many elements a place reads.
    fn products(self, plane: &[usize]) -> usize {
        self.sampling.mode.taps().pow(plane.len() as u32)
    }
}

/// What is done at every place that reads `N` elements.
trait AtPlaces {
    fn run<const N: usize>(self, reading: Reading, plane: &[usize]);
}

/// Compiled for each number of elements, and each instruction set: rounding is a call without.
fn each_place(reading: Reading, plane: &[usize], of: impl AtPlaces) {
    struct Places<'a, F, const N: usize>(Reading, &'a [usize], F);
    impl<F: AtPlaces, const N: usize> WithSimd for Places<'_, F, N> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            self.2.run::<N>(self.0, self.1);
        }
    }
    match reading.products(plane) {
        1 => vectorized(Places::<_, 1>(reading, plane, of)),
        2 => vectorized(Places::<_, 2>(reading, plane, of)),
        4 => vectorized(Places::<_, 4>(reading, plane, of)),
        8 => vectorized(Places::<_, 8>(reading, plane, of)),
        16 => vectorized(Places::<_, 16>(reading, plane, of)),
        // Four along each of three dims.
        _ => vectorized(Places::<_, 64>(reading, plane, of)),
    }
}

struct Taps<'a, T> {
    absent: i64,
    grid: &'a [T],
    weight: &'a mut [T],
    index: &'a mut [i64],
}

impl<T: Real> AtPlaces for Taps<'_, T> {
    #[inline(always)]
    fn run<const N: usize>(self, reading: Reading, plane: &[usize]) {
        if reading.sampling.mode == SampleMode::Linear {
            return self.linear::<N>(reading, plane);
        }
        let rows = (self.weight.chunks_exact_mut(N)).zip(self.index.chunks_exact_mut(N));
        for (at, (weight, index)) in self.grid.chunks_exact(plane.len()).zip(rows) {
            let product = Product::<N>::new(reading, plane, at);
            for (to, of) in weight.iter_mut().zip(product.weights()) {
                *to = T::of(of);
            }
            index.copy_from_slice(&product.flat(self.absent));
        }
    }
}

/// Places whose taps are found side by side.
const PLACES: usize = 16;

impl<T: Real> Taps<'_, T> {
    /// The same of two taps along each dim, as [`Product`] has it, in vectors.
    #[inline(always)]
    fn linear<const N: usize>(self, reading: Reading, plane: &[usize]) {
        let nd = plane.len();
        let rows = (self.weight.chunks_mut(PLACES * N)).zip(self.index.chunks_mut(PLACES * N));
        for (grid, (weight, index)) in self.grid.chunks(PLACES * nd).zip(rows) {
            let (mut weights, mut flat) = ([[1.0; PLACES]; N], [[0; PLACES]; N]);
            let mut count = 1;
            for (d, &n) in plane.iter().enumerate() {
                let mut at = [0.0; PLACES];
                for (at, place) in at.iter_mut().zip(grid.chunks_exact(nd)) {
                    *at = place[nd - 1 - d].wide();
                }
                let taps = reading.linear(at, n);
                // From the last one on, so that none is written before it was read.
                for k in (0..count).rev() {
                    let before = (weights[k], flat[k]);
                    for (tap, (weight, index)) in taps.iter().enumerate() {
                        let at = 2 * k + tap;
                        weights[at] = numbered(|p| before.0[p] * weight[p]);
                        flat[at] = numbered(|p| match (before.1[p] | index[p]) < 0 {
                            true => -1,
                            false => before.1[p] * n as i64 + index[p],
                        });
                    }
                }
                count *= 2;
            }
            let places = weight.chunks_exact_mut(N).zip(index.chunks_exact_mut(N));
            for (p, (weight, index)) in places.enumerate() {
                for k in 0..N {
                    weight[k] = T::of(weights[k][p]);
                    index[k] = if flat[k][p] < 0 {
                        self.absent
                    } else {
                        flat[k][p]
                    };
                }
            }
        }
    }
}

impl Reading {
    /// Of coordinates along a dim of `extent`, the weights of two taps and their indices, as [`taps`](Self::taps) has them; those beyond the dim
    /// are negative.
    #[inline(always)]
    fn linear(
        self,
        coordinates: [f64; PLACES],
        extent: usize,
    ) -> [([f64; PLACES], [i64; PLACES]); 2] {
        let (n, sampling) = (extent as f64, self.sampling);
        let mut at = match (self.in_elements, sampling.aligned) {
            (true, _) => coordinates,
            (false, true) => each(coordinates, |c| (c + 1.0) / 2.0 * (n - 1.0)),
            (false, false) => each(coordinates, |c| ((c + 1.0) * n - 1.0) / 2.0),
        };
        if sampling.edge == SampleEdge::Border {
            at = each(at, |at| sampling.within_reach(at, n));
        }
        let reads = each(at, |at| at.is_finite() & (extent > 0));
        if sampling.edge != SampleEdge::Zeros {
            for (at, reads) in at.iter_mut().zip(&reads) {
                *at = if *reads {
                    sampling.at_edge(*at, n).0
                } else {
                    *at
                };
            }
        }
        let first = each(at, f64::floor);
        let inside = |i: f64| if (i >= 0.0) & (i < n) { i as i64 } else { -1 };
        let weight = |of: [f64; PLACES]| numbered(|p| if reads[p] { of[p] } else { 0.0 });
        [
            (
                weight(numbered(|p| first[p] + 1.0 - at[p])),
                each(first, inside),
            ),
            (
                weight(numbered(|p| at[p] - first[p])),
                each(first, |first| inside(first + 1.0)),
            ),
        ]
    }
}

struct TapsGrad<'a, T> {
    grid: &'a [T],
    dweight: &'a [T],
    dgrid: &'a mut [T],
}

impl<T: Real> AtPlaces for TapsGrad<'_, T> {
    #[inline(always)]
    fn run<const N: usize>(self, reading: Reading, plane: &[usize]) {
        let nd = plane.len();
        let rows = self.grid.chunks_exact(nd).zip(self.dweight.chunks_exact(N));
        for ((at, dweight), out) in rows.zip(self.dgrid.chunks_exact_mut(nd)) {
            let product = Product::<N>::new(reading, plane, at);
            for (along, out) in out.iter_mut().rev().enumerate() {
                let slopes = dweight.iter().zip(product.slopes(along));
                *out = T::of(slopes.map(|(dw, slope)| dw.wide() * slope).sum());
            }
        }
    }
}

struct TapsAfter<'a, T> {
    orders: [u8; 3],
    grid: &'a [T],
    weight: &'a mut [T],
}

impl<T: Real> AtPlaces for TapsAfter<'_, T> {
    #[inline(always)]
    fn run<const N: usize>(self, reading: Reading, plane: &[usize]) {
        let nd = plane.len();
        let places = self.grid.chunks_exact(nd);
        for (at, weight) in places.zip(self.weight.chunks_exact_mut(N)) {
            let mut product = Product::<N>::new(reading, plane, at);
            for (d, (&n, &order)) in plane.iter().zip(&self.orders).enumerate() {
                product.taps[d].weight = reading.weights_after(at[nd - 1 - d].wide(), n, order);
            }
            for (to, of) in weight.iter_mut().zip(product.weights()) {
                *to = T::of(of);
            }
        }
    }
}

fn check(plane: &[usize], each: usize, grid: usize, weights: usize) {
    assert!(
        (1..=3).contains(&plane.len()) && grid / plane.len() * each == weights,
        "taps: {grid} coordinates in {plane:?} for {weights} weights"
    );
}

fn affine_here<T: Real>(
    theta: &[T],
    out: &mut [T],
    plane: &[usize],
    start: &[usize],
    shape: &[usize],
    aligned: bool,
) {
    let nd = plane.len();
    let bases = bases(plane, start, shape, aligned);
    let places = shape.iter().product::<usize>() * nd;
    if places == 0 {
        return;
    }
    for (theta, out) in theta
        .chunks_exact(nd * (nd + 1))
        .zip(out.chunks_exact_mut(places))
    {
        for (out, base) in out.chunks_exact_mut(nd).zip(bases.chunks_exact(nd + 1)) {
            for (out, row) in out.iter_mut().zip(theta.chunks_exact(nd + 1)) {
                *out = T::of(row.iter().zip(base).map(|(t, b)| t.wide() * b).sum());
            }
        }
    }
}

fn affine_grad_here<T: Real>(
    dy: &[T],
    dtheta: &mut [T],
    plane: &[usize],
    start: &[usize],
    shape: &[usize],
    aligned: bool,
) {
    let nd = plane.len();
    let bases = bases(plane, start, shape, aligned);
    let places = shape.iter().product::<usize>() * nd;
    for (n, dtheta) in dtheta.chunks_exact_mut(nd * (nd + 1)).enumerate() {
        let mut sums = vec![0.0; dtheta.len()];
        let dy = &dy[n * places..(n + 1) * places];
        for (dy, base) in dy.chunks_exact(nd).zip(bases.chunks_exact(nd + 1)) {
            for (row, dy) in sums.chunks_exact_mut(nd + 1).zip(dy) {
                for (sum, b) in row.iter_mut().zip(base) {
                    *sum += dy.wide() * b;
                }
            }
        }
        for (to, sum) in dtheta.iter_mut().zip(sums) {
            *to = T::of(sum);
        }
    }
}

/// The own coordinates of a box of places, the last dim's first, and 1.
fn bases(plane: &[usize], start: &[usize], shape: &[usize], aligned: bool) -> Vec<f64> {
    let nd = plane.len();
    let places: usize = shape.iter().product();
    let mut bases = Vec::with_capacity(places * (nd + 1));
    for place in 0..places {
        let mut rest = place;
        for d in (0..nd).rev() {
            bases.push(coordinate(start[d] + rest % shape[d], plane[d], aligned));
            rest /= shape[d];
        }
        bases.push(1.0);
    }
    bases
}

/// The coordinate of an index of a dim.
fn coordinate(i: usize, extent: usize, aligned: bool) -> f64 {
    let n = extent as f64;
    match (extent, aligned) {
        (0 | 1, _) => 0.0,
        (_, true) => 2.0 * i as f64 / (n - 1.0) - 1.0,
        (_, false) => (2.0 * i as f64 + 1.0) / n - 1.0,
    }
}
