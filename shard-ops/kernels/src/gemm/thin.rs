//! Products of `bf16` with few rows, such as one token's: nearly all there is to read is the matrix on the right, which is read once, as it is
//! stored, and widened in registers.
//!
//! A word of memory is a pair of numbers: shifted it is the one at the even place in `f32`, and with its lower half cleared the one at the odd
//! place. What such vectors meet is put in their order, each block's even places before its odd ones.

use super::by_unit::rate;
use super::unit::TERMS;
use super::{Mat, MatMut, check_operands, check_results};
use crate::arrays::numbered;
use crate::attention::{Stored, gather};
use crate::pointwise::vectorized;
use crate::prefetch::line as ask;
use crate::scratch::Room;
use half::bf16;
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// The most rows that are few where there is a unit for tiles, which takes as long for any number up to 32: 1024 terms of 4096 columns as long as
/// these loops for 13 rows if what is on the right lies in columns, and for 9 if it lies in rows.
const FEW: [usize; 2] = [12, 8];
/// The most where there are pairs of AVX-512, whose products of 12 rows take as long as these loops if what is on the right lies in columns, and of
/// half as many if it lies in rows.
const FEWER: [usize; 2] = [12, 6];
/// The most elsewhere. Of 17 rows the crate for `f32` takes three times as long as these loops, of 24 twice, of 32 less.
const MORE: [usize; 2] = [28; 2];
/// How many times as many terms as rows a sum has at least. The sums of a column are joined lane by lane, which shorter ones cost more than
/// copies in `f32` and their product: 100,000 columns of 16 terms by 16 rows took 6.7 times as long, of 128 terms 0.9.
const LONG: usize = 8;
/// Numbers that fill the vectors of a pair on any processor: what is kept is padded with zeros to a multiple of so many.
const WIDE: usize = 32;
/// Rows on the right that are added to sums at a time.
const LINES: usize = 4;
/// Numbers of columns that all rows meet before the next columns do: a fourth of a second-level cache of 1 MiB.
const NEAR: usize = 128 << 10;

/// Whether a product of these extents is of few rows and long sums, and a matrix on the right that is read in the order in which it lies.
pub(super) fn pays(extent: [usize; 3], b: &Mat<'_, bf16>) -> bool {
    let [m, _, k] = extent;
    let lies = match b.col_step == 1 {
        true => m <= most()[1],
        false => b.row_step == 1 && k >= WIDE,
    };
    lies && are_few(extent)
}

/// The most rows that are few on this processor: with what is on the right in columns, and in rows.
fn most() -> [usize; 2] {
    match rate() {
        0..2 => MORE,
        2..TERMS => FEWER,
        _ => FEW,
    }
}

/// Whether rows are few for so many columns, which fill vectors, and for sums of so many terms.
pub(super) fn are_few([m, n, k]: [usize; 3]) -> bool {
    m <= most()[0] && n >= WIDE && k / LONG >= m
}

/// As [`gemm`](super::gemm) of numbers that are computed with some of `bf16`, if they are of few rows and that [pays]. Tells whether they are.
pub(crate) fn product_of_few(
    [m, n, k]: [usize; 3],
    a: &Mat<'_, f32>,
    b: &Mat<'_, bf16>,
    c: &mut MatMut<'_, f32>,
    accumulate: bool,
) -> bool {
    let pays = m > 0 && pays([m, n, k], b);
    if pays {
        check_operands([m, n, k], a, b);
        check_results([m, n], c);
        product([m, n, k], a, b, c, accumulate);
    }
    pays
}

/// Writes the product, which is not of nothing, or adds it to `c`.
pub(super) fn product<A: Stored<Acc = f32>>(
    [m, n, k]: [usize; 3],
    a: &Mat<'_, A>,
    b: &Mat<'_, bf16>,
    c: &mut MatMut<'_, f32>,
    accumulate: bool,
) {
    let (inner, across) = (k.next_multiple_of(WIDE), n.next_multiple_of(WIDE));
    let mut room = Room::new();
    let mut room = room.numbers::<f32>(m * (inner + across));
    let (left, sums) = (room.take(m * inner), room.take(m * across));
    left.fill(0.0);
    sums.fill(0.0);
    for (row, to) in left.chunks_exact_mut(inner).enumerate() {
        let at = a.offset.wrapping_add_signed(row as isize * a.row_step);
        gather(a.data, at, a.col_step, &mut to[..k]);
    }
    let of = [m, n, k];
    vectorized(Thin { of, left, b, sums });
    for (row, sums) in sums.chunks_exact(across).enumerate() {
        let at = c.offset.wrapping_add_signed(row as isize * c.row_step);
        for (column, sum) in sums[..n].iter().enumerate() {
            let to = &mut c.data[at.wrapping_add_signed(column as isize * c.col_step)];
            *to = if accumulate { *to + sum } else { *sum };
        }
    }
}

