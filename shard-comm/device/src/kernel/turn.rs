//! Copies in which rows of the source become columns of the destination, by squares of elements as wide as a line of the cache.
//!
//! Element by element each line of the source would be read once for every element that it has, and where columns are some
//! thousands of bytes apart no cache keeps all lines of a tile as long. Of a square each line of the source is read once, and each
//! of the destination written once.

use super::nest::Block;
use bytemuck::Pod;

/// Copies a block whose source is dense along rows and whose destination is dense along the inner loop.
pub(super) fn tile<T: Pod>(dst: &mut [T], src: &[T], block: &Block<'_>) {
    match size_of::<T>() {
        4 => words(
            bytemuck::cast_slice_mut(dst),
            bytemuck::cast_slice(src),
            block,
        ),
        8 => doubles(
            bytemuck::cast_slice_mut(dst),
            bytemuck::cast_slice(src),
            block,
        ),
        _ => block.sweep(src, dst, |_, value| value),
    }
}

/// Defines a copy of blocks whose source is dense along rows and whose destination is dense along the inner loop, of elements of which
/// `$few` by `$few` are exchanged in registers and `$side` fill a line of the cache.
macro_rules! by_squares {
    ($name:ident, $T:ty, $side:literal, $few:literal, $exchanged:ident) => {
        fn $name(dst: &mut [$T], src: &[$T], block: &Block<'_>) {
            let mut turned = [[0; $side]; $side];
            block.parts($side, $side, &mut |part| {
                if (part.rows.extent, part.inner.extent) != ($side, $side) {
                    return part.sweep(src, dst, |_, value| value);
                }
                for column in (0..$side).step_by($few) {
                    for row in (0..$side).step_by($few) {
                        let from: [[$T; $few]; $few] = core::array::from_fn(|i| {
                            let column = (column + i) as isize * part.inner.src;
                            let at = (part.src + column) as usize + row;
                            core::array::from_fn(|k| src[at..at + $few][k])
                        });
                        for (i, from) in $exchanged(from).into_iter().enumerate() {
                            turned[row + i][column..column + $few].copy_from_slice(&from);
                        }
                    }
                }
                for (row, turned) in turned.iter().enumerate() {
                    let to = (part.dst + row as isize * part.rows.dst) as usize;
                    dst[to..to + $side].copy_from_slice(turned);
                }
            });
        }
    };
}

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

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod sse {
    use bytemuck::cast;
    use std::arch::x86_64::{
        _mm_unpackhi_epi32, _mm_unpackhi_epi64, _mm_unpacklo_epi32, _mm_unpacklo_epi64,
    };

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
fn fours(rows: [[u32; 4]; 4]) -> [[u32; 4]; 4] {
    core::array::from_fn(|i| rows.map(|row| row[i]))
}

#[inline(always)]
fn twos([[a, b], [c, d]]: [[u64; 2]; 2]) -> [[u64; 2]; 2] {
    [[a, c], [b, d]]
}
