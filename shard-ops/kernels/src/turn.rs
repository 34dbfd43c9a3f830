//! Blocks of four by four, with rows and columns exchanged.

use crate::arrays::{each, numbered};
use bytemuck::Pod;

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
