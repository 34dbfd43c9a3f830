//! Elementary functions of one number, in two grades.
//!
//! Formulas are written once in f64 over a [`Math`]. [`Precise`] is the standard library's (below 1e-15 relative, but scalar).
//! [`Fast`] consists of branch-free polynomials that the compiler turns into vectors, with relative errors below 2e-10.
//! Rounded to f32 that is within 0.51 units in the last place, so f32 kernels compute in `Fast` f64 and need no second formula
//! for cancellation.

use core::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI, FRAC_2_SQRT_PI, LN_2, LOG2_E, LOG10_E};

/// The elementary functions that activations are made of.
pub trait Math {
    /// `e^x`.
    fn exp(x: f64) -> f64;
    /// `e^x - 1` without cancellation near 0.
    fn expm1(x: f64) -> f64;
    /// Natural logarithm.
    fn ln(x: f64) -> f64;
    /// `ln(1 + x)` without cancellation near 0.
    fn ln_1p(x: f64) -> f64;
    /// Hyperbolic tangent.
    fn tanh(x: f64) -> f64;
    /// The error function.
    fn erf(x: f64) -> f64;
    /// Sine. [`Fast`] has it up to [`TURNS`].
    fn sin(x: f64) -> f64;
    /// Cosine. [`Fast`] has it up to [`TURNS`].
    fn cos(x: f64) -> f64;
    /// `x^p`. [`Fast`] has it for finite `p`.
    fn powf(x: f64, p: f64) -> f64;

    /// Tangent. [`Fast`] has it up to [`TURNS`].
    #[inline(always)]
    fn tan(x: f64) -> f64 {
        Self::sin(x) / Self::cos(x)
    }

    /// `2^x`.
    #[inline(always)]
    fn exp2(x: f64) -> f64 {
        Self::exp(x * LN_2)
    }

    /// Logarithm to base 2.
    #[inline(always)]
    fn log2(x: f64) -> f64 {
        Self::ln(x) * LOG2_E
    }

    /// Logarithm to base 10.
    #[inline(always)]
    fn log10(x: f64) -> f64 {
        Self::ln(x) * LOG10_E
    }

    /// `1 / (1 + e^-x)`.
    #[inline(always)]
    fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + Self::exp(-x))
    }

    /// `ln(1 + e^x)` without overflow or cancellation.
    #[inline(always)]
    fn softplus(x: f64) -> f64 {
        relu(x) + Self::ln_1p(Self::exp(-x.abs()))
    }

    /// Cumulative distribution of the standard normal, with all its digits on either side.
    fn normal_cdf(x: f64) -> f64;

    /// Density of the standard normal.
    #[inline(always)]
    fn normal_pdf(x: f64) -> f64 {
        const SCALE: f64 = FRAC_2_SQRT_PI * 0.5 * FRAC_1_SQRT_2;
        SCALE * Self::exp(-0.5 * x * x)
    }
}

/// The largest angle, in radians, of which [`Fast`] tells how many quarter turns it has.
pub const TURNS: f64 = 1e6;

/// The standard library's functions.
#[derive(Clone, Copy, Debug)]
pub struct Precise;

