//! Random words: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).

use crate::pointwise::vectorized;
use pulp::{Simd, WithSimd};

/// How many blocks are computed at a time.
pub const BLOCKS: usize = 64;

/// The words of blocks side by side: all first words, all second ones, and so on.
pub type Words = [[u32; BLOCKS]; 4];

/// One block: four random words for a counter and a key.
///
/// ```
/// use shard_kernels::random::philox4x32;
/// // The first known-answer vector of Random123.
/// assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
/// ```
#[inline(always)]
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    let (mut c, mut k) = (counter, key);
    for _ in 0..10 {
        let (hi0, lo0) = wide_mul(MULTIPLIERS[0], c[0]);
        let (hi1, lo1) = wide_mul(MULTIPLIERS[1], c[2]);
        c = [hi1 ^ c[1] ^ k[0], lo1, hi0 ^ c[3] ^ k[1], lo0];
        k = [k[0].wrapping_add(WEYL[0]), k[1].wrapping_add(WEYL[1])];
    }
    c
}

#[inline(always)]
fn wide_mul(a: u32, b: u32) -> (u32, u32) {
    let product = u64::from(a) * u64::from(b);
    ((product >> 32) as u32, product as u32)
}

/// The blocks of consecutive counters: `first`, which wraps, is the lower half of the first one, and `upper` the upper half of all.
///
/// ```
/// use shard_kernels::random::{BLOCKS, philox4x32, words};
/// let mut drawn = [[0; BLOCKS]; 4];
/// words([7, 0], [3, 1], u64::from(u32::MAX), &mut drawn);
/// assert_eq!(drawn.map(|word| word[1]), philox4x32([0, 1, 3, 1], [7, 0]));
/// ```
pub fn words(key: [u32; 2], upper: [u32; 2], first: u64, words: &mut Words) {
    vectorized(Draw {
        key,
        upper,
        first,
        words,
    });
}

struct Draw<'a> {
    key: [u32; 2],
    upper: [u32; 2],
    first: u64,
    words: &'a mut Words,
}

impl WithSimd for Draw<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let [a, b, c, d] = self.words;
        for i in 0..BLOCKS {
            let at = self.first.wrapping_add(i as u64);
            let counter = [at as u32, (at >> 32) as u32, self.upper[0], self.upper[1]];
            [a[i], b[i], c[i], d[i]] = philox4x32(counter, self.key);
        }
    }
}
