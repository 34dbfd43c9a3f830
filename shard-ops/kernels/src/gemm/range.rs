//! What numbers an operand has: of how many parts they are sums, and how far apart they are.

use super::parts::{Area, MOST, Number, first};
use super::unit::SIDE;
use crate::pointwise::vectorized;
use pulp::{Simd, WithSimd};

/// The bits of a number but its sign.
const MAGNITUDE: u32 = 0x7fff_ffff;

/// What numbers there are in some lines. Magnitudes are bits of `f32`, which are in the order of the numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Range {
    /// Of the largest magnitudes of lines that are not all zero the least.
    pub(super) least: u32,
    /// The largest magnitude.
    pub(super) most: u32,
    /// All bits that are set in any number.
    bits: u32,
}

impl Range {
    /// Of numbers of which the largest of each line is about 1.
    pub(crate) const UNIT: Self = Self::about_one(u32::MAX);

    /// Of such numbers of one part.
    pub(super) const ONE_PART: Self = Self::about_one(0);

    const fn about_one(bits: u32) -> Self {
        let one = 1.0f32.to_bits();
        Self {
            least: one,
            most: one,
            bits,
        }
    }

    /// Of how many parts the numbers are sums.
    pub(super) fn parts(self) -> usize {
        Self::parts_of(self.bits)
    }

    /// Of how many parts numbers are sums in which these bits are set.
    pub(super) fn parts_of(bits: u32) -> usize {
        match bits.trailing_zeros() {
            16.. => 1,
            8.. => 2,
            _ => MOST,
        }
    }
}

impl<E: Number> Area<'_, E> {
    /// What numbers there are. Those that are their own only part are not told apart by lines.
    pub(super) fn range(self) -> Range {
        vectorized(Survey(self))
    }
}

struct Survey<'a, E>(Area<'a, E>);

impl<E: Number> WithSimd for Survey<'_, E> {
    type Output = Range;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Range {
        let Area {
            from,
            lines,
            numbers,
        } = self.0;
        let along = from.step == 1;
        if let Some(all) = E::own_parts(from.data) {
            let (rows, apart, len) = match along {
                true => (lines, from.line, numbers),
                false => (numbers, from.step, lines),
            };
            let most = largest_part(&all[from.offset..], apart as usize, [rows, len]);
            return Range {
                least: most,
                most,
                bits: 0,
            };
        }
        let (mut bits, mut least, mut most) = ([0; WIDE], u32::MAX, 0);
        let mut take_in = |line: u32| {
            if line > 0 {
                (least, most) = (least.min(line), most.max(line));
            }
        };
        if along {
            for line in 0..lines {
                let mut lanes = [0; WIDE];
                let row = &from.data[from.from(line, 0).offset..][..numbers];
                let whole = numbers / WIDE;
                let rest = padded(&row[whole * WIDE..]);
                largest(simd, row, WIDE, whole, &mut lanes, &mut bits);
                largest(simd, &rest, WIDE, 1, &mut lanes, &mut bits);
                take_in(largest_of(lanes));
            }
        } else {
            let apart = from.step as usize;
            for first in (0..lines).step_by(WIDE) {
                let mut lanes = [0; WIDE];
                let rows = &from.data[from.from(first, 0).offset..];
                if first + WIDE <= lines {
                    largest(simd, rows, apart, numbers, &mut lanes, &mut bits);
                } else {
                    for row in 0..numbers {
                        let row = padded(&rows[row * apart..][..lines - first]);
                        largest(simd, &row, WIDE, 1, &mut lanes, &mut bits);
                    }
                }
                lanes.into_iter().for_each(&mut take_in);
            }
        }
        Range {
            least,
            most,
            bits: bits.into_iter().fold(0, |all, bits| all | bits),
        }
    }
}

/// Numbers that are looked at side by side, so that comparisons need not wait for each other.
const WIDE: usize = 4 * SIDE;

/// The largest magnitude of so many rows of so many numbers that are their own only part, which begin `apart` numbers apart.
#[inline(always)]
fn largest_part(numbers: &[u16], apart: usize, [rows, len]: [usize; 2]) -> u32 {
    const MAGNITUDE: u16 = (self::MAGNITUDE >> 16) as u16;
    let mut lanes = [0; WIDE];
    // Column by column, whose lanes stay in registers.
    for first in (0..len).step_by(WIDE) {
        let mut here = [0; WIDE];
        if first + WIDE <= len {
            for row in 0..rows {
                let numbers: &[u16; WIDE] = self::first(&numbers[row * apart + first..]);
                for (lane, x) in here.iter_mut().zip(numbers) {
                    *lane = (*lane).max(x & MAGNITUDE);
                }
            }
        } else {
            for row in 0..rows {
                let numbers = &numbers[row * apart..][first..len];
                for (lane, x) in here.iter_mut().zip(numbers) {
                    *lane = (*lane).max(x & MAGNITUDE);
                }
            }
        }
        for (lane, x) in lanes.iter_mut().zip(here) {
            *lane = (*lane).max(x);
        }
    }
    u32::from(lanes.into_iter().fold(0, u16::max)) << 16
}

/// Of so many rows of [`WIDE`] numbers, which begin `apart` numbers apart, the largest magnitudes by place and the bits that are set, beside what
/// these were before.
#[inline(always)]
fn largest<S: Simd, E: Number>(
    simd: S,
    numbers: &[E],
    apart: usize,
    rows: usize,
    most: &mut [u32; WIDE],
    bits: &mut [u32; WIDE],
) {
    let magnitude = simd.splat_u32s(MAGNITUDE);
    let (most, bits) = (S::as_mut_simd_u32s(most).0, S::as_mut_simd_u32s(bits).0);
    let per = SIDE / S::U32_LANES;
    for v in 0..per {
        let mut largest: [S::u32s; 4] =
            [most[v], most[per + v], most[2 * per + v], most[3 * per + v]];
        let mut set: [S::u32s; 4] = [bits[v], bits[per + v], bits[2 * per + v], bits[3 * per + v]];
        for row in 0..rows {
            let row: &[E; WIDE] = first(&numbers[row * apart..]);
            for u in 0..4 {
                let mut room = [0.0; SIDE];
                let x = S::as_simd_f32s(E::sixteen(&row[u * SIDE..], &mut room)).0[v];
                let x = simd.transmute_u32s_f32s(x);
                set[u] = simd.or_u32s(set[u], x);
                largest[u] = larger(simd, simd.and_u32s(x, magnitude), largest[u]);
            }
        }
        for u in 0..4 {
            (most[u * per + v], bits[u * per + v]) = (largest[u], set[u]);
        }
    }
}

#[inline(always)]
fn larger<S: Simd>(simd: S, a: S::u32s, b: S::u32s) -> S::u32s {
    simd.select_u32s(simd.greater_than_u32s(a, b), a, b)
}

/// The largest of some numbers, half of which at a time are compared with the other half: one after the other would wait for each other.
#[inline(always)]
fn largest_of(mut numbers: [u32; WIDE]) -> u32 {
    let mut half = WIDE / 2;
    while half > 0 {
        let (low, high) = numbers[..2 * half].split_at_mut(half);
        for (x, y) in low.iter_mut().zip(high) {
            *x = (*x).max(*y);
        }
        half /= 2;
    }
    numbers[0]
}

/// So many elements, and zeros behind them.
#[inline(always)]
fn padded<E: Number>(of: &[E]) -> [E; WIDE] {
    let mut all = [E::zeroed(); WIDE];
    all[..of.len()].copy_from_slice(of);
    all
}
