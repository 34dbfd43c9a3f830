//! Products of matrices in single precision by a [unit](super::unit) that multiplies tiles of `bf16`.

use super::parts::{Area, LINES, Lines, Number, Side, words};
use super::range::Range;
use super::unit::{BLOCK, DEPTH, Panel, Rows, TILES, Term, Unit};
use crate::scratch::Room;

/// The most parts of a line's numbers that are packed at a time: the more, the fewer times results are read and written.
const DEEP: usize = 1536;
/// The most lines on the left: with [`DEEP`] parts they take 768 KiB, and stay in a cache of 2 MiB.
const LEFT: usize = 256;
/// The most lines on the right.
const RIGHT: usize = 2048;

/// Rows and columns from which on a product of numbers in three parts is large; of what is summed half as many.
const LARGE: usize = 512;

/// Results, whose rows have no gaps.
#[derive(Debug)]
pub(super) struct Results<'a> {
    pub(super) data: &'a mut [f32],
    pub(super) offset: usize,
    /// From a row to the next.
    pub(super) row: usize,
}

/// Rows, columns and products of each: where a part of a product begins, or how much it is.
pub(super) type Extent = [usize; 3];

/// Whether products of these extents are large enough for tiles, if their numbers are of one part.
pub(super) fn may_pay([m, n, k]: Extent) -> bool {
    const FEW: f64 = (64 * 64 * 64) as f64;
    m as f64 * n as f64 * k as f64 >= FEW
}

/// Whether tiles take less time than vectors of `f32` for a product of numbers of so many parts, by what was measured on one core of a
/// Xeon: in the time of one number, which is looked at and packed, a unit forms some 120 products and 40 more for each term, and
/// it forms 12 where vectors form one.
///
/// Of numbers in three parts that holds for large products alone. Attention in `f32`, whose blocks of 256 by 512 were a third faster by themselves,
/// took up to a sixth longer with them, and a convolution by patches a tenth: what is packed drives other operands out of the caches.
pub(super) fn pays([m, n, k]: Extent, parts: [usize; 2]) -> bool {
    let terms = terms(parts[0], parts[1]).len();
    let is_large = m.min(n) >= LARGE && k >= LARGE / 2;
    let product = |m: usize, n: usize, k: usize| m as f64 * n as f64 * k as f64;
    let whole = product(
        m.next_multiple_of(BLOCK),
        n.next_multiple_of(BLOCK),
        k.next_multiple_of(DEPTH),
    );
    let packed = (120 + 40 * terms) as f64 * product(1, m + n, k);
    may_pay([m, n, k])
        && (terms <= 4 || is_large)
        && 12.0 * product(m, n, k) > terms as f64 * whole + packed
}

/// Computes a part of a product otherwise: where it begins, how much it is, the results' memory, and whether to add.
pub(super) type Other<'a> = dyn FnMut(Extent, Extent, &mut [f32], bool) + 'a;

/// Writes the product of two matrices, or adds it to what the results are. `other` computes the parts of it that have numbers for which
/// parts of `bf16` do not stand well.
pub(super) fn product<A: Number, B: Number>(
    unit: &impl Unit,
    [m, n, k]: Extent,
    a: Lines<'_, A>,
    b: Lines<'_, B>,
    to: &mut Results<'_>,
    accumulate: bool,
    other: &mut Other<'_>,
) {
    let (left, right, deep) = (
        even(m, LEFT, LINES),
        even(n, RIGHT, LINES),
        even(k, DEEP / A::MOST.max(B::MOST), DEPTH),
    );
    let mut room = Room::new();
    let (a_words, b_words) = (words::<A>(left, deep), words::<B>(right, deep));
    let mut room = room.numbers::<u32>(a_words + b_words);
    let (a_words, b_words) = (room.take(a_words), room.take(b_words));
    for column in (0..n).step_by(right) {
        for number in (0..k).step_by(deep) {
            let add = accumulate || number > 0;
            let (columns, numbers) = (right.min(n - column), deep.min(k - number));
            let b = Packed::new(
                b.from(column, number),
                columns,
                numbers,
                Side::Right,
                b_words,
            );
            for row in (0..m).step_by(left) {
                let rows = left.min(m - row);
                let a = Packed::new(a.from(row, number), rows, numbers, Side::Left, a_words);
                if are_near(a.range, b.range) {
                    let offset = to.offset + row * to.row + column;
                    blocks(unit, a, b, &mut to.data[offset..], to.row, add);
                } else {
                    let (begin, extent) = ([row, column, number], [rows, columns, numbers]);
                    other(begin, extent, to.data, add);
                }
            }
        }
    }
}

