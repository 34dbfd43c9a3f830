//! Copies in which rows of the source become columns of the destination, by squares of elements as wide as a line of the cache.
//!
//! Element by element each line of the source would be read once for every element that it has, and where columns are some
//! thousands of bytes apart no cache keeps all lines of a tile as long. Of a square each line of the source is read once, and each
//! of the destination written once.

use super::nest::{Block, Turned};
use bytemuck::Pod;

/// Copies a block that is such a tile.
pub(super) fn tile<T: Pod>(dst: &mut [T], src: &[T], block: &Block<'_>, turned: &Turned) {
    match size_of::<T>() {
        2 => halves(
            bytemuck::cast_slice_mut(dst),
            bytemuck::cast_slice(src),
            block,
            turned,
        ),
        4 => words(
            bytemuck::cast_slice_mut(dst),
            bytemuck::cast_slice(src),
            block,
            turned,
        ),
        8 => doubles(
            bytemuck::cast_slice_mut(dst),
            bytemuck::cast_slice(src),
            block,
            turned,
        ),
        _ => block.sweep(src, dst, |_, value| value),
    }
}

/// Defines a copy of tiles, of elements of which `$few` by `$few` are exchanged in registers and `$side` fill a line of the cache, or half of one.
macro_rules! by_squares {
    ($name:ident, $T:ty, $side:literal, $few:literal, $exchanged:ident) => {
        fn $name(dst: &mut [$T], src: &[$T], block: &Block<'_>, tile: &Turned) {
            /// A few elements, from `row` on, of a few columns of the source, as rows of the destination.
            #[inline(always)]
            fn few(src: &[$T], columns: [usize; $few], row: usize) -> [[$T; $few]; $few] {
                $exchanged(columns.map(|at| {
                    let run = &src[at + row..at + row + $few];
                    core::array::from_fn(|k| run[k])
                }))
            }

            /// What is no whole square: the elements from `row` on of these columns, to the columns from `first` on of these rows.
            fn edge(
                (dst, rows, first): (&mut [$T], &[usize], usize),
                (src, columns, row): (&[$T], &[usize], usize),
            ) {
                let (by_few, columns_left) = columns.as_chunks::<$few>();
                let (rows_by_few, rows_left) = rows.as_chunks::<$few>();
                for (i, columns) in by_few.iter().enumerate() {
                    let first = first + $few * i;
                    for (k, rows) in rows_by_few.iter().enumerate() {
                        for (to, few) in rows.iter().zip(few(src, *columns, row + $few * k)) {
                            dst[to + first..to + first + $few].copy_from_slice(&few);
                        }
                    }
                    for (k, to) in rows_left.iter().enumerate() {
                        let row = row + $few * rows_by_few.len() + k;
                        for (j, from) in columns.iter().enumerate() {
                            dst[to + first + j] = src[from + row];
                        }
                    }
                }
                for (k, to) in rows.iter().enumerate() {
                    for (i, from) in columns_left.iter().enumerate() {
                        dst[to + first + $few * by_few.len() + i] = src[from + row + k];
                    }
                }
            }

            let (rows, height) = tile.rows(block.dst);
            let (columns, width) = tile.columns(block.src);
            let mut turned = [[0; $side]; $side];
            for row in (0..height).step_by($side) {
                let rows = &rows[row..height.min(row + $side)];
                for first in (0..width).step_by($side) {
                    let columns = &columns[first..width.min(first + $side)];
                    let square = (rows.first_chunk::<$side>(), columns.first_chunk::<$side>());
                    let (Some(rows), Some(columns)) = square else {
                        edge((dst, rows, first), (src, columns, row));
                        continue;
                    };
                    for i in (0..$side).step_by($few) {
                        for k in (0..$side).step_by($few) {
                            let columns = core::array::from_fn(|j| columns[i + j]);
                            for (j, few) in few(src, columns, row + k).into_iter().enumerate() {
                                turned[k + j][i..i + $few].copy_from_slice(&few);
                            }
                        }
                    }
                    for (to, turned) in rows.iter().zip(&turned) {
                        dst[to + first..to + first + $side].copy_from_slice(turned);
                    }
                }
            }
        }
    };
}

