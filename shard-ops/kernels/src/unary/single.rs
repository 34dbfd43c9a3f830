//! Maps of single-precision numbers of which there is much, in single precision: twice as many lanes as formulas in double precision have.
//!
//! Results are within four units in the last place, but for gelu (see there) and the derivatives of `silu`, `mish` and gelu near where they
//! are 0, whose error is that of a number of size 1. Where products and sums are not fused, formulas in double precision are taken.

use super::{Unary, gelu};
use crate::Real;
use crate::exp::{Exp, fused};
use crate::loops::{Loops, Own, Words};
use crate::pointwise::vectorized;
use core::f32::consts::{FRAC_2_PI, FRAC_2_SQRT_PI, FRAC_PI_2, FRAC_PI_4, LN_2, SQRT_2};
use core::marker::PhantomData;
use half::bf16;
use pulp::{Simd, WithSimd};

/// Writes the map, or of order 1 its derivative, of numbers in single precision. Returns whether they are of that precision, and
/// there is such a formula.
pub(super) fn run<T: Real>(op: Unary, order: usize, x: &[T], y: &mut [T]) -> bool {
    if const { size_of::<T>() != size_of::<f32>() } {
        return false;
    }
    let (x, y) = (bytemuck::cast_slice(x), bytemuck::cast_slice_mut(y));
    let mut line = Line::<f32, Own>::new(x, y);
    match order {
        0 => values(op, &mut line),
        _ => slopes(op, order, &mut line),
    }
}

/// The same of numbers of `bf16`, widened and rounded in registers, and of more maps: all that take less time than that if each does it apart.
pub(super) fn run_halves(op: Unary, x: &[bf16], y: &mut [bf16]) -> bool {
    let mut line = Line::<bf16, Words>::new(x, y);
    values(op, &mut line) || plain_values(op, &mut line)
}

/// The derivative of such numbers, of order 1, times what comes from above.
pub(super) fn run_slopes_of_halves(op: Unary, x: &[bf16], g: &[bf16], y: &mut [bf16]) -> bool {
    let mut line = Scaled::<bf16, Words>::new(x, g, y);
    slopes(op, 1, &mut line) || plain_slopes(op, &mut line)
}

fn values(op: Unary, line: &mut impl Loop) -> bool {
    match op {
        Unary::Gelu => each(line, gelu::gelu),
        Unary::Sigmoid => each(line, sigmoid),
        Unary::Silu => each(line, silu),
        Unary::GeluTanh => each(line, gelu::gelu_tanh),
        Unary::Mish => each(line, mish),
        Unary::Tanh => each(line, tanh),
        Unary::Exp => each(line, exp),
        Unary::Expm1 => each(line, expm1),
        Unary::Elu { alpha } => {
            let alpha = alpha as f32;
            each(line, |x| either(x > 0.0, x, alpha * expm1(x)))
        }
        Unary::Log => most(line, ln_of_normal, is_normal, ln),
        Unary::Log1p => each(line, ln_1p),
        Unary::Erf => each(line, erf),
        Unary::Rsqrt => each(line, |x| 1.0 / x.sqrt()),
        Unary::Hardswish => each(line, |x| x * hardsigmoid(x)),
        Unary::Hardsigmoid => each(line, hardsigmoid),
        Unary::Atan => each(line, atan),
        Unary::Tan => angles(line, tan, f64::tan),
        Unary::Sin => angles(line, sin, f64::sin),
        Unary::Cos => angles(line, cos, f64::cos),
        Unary::LogSigmoid => each(line, |x| -softplus(-x)),
        Unary::Softplus {
            beta: 1.0,
            threshold,
        } => {
            let bend = threshold as f32;
            each(line, |x| if x > bend { x } else { softplus(x) })
        }
        _ => false,
    }
}

