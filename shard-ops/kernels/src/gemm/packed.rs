//! Operands as a [unit](super::unit) multiplies them, and products of such.

use super::parts::{Area, LINES, Lines, Number, Side, words};
use super::range::Range;
use super::unit::{BLOCK, DEPTH, Panel, Rows, TILES, Term, Unit};
use crate::scratch::Room;
use std::ops;

/// Some lines of an operand, and some numbers of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packed<'a> {
    words: &'a [u32],
    /// Words from a panel to the next.
    apart: usize,
    lines: usize,
    steps: usize,
    parts: usize,
    range: Range,
}

impl<'a> Packed<'a> {
    /// Packs lines into words that suffice for as many parts as their numbers are sums of. Numbers of one part are not looked at: products of
    /// such are what they are by vectors, but for those below 2^-126.
    pub(super) fn new<E: Number>(of: Area<'_, E>, side: Side, words: &'a mut [u32]) -> Self {
        let range = match E::MOST {
            1 => Range::ONE_PART,
            _ => of.range(),
        };
        let parts = range.parts();
        of.pack(parts, side, words);
        let steps = of.numbers.div_ceil(DEPTH);
        Self {
            words,
            apart: steps * parts * TILES,
            lines: of.lines,
            steps,
            parts,
            range,
        }
    }

    /// Some of the lines: those of whole panels, but for the last ones.
    pub(crate) fn lines(self, lines: ops::Range<usize>) -> Self {
        assert!(lines.start.is_multiple_of(LINES));
        Self {
            words: &self.words[lines.start / LINES * self.apart..],
            lines: lines.len(),
            ..self
        }
    }

    /// Some of each line's numbers: those of whole steps, but for the last ones.
    pub(crate) fn numbers(self, numbers: ops::Range<usize>) -> Self {
        assert!(numbers.start.is_multiple_of(DEPTH));
        Self {
            words: &self.words[numbers.start / DEPTH * self.parts * TILES..],
            steps: numbers.len().div_ceil(DEPTH),
            ..self
        }
    }

    /// What numbers there are.
    pub(crate) fn range(&self) -> Range {
        self.range
    }

    /// How many lines there are.
    pub(crate) fn count(&self) -> usize {
        self.lines
    }

    /// The panels, and how many lines each has.
    fn panels(self) -> impl Iterator<Item = (Panel<'a>, usize)> {
        let step = self.parts * TILES;
        (0..self.lines).step_by(LINES).map(move |line| {
            let words = &self.words[line / LINES * self.apart..];
            (Panel::packed(words, step), LINES.min(self.lines - line))
        })
    }
}

/// Whether no product overflows in parts only, and none that counts is lost because it is so small that the unit takes it for zero.
///
/// It does so below 2^-126, and so do its products. Those of numbers that are the largest of their lines are above 2^-80 here: what is
/// lost is below 2^-46 of what a product of two such lines may be, where rounding takes 2^-24.
pub(crate) fn are_near(a: Packed<'_>, b: Packed<'_>) -> bool {
    let has_zeros_only = a.range.most == 0 || b.range.most == 0;
    stay_finite(a, b)
        && (has_zeros_only || exponent(a.range.least) + exponent(b.range.least) >= -80)
}

/// Whether no product overflows in parts only. What is infinite or no number has the largest magnitudes of all.
pub(crate) fn stay_finite(a: Packed<'_>, b: Packed<'_>) -> bool {
    let (a, b) = (exponent(a.range.most), exponent(b.range.most));
    a.max(b).max(a + b) <= 100
}

/// The exponent of a magnitude.
fn exponent(bits: u32) -> i32 {
    (bits >> 23) as i32 - 127
}