// Squares of 32 took 0.8 of the time where there are many, and 1.8 of it where tiles are narrower than they.
by_squares!(halves, u16, 16, 8, eights);
by_squares!(words, u32, 16, 4, fours);
by_squares!(doubles, u64, 8, 2, twos);

/// Rows and columns exchanged, in registers: the compiler would load each number by itself.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[expect(unsafe_code, reason = "instructions that a processor may not have")]
#[inline(always)]
fn fours(rows: [[u32; 4]; 4]) -> [[u32; 4]; 4] {
    // SAFETY: every processor of x86-64 has SSE2.
    unsafe { sse::fours(rows) }
}

/// As [`fours`], of numbers half as wide.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[expect(unsafe_code, reason = "instructions that a processor may not have")]
#[inline(always)]
fn eights(rows: [[u16; 8]; 8]) -> [[u16; 8]; 8] {
    // SAFETY: every processor of x86-64 has SSE2.
    unsafe { sse::eights(rows) }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod sse {
    use bytemuck::cast;
    use std::arch::x86_64::{
        _mm_unpackhi_epi16, _mm_unpackhi_epi32, _mm_unpackhi_epi64, _mm_unpacklo_epi16,
        _mm_unpacklo_epi32, _mm_unpacklo_epi64,
    };

    #[target_feature(enable = "sse2")]
    #[inline]
    pub(super) fn eights(rows: [[u16; 8]; 8]) -> [[u16; 8]; 8] {
        let [a, b, c, d, e, f, g, h] = rows.map(cast);
        // Numbers of two rows in turns, of the first four columns and of the last; then of four rows, of two columns each.
        let low = [(a, b), (c, d), (e, f), (g, h)].map(|(x, y)| _mm_unpacklo_epi16(x, y));
        let high = [(a, b), (c, d), (e, f), (g, h)].map(|(x, y)| _mm_unpackhi_epi16(x, y));
        let [a, b, c, d] = low;
        let [e, f, g, h] = high;
        let above = [
            _mm_unpacklo_epi32(a, b),
            _mm_unpackhi_epi32(a, b),
            _mm_unpacklo_epi32(e, f),
            _mm_unpackhi_epi32(e, f),
        ];
        let below = [
            _mm_unpacklo_epi32(c, d),
            _mm_unpackhi_epi32(c, d),
            _mm_unpacklo_epi32(g, h),
            _mm_unpackhi_epi32(g, h),
        ];
        [
            cast(_mm_unpacklo_epi64(above[0], below[0])),
            cast(_mm_unpackhi_epi64(above[0], below[0])),
            cast(_mm_unpacklo_epi64(above[1], below[1])),
            cast(_mm_unpackhi_epi64(above[1], below[1])),
            cast(_mm_unpacklo_epi64(above[2], below[2])),
            cast(_mm_unpackhi_epi64(above[2], below[2])),
            cast(_mm_unpacklo_epi64(above[3], below[3])),
            cast(_mm_unpackhi_epi64(above[3], below[3])),
        ]
    }

    #[target_feature(enable = "sse2")]
    #[inline]
    pub(super) fn fours(rows: [[u32; 4]; 4]) -> [[u32; 4]; 4] {
        let [a, b, c, d] = rows.map(cast);
        let low = [_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d)];
        let high = [_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d)];
        [
            cast(_mm_unpacklo_epi64(low[0], low[1])),
            cast(_mm_unpackhi_epi64(low[0], low[1])),
            cast(_mm_unpacklo_epi64(high[0], high[1])),
            cast(_mm_unpackhi_epi64(high[0], high[1])),
        ]
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
fn eights(rows: [[u16; 8]; 8]) -> [[u16; 8]; 8] {
    core::array::from_fn(|i| rows.map(|row| row[i]))
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
fn fours(rows: [[u32; 4]; 4]) -> [[u32; 4]; 4] {
    core::array::from_fn(|i| rows.map(|row| row[i]))
}

#[inline(always)]
fn twos([[a, b], [c, d]]: [[u64; 2]; 2]) -> [[u64; 2]; 2] {
    [[a, c], [b, d]]
}
