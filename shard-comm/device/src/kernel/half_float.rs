//! Conversions of `f16` to and from `f32` by their bits.
//!
//! Those of the crate `half` ask at each element whether the processor has an instruction for it, so that loops of them are not on
//! vectors: sums of `f16` took up to four times as long. Here both sides of each choice are computed, and the compiler makes vectors of
//! the loops. Results are the same, bit by bit: the nearest value, of two the even one; NaNs become quiet and keep the upper bits
//! of their payload. (`bf16` has short conversions in the crate.)

use half::f16;

/// The bit that a quiet NaN has and a signalling one lacks.
const QUIET: u32 = 1 << 22;
const INFINITY: u32 = 0xff << 23;

#[inline]
pub(crate) fn widen_f16(value: f16) -> f32 {
    let bits = u32::from(value.to_bits());
    let (sign, size) = ((bits & 0x8000) << 16, bits & 0x7fff);
    // The exponent counts from 15, not from 127; subnormal values become normal by the product.
    let finite = (f32::from_bits(size << 13) * f32::from_bits((127 + 127 - 15) << 23)).to_bits();
    let quiet = if size > 0x7c00 { QUIET } else { 0 };
    let beyond = INFINITY | quiet | size << 13;
    f32::from_bits(sign | if size >= 0x7c00 { beyond } else { finite })
}

#[inline]
pub(crate) fn narrow_f16(value: f32) -> f16 {
    const LEAST_NORMAL: u32 = (127 - 14) << 23;
    const HALF: u32 = (127 - 1) << 23;
    let bits = value.to_bits();
    let (sign, size) = ((bits >> 16) & 0x8000, bits & !(1 << 31));
    // Half a unit in the last place, or a little less if the value below is even. What is too large overflows to infinity.
    let shifted = size.wrapping_sub((127 - 15) << 23);
    let normal = shifted.wrapping_add(0xfff + ((size >> 13) & 1)) >> 13;
    // Next to 1/2 floats are as far from each other as subnormal values of 16 bits, so that the sum rounds.
    let subnormal = (f32::from_bits(size) + f32::from_bits(HALF))
        .to_bits()
        .wrapping_sub(HALF);
    let nan = 0x7e00 | ((size >> 13) & 0x3ff);
    let rounded = if size < LEAST_NORMAL {
        subnormal
    } else {
        normal
    };
    let rounded = if size > (127 + 16) << 23 {
        0x7c00
    } else {
        rounded
    };
    let rounded = if size > INFINITY { nan } else { rounded };
    f16::from_bits((sign | rounded) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_values_widen_as_the_crate_says() {
        for bits in 0..=u16::MAX {
            let value = f16::from_bits(bits);
            let (ours, theirs) = (widen_f16(value), value.to_f32_const());
            assert_eq!(ours.to_bits(), theirs.to_bits(), "{bits:#x}");
        }
    }

    /// Every upper half with what is about its ties, and every tie of two neighbours with what is next to it.
    #[test]
    fn values_about_all_ties_narrow_as_the_crate_says() {
        let try_one = |bits: u32| {
            let value = f32::from_bits(bits);
            let (ours, theirs) = (narrow_f16(value), f16::from_f32_const(value));
            assert_eq!(ours.to_bits(), theirs.to_bits(), "{bits:#x}");
        };
        for upper in 0..=u32::from(u16::MAX) {
            for lower in [
                0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0xffff,
            ] {
                try_one(upper << 16 | lower);
            }
        }
        for half in 0..0x7c00u16 {
            let [low, high] = [half, half + 1].map(|bits| f64::from(f16::from_bits(bits)));
            let high = if high.is_finite() { high } else { 65536.0 };
            let tie = ((low + high) / 2.0) as f32;
            for bits in [
                tie.to_bits().saturating_sub(1),
                tie.to_bits(),
                tie.to_bits() + 1,
            ] {
                try_one(bits);
                try_one(bits | 1 << 31);
            }
        }
    }
}
