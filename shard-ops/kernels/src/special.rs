//! Functions of one and of two numbers that are sums of series, in double precision.

use crate::Real;
use crate::attention::Stored;
use crate::reduce::Half;
use core::cmp::Ordering;
use core::f64::consts::{PI, TAU};
use shard_device::Element;

/// `B(2n) / (2n)!` of the Bernoulli numbers.
pub(crate) const BERNOULLI: [f64; 12] = [
    8.333333333333333e-2,
    -1.388888888888889e-3,
    3.306878306878307e-5,
    -8.267195767195768e-7,
    2.08767569878681e-8,
    -5.284190138687493e-10,
    1.3382536530684679e-11,
    -3.3896802963225827e-13,
    8.586062056277845e-15,
    -2.174868698558062e-16,
    5.5090028283602295e-18,
    -1.3954464685812522e-19,
];

/// Hurwitz's zeta function: the sum of `(q + k)^-s` over all `k` from 0 on. Infinite for `s` of 1 and at its poles, which are at 0 and below
/// it at whole numbers; NaN for `s` below 1, and below 0 for `s` that are no whole numbers.
pub(crate) fn zeta(s: f64, q: f64) -> f64 {
    if s == 1.0 {
        return f64::INFINITY;
    }
    if s < 1.0 || s.is_nan() || q.is_nan() {
        return f64::NAN;
    }
    if q > 0.0 {
        return zeta_above(s, q);
    }
    if q == q.floor() {
        return f64::INFINITY;
    }
    if s != s.floor() {
        return f64::NAN;
    }
    // From the sum over all k, below 0 too, which is the same for all q that differ by a whole number. It is put together around the nearest.
    let near = q - q.round_ties_even();
    let sign = if s % 2.0 == 0.0 || s.is_infinite() {
        1.0
    } else {
        -1.0
    };
    let beyond = zeta_above(s, 1.0 - near) - zeta_above(s, 1.0 - q);
    near.powf(-s) + zeta_above(s, 1.0 + near) + sign * beyond
}

/// Above 0 by the first terms, and Euler's and Maclaurin's sum of the others.
fn zeta_above(s: f64, q: f64) -> f64 {
    if s.is_infinite() {
        return q.powf(-s);
    }
    let (mut at, mut sum) = (q, 0.0);
    for _ in 0..10 {
        let term = at.powf(-s);
        sum += term;
        if term < f64::EPSILON * 0.5 * sum {
            return sum;
        }
        at += 1.0;
    }
    let mut power = at.powf(-s);
    sum += at.powf(1.0 - s) / (s - 1.0) + 0.5 * power;
    let mut factor = s;
    for (n, c) in (1..).zip(BERNOULLI) {
        power /= at;
        sum += c * factor * power;
        power /= at;
        let next = f64::from(2 * n) + s;
        factor *= next * (next - 1.0);
    }
    sum
}

/// The lower (or the upper) incomplete gamma function over the whole one: the probability that a number of a gamma distribution of this
/// concentration and rate 1 is below `x` (or above it).
///
/// The ways are those of Gil, Segura and Temme 2012, "Efficient and accurate algorithms for the computation and inversion of the incomplete
/// gamma function ratios", where SciPy and PyTorch have tables in place of the second one: a series below the concentration, a continued
/// fraction above it, Temme's uniform expansion around large ones, and another series where both numbers are small.
pub(crate) fn incomplete_gamma(is_lower: bool, a: f64, x: f64) -> f64 {
    let ends = |at_infinity: bool| f64::from(at_infinity == is_lower);
    if !(a >= 0.0 && x >= 0.0) || (a == 0.0 && x == 0.0) || (a.is_infinite() && x.is_infinite()) {
        return f64::NAN;
    }
    if a == 0.0 || x.is_infinite() {
        return ends(true);
    }
    if x == 0.0 || a.is_infinite() {
        return ends(false);
    }
    let of = |found: f64, lower: bool| {
        if lower == is_lower {
            found
        } else {
            1.0 - found
        }
    };
    if a >= 30.0 && (x - a).abs() < 0.4 * a {
        return gamma_around(is_lower, a, x);
    }
    let is_far = if x <= 0.5 {
        -0.4 / x.ln() < a
    } else {
        1.1 * x < a
    };
    match x > 1.1 {
        true if x > a => of(gamma_fraction(a, x), false),
        true => of(gamma_series(a, x), true),
        false if is_far || is_lower => of(gamma_series(a, x), true),
        false => gamma_of_small(a, x),
    }
}