fn slopes(op: Unary, order: usize, line: &mut impl Loop) -> bool {
    match (op, order) {
        (Unary::Gelu, 1) => each(line, gelu::slope),
        (Unary::Sigmoid, 1) => each(line, sigmoid_slope),
        (Unary::Silu, 1) => each(line, silu_slope),
        (Unary::GeluTanh, 1) => each(line, gelu::slope_tanh),
        (Unary::Mish, 1) => each(line, mish_slope),
        (Unary::Tanh, 1) => each(line, tanh_slope),
        (Unary::Exp | Unary::Expm1, 1..=3) => each(line, exp),
        (Unary::Elu { alpha }, 1) => {
            let alpha = alpha as f32;
            each(line, |x| either(x > 0.0, 1.0, alpha * exp(x)))
        }
        (Unary::Sqrt, 1) => each(line, |x| 0.5 / x.sqrt()),
        (Unary::Rsqrt, 1) => each(line, |x| -0.5 / x.sqrt() / x),
        (Unary::Hardswish, 1) => each(line, hardswish_slope),
        (Unary::Sin, 1) => angles(line, cos, f64::cos),
        (Unary::Cos, 1) => angles(line, |x| -sin(x), |x| -x.sin()),
        (Unary::LogSigmoid, 1) => each(line, |x| sigmoid(-x)),
        (
            Unary::Softplus {
                beta: 1.0,
                threshold,
            },
            1,
        ) => {
            let bend = threshold as f32;
            each(line, |x| if x > bend { 1.0 } else { sigmoid(x) })
        }
        _ => false,
    }
}

/// Maps of few steps, which in `f32` have formulas of the table, with the same results.
fn plain_values(op: Unary, line: &mut impl Loop) -> bool {
    match op {
        Unary::Neg => each(line, |x| -x),
        Unary::Abs => each(line, f32::abs),
        Unary::Sqrt => each(line, f32::sqrt),
        Unary::Relu => each(line, |x| if x <= 0.0 { 0.0 } else { x }),
        Unary::Relu6 => each(line, |x| between(x, 0.0, 6.0)),
        Unary::LeakyRelu { negative_slope } => {
            let slope = negative_slope as f32;
            each(line, |x| either(x > 0.0, x, slope * x))
        }
        Unary::Square => each(line, |x| x * x),
        Unary::Reciprocal => each(line, |x| 1.0 / x),
        Unary::PowScalar { exponent: 2.0 } => each(line, |x| x * x),
        Unary::PowScalar { exponent: 3.0 } => each(line, cube),
        Unary::Clamp { min, max } if !min.is_nan() && !max.is_nan() => {
            let (min, max) = (min as f32, max as f32);
            each(line, |x| between(x, min, max))
        }
        Unary::AddScalar { value } => {
            let value = value as f32;
            each(line, |x| x + value)
        }
        Unary::MulScalar { value } => {
            let value = value as f32;
            each(line, |x| x * value)
        }
        _ => false,
    }
}

fn plain_slopes(op: Unary, line: &mut impl Loop) -> bool {
    match op {
        Unary::Neg => each(line, |_| -1.0),
        Unary::Relu => each(line, |x| if x <= 0.0 { 0.0 } else { 1.0 }),
        Unary::LeakyRelu { negative_slope } => {
            let slope = negative_slope as f32;
            each(line, |x| either(x > 0.0, 1.0, slope))
        }
        Unary::Square | Unary::PowScalar { exponent: 2.0 } => each(line, |x| 2.0 * x),
        Unary::MulScalar { value } => {
            let value = value as f32;
            each(line, |_| value)
        }
        _ => false,
    }
}

/// Numbers that a map is written of: as they are, or times others.
trait Loop {
    /// Writes `f`, unless products and sums are not fused, and tells whether all numbers are usual.
    fn run(&mut self, f: impl Fn(f32) -> f32, usual: impl Fn(f32) -> bool) -> Option<bool>;

    /// Writes `f` of those that are not.
    fn mend(&mut self, f: impl Fn(f64) -> f64, usual: impl Fn(f32) -> bool);
}

fn each(line: &mut impl Loop, f: impl Fn(f32) -> f32) -> bool {
    line.run(f, |_| true).is_some()
}

/// The same by a formula of usual numbers and one of all, which are the same for the former: where there are only those, which are most, the first
/// is enough. A result does not depend on what stands beside it.
fn most(
    line: &mut impl Loop,
    f: impl Fn(f32) -> f32,
    usual: impl Fn(f32) -> bool,
    of_all: impl Fn(f32) -> f32,
) -> bool {
    match line.run(f, usual) {
        Some(false) => each(line, of_all),
        are_written => are_written.is_some(),
    }
}

