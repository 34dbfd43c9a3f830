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

#[cfg(test)]
mod tests {
    use super::*;

    /// The known-answer vectors of Random123 (`kat_vectors`, philox 4 32 10).
    #[test]
    fn philox_gives_the_published_vectors() {
        assert_eq!(
            philox4x32([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn uniform_and_normal_have_their_moments() {
        let stream = Stream::new(7, 3);
        let n = 100_000u64;
        let mean = |f: &dyn Fn(u64) -> f64| (0..n).map(f).sum::<f64>() / n as f64;
        // The tolerance is five standard errors.
        assert!(
            (mean(&|i| stream.uniform_f64(i)) - 0.5).abs()
                < 5.0 * (1.0 / 12.0_f64 / n as f64).sqrt()
        );
        assert!(mean(&|i| stream.normal(i)).abs() < 5.0 / (n as f64).sqrt());
        assert!((mean(&|i| stream.normal(i).powi(2)) - 1.0).abs() < 5.0 * (2.0 / n as f64).sqrt());
        assert!((mean(&|i| stream.normal(i).powi(4)) - 3.0).abs() < 5.0 * (96.0 / n as f64).sqrt());
    }

    #[test]
    fn single_precision_is_the_same_number_cut() {
        let stream = Stream::new(1, 2);
        for i in 0..1000 {
            let (wide, cut) = (stream.uniform_f64(i), f64::from(stream.uniform_f32(i)));
            assert!((0.0..1.0).contains(&wide) && cut <= wide && wide - cut < 1.0 / 16_777_216.0);
        }
    }

    #[test]
    fn calls_seeds_and_indices_give_other_numbers() {
        let base = Stream::new(1, 1).uniform_f64(0);
        for other in [
            Stream::new(1, 1).uniform_f64(1),
            Stream::new(1, 2).uniform_f64(0),
            Stream::new(2, 1).uniform_f64(0),
        ] {
            assert_ne!(base, other);
        }
    }
}