impl Math for Precise {
    #[inline(always)]
    fn exp(x: f64) -> f64 {
        x.exp()
    }
    #[inline(always)]
    fn expm1(x: f64) -> f64 {
        x.exp_m1()
    }
    #[inline(always)]
    fn ln(x: f64) -> f64 {
        x.ln()
    }
    #[inline(always)]
    fn ln_1p(x: f64) -> f64 {
        x.ln_1p()
    }
    #[inline(always)]
    fn tanh(x: f64) -> f64 {
        x.tanh()
    }
    #[inline(always)]
    fn erf(x: f64) -> f64 {
        libm::erf(x)
    }
    #[inline(always)]
    fn sin(x: f64) -> f64 {
        x.sin()
    }
    #[inline(always)]
    fn cos(x: f64) -> f64 {
        x.cos()
    }
    #[inline(always)]
    fn tan(x: f64) -> f64 {
        x.tan()
    }
    #[inline(always)]
    fn powf(x: f64, p: f64) -> f64 {
        x.powf(p)
    }
    #[inline(always)]
    fn exp2(x: f64) -> f64 {
        x.exp2()
    }
    #[inline(always)]
    fn log2(x: f64) -> f64 {
        x.log2()
    }
    #[inline(always)]
    fn log10(x: f64) -> f64 {
        x.log10()
    }
    #[inline(always)]
    fn normal_cdf(x: f64) -> f64 {
        0.5 * libm::erfc(-x * FRAC_1_SQRT_2)
    }
}

/// Vectorisable polynomials; `FMA` says whether fused multiply-add is an instruction here (where it is not, it is a slow call).
#[derive(Clone, Copy, Debug)]
pub struct Fast<const FMA: bool>;

impl<const FMA: bool> Fast<FMA> {
    #[inline(always)]
    fn fma(a: f64, b: f64, c: f64) -> f64 {
        if FMA { a.mul_add(b, c) } else { a * b + c }
    }

    /// `c[0] + c[1] x + c[2] x² + ...`, even and odd powers apart: one long chain would leave vectors waiting.
    #[inline(always)]
    fn polynomial<const N: usize>(x: f64, c: [f64; N]) -> f64 {
        let square = x * x;
        let [mut even, mut odd] = [0.0; 2];
        for i in (0..N).rev() {
            let sum = if i % 2 == 0 { &mut even } else { &mut odd };
            *sum = if i + 2 < N {
                Self::fma(*sum, square, c[i])
            } else {
                c[i]
            };
        }
        Self::fma(odd, x, even)
    }
}

impl<const FMA: bool> Fast<FMA> {
    /// `erfc(x) e^x²` for x from 0 to 10: a Chebyshev fit (degree 12, relative error 6e-11) in `2.5 / (2.5 + x)`.
    #[inline(always)]
    fn scaled_erfc(x: f64) -> f64 {
        const FIT: [f64; 13] = [
            0.296_287_477_369_211_3,
            0.390_984_007_194_599_5,
            0.215_401_658_614_151_48,
            0.080_947_943_049_534_57,
            0.017_250_633_374_900_68,
            6.955_962_406_557_423e-05,
            -0.000_927_968_326_565_046_1,
            -7.678_043_015_787_797e-05,
            6.381_249_851_380_29e-05,
            4.849_849_319_004_289e-06,
            -5.523_600_485_930_908e-06,
            -7.564_938_079_251_519e-08,
            4.064_500_915_078_186_5e-07,
        ];
        Self::polynomial(6.25 / (2.5 + x) - 1.5, FIT)
    }
}

impl<const FMA: bool> Fast<FMA> {
    /// The sine of an angle and so many quarter turns more. Of the quarter turns that are left, `|r| <= π/4`, Taylor's series of sine and
    /// cosine are right to 1e-11.
    #[inline(always)]
    fn sine(x: f64, ahead: u64) -> f64 {
        // As in `exp`: the number of quarter turns is in the low bits.
        const SHIFT: f64 = 6_755_399_441_055_744.0;
        // 33 bits, so that multiples up to 2^20 are exact (Cody and Waite).
        const QUARTER_HIGH: f64 = 1.570_796_326_734_125_6;
        const QUARTER_LOW: f64 = 6.077_100_506_506_192e-11;
        const SINE: [f64; 6] = [
            1.0,
            -1.0 / 6.0,
            1.0 / 120.0,
            -1.0 / 5_040.0,
            1.0 / 362_880.0,
            -1.0 / 39_916_800.0,
        ];
        const COSINE: [f64; 7] = [
            1.0,
            -1.0 / 2.0,
            1.0 / 24.0,
            -1.0 / 720.0,
            1.0 / 40_320.0,
            -1.0 / 3_628_800.0,
            1.0 / 479_001_600.0,
        ];
        let shifted = Self::fma(x, FRAC_2_PI, SHIFT);
        let n = shifted - SHIFT;
        let r = Self::fma(n, -QUARTER_LOW, Self::fma(n, -QUARTER_HIGH, x));
        let (sine, cosine) = (
            r * Self::polynomial(r * r, SINE),
            Self::polynomial(r * r, COSINE),
        );
        let quarters = shifted.to_bits().wrapping_add(ahead);
        let size = if quarters & 1 == 0 { sine } else { cosine };
        // Of the two last quarters the sign is the other one.
        f64::from_bits(size.to_bits() ^ (quarters & 2) << 62)
    }
}