/// A product of something. Rows of `left` and of `sums`, which begins with zeros, have no gaps.
struct Thin<'a, 'b> {
    of: [usize; 3],
    left: &'a mut [f32],
    b: &'a Mat<'b, bf16>,
    sums: &'a mut [f32],
}

impl WithSimd for Thin<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { of, left, b, sums } = self;
        let (inner, across) = (left.len() / of[0], sums.len() / of[0]);
        let by_columns = b.row_step == 1;
        if by_columns {
            in_order::<S>(left, true);
        }
        let [m, n, k] = of;
        let columns = if by_columns {
            (NEAR / k).max(2) / 2 * 2
        } else {
            n
        };
        for column in (0..n).step_by(columns) {
            let part = column..n.min(column + columns);
            let mut row = 0;
            while row < m {
                let some = match m - row {
                    1 => 1,
                    2 | 3 => 2,
                    _ => 4,
                };
                let left = &left[row * inner..][..some * inner];
                let sums = &mut sums[row * across..][..some * across];
                match (some, by_columns) {
                    (1, true) => by_column::<S, 1>(simd, (&part, k), left, b, sums),
                    (2, true) => by_column::<S, 2>(simd, (&part, k), left, b, sums),
                    (_, true) => by_column::<S, 4>(simd, (&part, k), left, b, sums),
                    (1, false) => by_row::<S, 1>(simd, [n, k], left, b, sums),
                    (2, false) => by_row::<S, 2>(simd, [n, k], left, b, sums),
                    (_, false) => by_row::<S, 4>(simd, [n, k], left, b, sums),
                }
                row += some;
            }
        }
        if !by_columns {
            in_order::<S>(sums, false);
        }
    }
}

/// Puts numbers in the order of vectors of pairs, or back.
#[inline(always)]
fn in_order<S: Simd>(numbers: &mut [f32], of_pairs: bool) {
    let lanes = S::F32_LANES;
    let mut block = [0.0; WIDE];
    for numbers in numbers.chunks_exact_mut(2 * lanes) {
        let block = &mut block[..2 * lanes];
        block.copy_from_slice(numbers);
        for i in 0..lanes {
            for odd in 0..2 {
                let (apart, paired) = (odd * lanes + i, 2 * i + odd);
                match of_pairs {
                    true => numbers[apart] = block[paired],
                    false => numbers[paired] = block[apart],
                }
            }
        }
    }
}

/// Columns of so many numbers that lie one number after the other: two of them are read together, as long as there are two.
#[inline(always)]
fn by_column<S: Simd, const R: usize>(
    simd: S,
    (columns, k): (&Range<usize>, usize),
    left: &[f32],
    b: &Mat<'_, bf16>,
    sums: &mut [f32],
) {
    let across = sums.len() / R;
    let pairs = columns.end - columns.len() % 2;
    for column in (columns.start..pairs).step_by(2) {
        let [x, y] = dots::<S, R, 2>(simd, left, [0, 1].map(|i| line(b, column + i, k)));
        put(x, sums, across, column);
        put(y, sums, across, column + 1);
    }
    if pairs < columns.end {
        let [x] = dots::<S, R, 1>(simd, left, [line(b, pairs, k)]);
        put(x, sums, across, pairs);
    }
}

/// Writes a column of rows that are so long.
#[inline(always)]
fn put<const R: usize>(dots: [f32; R], sums: &mut [f32], across: usize, column: usize) {
    for (row, dot) in dots.into_iter().enumerate() {
        sums[row * across + column] = dot;
    }
}

/// So many numbers of a column, or of a row where these lie one number after the other.
#[inline(always)]
fn line<'b>(b: &Mat<'b, bf16>, number: usize, len: usize) -> &'b [bf16] {
    let step = if b.row_step == 1 {
        b.col_step
    } else {
        b.row_step
    };
    let at = b.offset.wrapping_add_signed(number as isize * step);
    &b.data[at..at + len]
}

