//! Convolution of channels that do not mix, as depthwise ones: rows of the input are read where they lie.

use super::direct::tile;
use super::lift::{Geometry, Slab, SlabMut};
use crate::Real;
use crate::exp::fused;
use crate::pointwise::vectorized;
use core::ops::Range;
use pulp::{Simd, WithSimd};

/// Whether each group is one channel in and one out, and outputs side by side meet inputs side by side.
pub(super) fn fits<T: Real>(x: &Slab<'_, T>, y: &SlabMut<'_, T>, g: &Geometry) -> bool {
    [g.cin, g.cout, g.stride[2]] == [1; 3] && [x.step[2], y.step[2]] == [1; 2]
}

/// Writes `y = bias + weight * x`, where it [fits](fits); `weight` is `[channels, 1, kernel]`, contiguous.
pub(super) fn correlate<T: Real>(
    x: &Slab<'_, T>,
    weight: &[T],
    bias: Option<&[T]>,
    y: &mut SlabMut<'_, T>,
    g: &Geometry,
) {
    vectorized(Lone {
        x,
        weight,
        bias,
        y,
        g,
    });
}

struct Lone<'a, 'b, 'c, T> {
    x: &'a Slab<'c, T>,
    weight: &'a [T],
    bias: Option<&'a [T]>,
    y: &'a mut SlabMut<'b, T>,
    g: &'a Geometry,
}

impl<T: Real> WithSimd for Lone<'_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if fused::<S>() {
            self.run::<S, true>(simd);
        } else {
            self.run::<S, false>(simd);
        }
    }
}

impl<T: Real> Lone<'_, '_, '_, T> {
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, simd: S) {
        let Self {
            x,
            weight,
            bias,
            y,
            g,
        } = self;
        let inner = whole(g, x.extent[2], y.extent[2]);
        let cols = y.extent[2];
        let (mut taps, mut weights) = (Vec::new(), Vec::new());
        for n in 0..y.batch {
            for (c, weight) in weight.chunks_exact(g.volume()).enumerate() {
                let start = bias.map_or(T::zero(), |b| b[c]);
                let from = x.start(n, c);
                for o in 0..y.extent[0] * y.extent[1] {
                    let o = [o / y.extent[1], o % y.extent[1]];
                    let to = y.start(n, c).wrapping_add_signed(y.within([o[0], o[1], 0]));
                    let to = &mut y.data[to..to + cols];
                    taps.clear();
                    weights.clear();
                    for (row, weight) in weight.chunks_exact(g.kernel[2]).enumerate() {
                        let [d, h] = [row / g.kernel[1], row % g.kernel[1]];
                        let [d, h] = [g.input(0, o[0], d), g.input(1, o[1], h)];
                        let [depth, height] = [0, 1].map(|k| 0..x.extent[k] as isize);
                        if depth.contains(&d) && height.contains(&h) {
                            let row = from.wrapping_add_signed(d * x.step[0] + h * x.step[1]);
                            for (k, weight) in weight.iter().enumerate() {
                                taps.push(row.wrapping_add_signed(g.input(2, inner.start, k)));
                                weights.push(*weight);
                            }
                        }
                    }
                    row::<T, S>(simd, x.data, &taps, &weights, start, &mut to[inner.clone()]);
                    for col in (0..inner.start).chain(inner.end..cols) {
                        let mut sum = start;
                        for (t, (&tap, &weight)) in taps.iter().zip(&weights).enumerate() {
                            let i = g.input(2, col, t % g.kernel[2]);
                            if (0..x.extent[2] as isize).contains(&i) {
                                let x = x.data[tap.wrapping_add(col).wrapping_sub(inner.start)];
                                sum = match FMA {
                                    true => weight.mul_add(x, sum),
                                    false => weight * x + sum,
                                };
                            }
                        }
                        to[col] = sum;
                    }
                }
            }
        }
    }
}

/// The outputs of a row whose windows lie inside the input.
fn whole(g: &Geometry, inputs: usize, outputs: usize) -> Range<usize> {
    let outputs = outputs as isize;
    let start = (-g.input(2, 0, 0)).clamp(0, outputs);
    let last = g.input(2, 0, g.kernel[2] - 1);
    let end = (inputs as isize - last).clamp(start, outputs);
    start as usize..end as usize
}

/// Sums over taps of outputs side by side. The last vector may take outputs again that the one before it had.
#[inline(always)]
fn row<T: Real, S: Simd>(
    simd: S,
    data: &[T],
    taps: &[usize],
    weights: &[T],
    start: T,
    out: &mut [T],
) {
    let (lanes, cols) = (T::lanes::<S>(), out.len());
    let mut col = 0;
    if taps.is_empty() {
        return out.fill(start);
    }
    while col + 4 * lanes <= cols {
        let [sums] = tile::<T, S, 1, 4>(simd, &data[col..], taps, weights, [start]);
        T::vectors_mut::<S>(&mut out[col..col + 4 * lanes]).copy_from_slice(&sums);
        col += 4 * lanes;
    }
    while col < cols && cols >= lanes {
        let at = col.min(cols - lanes);
        let [sums] = tile::<T, S, 1, 1>(simd, &data[at..], taps, weights, [start]);
        T::vectors_mut::<S>(&mut out[at..at + lanes]).copy_from_slice(&sums);
        col += lanes;
    }
    for (col, out) in out.iter_mut().enumerate().skip(col) {
        *out = (taps.iter().zip(weights)).fold(start, |sum, (tap, weight)| {
            let x = data[tap + col];
            match fused::<S>() {
                true => weight.mul_add(x, sum),
                false => *weight * x + sum,
            }
        });
    }
}