/// Of the lower function, in powers of `x`.
fn gamma_series(a: f64, x: f64) -> f64 {
    let (mut sum, mut term, mut below) = (1.0, 1.0, a);
    for _ in 0..500 {
        below += 1.0;
        term *= x / below;
        sum += term;
        if term <= f64::EPSILON * 0.5 * sum {
            break;
        }
    }
    sum * gamma_factor(a, x)
}

/// Of the upper function, by Lentz's method.
fn gamma_fraction(a: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let away = |x: f64| if x.abs() < TINY { TINY } else { x };
    let mut b = x + 1.0 - a;
    let (mut c, mut d) = (TINY.recip(), away(b).recip());
    let mut fraction = d;
    for i in 1..500 {
        let i = f64::from(i);
        let above = -i * (i - a);
        b += 2.0;
        d = away(above * d + b).recip();
        c = away(b + above / c);
        fraction *= d * c;
        if (d * c - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    a * fraction * gamma_factor(a, x)
}

/// The upper function of small numbers, whose lower one is near 1: `1 - x^a / Γ(a + 1)` less a series.
fn gamma_of_small(a: f64, x: f64) -> f64 {
    let (mut factor, mut sum) = (1.0, 0.0);
    for n in 1..60 {
        factor *= -x / f64::from(n);
        let term = factor / (a + f64::from(n));
        sum += term;
        if term.abs() <= f64::EPSILON * 0.1 * f64::abs(sum) {
            break;
        }
    }
    let log = a * x.ln() - ln_gamma_1p(a);
    -log.exp_m1() - log.exp() * a * sum
}

/// The logarithm of `Γ(1 + a)`, of small `a` by its series, so that it keeps its digits.
fn ln_gamma_1p(a: f64) -> f64 {
    // ζ(k) / k with signs in turn, from k = 2 on.
    const SERIES: [f64; 13] = [
        0.822_467_033_424_113_2,
        -0.400_685_634_386_531_4,
        0.270_580_808_427_784_54,
        -0.207_385_551_028_673_98,
        0.169_557_176_997_408_2,
        -0.144_049_896_768_846_1,
        0.125_509_669_524_743_04,
        -0.111_334_265_869_564_69,
        0.100_099_457_512_781_8,
        -0.090_954_017_145_829_04,
        0.083_353_840_546_109,
        -0.076_932_516_411_352_2,
        0.071_432_946_295_361_33,
    ];
    const EULER: f64 = 0.577_215_664_901_532_9;
    if a > 0.05 {
        return libm::lgamma(1.0 + a);
    }
    let sum = SERIES.iter().rev().fold(0.0, |sum, c| (sum + c) * a);
    a * (sum - EULER)
}

/// `x^a e^-x / Γ(a + 1)`, of large `a` by Stirling's series.
fn gamma_factor(a: f64, x: f64) -> f64 {
    if a < 20.0 {
        return (a * x.ln() - x - libm::lgamma(a + 1.0)).exp();
    }
    let square = (a * a).recip();
    let series = [
        1.0 / 12.0,
        -1.0 / 360.0,
        1.0 / 1260.0,
        -1.0 / 1680.0,
        1.0 / 1188.0,
        -691.0 / 360_360.0,
    ];
    let sum = series.iter().rev().fold(0.0, |sum, c| sum * square + c);
    (-a * less_its_log((x - a) / a) - sum / a).exp() / (TAU * a).sqrt()
}

/// `m - ln(1 + m)`, which keeps its digits near 0.
fn less_its_log(m: f64) -> f64 {
    if m.abs() >= 0.5 {
        return m - m.ln_1p();
    }
    // The logarithm is twice the inverse tangent of a hyperbola's angle z, and 2 z differs from m by m z.
    let z = m / (2.0 + m);
    let (mut power, mut sum) = (z * z * z, 0.0);
    for k in 1..20 {
        sum += power / f64::from(2 * k + 1);
        power *= z * z;
    }
    m * z - 2.0 * sum
}

/// Around large concentrations: the normal distribution's share of a number whose square is `2 (λ - 1 - ln λ)` with `λ = x / a`, and Temme's
/// correction of it, by the recurrence of Temme 1994, "A set of algorithms for the incomplete gamma functions".
fn gamma_around(is_lower: bool, a: f64, x: f64) -> f64 {
    // That number over λ - 1, by its powers.
    const SERIES: [f64; 27] = [
        1.0,
        -0.333_333_333_333_333_3,
        0.083_333_333_333_333_33,
        -0.014_814_814_814_814_815,
        0.001_157_407_407_407_407_3,
        0.000_352_733_686_067_019_4,
        -0.000_178_755_144_032_921_8,
        3.919_263_178_522_438e-5,
        -2.185_448_510_679_992e-6,
        -1.854_062_210_715_16e-6,
        8.296_711_340_953_087e-7,
        -1.766_595_273_682_607_8e-7,
        6.707_853_543_401_498e-9,
        1.026_180_978_424_030_9e-8,
        -4.382_036_018_453_353e-9,
        9.147_699_582_236_79e-10,
        -2.551_419_399_494_624_8e-11,
        -5.830_772_132_550_426e-11,
        2.436_194_802_066_741_5e-11,
        -5.027_669_280_114_175_5e-12,
        1.100_439_203_195_613_5e-13,
        3.371_763_262_400_985e-13,
        -1.392_388_722_418_162e-13,
        2.853_489_380_704_744_5e-14,
        -5.139_111_834_242_572e-16,
        -1.975_228_829_434_944_2e-15,
        8.099_521_156_704_561e-16,
    ];
    let m = (x - a) / a;
    let half = a * less_its_log(m);
    let root = half.sqrt().copysign(m);
    let number = root * (2.0 / a).sqrt();
    let (mut sum, mut next) = (0.0, [SERIES[25], SERIES[26]]);
    for n in (1..=25).rev() {
        sum = sum * number + next[0];
        next = [SERIES[n] + (n + 1) as f64 * next[1] / a, next[0]];
    }
    // Now they are of n = 0 and 1.
    let correction = (sum * number + next[0]) / (1.0 + next[1] / a);
    let tail = (-half).exp() / (TAU * a).sqrt() * correction;
    match is_lower {
        true => 0.5 * libm::erfc(-root) - tail,
        false => 0.5 * libm::erfc(root) + tail,
    }
}

/// From where on the asymptotic series of Bessel functions is exact.
const BESSEL_FAR: f64 = 25.0;

/// A derivative of the modified Bessel function of the second kind of order `n`, which is 0 or 1, or of `e^x` times it: means of those of the
/// orders beside.
pub(crate) fn bessel_falling(n: i32, order: i32, is_scaled: bool, x: f64) -> f64 {
    if x < 0.0 || x.is_nan() {
        return f64::NAN;
    }
    if x == 0.0 {
        return if order % 2 == 0 {
            f64::INFINITY
        } else {
            f64::NEG_INFINITY
        };
    }
    if is_scaled && x >= BESSEL_FAR {
        return falling_far(n, order, x);
    }
    let orders = falling_orders(x);
    let slope = |order: i32| {
        let (mut sum, mut choices) = (0.0, 1.0);
        for i in 0..=order {
            sum += choices * orders[(n - order + 2 * i).unsigned_abs() as usize];
            choices *= f64::from(order - i) / f64::from(i + 1);
        }
        sum / f64::from(1 << order) * if order % 2 == 0 { 1.0 } else { -1.0 }
    };
    if !is_scaled {
        return slope(order) * (-x).exp();
    }
    let (mut sum, mut choices) = (0.0, 1.0);
    for j in 0..=order {
        sum += choices * slope(j);
        choices *= f64::from(order - j) / f64::from(j + 1);
    }
    sum
}

/// `e^x` times the functions of orders 0 to 4, of which each follows from the two before.
fn falling_orders(x: f64) -> [f64; 5] {
    let mut orders = [0.0; 5];
    for n in 0..2 {
        orders[n as usize] = match x {
            _ if x >= BESSEL_FAR => falling_far(n, 0, x),
            _ if x >= 2.0 => falling_integral(n, x),
            _ => falling_near(n, x) * x.exp(),
        };
    }
    for n in 1..4 {
        orders[n + 1] = orders[n - 1] + 2.0 * n as f64 / x * orders[n];
    }
    orders
}

/// By powers of `x` and its logarithm (DLMF 10.31).
fn falling_near(n: i32, x: f64) -> f64 {
    const EULER: f64 = 0.577_215_664_901_532_9;
    let (half, n) = (0.5 * x, f64::from(n));
    let log = half.ln();
    // Of the digamma function at k + 1 and k + n + 1, the sum.
    let (mut digammas, mut term, mut sum) = (n - 2.0 * EULER, 1.0, 0.0);
    for k in 1..20 {
        sum += term * (0.5 * digammas - log);
        let k = f64::from(k);
        term *= half * half / (k * (k + n));
        digammas += k.recip() + (k + n).recip();
    }
    if n == 0.0 {
        sum
    } else {
        x.recip() - half * sum
    }
}

/// The integral of `e^(x (1 - cosh t)) cosh(n t)` (DLMF 10.32.9) by the trapezoidal rule, whose error falls exponentially.
fn falling_integral(n: i32, x: f64) -> f64 {
    const STEP: f64 = 0.125;
    let at = |t: f64| {
        let half = (0.5 * t).sinh();
        (-2.0 * x * half * half).exp() * (f64::from(n) * t).cosh()
    };
    let others: f64 = (1..34).map(|i| at(STEP * f64::from(i))).sum();
    STEP * (0.5 + others)
}

/// A derivative of `e^x` times the function, term by term of its asymptotic series (DLMF 10.40.2).
fn falling_far(n: i32, order: i32, x: f64) -> f64 {
    let (mut term, mut sum) = (1.0, 0.0);
    for k in 0..30 {
        // The power is -k - ½, and one less with each derivative.
        let slope: f64 = (0..order).map(|i| -f64::from(k + i) - 0.5).product();
        sum += slope * term;
        let odd = 2 * k + 1;
        term *= f64::from(4 * n * n - odd * odd) / (f64::from(8 * (k + 1)) * x);
    }
    sum * (0.5 * PI / x).sqrt() / x.powi(order)
}

/// Airy's function Ai and its derivative at whole numbers from -9 to 9.
const AIRY: [[f64; 2]; 19] = [
    [-0.022_133_721_547_341_403, -0.975_663_980_926_331_6],
    [-0.052_705_050_356_386_2, 0.935_560_938_198_306_5],
    [0.184_280_835_250_505_65, -0.771_008_168_410_126_5],
    [-0.329_145_173_629_823_1, 0.345_935_487_281_342_9],
    [0.350_761_009_024_114_33, 0.327_192_818_554_443_15],
    [-0.070_265_532_949_289_51, -0.790_628_575_368_581_3],
    [-0.378_814_293_677_658_06, 0.314_583_769_216_598_8],
    [0.227_407_428_201_685_58, 0.618_259_020_741_691],
    [0.535_560_883_292_352_1, -0.010_160_567_116_645_21],
    [0.355_028_053_887_817_2, -0.258_819_403_792_806_8],
    [0.135_292_416_312_881_41, -0.159_147_441_296_793_2],
    [0.034_924_130_423_274_38, -0.053_090_384_433_653_63],
    [0.006_591_139_357_460_719, -0.011_912_976_705_951_319],
    [0.000_951_563_851_204_801_8, -0.001_958_640_950_204_179],
    [0.000_108_344_428_136_074_42, -0.000_247_413_890_868_462_5],
    [9.947_694_360_252_889e-6, -2.476_520_039_703_495_5e-5],
    [7.492_128_863_997_167e-7, -2.008_150_894_738_792e-6],
    [4.692_207_616_099_231_6e-8, -1.341_439_297_906_786_5e-7],
    [2.471_168_430_872_49e-9, -7.480_641_389_658_946e-9],
];

/// Airy's function Ai and its first three derivatives, of which the latter follow from `y″ = x y`: by Taylor's series around the nearest whole
/// number, or far from 0 by asymptotic series (DLMF 9.7). They are 0 at infinity; towards the other one only the function is.
pub(crate) fn airy_parts(x: f64) -> [f64; 4] {
    if x.is_infinite() {
        return match x > 0.0 {
            true => [0.0; 4],
            false => [0.0, f64::NAN, f64::NAN, f64::NAN],
        };
    }
    let [value, slope] = match x.abs() < 9.5 {
        true => airy_near(x),
        false => airy_far(x),
    };
    [value, slope, x * value, value + x * slope]
}

fn airy_near(x: f64) -> [f64; 2] {
    let at = x.round();
    let step = x - at;
    let [mut value, mut slope] = AIRY[(at + 9.0) as usize];
    // Coefficients of three powers in a row.
    let mut three = [0.0, value, slope];
    value += slope * step;
    let mut power = step;
    for n in 0..30 {
        let n = f64::from(n);
        let next = (at * three[1] + three[0]) / ((n + 1.0) * (n + 2.0));
        slope += (n + 2.0) * next * power;
        power *= step;
        value += next * power;
        three = [three[1], three[2], next];
    }
    [value, slope]
}

fn airy_far(x: f64) -> [f64; 2] {
    let root = x.abs().sqrt();
    let (far, scale) = (x.abs() * root / 1.5, root.sqrt());
    if far.is_infinite() {
        return [0.0, if x > 0.0 { 0.0 } else { f64::NAN }];
    }
    let falls = x > 0.0;
    // Terms of even and of odd powers, of the function and of its derivative.
    let (mut values, mut slopes, mut term) = ([0.0; 2], [0.0; 2], 1.0);
    for k in 0..34 {
        let turns = if falls { k % 2 } else { k / 2 % 2 };
        let sign = if turns == 0 { term } else { -term };
        let (six, next) = (f64::from(6 * k), f64::from(k + 1));
        values[k as usize % 2] += sign;
        slopes[k as usize % 2] += sign * (six + 1.0) / (1.0 - six);
        term *= (six + 1.0) * (six + 3.0) * (six + 5.0) / (216.0 * next * (2.0 * next - 1.0) * far);
    }
    let one = 1.0 / PI.sqrt();
    if falls {
        let end = 0.5 * one * (-far).exp();
        return [
            end / scale * (values[0] + values[1]),
            -end * scale * (slopes[0] + slopes[1]),
        ];
    }
    let (sine, cosine) = (far - 0.25 * PI).sin_cos();
    [
        one / scale * (cosine * values[0] + sine * values[1]),
        one * scale * (sine * slopes[0] - cosine * slopes[1]),
    ]
}

/// A number times a power of two: the number from a half to 1 in size, and the power. What is not finite stays, as 0 does, with the power 0.
pub(crate) fn frexp(x: f64) -> (f64, f64) {
    if x == 0.0 || !x.is_finite() {
        return (x, 0.0);
    }
    let (mantissa, power) = libm::frexp(x);
    (mantissa, f64::from(power))
}

/// The next number of its type after `a` on the way to `b`; `b` if they are equal.
pub(crate) fn next_after<T: Real>(a: T, b: T) -> T {
    let step = |up: bool| match (size_of::<T>() == size_of::<f32>(), up) {
        (true, true) => T::of((a.wide() as f32).next_up().into()),
        (true, false) => T::of((a.wide() as f32).next_down().into()),
        (false, true) => T::of(a.wide().next_up()),
        (false, false) => T::of(a.wide().next_down()),
    };
    match a.partial_cmp(&b) {
        Some(Ordering::Less) => step(true),
        Some(Ordering::Equal) => b,
        Some(Ordering::Greater) => step(false),
        None => T::nan(),
    }
}

/// As [`next_after`] of numbers of 16 bits.
pub(crate) fn next_half<T: Half + Element>(a: T, b: T) -> T {
    let [from, to] = [a, b].map(Stored::widen);
    let (bits, up): (u16, _) = (bytemuck::cast(a), from < to);
    match from.partial_cmp(&to) {
        None if from.is_nan() => a,
        None | Some(Ordering::Equal) => b,
        _ if from == 0.0 => bytemuck::cast(if up { 1u16 } else { 0x8001 }),
        _ if (from > 0.0) == up => bytemuck::cast(bits + 1),
        _ => bytemuck::cast(bits - 1),
    }
}
