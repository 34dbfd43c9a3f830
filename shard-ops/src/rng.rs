//! Random numbers that do not depend on which rank draws them.
//!
//! A number is a pure function of (seed, call, global linear index): Philox4x32-10 of Salmon, Moraes, Dror and
//! Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), keyed by the seed, with the call in the upper
//! half of the counter and the index in the lower. Any layout, any rank count and any order of drawing give the
//! same tensor.

/// One block of Philox4x32-10: four random words for a counter and a key.
///
/// ```
/// use shard_ops::rng::philox4x32;
/// // The first known-answer vector of Random123.
/// assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
/// ```
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

/// The numbers of one call: a stream addressed by global index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    key: [u32; 2],
    call: [u32; 2],
}

impl Stream {
    /// The stream of one call under a seed.
    pub fn new(seed: u64, call: u64) -> Self {
        Self {
            key: halves(seed),
            call: halves(call),
        }
    }

    /// A number in `[0, 1)` with 53 random bits.
    pub fn uniform_f64(&self, index: u64) -> f64 {
        let [a, b, ..] = self.block(index);
        unit(a, b)
    }

    /// The same number truncated to 24 bits, so that it stays below 1 in single precision.
    pub fn uniform_f32(&self, index: u64) -> f32 {
        let [a, ..] = self.block(index);
        // 24 bits are exact in f32.
        (a >> 8) as f32 * (1.0 / 16_777_216.0)
    }

    /// A standard normal number, by Box and Muller's transform of two uniform ones.
    pub fn normal(&self, index: u64) -> f64 {
        let [a, b, c, d] = self.block(index);
        // 1 - u lies in (0, 1]: its logarithm is finite.
        let radius = (-2.0 * (1.0 - unit(a, b)).ln()).sqrt();
        radius * (std::f64::consts::TAU * unit(c, d)).cos()
    }

    /// The halves of the seed and of the call, low ones first, in the form that kernels take.
    #[cfg(feature = "cuda")]
    pub(crate) fn numbers(&self) -> [u32; 4] {
        [self.key[0], self.key[1], self.call[0], self.call[1]]
    }

    /// Four random words: those with numbers `4 * index` to `4 * index + 3` of the stream.
    pub fn words(&self, index: u64) -> [u32; 4] {
        self.block(index)
    }

    fn block(&self, index: u64) -> [u32; 4] {
        let index = halves(index);
        philox4x32([index[0], index[1], self.call[0], self.call[1]], self.key)
    }
}

fn wide_mul(a: u32, b: u32) -> (u32, u32) {
    let [lo, hi] = halves(u64::from(a) * u64::from(b));
    (hi, lo)
}

/// The low and the high half.
fn halves(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

fn unit(hi: u32, lo: u32) -> f64 {
    let bits = (u64::from(hi) << 32 | u64::from(lo)) >> 11;
    bits as f64 * (1.0 / 9_007_199_254_740_992.0)
}
