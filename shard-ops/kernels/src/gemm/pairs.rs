//! Vectors of pairs of `bf16` (AVX-512, `VDPBF16PS`) as a unit for tiles: a lane adds the two products of a pair to a number of `f32`.
//!
//! Processors of AMD form them at the rate of other vectors, so twice as many products as in `f32` (measured of 512 x 512 numbers: on a Zen 4 213
//! billion operations in a second beside 113, and on a Zen 5 as many). Those of Intel that were measured form half as many as in `f32`, and have a unit for tiles.

use super::unit::{BLOCK, DEPTH, Panel, ROWS, Rows, SIDE, Term, Unit, check};
use std::arch::x86_64::{
    __m512, __m512bh, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_storeu_ps,
};
use std::ops::Range;
use std::sync::OnceLock;

/// The vectors of the processor that this thread runs on.
#[derive(Debug)]
pub(crate) struct Pairs(());

/// About so many terms of steps are multiplied before the next rows follow, so that the tiles on the right (2 KiB each) are still in the
/// nearest cache.
const NEAR: usize = 8;

impl Pairs {
    /// How many products they form in the time in which vectors of `f32` form one.
    pub(super) const RATE: usize = 2;

    /// Whether the processor has them, and forms more products with them than of `f32`.
    pub(super) fn is_usable() -> bool {
        static USABLE: OnceLock<bool> = OnceLock::new();
        *USABLE.get_or_init(|| {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bf16")
                && is_fast()
        })
    }

    /// The vectors, where they are usable.
    pub(super) fn get() -> Option<Self> {
        Self::is_usable().then_some(Self(()))
    }
}

/// Whether AMD has made it: Zen 4, and what comes after it.
fn is_fast() -> bool {
    let vendor = raw_cpuid::CpuId::new().get_vendor_info();
    vendor.is_some_and(|vendor| vendor.as_str() == "AuthenticAMD")
}

impl Unit for Pairs {
    fn rate(&self) -> usize {
        Self::RATE
    }

    fn multiply(
        &self,
        steps: usize,
        terms: &[Term],
        a: Panel<'_>,
        b: Panel<'_>,
        to: &mut Rows<'_>,
        add: bool,
    ) {
        check(steps, terms, a, b, to);
        let few = NEAR.div_ceil(terms.len());
        let parts = (terms.len() / NEAR).max(1);
        let mut add = add;
        for from in (0..steps).step_by(few) {
            let steps = from..steps.min(from + few);
            for terms in terms.chunks(terms.len().div_ceil(parts)) {
                let [wanted, columns] = to.wanted;
                for row in (0..wanted.min(BLOCK)).step_by(ROWS) {
                    // SAFETY: there is no `Pairs` where the processor lacks the instructions. `check` has shown that all tiles that are read lie in
                    // their numbers, and all rows that are read and written in the results, which are borrowed mutably.
                    unsafe {
                        match columns > SIDE {
                            true => rows::<2>(row, steps.clone(), terms, a, b, to, add),
                            false => rows::<1>(row, steps.clone(), terms, a, b, to, add),
                        }
                    }
                }
                add = true;
            }
        }
    }
}

/// The results of [`ROWS`] rows from one on, of some steps, in the columns of the first `N` tiles on the right.
///
/// # Safety
/// The tiles of these steps and terms lie in their numbers, and the rows in the results, as [`check`] looks at them.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn rows<const N: usize>(
    first: usize,
    steps: Range<usize>,
    terms: &[Term],
    a: Panel<'_>,
    b: Panel<'_>,
    to: &mut Rows<'_>,
    add: bool,
) {
    let to: [*mut f32; ROWS] = std::array::from_fn(|row| {
        // SAFETY: the row lies in the results.
        unsafe { to.data.as_mut_ptr().add((first + row) * to.apart) }
    });
    let mut sums = [[_mm512_setzero_ps(); N]; ROWS];
    if add {
        for (sums, to) in sums.iter_mut().zip(to) {
            for (tile, sum) in sums.iter_mut().enumerate() {
                // SAFETY: a row has two vectors.
                *sum = unsafe { _mm512_loadu_ps(to.add(tile * SIDE)) };
            }
        }
    }
    let own = first / SIDE * a.tile + first % SIDE * a.row;
    for step in steps {
        for &[left, right] in terms {
            // SAFETY: the tiles of a step and a term lie in the numbers.
            let (mut left, mut right) = unsafe {
                (
                    a.numbers.as_ptr().add(step * a.step + left + own),
                    b.numbers.as_ptr().add(step * b.step + right),
                )
            };
            for pair in 0..DEPTH / 2 {
                // SAFETY: a tile on the right has so many rows of a vector, and one on the left as many pairs in each of its rows.
                unsafe {
                    let mut tiles = [numbers(right); N];
                    if N > 1 {
                        tiles[1] = numbers(right.add(b.tile));
                    }
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let pair = of_pair(left.add(row * a.row));
                        for (sum, tile) in sums.iter_mut().zip(tiles) {
                            *sum = _mm512_dpbf16_ps(*sum, pair, tile);
                        }
                    }
                    if pair + 1 < DEPTH / 2 {
                        (left, right) = (left.add(2), right.add(b.row));
                    }
                }
            }
        }
    }
    for (sums, to) in sums.iter().zip(to) {
        for (tile, sum) in sums.iter().enumerate() {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(to.add(tile * SIDE), *sum) };
        }
    }
}

/// The numbers of a row of a tile on the right.
///
/// # Safety
/// There are so many from there on.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn numbers(from: *const u16) -> __m512bh {
    // SAFETY: the caller's, and all bits are numbers.
    unsafe { std::mem::transmute::<__m512, __m512bh>(_mm512_loadu_ps(from.cast())) }
}

/// A pair of a row on the left, for all lanes.
///
/// # Safety
/// There are two numbers from there on.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn of_pair(from: *const u16) -> __m512bh {
    // SAFETY: the caller's, and all bits are numbers.
    unsafe {
        std::mem::transmute::<__m512, __m512bh>(_mm512_set1_ps(from.cast::<f32>().read_unaligned()))
    }
}
