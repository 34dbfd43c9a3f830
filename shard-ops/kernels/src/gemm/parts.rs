//! Numbers of single precision as sums of numbers of `bf16`, packed as a [unit](super::unit) multiplies them.
//!
//! A number of 24 bits is the sum of three numbers of 8 bits, each the nearest to what those before leave: the second is at most 2^-8 of
//! the number, the third 2^-17. Of the nine products of two such sums six are formed. The three others are at most 2^-24 of the whole
//! together, with either sign, which is what rounding one product to `f32` takes (Henry, Tang and Heinecke, "Leveraging the bfloat16 artificial
//! intelligence datatype for higher-precision computations", 2019). A number that comes from `bf16` is its own first
//! part, and one from `f16` the sum of two: products of those take one and four.

use super::range::Range;
use super::unit::{DEPTH, SIDE, TILES};
use crate::pointwise::vectorized;
use crate::turn;
use bytemuck::Pod;
use pulp::{Simd, WithSimd};

/// Lines of a panel.
pub(crate) const LINES: usize = 2 * SIDE;
/// The most parts of a number.
pub(super) const MOST: usize = 3;

/// An element type whose values are sums of parts.
pub(crate) trait Number: Pod {
    /// The most parts of one.
    const MOST: usize;

    /// The value.
    fn single(self) -> f32;

    /// The first sixteen values of a slice, which are written to `room` where they are not there as such.
    fn sixteen<'a>(from: &'a [Self], room: &'a mut [f32; SIDE]) -> &'a [f32; SIDE];

    /// The bits of numbers each of which is its own only part.
    fn own_parts(of: &[Self]) -> Option<&[u16]>;
}

impl Number for f32 {
    const MOST: usize = MOST;

    #[inline(always)]
    fn single(self) -> f32 {
        self
    }

    #[inline(always)]
    fn sixteen<'a>(from: &'a [Self], _: &'a mut [f32; SIDE]) -> &'a [f32; SIDE] {
        first(from)
    }

    #[inline(always)]
    fn own_parts(_: &[Self]) -> Option<&[u16]> {
        None
    }
}

impl Number for half::bf16 {
    const MOST: usize = 1;

    #[inline(always)]
    fn single(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn sixteen<'a>(from: &'a [Self], room: &'a mut [f32; SIDE]) -> &'a [f32; SIDE] {
        let from: &[Self; SIDE] = first(from);
        for (to, x) in room.iter_mut().zip(from) {
            *to = x.single();
        }
        room
    }

    #[inline(always)]
    fn own_parts(of: &[Self]) -> Option<&[u16]> {
        Some(bytemuck::cast_slice(of))
    }
}

/// An operand as the lines along which its products are summed: rows of the left one, columns of the right one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines<'a, E> {
    pub(crate) data: &'a [E],
    pub(crate) offset: usize,
    /// From a line to the next.
    pub(crate) line: isize,
    /// From a number of a line to the next.
    pub(crate) step: isize,
}

/// Which operand a panel is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The one of which a tile's rows are lines.
    Left,
    /// The one of which a tile's rows are pairs of numbers of all lines.
    Right,
}

/// Words of so many lines of so many numbers of so many parts.
pub(super) fn words(lines: usize, numbers: usize, parts: usize) -> usize {
    lines.div_ceil(LINES) * numbers.div_ceil(DEPTH) * parts * TILES
}

/// Some first lines of an operand, and how many numbers of each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area<'a, E> {
    pub(super) from: Lines<'a, E>,
    pub(super) lines: usize,
    pub(super) numbers: usize,
}

