//! The exponential, as vectors of the element type itself: for softmax and attention, whose sums do not show its last digit.

use pulp::Simd;

/// A type with an exponential that the compiler turns into vectors.
pub trait Exp: Copy {
    /// `e^x`, within two units in the last place, of what is at most 88 or 709: differences from a maximum are never far above 0.
    /// It is 0 below the smallest normal number. `FMA` says whether fused multiply-add is an instruction here.
    fn exp_fast<const FMA: bool>(x: Self) -> Self;

    /// `e^x` as `2^n e^r` with `|r| <= ln 2 / 2`: `r`, then `t` of `e^r = 1 + r + r² t`, and a number whose lowest bits are `n` plus the
    /// bias of exponents.
    #[doc(hidden)]
    fn exp_parts<const FMA: bool>(x: Self) -> [Self; 3];
}

/// `2^n e^r` with `|r| <= ln 2 / 2` and a polynomial that is right to half a unit in the last place: of single precision a Chebyshev
/// fit, relative error 2.1e-8; of double precision Taylor's.
macro_rules! exp {
    ($t:ident, $bits:ident, mantissa $mantissa:literal, bias $bias:literal, shift $shift:expr, high $high:expr, low $low:expr, smallest $smallest:expr, $terms:expr) => {
        impl Exp for $t {
            #[inline(always)]
            fn exp_fast<const FMA: bool>(x: Self) -> Self {
                let [r, t, power] = Self::exp_parts::<FMA>(x);
                let p = fma::<$t, FMA>(fma::<$t, FMA>(t, r, 1.0), r, 1.0);
                let scale = Self::from_bits(power.to_bits() << $mantissa);
                // This is a comparison, so that NaN passes through.
                if x < $smallest { 0.0 } else { p * scale }
            }

            #[inline(always)]
            fn exp_parts<const FMA: bool>(x: Self) -> [Self; 3] {
                // Adding `SHIFT` leaves round(x / ln 2) and the bias of exponents in the low bits: no conversion to integers is needed.
                const SHIFT: $t = $shift + $bias as $t;
                // `HIGH` has so few digits that its multiples by an exponent are exact.
                const HIGH: $t = $high;
                const LOW: $t = $low;
                const TERMS: &[$t] = &$terms;
                let shifted = fma::<$t, FMA>(x, core::$t::consts::LOG2_E, SHIFT);
                let n = shifted - SHIFT;
                let r = fma::<$t, FMA>(n, -LOW, fma::<$t, FMA>(n, -HIGH, x));
                let mut t = TERMS[TERMS.len() - 1];
                let mut i = TERMS.len() - 1;
                while i > 0 {
                    i -= 1;
                    t = fma::<$t, FMA>(t, r, TERMS[i]);
                }
                [r, t, shifted]
            }
        }
    };
}

#[inline(always)]
fn fma<T: num_traits::Float, const FMA: bool>(a: T, b: T, c: T) -> T {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

exp!(
    f32, u32, mantissa 23, bias 127, shift 12_582_912.0, high 0.693_359_4, low -2.121_944_4e-4, smallest -87.3,
    [0.5, 0.166_664_15, 0.041_666_35, 0.008_375_132, 0.001_394_111_7]
);
exp!(
    f64, u64, mantissa 52, bias 1023, shift 6_755_399_441_055_744.0, high 0.693_147_180_369_123_8,
    low 1.908_214_929_270_587_7e-10, smallest -708.3,
    [
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
        1.0 / 479_001_600.0,
        1.0 / 6_227_020_800.0,
    ]
);

/// [`Exp::exp_fast`] on this instruction set.
#[inline(always)]
pub(crate) fn exp_in<S: Simd, T: Exp>(x: T) -> T {
    if const { fused::<S>() } {
        T::exp_fast::<true>(x)
    } else {
        T::exp_fast::<false>(x)
    }
}

/// [`Exp::exp_fast`] of `x * factor - shift` on this instruction set.
#[inline(always)]
pub(crate) fn exp_shifted<S: Simd, T: Exp + num_traits::Float>(x: T, factor: T, shift: T) -> T {
    if const { fused::<S>() } {
        T::exp_fast::<true>(x.mul_add(factor, -shift))
    } else {
        T::exp_fast::<false>(x * factor - shift)
    }
}

/// Whether fused multiply-add is an instruction of this instruction set.
pub(crate) const fn fused<S: Simd>() -> bool {
    S::F64_LANES >= 4 || cfg!(target_arch = "aarch64")
}