/// The products of lines of one operand and lines of another: results in rows that begin `apart` numbers apart, to be written, or added to what is
/// there. They are formed block by block, those of the same panel on the right, which the nearest cache holds, one after the other.
pub(crate) fn multiply(
    unit: &impl Unit,
    a: Packed<'_>,
    b: Packed<'_>,
    to: &mut [f32],
    apart: usize,
    add: bool,
) {
    let (steps, terms) = (a.steps, terms(a.parts, b.parts));
    for (j, (b, columns)) in b.panels().enumerate() {
        for (i, (a, rows)) in a.panels().enumerate() {
            let to = &mut to[i * LINES * apart + j * LINES..];
            if rows == BLOCK && columns == BLOCK && apart >= BLOCK {
                unit.multiply(steps, terms, a, b, &mut Rows::whole(to, apart), add);
                continue;
            }
            let mut block = Block([0.0; BLOCK * BLOCK]);
            let mut edge = Rows {
                data: &mut block.0,
                apart: BLOCK,
                wanted: [rows, columns],
            };
            unit.multiply(steps, terms, a, b, &mut edge, false);
            for (row, from) in block.0.chunks_exact(BLOCK).enumerate().take(rows) {
                for (to, x) in to[row * apart..][..columns].iter_mut().zip(from) {
                    *to = if add { *to + x } else { *x };
                }
            }
        }
    }
}

/// Results at an edge, where a block is not whole.
#[repr(align(64))]
struct Block([f32; BLOCK * BLOCK]);

/// Which parts are multiplied with each other: smaller products first, as far as those with the same part on the right follow each other,
/// whose tiles are loaded once.
fn terms(a: usize, b: usize) -> &'static [Term] {
    const T: usize = 2 * TILES;
    match (a, b) {
        (1, 1) => &[[0, 0]],
        (2, 1) => &[[T, 0], [0, 0]],
        (1, 2) => &[[0, T], [0, 0]],
        (3, 1) => &[[2 * T, 0], [T, 0], [0, 0]],
        (1, 3) => &[[0, 2 * T], [0, T], [0, 0]],
        (2, 2) => &[[T, T], [0, T], [T, 0], [0, 0]],
        (3, 2) => &[[T, T], [0, T], [2 * T, 0], [T, 0], [0, 0]],
        (2, 3) => &[[0, 2 * T], [T, T], [0, T], [T, 0], [0, 0]],
        _ => &[[0, 2 * T], [T, T], [0, T], [2 * T, 0], [T, 0], [0, 0]],
    }
}

/// How many terms products of numbers of so many parts have.
pub(super) fn count_terms([a, b]: [usize; 2]) -> usize {
    terms(a, b).len()
}

/// An operand that is kept, to be multiplied with many others.
#[derive(Debug)]
pub(crate) struct Operand {
    room: Room,
    lines: usize,
    steps: usize,
    parts: usize,
    range: Range,
}

impl Operand {
    pub(crate) fn new() -> Self {
        Self {
            room: Room::new(),
            lines: 0,
            steps: 0,
            parts: 1,
            range: Range::default(),
        }
    }

    /// Packs so many lines of so many numbers, in place of what there was, as sums of so many parts at most.
    pub(crate) fn pack<E: Number>(
        &mut self,
        from: Lines<'_, E>,
        [lines, numbers]: [usize; 2],
        most: usize,
        side: Side,
    ) {
        let of = Area {
            from,
            lines,
            numbers,
        };
        let range = of.range();
        self.place(of, range, range.parts().min(most), side);
    }

    /// The same of numbers of which is known that they are in a range, as sums of so many parts.
    pub(crate) fn pack_known(
        &mut self,
        from: Lines<'_, f32>,
        [lines, numbers]: [usize; 2],
        range: Range,
        parts: usize,
        side: Side,
    ) {
        let of = Area {
            from,
            lines,
            numbers,
        };
        self.place(of, range, parts, side);
    }

    fn place<E: Number>(&mut self, of: Area<'_, E>, range: Range, parts: usize, side: Side) {
        let needed = words(of.lines, of.numbers, parts);
        let words = self.room.numbers::<u32>(needed).take(needed);
        of.pack(parts, side, words);
        self.lines = of.lines;
        self.steps = of.numbers.div_ceil(DEPTH);
        self.parts = parts;
        self.range = range;
    }

    pub(crate) fn packed(&self) -> Packed<'_> {
        Packed {
            words: self.room.as_numbers(),
            apart: self.steps * self.parts * TILES,
            lines: self.lines,
            steps: self.steps,
            parts: self.parts,
            range: self.range,
        }
    }
}