impl<const FMA: bool> Math for Fast<FMA> {
    #[inline(always)]
    fn sin(x: f64) -> f64 {
        Self::sine(x, 0)
    }

    #[inline(always)]
    fn cos(x: f64) -> f64 {
        Self::sine(x, 1)
    }

    /// `e^(p ln |x|)`, and for whole `p` the sign of what is multiplied.
    #[inline(always)]
    fn powf(x: f64, p: f64) -> f64 {
        let size = Self::exp(p * Self::ln(x.abs()));
        let is_whole = p.floor() == p;
        let is_odd = is_whole & ((0.5 * p).floor() != 0.5 * p);
        let signed = if is_odd { size.copysign(x) } else { size };
        let is_one = x >= 0.0 || is_whole || x == f64::NEG_INFINITY;
        if is_one { signed } else { f64::NAN }
    }

    /// `2^n e^r` with `|r| <= ln 2 / 2` and a Chebyshev fit of `(e^r - 1) / r` (degree 7, which leaves a relative error of 2e-12);
    /// saturates at e^±708, beyond f32's range.
    #[inline(always)]
    fn exp(x: f64) -> f64 {
        // Adding 1.5 * 2^52 leaves round(x / ln 2) in the low bits: no conversion to integers is needed.
        const SHIFT: f64 = 6_755_399_441_055_744.0;
        const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
        const LN_2_LOW: f64 = LN_2 - LN_2_HIGH;
        // f64::clamp and min/max vectorise worse or drop NaN.
        let x = if x > 708.0 { 708.0 } else { x };
        let x = if x < -708.0 { -708.0 } else { x };
        let shifted = Self::fma(x, LOG2_E, SHIFT);
        let n = shifted - SHIFT;
        let r = Self::fma(n, -LN_2_LOW, Self::fma(n, -LN_2_HIGH, x));
        let scale = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52));
        const FIT: [f64; 9] = [
            1.0,
            0.999_999_999_995_505_5,
            0.499_999_999_999_550_7,
            0.166_666_667_863_804_38,
            0.041_666_666_786_337_55,
            0.008_333_283_518_768_105,
            0.001_388_883_909_064_137_8,
            0.000_199_075_825_913_251_28,
            2.486_788_345_352_179_6e-05,
        ];
        Self::polynomial(r, FIT) * scale
    }

    #[inline(always)]
    fn expm1(x: f64) -> f64 {
        let series = x * Self::polynomial(
            x,
            [
                1.0,
                1.0 / 2.0,
                1.0 / 6.0,
                1.0 / 24.0,
                1.0 / 120.0,
                1.0 / 720.0,
                1.0 / 5_040.0,
                1.0 / 40_320.0,
            ],
        );
        let whole = Self::exp(x) - 1.0;
        if x.abs() < 0.1 { series } else { whole }
    }

    /// `n ln 2 + 2 atanh((m - 1) / (m + 1))` with `m` in [1/√2, √2).
    #[inline(always)]
    fn ln(x: f64) -> f64 {
        const HALF_BITS: u64 = 0x3FE6_A09E_667F_3BCD; // 1/√2
        let bits = x.to_bits().wrapping_sub(HALF_BITS);
        let exponent = (bits as i64) >> 52;
        let m = f64::from_bits((bits & ((1 << 52) - 1)).wrapping_add(HALF_BITS));
        let s = (m - 1.0) / (m + 1.0);
        let s2 = s * s;
        let tail = Self::polynomial(
            s2,
            [
                1.0 / 3.0,
                1.0 / 5.0,
                1.0 / 7.0,
                1.0 / 9.0,
                1.0 / 11.0,
                1.0 / 13.0,
                1.0 / 15.0,
            ],
        );
        let finite = Self::fma(exponent as f64, LN_2, 2.0 * Self::fma(s * s2, tail, s));
        // Subnormal doubles do not arise from f32; the remaining special values are chosen, not computed.
        let finite = if x == f64::INFINITY { x } else { finite };
        let finite = if x == 0.0 { f64::NEG_INFINITY } else { finite };
        if x >= 0.0 { finite } else { f64::NAN }
    }

    #[inline(always)]
    fn ln_1p(x: f64) -> f64 {
        let series = x * Self::polynomial(x, [1.0, -1.0 / 2.0, 1.0 / 3.0, -1.0 / 4.0]);
        let whole = Self::ln(1.0 + x);
        if x.abs() < 1e-3 { series } else { whole }
    }

    #[inline(always)]
    fn tanh(x: f64) -> f64 {
        let x2 = x * x;
        let series = x * Self::polynomial(
            x2,
            [1.0, -1.0 / 3.0, 2.0 / 15.0, -17.0 / 315.0, 62.0 / 2_835.0],
        );
        let whole = 1.0 - 2.0 / (Self::exp(2.0 * x) + 1.0);
        if x.abs() < 0.05 { series } else { whole }
    }

    /// Below 0.5 this is the Taylor series, which keeps its digits near 0; above it `1 - erfc`.
    #[inline(always)]
    fn erf(x: f64) -> f64 {
        const SERIES: [f64; 9] = [
            FRAC_2_SQRT_PI,
            -FRAC_2_SQRT_PI / 3.0,
            FRAC_2_SQRT_PI / 10.0,
            -FRAC_2_SQRT_PI / 42.0,
            FRAC_2_SQRT_PI / 216.0,
            -FRAC_2_SQRT_PI / 1_320.0,
            FRAC_2_SQRT_PI / 9_360.0,
            -FRAC_2_SQRT_PI / 75_600.0,
            FRAC_2_SQRT_PI / 685_440.0,
        ];
        let size = x.abs();
        let series = x * Self::polynomial(x * x, SERIES);
        let bounded = if size > 10.0 { 10.0 } else { size };
        let tail = Self::exp(-bounded * bounded) * Self::scaled_erfc(bounded);
        let whole = (1.0 - tail).copysign(x);
        if size < 0.5 { series } else { whole }
    }

    #[inline(always)]
    fn normal_cdf(x: f64) -> f64 {
        let size = x.abs();
        // The same exponential as in the density, which the derivative of gelu needs too.
        let tail = 0.5 * Self::exp(-0.5 * x * x) * Self::scaled_erfc(size * FRAC_1_SQRT_2);
        // Where the exponential saturates.
        let tail = if size > 37.0 { 0.0 } else { tail };
        if x < 0.0 { tail } else { 1.0 - tail }
    }
}

/// `max(x, 0)` that keeps NaN.
#[inline(always)]
pub(crate) fn relu(x: f64) -> f64 {
    if x <= 0.0 { 0.0 } else { x }
}

/// The sign of `x`: -1, 0 or 1; 0 for NaN, as PyTorch has it.
#[inline(always)]
pub(crate) fn sign(x: f64) -> f64 {
    f64::from(u8::from(x > 0.0)) - f64::from(u8::from(x < 0.0))
}