/// The largest angle, up to which what is left of one by whole quarters of a turn is right to its last place.
const ANGLE: f32 = 32_768.0;

/// Writes a map of angles, of those that are larger one by one in double precision.
fn angles(line: &mut impl Loop, f: impl Fn(f32) -> f32, of_large: impl Fn(f64) -> f64) -> bool {
    let usual = |x: f32| x.abs() <= ANGLE;
    let are_usual = line.run(f, usual);
    if are_usual == Some(false) {
        line.mend(of_large, usual);
    }
    are_usual.is_some()
}

/// Numbers of a type that is written as it is read.
struct Line<'a, T, L> {
    x: &'a [T],
    y: &'a mut [T],
    loops: PhantomData<L>,
}

impl<'a, T, L> Line<'a, T, L> {
    fn new(x: &'a [T], y: &'a mut [T]) -> Self {
        let loops = PhantomData;
        Self { x, y, loops }
    }
}

impl<T: Copy, L: Loops<T, Number = f32>> Loop for Line<'_, T, L> {
    fn run(&mut self, f: impl Fn(f32) -> f32, usual: impl Fn(f32) -> bool) -> Option<bool> {
        let line = Line::<T, L>::new(self.x, &mut *self.y);
        vectorized(Each { line, f, usual })
    }

    fn mend(&mut self, f: impl Fn(f64) -> f64, usual: impl Fn(f32) -> bool) {
        for (y, x) in self.y.iter_mut().zip(self.x) {
            let x = L::number(*x);
            if !usual(x) {
                *y = L::element(f(f64::from(x)) as f32);
            }
        }
    }
}

/// The same, each result times a number.
struct Scaled<'a, T, L> {
    x: &'a [T],
    by: &'a [T],
    y: &'a mut [T],
    loops: PhantomData<L>,
}

impl<'a, T, L> Scaled<'a, T, L> {
    fn new(x: &'a [T], by: &'a [T], y: &'a mut [T]) -> Self {
        let loops = PhantomData;
        Self { x, by, y, loops }
    }
}

impl<T: Copy, L: Loops<T, Number = f32>> Loop for Scaled<'_, T, L> {
    fn run(&mut self, f: impl Fn(f32) -> f32, usual: impl Fn(f32) -> bool) -> Option<bool> {
        let line = Scaled::<T, L>::new(self.x, self.by, &mut *self.y);
        vectorized(Each { line, f, usual })
    }

    fn mend(&mut self, f: impl Fn(f64) -> f64, usual: impl Fn(f32) -> bool) {
        for ((y, x), by) in self.y.iter_mut().zip(self.x).zip(self.by) {
            let x = L::number(*x);
            if !usual(x) {
                *y = L::element(f(f64::from(x)) as f32 * L::number(*by));
            }
        }
    }
}

/// A map of a line's numbers, unless products and sums are not fused, and whether all of them are usual.
struct Each<N, F, U> {
    line: N,
    f: F,
    usual: U,
}

impl<T, L, F, U> WithSimd for Each<Line<'_, T, L>, F, U>
where
    T: Copy,
    L: Loops<T, Number = f32>,
    F: Fn(f32) -> f32,
    U: Fn(f32) -> bool,
{
    type Output = Option<bool>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Option<bool> {
        if const { !fused::<S>() } {
            return None;
        }
        let Self { line, f, usual } = self;
        let mut are_usual = true;
        L::map(
            line.x,
            line.y,
            #[inline(always)]
            |x| {
                are_usual &= usual(x);
                f(x)
            },
        );
        Some(are_usual)
    }
}

impl<T, L, F, U> WithSimd for Each<Scaled<'_, T, L>, F, U>
where
    T: Copy,
    L: Loops<T, Number = f32>,
    F: Fn(f32) -> f32,
    U: Fn(f32) -> bool,
{
    type Output = Option<bool>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Option<bool> {
        if const { !fused::<S>() } {
            return None;
        }
        let Self { line, f, usual } = self;
        let mut are_usual = true;
        L::zip(
            line.x,
            line.by,
            line.y,
            #[inline(always)]
            |x, by| {
                are_usual &= usual(x);
                f(x) * by
            },
        );
        Some(are_usual)
    }
}

