//! Packs the weights of a panel of output channels: per tap a number for each channel, as a tile reads them.

use super::forward::Panel;
use super::lift::Geometry;
use super::pairs::{self, PARTS};
use crate::Real;
use crate::arrays::{each, numbered};
use crate::turn::{SIDE, turned};
use pulp::{NullaryFnOnce, Simd};

/// Input channels whose weights are turned at once.
const CHANNELS: usize = 8;

/// Packs `weight`, `[Cout, Cin, kernel]`, for each panel.
#[inline(always)]
pub(super) fn pack<T: Real, S: Simd>(
    simd: S,
    weight: &[T],
    panels: &[Panel],
    out: &mut [T],
    g: &Geometry,
) {
    // A function of its own, compiled for these vectors.
    simd.vectorize(Rows {
        weight,
        panels,
        out,
        g,
    });
}

/// The same of the factors of [pairs], by panels of `MR` channels: `[PARTS, Cin, kernel planes, kernel columns, MR]` for each. `is_turned` says
/// that the last two dims have changed places in `g` but not in `weight`.
#[inline(always)]
pub(super) fn pack_pairs<T: Real, S: Simd, const MR: usize>(
    simd: S,
    weight: &[T],
    panels: &[Panel],
    out: &mut [T],
    g: &Geometry,
    is_turned: bool,
) {
    simd.vectorize(Factors::<T, MR> {
        weight,
        panels,
        out,
        g,
        is_turned,
    });
}

struct Rows<'a, T> {
    weight: &'a [T],
    panels: &'a [Panel],
    out: &'a mut [T],
    g: &'a Geometry,
}

impl<T: Real> NullaryFnOnce for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let taps = self.g.taps();
        for panel in self.panels {
            let out = &mut self.out[panel.weights..][..panel.height * taps];
            turn(self.weight, taps, panel, 0..taps, out);
        }
    }
}

struct Factors<'a, T, const MR: usize> {
    weight: &'a [T],
    panels: &'a [Panel],
    out: &'a mut [T],
    g: &'a Geometry,
    is_turned: bool,
}

impl<T: Real, const MR: usize> NullaryFnOnce for Factors<'_, T, MR> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let ([kd, kh, kw], volume) = (self.g.kernel, self.g.volume());
        let (taps, half) = (pairs::taps(self.g), T::of(0.5));
        let mut columns = vec![T::zero(); CHANNELS * volume * MR];
        for panel in self.panels {
            let out = &mut self.out[panel.weights..][..PARTS * taps * MR];
            let parts = pairs::four(out, taps * MR, taps * MR);
            let [u0, u1, u2, u3] = parts.map(|part| pulp::as_arrays_mut::<MR, T>(part).0);
            let mut tap = 0;
            for first in (0..self.g.cin).step_by(CHANNELS) {
                let channels = CHANNELS.min(self.g.cin - first);
                let range = first * volume..(first + channels) * volume;
                turn(self.weight, self.g.taps(), panel, range, &mut columns);
                let columns = pulp::as_arrays::<MR, T>(&columns).0;
                for plane in 0..channels * kd {
                    for w in 0..kw {
                        let at = |h: usize| match self.is_turned {
                            true => columns[plane * kh * kw + w * kh + h],
                            false => columns[plane * kh * kw + h * kw + w],
                        };
                        let [a, b, c] = [at(0), at(1), at(2)];
                        for i in 0..MR {
                            let (ends, middle) = ((a[i] + c[i]) * half, b[i] * half);
                            u0[tap][i] = a[i];
                            u1[tap][i] = ends + middle;
                            u2[tap][i] = ends - middle;
                            u3[tap][i] = -c[i];
                        }
                        tap += 1;
                    }
                }
            }
        }
    }
}

/// Writes of some taps a number for each channel of a panel, and zeros for those that it lacks; a row of `weight` has `taps`.
#[inline(always)]
fn turn<T: Real>(
    weight: &[T],
    taps: usize,
    panel: &Panel,
    range: core::ops::Range<usize>,
    out: &mut [T],
) {
    let (count, height) = (panel.count, panel.height);
    if count < height {
        out.fill(T::zero());
    }
    let row = |i: usize| &weight[(panel.first + i) * taps..][range.clone()];
    let (squares, columns) = (count / SIDE * SIDE, range.len() / SIDE * SIDE);
    for i in (0..squares).step_by(SIDE) {
        let rows: [&[T]; SIDE] = numbered(|k| row(i + k));
        for tap in (0..columns).step_by(SIDE) {
            let block = each(rows, |row| pulp::as_arrays::<SIDE, T>(&row[tap..]).0[0]);
            for (j, lanes) in turned(block).iter().enumerate() {
                out[(tap + j) * height + i..][..SIDE].copy_from_slice(lanes);
            }
        }
    }
    for i in 0..count {
        let done = if i < squares { columns } else { 0 };
        for (tap, w) in row(i).iter().enumerate().skip(done) {
            out[tap * height + i] = *w;
        }
    }
}