impl<E: Number> Lines<'_, E> {
    /// As many lines as there were numbers in each, and the other way round.
    pub(crate) fn turned(self) -> Self {
        Self {
            line: self.step,
            step: self.line,
            ..self
        }
    }

    /// From another line and another number on.
    #[inline(always)]
    pub(super) fn from(self, line: usize, number: usize) -> Self {
        let steps = line as isize * self.line + number as isize * self.step;
        Self {
            offset: self.offset.wrapping_add_signed(steps),
            ..self
        }
    }

    /// Of how many parts the numbers are sums, to go by the first ones of a line of so many.
    pub(super) fn seem(self, numbers: usize) -> usize {
        let bits = (0..numbers.min(SIDE)).fold(0, |bits, number| {
            let x = self.data[self.from(0, number).offset].single();
            bits | x.to_bits()
        });
        Range::parts_of(bits)
    }

    /// Whether lines can be packed: those whose numbers lie one after the other, and those that lie side by side.
    pub(super) fn is_dense(&self) -> bool {
        self.step == 1 && self.line >= 0 || self.line == 1 && self.step >= 0
    }
}

impl<E: Number> Area<'_, E> {
    /// Writes panels of as many parts, of which each has all steps, of which each has all parts. What is missing of whole tiles is zero.
    pub(super) fn pack(self, parts: usize, side: Side, to: &mut [u32]) {
        let of = self;
        match parts {
            1 => vectorized(Pack::<E, 1> { of, side, to }),
            2 => vectorized(Pack::<E, 2> { of, side, to }),
            _ => vectorized(Pack::<E, MOST> { of, side, to }),
        }
    }
}

struct Pack<'a, 't, E, const P: usize> {
    of: Area<'a, E>,
    side: Side,
    to: &'t mut [u32],
}

impl<E: Number, const P: usize> WithSimd for Pack<'_, '_, E, P> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (steps, panels) = (
            self.of.numbers.div_ceil(DEPTH),
            self.of.lines.div_ceil(LINES),
        );
        let mut room = TileRoom {
            filled: [E::zeroed(); SIDE * DEPTH],
            turned: [0; MOST * SIDE * SIDE],
        };
        // In the order in which numbers lie in memory, as far as may be.
        if self.of.from.step == 1 {
            for panel in 0..panels {
                for step in 0..steps {
                    self.place(simd, panel, step, &mut room);
                }
            }
        } else {
            for step in 0..steps {
                for panel in 0..panels {
                    self.place(simd, panel, step, &mut room);
                }
            }
        }
    }
}

impl<E: Number, const P: usize> Pack<'_, '_, E, P> {
    /// Packs a panel's numbers of a step.
    #[inline(always)]
    fn place<S: Simd>(&mut self, simd: S, panel: usize, step: usize, room: &mut TileRoom<E>) {
        let of = self.of;
        let steps = of.numbers.div_ceil(DEPTH);
        let to = &mut self.to[(panel * steps + step) * P * TILES..][..P * TILES];
        for tile in 0..2 {
            let (line, number) = (panel * LINES + tile * SIDE, step * DEPTH);
            let lines = of.lines.saturating_sub(line).min(SIDE);
            let to = &mut to[tile * SIDE * SIDE..];
            if lines == 0 {
                for part in 0..P {
                    to[part * TILES..][..SIDE * SIDE].fill(0);
                }
                continue;
            }
            let here = Area {
                from: of.from.from(line, number),
                lines,
                numbers: (of.numbers - number).min(DEPTH),
            };
            self::tile::<S, E, P>(simd, here, self.side, room, to);
        }
    }
}

/// Memory for a tile on its way.
struct TileRoom<E> {
    /// The numbers of one that is not whole, and zeros.
    filled: [E; SIDE * DEPTH],
    /// Words of all parts whose rows and columns are still to be exchanged.
    turned: [u32; MOST * SIDE * SIDE],
}