/// Lines that are packed.
#[derive(Clone, Copy, Debug)]
struct Packed<'a> {
    words: &'a [u32],
    lines: usize,
    steps: usize,
    parts: usize,
    range: Range,
}

impl<'a> Packed<'a> {
    fn new<E: Number>(
        from: Lines<'_, E>,
        lines: usize,
        numbers: usize,
        side: Side,
        words: &'a mut [u32],
    ) -> Self {
        let area = Area {
            from,
            lines,
            numbers,
        };
        let range = area.range();
        area.pack(range.parts(), side, words);
        Self {
            words,
            lines,
            steps: numbers.div_ceil(DEPTH),
            parts: range.parts(),
            range,
        }
    }

    /// The panels, and how many lines each has.
    fn panels(self) -> impl Iterator<Item = (Panel<'a>, usize)> {
        let step = self.parts * TILES;
        let lines = (0..self.lines).step_by(LINES);
        (self.words.chunks_exact(self.steps * step).zip(lines))
            .map(move |(words, line)| (Panel { words, step }, LINES.min(self.lines - line)))
    }
}

/// The results of packed lines, block by block: those of the same panel on the right, which the nearest cache holds, one after the other.
fn blocks(unit: &impl Unit, a: Packed<'_>, b: Packed<'_>, to: &mut [f32], apart: usize, add: bool) {
    let (steps, terms) = (a.steps, terms(a.parts, b.parts));
    for (j, (b, columns)) in b.panels().enumerate() {
        for (i, (a, rows)) in a.panels().enumerate() {
            let to = &mut to[i * LINES * apart + j * LINES..];
            if rows == BLOCK && columns == BLOCK && apart >= BLOCK {
                unit.multiply(steps, terms, a, b, &mut Rows { data: to, apart }, add);
                continue;
            }
            let mut block = Block([0.0; BLOCK * BLOCK]);
            let mut whole = Rows {
                data: &mut block.0,
                apart: BLOCK,
            };
            unit.multiply(steps, terms, a, b, &mut whole, false);
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

/// Which parts are multiplied with each other, the smallest products first.
fn terms(a: usize, b: usize) -> &'static [Term] {
    const T: usize = TILES;
    match (a, b) {
        (1, 1) => &[[0, 0]],
        (2, 1) => &[[T, 0], [0, 0]],
        (1, 2) => &[[0, T], [0, 0]],
        (3, 1) => &[[2 * T, 0], [T, 0], [0, 0]],
        (1, 3) => &[[0, 2 * T], [0, T], [0, 0]],
        (2, 2) => &[[T, T], [T, 0], [0, T], [0, 0]],
        (3, 2) => &[[2 * T, 0], [T, T], [T, 0], [0, T], [0, 0]],
        (2, 3) => &[[0, 2 * T], [T, T], [T, 0], [0, T], [0, 0]],
        _ => &[[2 * T, 0], [0, 2 * T], [T, T], [T, 0], [0, T], [0, 0]],
    }
}

/// Whether no product overflows in parts only, and none that counts is lost because it is so small that the unit takes it for zero.
///
/// It does so below 2^-126, and so do its products. Those of numbers that are the largest of their lines are above 2^-80 here: what is
/// lost is below 2^-46 of what a product of two such lines may be, where rounding takes 2^-24. What is infinite or no number has the largest
/// magnitudes of all.
fn are_near(a: Range, b: Range) -> bool {
    let exponent = |bits: u32| (bits >> 23) as i32 - 127;
    let (a_most, b_most) = (exponent(a.most), exponent(b.most));
    let no_number = 128;
    match (a.most, b.most) {
        (0, _) => b_most < no_number,
        (_, 0) => a_most < no_number,
        _ => {
            a_most.max(b_most).max(a_most + b_most) <= 100
                && exponent(a.least) + exponent(b.least) >= -80
        }
    }
}

/// Into how large parts, of whole `unit`s and at most so much, something is divided so that they are alike.
fn even(n: usize, most: usize, unit: usize) -> usize {
    n.div_ceil(n.div_ceil(most).max(1)).next_multiple_of(unit)
}
