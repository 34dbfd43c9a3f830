//! Maps of two numbers in single precision whose functions take one number at a time: in vectors of double precision, rounded once.
//!
//! Of some numbers a formula is not right: they are computed one by one by the functions that double precision uses, so that no
//! result depends on what stands beside it. Remainders are exact in either way.

use super::{Binary, vectorized};
use crate::Real;
use crate::exp::fused;
use crate::math::{Fast, Math};
use core::f64::consts::{FRAC_PI_2, FRAC_PI_4, LN_2, PI};
use pulp::{Simd, WithSimd};

/// A map of rows of equal lengths.
pub(super) type Row<T> = fn(&[T], &[T], &mut [T]);

/// The map of rows, if the numbers are of single precision and there is such a formula.
pub(super) fn row<T: Real>(op: Binary) -> Option<Row<T>> {
    if const { size_of::<T>() != size_of::<f32>() } {
        return None;
    }
    Some(match op {
        Binary::Fmod => |a, b, out| each(Binary::Fmod, a, b, out, fmod, is_small),
        Binary::Remainder => |a, b, out| each(Binary::Remainder, a, b, out, remainder, is_small),
        Binary::FloorDiv => |a, b, out| each(Binary::FloorDiv, a, b, out, floor_div, is_exact),
        Binary::Pow => |a, b, out| {
            let is_usual = |_, p: f64, _| p.is_finite() && p != 0.0;
            each(Binary::Pow, a, b, out, Fast::<true>::powf, is_usual);
        },
        Binary::Atan2 => |a, b, out| each(Binary::Atan2, a, b, out, atan2, is_number),
        Binary::Hypot => |a, b, out| each(Binary::Hypot, a, b, out, hypot, is_number),
        Binary::Xlogy => |a, b, out| each(Binary::Xlogy, a, b, out, xlogy, is_number),
        Binary::LogAddExp => |a, b, out| each(Binary::LogAddExp, a, b, out, log_add_exp, is_number),
        Binary::LogAddExp2 => {
            |a, b, out| each(Binary::LogAddExp2, a, b, out, log_add_exp2, is_number)
        }
        _ => return None,
    })
}

/// Numbers that are gone through before it is asked whether all were usual.
const CHUNK: usize = 512;

/// Writes `f` of numbers of which `is_usual` holds, given them and the result, and what the map is of all others.
#[inline(always)]
fn each<T: Real>(
    op: Binary,
    a: &[T],
    b: &[T],
    out: &mut [T],
    f: impl Fn(f64, f64) -> f64,
    is_usual: impl Fn(f64, f64, f64) -> bool,
) {
    let (a, b): (&[f32], &[f32]) = (bytemuck::cast_slice(a), bytemuck::cast_slice(b));
    let out: &mut [f32] = bytemuck::cast_slice_mut(out);
    let chunks = a.chunks(CHUNK).zip(b.chunks(CHUNK));
    for ((a, b), out) in chunks.zip(out.chunks_mut(CHUNK)) {
        let is_written = match vectorized(Loops {
            a,
            b,
            out: &mut *out,
            f: &f,
            is_usual: &is_usual,
        }) {
            Some(true) => continue,
            Some(false) => true,
            None => false,
        };
        let exact = super::formula::<f32>(op);
        for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
            if !is_written || !is_usual(f64::from(a), f64::from(b), f64::from(*out)) {
                *out = exact(a, b);
            }
        }
    }
}

/// Writes a map, unless products and sums are not fused, and tells whether all numbers are usual.
struct Loops<'a, F, U> {
    a: &'a [f32],
    b: &'a [f32],
    out: &'a mut [f32],
    f: &'a F,
    is_usual: &'a U,
}

impl<F: Fn(f64, f64) -> f64, U: Fn(f64, f64, f64) -> bool> WithSimd for Loops<'_, F, U> {
    type Output = Option<bool>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Option<bool> {
        if const { !fused::<S>() } {
            return None;
        }
        let mut are_usual = true;
        for ((out, &a), &b) in self.out.iter_mut().zip(self.a).zip(self.b) {
            let (a, b) = (f64::from(a), f64::from(b));
            *out = (self.f)(a, b) as f32;
            are_usual &= (self.is_usual)(a, b, f64::from(*out));
        }
        Some(are_usual)
    }
}

#[inline(always)]
fn is_number(_: f64, _: f64, y: f64) -> bool {
    !y.is_nan()
}

/// Whether the quotient has so few digits before its point that its whole part is exact, and so are multiples of the divisor. The quotient of two
/// numbers of 24 bits is no whole number and no nearer to one than 2^-24; below 2^28 it is not rounded to one.
#[inline(always)]
fn is_small(a: f64, b: f64, _: f64) -> bool {
    (a / b).abs() < (1_u64 << 28) as f64 && b.is_finite()
}

/// Whether single precision has every whole number up to the quotient.
#[inline(always)]
fn is_exact(a: f64, b: f64, _: f64) -> bool {
    (a / b).abs() < (1_u64 << 22) as f64 && b.is_finite()
}

#[inline(always)]
fn fmod(a: f64, b: f64) -> f64 {
    (a - (a / b).trunc() * b).copysign(a)
}

#[inline(always)]
fn remainder(a: f64, b: f64) -> f64 {
    let rest = fmod(a, b);
    let is_other = rest != 0.0 && (rest < 0.0) != (b < 0.0);
    if is_other { rest + b } else { rest }
}

#[inline(always)]
fn floor_div(a: f64, b: f64) -> f64 {
    (a / b).floor().copysign(a / b)
}

/// The angle of the nearer axis, and from there `atan` of at most 1: of at most `tan(π/8)` Taylor's series (11 terms, which leave a relative
/// error of 2e-10), of others from `π/4`.
#[inline(always)]
fn atan2(y: f64, x: f64) -> f64 {
    const EIGHTH: f64 = 0.414_213_562_373_095_05;
    let [wide, high] = [x.abs(), y.abs()];
    let (low, great) = if high > wide {
        (wide, high)
    } else {
        (high, wide)
    };
    let is_far = low > EIGHTH * great;
    let above = if is_far { low - great } else { low };
    let below = if is_far { low + great } else { great };
    let u = above / below;
    let square = u * u;
    let [mut even, mut odd] = [-1.0 / 19.0, 1.0 / 21.0];
    let fourth = square * square;
    for k in [15.0, 11.0, 7.0, 3.0] {
        even = fourth.mul_add(even, -1.0 / k);
        odd = fourth.mul_add(odd, 1.0 / (k + 2.0));
    }
    let series = square * odd.mul_add(square, even);
    let turn = series.mul_add(u, u) + if is_far { FRAC_PI_4 } else { 0.0 };
    let turn = if high > wide { FRAC_PI_2 - turn } else { turn };
    let turn = if x.is_sign_negative() {
        PI - turn
    } else {
        turn
    };
    turn.copysign(y)
}

#[inline(always)]
fn hypot(a: f64, b: f64) -> f64 {
    a.mul_add(a, b * b).sqrt()
}

#[inline(always)]
fn xlogy(a: f64, b: f64) -> f64 {
    let product = a * Fast::<true>::ln(b);
    // 0 times an infinity, or a logarithm that is none, is 0 here.
    if a == 0.0 && !b.is_nan() {
        0.0
    } else {
        product
    }
}

#[inline(always)]
fn log_add_exp(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    high + Fast::<true>::ln_1p(Fast::<true>::exp(low - high))
}

#[inline(always)]
fn log_add_exp2(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    high + Fast::<true>::ln_1p(Fast::<true>::exp2(low - high)) / LN_2
}
