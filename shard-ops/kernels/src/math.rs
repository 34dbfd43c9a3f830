//! Elementary functions of one number, in two grades.
//!
//! Formulas are written once in f64 over a [`Math`]. [`Precise`] is the standard library's (below 1e-15 relative, but scalar).
//! [`Fast`] consists of branch-free polynomials that the compiler turns into vectors, with relative errors below 2e-10.
//! Rounded to f32 that is within 0.51 units in the last place, so f32 kernels compute in `Fast` f64 and need no second formula
//! for cancellation.

use core::f64::consts::{FRAC_2_SQRT_PI, LN_2, LOG2_E};

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

    /// Cumulative distribution of the standard normal.
    #[inline(always)]
    fn normal_cdf(x: f64) -> f64 {
        0.5 + 0.5 * Self::erf(x * core::f64::consts::FRAC_1_SQRT_2)
    }

    /// Density of the standard normal.
    #[inline(always)]
    fn normal_pdf(x: f64) -> f64 {
        const SCALE: f64 = FRAC_2_SQRT_PI * 0.5 * core::f64::consts::FRAC_1_SQRT_2;
        SCALE * Self::exp(-0.5 * x * x)
    }
}

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
}

/// Vectorisable polynomials; `FMA` says whether fused multiply-add is an instruction here (where it is not, it is a slow call).
#[derive(Clone, Copy, Debug)]
pub struct Fast<const FMA: bool>;

impl<const FMA: bool> Fast<FMA> {
    #[inline(always)]
    fn fma(a: f64, b: f64, c: f64) -> f64 {
        if FMA { a.mul_add(b, c) } else { a * b + c }
    }

    /// `c[0] + c[1] x + c[2] x² + ...`
    #[inline(always)]
    fn polynomial<const N: usize>(x: f64, c: [f64; N]) -> f64 {
        let mut sum = c[N - 1];
        for i in (0..N - 1).rev() {
            sum = Self::fma(sum, x, c[i]);
        }
        sum
    }
}

impl<const FMA: bool> Math for Fast<FMA> {
    /// `2^n e^r` with `|r| <= ln 2 / 2` and the Taylor polynomial of degree 11; saturates at e^±708, beyond f32's range.
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
        let p = Self::polynomial(
            r,
            [
                1.0,
                1.0,
                1.0 / 2.0,
                1.0 / 6.0,
                1.0 / 24.0,
                1.0 / 120.0,
                1.0 / 720.0,
                1.0 / 5_040.0,
                1.0 / 40_320.0,
                1.0 / 362_880.0,
                1.0 / 3_628_800.0,
                1.0 / 39_916_800.0,
            ],
        );
        p * scale
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

    /// Below 0.5 this is the Taylor series; above it `1 - e^-x² q`, where `q` is a Chebyshev fit (degree 12, relative error
    /// 7e-11) of `erfc(x) e^x²` in `2 / (2 + x)` over 0.5 ..= 10.
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
        const TAIL: [f64; 13] = [
            0.241_421_736_930_721_1,
            0.260_514_045_844_560_4,
            0.093_774_883_084_878_22,
            0.019_917_463_623_465_487,
            0.000_785_747_426_631_864_7,
            -0.000_693_426_539_179_411_9,
            -6.933_805_815_273_05e-5,
            3.934_610_770_265_442_5e-5,
            2.526_372_555_839_301_4e-6,
            -2.938_263_225_137_606e-6,
            1.466_873_771_850_994_5e-7,
            1.849_537_901_294_367_8e-7,
            -3.397_687_266_841_06e-8,
        ];
        let size = x.abs();
        let x2 = x * x;
        let series = x * Self::polynomial(x2, SERIES);
        let bounded = if size > 10.0 { 10.0 } else { size };
        let t = 2.0 / (2.0 + bounded);
        let q = Self::polynomial(
            Self::fma(t, 3.157_894_736_842_105, -1.526_315_789_473_684),
            TAIL,
        );
        let whole = (1.0 - Self::exp(-bounded * bounded) * q).copysign(x);
        if size < 0.5 { series } else { whole }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn worst(low: f64, high: f64, fast: fn(f64) -> f64, exact: fn(f64) -> f64) -> f64 {
        let n = 20_001;
        (0..=n)
            .map(|i| low + (high - low) * f64::from(i) / f64::from(n))
            .filter(|x| exact(*x) != 0.0)
            .map(|x| ((fast(x) - exact(x)) / exact(x)).abs())
            .fold(0.0, f64::max)
    }

    fn grades<const FMA: bool>() {
        type P = Precise;
        type Map = fn(f64) -> f64;
        let cases: [(&str, Map, Map, f64, f64); 11] = [
            ("exp", Fast::<FMA>::exp, P::exp, -700.0, 700.0),
            ("exp near 0", Fast::<FMA>::exp, P::exp, -1.0, 1.0),
            ("expm1", Fast::<FMA>::expm1, P::expm1, -0.4, 0.4),
            ("ln", Fast::<FMA>::ln, P::ln, 1e-3, 30.0),
            ("ln_1p", Fast::<FMA>::ln_1p, P::ln_1p, -0.999, 30.0),
            ("ln_1p near 0", Fast::<FMA>::ln_1p, P::ln_1p, -2e-3, 2e-3),
            ("ln_1p nearer", Fast::<FMA>::ln_1p, P::ln_1p, -1e-9, 1e-9),
            ("tanh", Fast::<FMA>::tanh, P::tanh, -12.0, 12.0),
            ("tanh near 0", Fast::<FMA>::tanh, P::tanh, -0.1, 0.1),
            ("erf", Fast::<FMA>::erf, P::erf, -12.0, 12.0),
            ("erf near 0", Fast::<FMA>::erf, P::erf, -0.6, 0.6),
        ];
        for (name, fast, exact, low, high) in cases {
            let error = worst(low, high, fast, exact);
            assert!(error < 2e-10, "{name}: relative error {error:e}");
        }
    }

    #[test]
    fn fast_functions_are_far_below_single_precision() {
        grades::<true>();
        grades::<false>();
    }

    #[test]
    fn fast_functions_keep_special_values() {
        type F = Fast<false>;
        for f in [F::exp, F::expm1, F::ln, F::ln_1p, F::tanh, F::erf] {
            assert!(f(f64::NAN).is_nan());
        }
        assert_eq!(
            (
                F::exp(f64::INFINITY) as f32,
                F::exp(f64::NEG_INFINITY) as f32
            ),
            (f32::INFINITY, 0.0)
        );
        assert_eq!(
            (F::ln(0.0), F::ln(f64::INFINITY)),
            (f64::NEG_INFINITY, f64::INFINITY)
        );
        assert!(F::ln(-1.0).is_nan());
        assert_eq!(
            (
                F::tanh(f64::INFINITY),
                F::tanh(-1e30),
                F::erf(f64::NEG_INFINITY)
            ),
            (1.0, -1.0, -1.0)
        );
        assert_eq!(
            (F::tanh(0.0), F::erf(0.0), F::exp(0.0), F::expm1(0.0)),
            (0.0, 0.0, 1.0, 0.0)
        );
        assert!(f64::from(f32::from_bits(1)).ln() - F::ln(f64::from(f32::from_bits(1))) < 1e-9);
    }
}
