//! Gelu of single-precision numbers in single precision: twice as many lanes as the formula in double precision has.

use crate::Real;
use crate::exp::{Exp, fused};
use crate::pointwise::vectorized;
use pulp::{Simd, WithSimd};

/// Writes `x Φ(x)` of numbers in single precision, within ten units in the last place, or 20 below -8; returns whether they are, and
/// whether products and sums are fused here, without which the tails would lose digits.
pub(super) fn single<T: Real>(x: &[T], y: &mut [T]) -> bool {
    match size_of::<T>() {
        4 => vectorized(Single {
            x: bytemuck::cast_slice(x),
            y: bytemuck::cast_slice_mut(y),
        }),
        _ => false,
    }
}

struct Single<'a> {
    x: &'a [f32],
    y: &'a mut [f32],
}

impl WithSimd for Single<'_> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> bool {
        if const { fused::<S>() } {
            for (y, x) in self.y.iter_mut().zip(self.x) {
                *y = gelu(*x);
            }
        }
        const { fused::<S>() }
    }
}

#[inline(always)]
fn gelu(x: f32) -> f32 {
    /// `Φ(-t) e^(t²/2)` for t from 0 to 14, as a polynomial in `A / (3.4 + t) + B`, which lies between -1 and 1: a Chebyshev
    /// fit, relative error 6e-8.
    const FIT: [f32; 9] = [
        0.150_285_32,
        0.198_784_04,
        0.106_923_83,
        0.038_006_935,
        0.006_909_405,
        -0.000_487_620_07,
        -0.000_454_940_75,
        4.533_185e-6,
        2.850_444_8e-5,
    ];
    const A: f32 = 8.394_483;
    const B: f32 = -1.468_965_5;
    let t = x.abs();
    // Beyond, the tail is 0. This is a comparison, so that NaN passes through.
    let t = if t > 14.0 { 14.0 } else { t };
    let k = A / (3.4 + t) + B;
    let square = k * k;
    let [mut even, mut odd] = [FIT[8], FIT[7]];
    for i in [6, 4, 2] {
        even = even.mul_add(square, FIT[i]);
        odd = odd.mul_add(square, FIT[i - 1]);
    }
    let fit = odd.mul_add(k, even.mul_add(square, FIT[0]));
    // The digits that a square loses would be the exponential's.
    let rounded = t * t;
    let lost = t.mul_add(t, -rounded);
    let e = f32::exp_fast::<true>(-0.5 * rounded);
    let tail = (-0.5 * lost).mul_add(e, e) * fit;
    x * if x < 0.0 { tail } else { 1.0 - tail }
}