/// The products of rows with columns, summed. Behind them are the next columns, most often, which are asked for: of columns of a few pages a
/// processor does not see that another follows.
#[inline(always)]
fn dots<S: Simd, const R: usize, const C: usize>(
    simd: S,
    left: &[f32],
    columns: [&[bf16]; C],
) -> [[f32; R]; C] {
    let inner = left.len() / R;
    let mut sums = [[[simd.splat_f32s(0.0); 2]; R]; C];
    for at in (0..columns[0].len()).step_by(2 * S::F32_LANES) {
        for column in columns {
            ask(column.as_ptr().wrapping_add(C * column.len() + at));
        }
        let numbers: [[S::f32s; 2]; C] = numbered(
            #[inline(always)]
            |i| pairs::<S>(simd, &columns[i][at..]),
        );
        for row in 0..R {
            let left = S::as_simd_f32s(&left[row * inner + at..][..2 * S::F32_LANES]).0;
            for (sums, numbers) in sums.iter_mut().zip(numbers) {
                for i in 0..2 {
                    sums[row][i] = simd.mul_add_f32s(left[i], numbers[i], sums[row][i]);
                }
            }
        }
    }
    numbered(
        #[inline(always)]
        |column| {
            numbered(
                #[inline(always)]
                |row| {
                    let [even, odd] = sums[column][row];
                    simd.reduce_sum_f32s(simd.add_f32s(even, odd))
                },
            )
        },
    )
}

/// Rows that lie one number after the other: each adds to all sums.
#[inline(always)]
fn by_row<S: Simd, const R: usize>(
    simd: S,
    [n, k]: [usize; 2],
    left: &[f32],
    b: &Mat<'_, bf16>,
    sums: &mut [f32],
) {
    let whole = k / LINES * LINES;
    for number in (0..whole).step_by(LINES) {
        let lines = [0, 1, 2, 3].map(|i| line(b, number + i, n));
        add::<S, R, LINES>(simd, left, number, lines, sums);
    }
    for number in whole..k {
        add::<S, R, 1>(simd, left, number, [line(b, number, n)], sums);
    }
}

/// Adds lines from a number on, each times its factor in every row.
#[inline(always)]
fn add<S: Simd, const R: usize, const L: usize>(
    simd: S,
    left: &[f32],
    number: usize,
    lines: [&[bf16]; L],
    sums: &mut [f32],
) {
    let (inner, across) = (left.len() / R, sums.len() / R);
    let factors: [[S::f32s; L]; R] = numbered(
        #[inline(always)]
        |row| {
            numbered(
                #[inline(always)]
                |i| simd.splat_f32s(left[row * inner + number + i]),
            )
        },
    );
    for at in (0..lines[0].len()).step_by(2 * S::F32_LANES) {
        let numbers: [[S::f32s; 2]; L] = numbered(
            #[inline(always)]
            |i| pairs::<S>(simd, &lines[i][at..]),
        );
        for (row, factors) in factors.iter().enumerate() {
            let sums = S::as_mut_simd_f32s(&mut sums[row * across + at..][..2 * S::F32_LANES]).0;
            for (i, sum) in sums.iter_mut().enumerate() {
                let mut all = *sum;
                for (factor, numbers) in factors.iter().zip(&numbers) {
                    all = simd.mul_add_f32s(*factor, numbers[i], all);
                }
                *sum = all;
            }
        }
    }
}

/// The first numbers, those at even places and those at odd ones: zeros where there are no more.
#[inline(always)]
fn pairs<S: Simd>(simd: S, from: &[bf16]) -> [S::f32s; 2] {
    let words: S::u32s = match from.get(..2 * S::F32_LANES) {
        Some(from) => bytemuck::pod_read_unaligned(bytemuck::cast_slice(from)),
        None => {
            let mut last = [bf16::ZERO; WIDE];
            last[..from.len()].copy_from_slice(from);
            bytemuck::pod_read_unaligned(bytemuck::cast_slice(&last[..2 * S::F32_LANES]))
        }
    };
    let even = simd.wrapping_dyn_shl_u32s(words, simd.splat_u32s(16));
    let odd = simd.and_u32s(words, simd.splat_u32s(0xffff_0000));
    [even, odd].map(
        #[inline(always)]
        |bits| simd.transmute_f32s_u32s(bits),
    )
}