/// `x³`, rounded once.
#[inline(always)]
fn cube(x: f32) -> f32 {
    let x = f64::from(x);
    (x * x * x) as f32
}

/// The quarter of a turn that an angle is nearest to, counted modulo some power of two, and the angle from there: `x - n π/2`, with `π/2` as
/// a sum of three (Cody and Waite, "Software manual for the elementary functions", 1980). The first two differences are exact but for one
/// rounding, as products are.
#[inline(always)]
fn quarter(x: f32) -> (u32, f32) {
    const PARTS: [f32; 3] = [FRAC_PI_2, -4.371_139e-8, -1.715_124_5e-15];
    // Adding it leaves the nearest whole number in the low bits.
    const SHIFT: f32 = 12_582_912.0;
    let shifted = x.mul_add(FRAC_2_PI, SHIFT);
    let n = shifted - SHIFT;
    let rest = PARTS.iter().fold(x, |rest, part| n.mul_add(-part, rest));
    (shifted.to_bits(), rest)
}

/// The sine or cosine of an angle of at most `π/4`, of which is asked by whether the quarter is odd, with the sign of the quarter. Relative errors
/// of the sums are 7e-9 and 2e-10.
#[inline(always)]
fn turned(quarter: u32, angle: f32) -> f32 {
    const SINE: [f32; 3] = [-0.166_666_55, 0.008_332_169, -0.000_195_160_17];
    const COSINE: [f32; 3] = [0.041_666_646, -0.001_388_730_4, 0.000_024_431_67];
    let square = angle * angle;
    let sum = |c: [f32; 3]| (c[2].mul_add(square, c[1])).mul_add(square, c[0]);
    let sine = (sum(SINE) * square).mul_add(angle, angle);
    let cosine = (sum(COSINE) * square - 0.5).mul_add(square, 1.0);
    let size = if quarter & 1 == 0 { sine } else { cosine };
    f32::from_bits(size.to_bits() ^ (quarter & 2) << 30)
}

#[inline(always)]
fn sin(x: f32) -> f32 {
    let (quarter, angle) = quarter(x);
    let turned = turned(quarter, angle);
    // Of either sign.
    if x == 0.0 { x } else { turned }
}

#[inline(always)]
fn cos(x: f32) -> f32 {
    let (quarter, angle) = quarter(x);
    turned(quarter.wrapping_add(1), angle)
}

#[inline(always)]
fn tan(x: f32) -> f32 {
    let (quarter, angle) = quarter(x);
    let tangent = turned(quarter, angle) / turned(quarter.wrapping_add(1), angle);
    // Of either sign.
    if x == 0.0 { x } else { tangent }
}

/// Of at most `tan(π/8)` in size `x + x³ P(x²)`, relative error 2e-8 (Cephes); of others from the angle to `π/4` or `π/2`.
#[inline(always)]
fn atan(x: f32) -> f32 {
    const FIT: [f32; 4] = [-0.333_329_5, 0.199_777_1, -0.138_776_86, 0.080_537_446];
    const EIGHTH: f32 = 0.414_213_57;
    let size = x.abs();
    let (is_far, is_near) = (size > 1.0 / EIGHTH, size <= EIGHTH);
    let above = if is_near { size } else { size - 1.0 };
    let below = if is_near { 1.0 } else { size + 1.0 };
    let from = if is_near { 0.0 } else { FRAC_PI_4 };
    let [above, below, from] = [
        if is_far { -1.0 } else { above },
        if is_far { size } else { below },
        if is_far { FRAC_PI_2 } else { from },
    ];
    let x_of = above / below;
    let square = x_of * x_of;
    let mut p = FIT[3];
    for i in [2, 1, 0] {
        p = p.mul_add(square, FIT[i]);
    }
    (from + (p * square).mul_add(x_of, x_of)).copysign(x)
}

/// One of two numbers that are both known. Where one were computed behind a condition, the compiler would keep a branch for it, and no vectors.
#[inline(always)]
fn either(is_first: bool, first: f32, second: f32) -> f32 {
    if is_first { first } else { second }
}

