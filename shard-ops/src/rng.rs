//! Random numbers that do not depend on which rank draws them.
//!
//! A number is a pure function of (seed, call, global linear index): Philox4x32-10 of Salmon, Moraes, Dror and
//! Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), keyed by the seed, with the call in the upper
//! half of the counter and the index in the lower. Any layout, any rank count and any order of drawing give the
//! same tensor.

use shard_kernels::random::{BLOCKS, Words, words};

pub use shard_kernels::random::philox4x32;

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
        Self::wide_of(self.words(index))
    }

    /// The same number truncated to 24 bits, so that it stays below 1 in single precision.
    pub fn uniform_f32(&self, index: u64) -> f32 {
        Self::single_of(self.words(index))
    }

    /// A standard normal number, by Box and Muller's transform of two uniform ones.
    pub fn normal(&self, index: u64) -> f64 {
        Self::normal_of(self.words(index))
    }

    /// The halves of the seed and of the call, low ones first, in the form that kernels take.
    #[cfg(feature = "cuda")]
    pub(crate) fn numbers(&self) -> [u32; 4] {
        [self.key[0], self.key[1], self.call[0], self.call[1]]
    }

    /// Four random words: those with numbers `4 * index` to `4 * index + 3` of the stream.
    pub fn words(&self, index: u64) -> [u32; 4] {
        let index = halves(index);
        philox4x32([index[0], index[1], self.call[0], self.call[1]], self.key)
    }

    /// The [`words`](Self::words) of this index and those behind it: what takes a number at a time six times as long.
    fn words_from(&self, index: u64, drawn: &mut Words) {
        words(self.key, self.call, index, drawn);
    }

    /// The words by their numbers, of which few lie far from the one before.
    pub(crate) fn drawn(&self) -> Drawn<'_> {
        Drawn {
            stream: self,
            words: [[0; BLOCKS]; 4],
            first: None,
        }
    }

    /// Writes a number for each index from `first` on, in steps of `step`, made of its words.
    pub(crate) fn fill(
        &self,
        first: u64,
        step: u64,
        numbers: &mut [f64],
        of_words: impl Fn([u32; 4]) -> f64,
    ) {
        if step != 1 || numbers.len() < FEW {
            for (number, i) in numbers.iter_mut().zip(0..) {
                *number = of_words(self.words(first + i * step));
            }
            return;
        }
        let mut drawn = [[0; BLOCKS]; 4];
        for (numbers, chunk) in numbers.chunks_mut(BLOCKS).zip(0..) {
            self.words_from(first + chunk * BLOCKS as u64, &mut drawn);
            let [a, b, c, d] = &drawn;
            for (i, number) in numbers.iter_mut().enumerate() {
                *number = of_words([a[i], b[i], c[i], d[i]]);
            }
        }
    }

    /// What [`uniform_f64`](Self::uniform_f64) makes of words.
    #[inline]
    pub(crate) fn wide_of([a, b, ..]: [u32; 4]) -> f64 {
        unit(a, b)
    }

    /// What [`uniform_f32`](Self::uniform_f32) makes of words.
    #[inline]
    pub(crate) fn single_of([a, ..]: [u32; 4]) -> f32 {
        // 24 bits are exact in f32.
        (a >> 8) as f32 * (1.0 / 16_777_216.0)
    }

    /// What [`normal`](Self::normal) makes of words.
    #[inline]
    pub(crate) fn normal_of([a, b, c, d]: [u32; 4]) -> f64 {
        // 1 - u lies in (0, 1]: its logarithm is finite.
        let radius = (-2.0 * (1.0 - unit(a, b)).ln()).sqrt();
        radius * (std::f64::consts::TAU * unit(c, d)).cos()
    }
}

/// Words of a stream, blocks of which are drawn together and kept until one of another is asked for.
pub(crate) struct Drawn<'a> {
    stream: &'a Stream,
    words: Words,
    /// The first block that was drawn.
    first: Option<u64>,
}

impl Drawn<'_> {
    /// The word with this number.
    #[inline]
    pub(crate) fn word(&mut self, number: u64) -> u32 {
        let block = number / 4;
        let first = match self.first {
            Some(first) if (first..first + BLOCKS as u64).contains(&block) => first,
            _ => {
                self.stream.words_from(block, &mut self.words);
                *self.first.insert(block)
            }
        };
        self.words[(number % 4) as usize][(block - first) as usize]
    }
}

/// The least word of what is kept where a share of `rate`, below 1, is dropped.
pub(crate) fn least_kept(rate: f64) -> u32 {
    (rate * 4_294_967_296.0) as u32
}

/// So many numbers take less time one by one than as many as are drawn together.
const FEW: usize = 12;

/// The low and the high half.
fn halves(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

#[inline]
fn unit(hi: u32, lo: u32) -> f64 {
    let bits = (u64::from(hi) << 32 | u64::from(lo)) >> 11;
    bits as f64 * (1.0 / 9_007_199_254_740_992.0)
}
