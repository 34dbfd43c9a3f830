//! Gelu and its derivative in single precision, within ten units in the last place, or 20 below -8. Of the approximation by a hyperbolic tangent below -2
//! the error is that of a number of size 0.1.

use crate::exp::Exp;

/// `x Φ(x)`
#[inline(always)]
pub(super) fn gelu(x: f32) -> f32 {
    let tail = tail(x);
    x * if x < 0.0 { tail } else { 1.0 - tail }
}

/// `Φ(-|x|)`
#[inline(always)]
pub(super) fn tail(x: f32) -> f32 {
    /// `Φ(-t) e^(t²/2)`, relative error 6e-8.
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
    let [e, k] = parts(x);
    e * polynomial(k, FIT)
}

/// `Φ(x) + x φ(x)`
#[inline(always)]
pub(super) fn slope(x: f32) -> f32 {
    /// `(Φ(-t) - t φ(t)) e^(t²/2)` over the distance of t from where this is 0, relative error 4e-8.
    const FIT: [f32; 9] = [
        -0.494_693_3,
        -0.111_152_96,
        -0.046_014_402,
        -0.012_321_265,
        -0.001_305_764_9,
        0.000_332_690_92,
        9.730_811e-5,
        -1.458_294_1e-5,
        -5.704_893e-6,
    ];
    /// Where it is 0: the sum of these.
    const ROOT: [f32; 2] = [0.751_791_54, -1.211_444_9e-8];
    let [e, k] = parts(x);
    let below = e * ((x.abs() - ROOT[0]) - ROOT[1]) * polynomial(k, FIT);
    // The slopes at -t and t add up to 1.
    if x < 0.0 { below } else { 1.0 - below }
}

/// `e^(-t²/2)` of `t = |x|`, and `A / (3.4 + t) + B`, which lies between -1 and 1 for t from 0 to 14, for Chebyshev fits.
#[inline(always)]
fn parts(x: f32) -> [f32; 2] {
    const A: f32 = 8.394_483;
    const B: f32 = -1.468_965_5;
    let t = x.abs();
    // Beyond, the tail is 0. This is a comparison, so that NaN passes through.
    let t = if t > 14.0 { 14.0 } else { t };
    // The digits that a square loses would be the exponential's.
    let rounded = t * t;
    let lost = t.mul_add(t, -rounded);
    let e = f32::exp_fast::<true>(-0.5 * rounded);
    [(-0.5 * lost).mul_add(e, e), A / (3.4 + t) + B]
}

/// Twice the argument of the tangent, `x (ROOT + CUBIC x²)`.
const ROOT: f32 = 1.595_769_2;
const CUBIC: f32 = 0.071_354_814;

/// `x (1 + tanh u) / 2`, which is `x sigmoid(2u)`.
#[inline(always)]
pub(super) fn gelu_tanh(x: f32) -> f32 {
    let twice = x * CUBIC.mul_add(x * x, ROOT);
    let e = f32::exp_fast::<true>(-twice.abs());
    x * ((if twice < 0.0 { e } else { 1.0 }) / (1.0 + e))
}

/// `s + x s (1 - s) (2u)'` with `s = sigmoid(2u)`.
#[inline(always)]
pub(super) fn slope_tanh(x: f32) -> f32 {
    // Beyond it is 0 or 1. These are comparisons, so that NaN passes through.
    let x = if x > 14.0 { 14.0 } else { x };
    let x = if x < -14.0 { -14.0 } else { x };
    let square = x * x;
    let twice = x * CUBIC.mul_add(square, ROOT);
    let e = f32::exp_fast::<true>(-twice.abs());
    let grows = (3.0 * CUBIC).mul_add(square, ROOT);
    let whole = if twice < 0.0 { e } else { 1.0 };
    (whole * (1.0 + e) + x * e * grows) / ((1.0 + e) * (1.0 + e))
}

#[inline(always)]
fn polynomial(k: f32, terms: [f32; 9]) -> f32 {
    let square = k * k;
    let [mut even, mut odd] = [terms[8], terms[7]];
    for i in [6, 4, 2] {
        even = even.mul_add(square, terms[i]);
        odd = odd.mul_add(square, terms[i - 1]);
    }
    odd.mul_add(k, even.mul_add(square, terms[0]))
}