/// `x` or the nearer of two bounds. These are comparisons, so that NaN passes through.
#[inline(always)]
fn between(x: f32, low: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

#[inline(always)]
fn hardsigmoid(x: f32) -> f32 {
    between(x + 3.0, 0.0, 6.0) * (1.0 / 6.0)
}

#[inline(always)]
fn hardswish_slope(x: f32) -> f32 {
    let slope = x * (1.0 / 3.0) + 0.5;
    let slope = if x < 3.0 { slope } else { 1.0 };
    if x <= -3.0 { 0.0 } else { slope }
}

/// `max(x, 0) + ln(1 + e^-|x|)`, with what `1 + e^-|x|` loses of the exponential.
#[inline(always)]
fn softplus(x: f32) -> f32 {
    let e = falling(x);
    let sum = 1.0 + e;
    let lost = e - (sum - 1.0);
    (if x > 0.0 { x } else { 0.0 }) + (ln_of_normal(sum) + lost / sum)
}

/// `e^-|x|`
#[inline(always)]
fn falling(x: f32) -> f32 {
    f32::exp_fast::<true>(-x.abs())
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    let e = falling(x);
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

#[inline(always)]
fn sigmoid_slope(x: f32) -> f32 {
    let e = falling(x);
    e / ((1.0 + e) * (1.0 + e))
}

#[inline(always)]
fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// `s + x s (1 - s)` over one denominator.
#[inline(always)]
fn silu_slope(x: f32) -> f32 {
    let e = falling(x);
    let below = e * ((1.0 + x) + e);
    let above = e.mul_add(1.0 + x, 1.0);
    (if x < 0.0 { below } else { above }) / ((1.0 + e) * (1.0 + e))
}

/// `m / (m + 2)` with `m = e^2|x| - 1`.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    let twice = 2.0 * x.abs();
    // Beyond it is 1. This is a comparison, so that NaN passes through.
    let m = expm1(if twice > 20.0 { 20.0 } else { twice });
    (m / (m + 2.0)).copysign(x)
}

/// `4 e^-2|x| / (1 + e^-2|x|)²`, which keeps its digits where `1 - tanh²` has none left.
#[inline(always)]
fn tanh_slope(x: f32) -> f32 {
    let e = f32::exp_fast::<true>(-2.0 * x.abs());
    4.0 * e / ((1.0 + e) * (1.0 + e))
}

/// Below 0.5 `x P(x²)`, relative error 6e-8; beyond, from gelu's tail.
#[inline(always)]
fn erf(x: f32) -> f32 {
    const FIT: [f32; 5] = [
        FRAC_2_SQRT_PI,
        -0.376_126_08,
        0.112_828_225,
        -0.026_757_184,
        0.004_717_99,
    ];
    let (square, size) = (x * x, x.abs());
    let mut p = FIT[4];
    for i in [3, 2, 1, 0] {
        p = p.mul_add(square, FIT[i]);
    }
    let far = (1.0 - 2.0 * gelu::tail(SQRT_2 * size)).copysign(x);
    if size < 0.5 { x * p } else { far }
}

/// `e^x` of any number, the power of two as a product of two of half its size: of neither is the other infinite or 0.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // What is beyond is infinite, or 0. These are comparisons, so that NaN passes through.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let [r, t, power] = f32::exp_parts::<true>(x);
    // From -150 to 129.
    let power = exponent(power);
    let half = power >> 1;
    t.mul_add(r, 1.0).mul_add(r, 1.0) * power_of_two(half) * power_of_two(power - half)
}

/// `e^x - 1` as `2^n (e^r - 1) + (2^n - 1)`, of half the power, which is never infinite.
#[inline(always)]
fn expm1(x: f32) -> f32 {
    let near = if x > 89.0 { 89.0 } else { x };
    let near = if near < -30.0 { -30.0 } else { near };
    let [r, t, power] = f32::exp_parts::<true>(near);
    let half = power_of_two(exponent(power) - 1);
    let value = 2.0 * (t * r).mul_add(r, r).mul_add(half, half - 0.5);
    // Of either sign.
    if x == 0.0 { x } else { value }
}

/// The power of [`Exp::exp_parts`], which is less than 2^15 in size.
#[inline(always)]
fn exponent(power: f32) -> i32 {
    ((power.to_bits() << 16) as i32 >> 16) - 127
}

/// `2^power`, of powers of normal numbers.
#[inline(always)]
fn power_of_two(power: i32) -> f32 {
    f32::from_bits(((power + 127) as u32) << 23)
}

