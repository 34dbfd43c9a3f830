//! Products of matrices in single precision by a [unit](super::unit) that multiplies tiles of `bf16`.

use super::packed::{Packed, are_near, count_terms, multiply};
use super::parts::{Area, LINES, Lines, Number, Side, words};
use super::unit::{BLOCK, DEPTH, ROWS, SIDE, TERMS, Unit};
use crate::scratch::Room;

/// The most parts of a line's numbers that are packed at a time: the more, the fewer times results are read and written.
const DEEP: usize = 1536;
/// The most lines on the left: with [`DEEP`] parts they take 768 KiB, and stay in a cache of 2 MiB.
const LEFT: usize = 256;
/// The most lines on the right.
const RIGHT: usize = 2048;

/// Numbers whose copies in `f32` stay in a cache of 1 MiB: they take half of it.
const NEAR: usize = 128 << 10;

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

/// Whether a unit of a [rate](super::by_unit::rate) takes less time than vectors of `f32` for a product of so many rows and columns of results
/// and terms of each, if its numbers are of so many parts. Of numbers in three parts that holds for large products alone. Attention in `f32`,
/// whose blocks of 256 by 512 were a third faster by themselves, took up to a sixth longer with them, and a convolution by patches a tenth: what
/// is packed drives other operands out of the caches.
pub(super) fn pays([m, n, k]: Extent, parts: [usize; 2], rate: usize) -> bool {
    let terms = count_terms(parts);
    let is_large = m.min(n) >= LARGE && k >= LARGE / 2;
    let product = |m: usize, n: usize, k: usize| m as f64 * n as f64 * k as f64;
    let packed = m.saturating_add(n).saturating_mul(k);
    let (rows, columns, packing) = grain(terms, rate, packed);
    let whole = product(
        m.next_multiple_of(rows),
        n.next_multiple_of(columns),
        k.next_multiple_of(DEPTH),
    );
    let packed = rate as f64 * packing * packed as f64;
    may_pay([m, n, k])
        && (terms <= 4 || is_large)
        && rate as f64 * product(m, n, k) > terms as f64 * whole + packed
}

/// The same of operands that are stored in `bf16`. Vectors of `f32` multiply copies of these, which take as long as to pack them for tiles, but for
/// what is filled up to whole ones: 100,000 rows of 16 terms by 16 columns took 1.2 of the time of copies, of 64 terms less than half.
pub(super) fn pays_stored([m, n, k]: Extent, rate: usize) -> bool {
    if rate < TERMS {
        return pays([m, n, k], [1; 2], rate);
    }
    let (rows, columns, packing) = grain(1, rate, 0);
    let product = |m: usize, n: usize, k: usize| m as f64 * n as f64 * k as f64;
    let sides = |m: usize, n: usize, k: usize| (m as f64 + n as f64) * k as f64;
    let (all_m, all_n) = (m.next_multiple_of(rows), n.next_multiple_of(columns));
    let all_k = k.next_multiple_of(DEPTH);
    let filled = sides(all_m, all_n, all_k) - sides(m, n, k);
    let takes = product(all_m, all_n, all_k) + rate as f64 * packing * filled;
    may_pay([m, n, k]) && rate as f64 * product(m, n, k) > takes
}

/// Of how many rows and columns of results no fewer are formed, and how many products vectors of `f32` form in the time in which one of so many
/// numbers is looked at and packed.
///
/// By what was measured on one core of a Xeon, tiles are packed in the time of some 10 products, and ten thirds more for each term. Pairs are
/// packed as they are stored, on a Zen 4 in that of 4, of which a copy in `f32`, which is not made then, takes 2: a product of 32 rows by 512
/// columns of 128 terms took 25 us, by copies 47. Copies for which the cache is too small take longer than that.
fn grain(terms: usize, rate: usize, numbers: usize) -> (usize, usize, f64) {
    match rate {
        ..TERMS if numbers > NEAR => (ROWS, SIDE, 0.0),
        ..TERMS => (ROWS, SIDE, 2.0),
        _ => (BLOCK, BLOCK, (30 + 10 * terms) as f64 / 3.0),
    }
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
    let (a_words, b_words) = (words(left, deep, A::MOST), words(right, deep, B::MOST));
    let mut room = room.numbers::<u32>(a_words + b_words);
    let (a_words, b_words) = (room.take(a_words), room.take(b_words));
    for column in (0..n).step_by(right) {
        for number in (0..k).step_by(deep) {
            let add = accumulate || number > 0;
            let (columns, numbers) = (right.min(n - column), deep.min(k - number));
            let area = Area {
                from: b.from(column, number),
                lines: columns,
                numbers,
            };
            let b = Packed::new(area, Side::Right, b_words);
            for row in (0..m).step_by(left) {
                let rows = left.min(m - row);
                let area = Area {
                    from: a.from(row, number),
                    lines: rows,
                    numbers,
                };
                let a = Packed::new(area, Side::Left, a_words);
                if are_near(a, b) {
                    let offset = to.offset + row * to.row + column;
                    multiply(unit, a, b, &mut to.data[offset..], to.row, add);
                } else {
                    let (begin, extent) = ([row, column, number], [rows, columns, numbers]);
                    other(begin, extent, to.data, add);
                }
            }
        }
    }
}

/// Into how large parts, of whole `unit`s and at most so much, something is divided so that they are alike.
fn even(n: usize, most: usize, unit: usize) -> usize {
    n.div_ceil(n.div_ceil(most).max(1)).next_multiple_of(unit)
}
