//! Blocks of four by four, with rows and columns exchanged.

use crate::arrays::{each, numbered};
use bytemuck::Pod;
use pulp::Simd;

/// Numbers of a block along either side.
pub(crate) const SIDE: usize = 4;

/// Exchanges rows and columns.
#[inline(always)]
pub(crate) fn turned<T: Pod>(rows: [[T; SIDE]; SIDE]) -> [[T; SIDE]; SIDE] {
    if size_of::<T>() == size_of::<u32>() {
        bytemuck::cast(words(bytemuck::cast(rows)))
    } else {
        by_number(rows)
    }
}

/// How this processor exchanges rows and columns, of numbers of eight bytes too.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    avx: Option<pulp::core_arch::x86::Avx>,
}

impl Turn {
    /// Asks the processor, outside of loops. Where those are not compiled for vectors, each instruction would be a call.
    #[inline(always)]
    pub(crate) fn new<S: Simd>() -> Self {
        Self {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            avx: match const { S::F64_LANES >= SIDE } {
                true => pulp::core_arch::x86::Avx::try_new(),
                false => None,
            },
        }
    }

    /// Exchanges rows and columns.
    #[inline(always)]
    pub(crate) fn turned<T: Pod>(self, rows: [[T; SIDE]; SIDE]) -> [[T; SIDE]; SIDE] {
        if size_of::<T>() == size_of::<u64>() {
            bytemuck::cast(self.doubles(bytemuck::cast(rows)))
        } else {
            turned(rows)
        }
    }

    #[inline(always)]
    fn doubles(self, rows: [[u64; SIDE]; SIDE]) -> [[u64; SIDE]; SIDE] {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if let Some(avx) = self.avx {
            let [a, b, c, d] = each(rows, pulp::cast);
            // Even columns of two rows each, and odd ones.
            let even = [avx._mm256_unpacklo_pd(a, b), avx._mm256_unpacklo_pd(c, d)];
            let odd = [avx._mm256_unpackhi_pd(a, b), avx._mm256_unpackhi_pd(c, d)];
            return [
                pulp::cast(avx._mm256_permute2f128_pd::<0x20>(even[0], even[1])),
                pulp::cast(avx._mm256_permute2f128_pd::<0x20>(odd[0], odd[1])),
                pulp::cast(avx._mm256_permute2f128_pd::<0x31>(even[0], even[1])),
                pulp::cast(avx._mm256_permute2f128_pd::<0x31>(odd[0], odd[1])),
            ];
        }
        by_number(rows)
    }
}

#[inline(always)]
fn by_number<T: Copy>(rows: [[T; SIDE]; SIDE]) -> [[T; SIDE]; SIDE] {
    numbered(
        #[inline(always)]
        |i| each(rows, |row| row[i]),
    )
}

/// In registers: the compiler would load each number by itself.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn words(rows: [[u32; SIDE]; SIDE]) -> [[u32; SIDE]; SIDE] {
    let Some(sse) = pulp::core_arch::x86::Sse::try_new() else {
        return by_number(rows);
    };
    let [a, b, c, d] = each(rows, pulp::cast);
    let low = [sse._mm_unpacklo_ps(a, b), sse._mm_unpacklo_ps(c, d)];
    let high = [sse._mm_unpackhi_ps(a, b), sse._mm_unpackhi_ps(c, d)];
    [
        pulp::cast(sse._mm_movelh_ps(low[0], low[1])),
        pulp::cast(sse._mm_movehl_ps(low[1], low[0])),
        pulp::cast(sse._mm_movelh_ps(high[0], high[1])),
        pulp::cast(sse._mm_movehl_ps(high[1], high[0])),
    ]
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
fn words(rows: [[u32; SIDE]; SIDE]) -> [[u32; SIDE]; SIDE] {
    by_number(rows)
}