/// `x n / (n + 2)` with `n = e^x (e^x + 2)`: the tangent of a logarithm without either.
#[inline(always)]
fn mish(x: f32) -> f32 {
    let n = mish_parts(x)[1];
    x * (n / (n + 2.0))
}

/// `t + x t'` with `t = n / (n + 2)`, over one denominator; `n' = 2 e^x (e^x + 1)`.
#[inline(always)]
fn mish_slope(x: f32) -> f32 {
    let [e, n] = mish_parts(x);
    let sum = n + 2.0;
    let grows = 4.0 * e * (e + 1.0);
    // Beyond, the second term is 0.
    (n * sum + between(x, -100.0, 30.0) * grows) / (sum * sum)
}

#[inline(always)]
fn mish_parts(x: f32) -> [f32; 2] {
    // Beyond, the quotient is 1.
    let e = f32::exp_fast::<true>(if x > 20.0 { 20.0 } else { x });
    [e, e * (e + 2.0)]
}

/// `ln(1 + x)`, with what `1 + x` loses of `x`.
#[inline(always)]
fn ln_1p(x: f32) -> f32 {
    let sum = 1.0 + x;
    let lost = (x - (sum - 1.0)) / sum;
    let log = ln_of_normal(sum);
    let rest = if sum == 0.0 {
        f32::NEG_INFINITY
    } else {
        f32::NAN
    };
    let log = if sum > 0.0 { log + lost } else { rest };
    // Of either sign, and infinity.
    if x == 0.0 || x == f32::INFINITY {
        x
    } else {
        log
    }
}

/// The logarithm of any number.
#[inline(always)]
fn ln(x: f32) -> f32 {
    // What has not all digits is taken times 2^23. Of two selected constants the compiler makes two sums.
    let power = i32::from(x < f32::MIN_POSITIVE) * 23;
    let scale = f32::from_bits(((127 + power) as u32) << 23);
    let finite = ln_of_scaled(x * scale, power);
    let rest = if x == 0.0 {
        f32::NEG_INFINITY
    } else {
        f32::NAN
    };
    let finite = if x > 0.0 { finite } else { rest };
    if x == f32::INFINITY { x } else { finite }
}

/// Whether a number is above 0, finite, and no smaller than what has all digits.
#[inline(always)]
fn is_normal(x: f32) -> bool {
    const LEAST: u32 = f32::MIN_POSITIVE.to_bits();
    x.to_bits().wrapping_sub(LEAST) < f32::INFINITY.to_bits() - LEAST
}

/// The logarithm of such a number, the same as of any.
#[inline(always)]
fn ln_of_normal(x: f32) -> f32 {
    ln_of_scaled(x, 0)
}

/// The logarithm of a normal number less `power` times that of 2: `n ln 2 + ln(1 + f)` with `1 + f` in [1/√2, √2), and
/// `ln(1 + f) = f - f²/2 + f³ P(f)`, relative error 6e-9.
#[inline(always)]
fn ln_of_scaled(x: f32, power: i32) -> f32 {
    const FIT: [f32; 8] = [
        0.333_333_3,
        -0.250_008_2,
        0.200_012_27,
        -0.166_233_57,
        0.142_017_59,
        -0.131_601_83,
        0.127_615_75,
        -0.076_344_93,
    ];
    const HALF_BITS: u32 = (1.0 / SQRT_2).to_bits();
    // Its multiples by an exponent are exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = LN_2 - LN_2_HIGH;
    let bits = x.to_bits().wrapping_sub(HALF_BITS);
    let n = (((bits as i32) >> 23) - power) as f32;
    let f = f32::from_bits((bits & 0x007F_FFFF).wrapping_add(HALF_BITS)) - 1.0;
    let square = f * f;
    let [mut even, mut odd] = [FIT[6], FIT[7]];
    for i in [4, 2, 0] {
        even = even.mul_add(square, FIT[i]);
        odd = odd.mul_add(square, FIT[i + 1]);
    }
    let tail = odd.mul_add(f, even) * f;
    // The largest terms come last.
    let low = n.mul_add(LN_2_LOW, square * (tail - 0.5));
    n.mul_add(LN_2_HIGH, f + low)
}
