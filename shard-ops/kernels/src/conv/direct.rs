//! Register tiles of the direct convolution: a few output channels by a few vectors of columns, summed over all taps.

use crate::Real;
use crate::arrays::{each, numbered};
use pulp::Simd;

/// Sums `MR` output channels by `NV` vectors of columns over all taps: `packed` starts at the first column of the output row,
/// `taps` are offsets into it, `weights` holds `MR` numbers per tap, `acc` the starting values.
///
/// The accumulators are `MR * NV` vectors that stay in registers; per tap, `NV` loads and `MR` broadcasts feed `MR * NV`
/// multiply-adds.
#[inline(always)]
pub(super) fn tile<T: Real, S: Simd, const MR: usize, const NV: usize>(
    simd: S,
    packed: &[T],
    taps: &[usize],
    weights: &[T],
    mut acc: [[T::Vec<S>; NV]; MR],
) -> [[T::Vec<S>; NV]; MR] {
    let width = NV * T::lanes::<S>();
    let (weights, _) = pulp::as_arrays::<MR, T>(weights);
    for (w, &tap) in weights.iter().zip(taps) {
        let x = T::vectors::<S>(&packed[tap..tap + width]);
        let x: [T::Vec<S>; NV] = numbered(|j| x[j]);
        for i in 0..MR {
            let w = T::splat(simd, w[i]);
            for j in 0..NV {
                acc[i][j] = T::mul_add_vec(simd, w, x[j], acc[i][j]);
            }
        }
    }
    acc
}

/// Adds to sums in memory what [`tile`] sums.
#[inline(always)]
pub(super) fn tile_onto<T: Real, S: Simd, const MR: usize, const NV: usize>(
    simd: S,
    packed: &[T],
    taps: &[usize],
    weights: &[T],
    sums: &mut [[T; 64]],
) {
    let width = NV * T::lanes::<S>();
    let start = splats::<T, S, MR, NV>(simd, &[T::zero(); MR]);
    let acc = tile::<T, S, MR, NV>(simd, packed, taps, weights, start);
    let one = T::splat(simd, T::one());
    for i in 0..MR {
        let sums = T::vectors_mut::<S>(&mut sums[i][..width]);
        for j in 0..NV {
            sums[j] = T::mul_add_vec(simd, one, acc[i][j], sums[j]);
        }
    }
}

/// A tile's sums before any tap: a number per channel.
#[inline(always)]
pub(super) fn splats<T: Real, S: Simd, const MR: usize, const NV: usize>(
    simd: S,
    values: &[T; MR],
) -> [[T::Vec<S>; NV]; MR] {
    let mut acc = [[T::splat(simd, T::zero()); NV]; MR];
    for i in 0..MR {
        acc[i] = [T::splat(simd, values[i]); NV];
    }
    acc
}

/// Sums `TT` taps by `NV` vectors of output channels over a row of outputs: `x[t]` starts at the tap's first input,
/// `dy` holds `NV` vectors of channels per output.
#[inline(always)]
pub(super) fn weight_tile<T: Real, S: Simd, const TT: usize, const NV: usize>(
    simd: S,
    x: [&[T]; TT],
    dy: &[T],
    acc: &mut [[T::Vec<S>; NV]; TT],
) {
    let dy = T::vectors::<S>(dy);
    let (dy, _) = pulp::as_arrays::<NV, T::Vec<S>>(dy);
    let cols = dy.len();
    let x = each(x, |x| &x[..cols]);
    let mut sums = *acc;
    for (o, dy) in dy.iter().enumerate() {
        for t in 0..TT {
            let x = T::splat(simd, x[t][o]);
            for j in 0..NV {
                sums[t][j] = T::mul_add_vec(simd, x, dy[j], sums[t][j]);
            }
        }
    }
    *acc = sums;
}

/// Sums `TT` taps over whole vectors of columns of one output channel's row; lanes are kept apart.
#[inline(always)]
pub(super) fn dot_tile<T: Real, S: Simd, const TT: usize>(
    simd: S,
    x: [&[T]; TT],
    dy: &[T],
    acc: &mut [T::Vec<S>; TT],
) {
    let dy = T::vectors::<S>(dy);
    let x = each(x, |x| &T::vectors::<S>(x)[..dy.len()]);
    let mut sums = *acc;
    for (o, dy) in dy.iter().enumerate() {
        for t in 0..TT {
            sums[t] = T::mul_add_vec(simd, x[t][o], *dy, sums[t]);
        }
    }
    *acc = sums;
}