/// Packs the tiles of some lines of a step, one of each part, [`TILES`] words apart.
#[inline(always)]
fn tile<S: Simd, E: Number, const P: usize>(
    simd: S,
    of: Area<'_, E>,
    side: Side,
    room: &mut TileRoom<E>,
    to: &mut [u32],
) {
    let along = of.from.step == 1;
    let (apart, rows, len) = match along {
        true => (of.from.line, of.lines, of.numbers),
        false => (of.from.step, of.numbers, of.lines),
    };
    let (all_rows, all_len) = if along { (SIDE, DEPTH) } else { (DEPTH, SIDE) };
    let mut apart = apart as usize;
    let mut numbers = &of.from.data[of.from.offset..];
    if rows < all_rows || len < all_len {
        room.filled.fill(E::zeroed());
        for (row, to) in (room.filled.chunks_exact_mut(all_len).enumerate()).take(rows) {
            to[..len].copy_from_slice(&numbers[row * apart..][..len]);
        }
        (numbers, apart) = (&room.filled, all_len);
    }
    // Lines, with their numbers in pairs, or pairs, of all lines: a number and the one that is half a step behind it.
    let turned = along != (side == Side::Left);
    for row in 0..SIDE {
        let low = row * apart;
        let high = if along {
            low + SIDE
        } else {
            low + SIDE * apart
        };
        let (mut low_room, mut high_room) = ([0.0; SIDE], [0.0; SIDE]);
        let low = E::sixteen(&numbers[low..], &mut low_room);
        let high = E::sixteen(&numbers[high..], &mut high_room);
        let (to, part) = match turned {
            true => (&mut room.turned[row * SIDE..], SIDE * SIDE),
            false => (&mut to[row * SIDE..], TILES),
        };
        split::<S, P>(simd, low, high, to, part);
    }
    if turned {
        for part in 0..P {
            let rows = &room.turned[part * SIDE * SIDE..][..SIDE * SIDE];
            turn_tile(rows, &mut to[part * TILES..][..SIDE * SIDE]);
        }
    }
}

/// Exchanges rows and columns.
#[inline(always)]
fn turn_tile(rows: &[u32], to: &mut [u32]) {
    for i in (0..SIDE).step_by(turn::SIDE) {
        for j in (0..SIDE).step_by(turn::SIDE) {
            let mut block = [[0; turn::SIDE]; turn::SIDE];
            for (r, row) in block.iter_mut().enumerate() {
                *row = *first(&rows[(i + r) * SIDE + j..]);
            }
            for (r, row) in turn::turned(block).iter().enumerate() {
                to[(j + r) * SIDE + i..][..turn::SIDE].copy_from_slice(row);
            }
        }
    }
}

/// Writes pairs of numbers as pairs of their parts, those of each part `apart` words behind those of the one before.
#[inline(always)]
fn split<S: Simd, const P: usize>(
    simd: S,
    low: &[f32; SIDE],
    high: &[f32; SIDE],
    to: &mut [u32],
    apart: usize,
) {
    let (half, upper) = (simd.splat_u32s(16), simd.splat_u32s(0xffff_0000));
    let (low, high) = (S::as_simd_f32s(low).0, S::as_simd_f32s(high).0);
    for (v, (&low, &high)) in low.iter().zip(high).enumerate() {
        let (mut low, mut high) = (low, high);
        for part in 0..P {
            // What is left in the end has no more bits than a part, or those beyond are cut off where fewer parts are asked for.
            let (x, y) = match part + 1 == P {
                true => (low, high),
                false => (rounded(simd, low), rounded(simd, high)),
            };
            (low, high) = (simd.sub_f32s(low, x), simd.sub_f32s(high, y));
            let (x, y) = (simd.transmute_u32s_f32s(x), simd.transmute_u32s_f32s(y));
            let x = simd.wrapping_dyn_shr_u32s(x, half);
            S::as_mut_simd_u32s(&mut to[part * apart..][..SIDE]).0[v] =
                simd.or_u32s(x, simd.and_u32s(y, upper));
        }
    }
}

/// The nearest number of 8 bits, of numbers below 2^110 (Veltkamp's splitting, as in Dekker, "A floating-point technique for extending the
/// available precision", 1971).
#[inline(always)]
fn rounded<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let far = simd.mul_f32s(x, simd.splat_f32s(65537.0));
    simd.sub_f32s(far, simd.sub_f32s(far, x))
}

/// The first elements of a slice that has as many: all callers pass rows of whole tiles, as they fill up those that are not, or parts of
/// memory of a tile's size.
#[inline(always)]
pub(super) fn first<E, const N: usize>(of: &[E]) -> &[E; N] {
    of.first_chunk().expect("rows of tiles are whole")
}
