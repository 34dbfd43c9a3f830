//! A 128-bit content hash that is the same on every process, platform and run.
//!
//! `std::hash::Hash` feeds native-endian, platform-wide integers and unspecified discriminants, so equal values may hash
//! differently on two machines of one job. Here every field is fed as a little-endian `u64`, lists with their length.

use std::hash::Hasher;

/// Feeds fields to a keyed SipHash-1-3 with fixed keys, a word of 64 bits at a time.
///
/// ```
/// use shard_spec::StableHasher;
/// let mut h = StableHasher::new("example");
/// h.usize(3);
/// h.usizes(&[1, 2]);
/// assert_eq!(h.finish(), { let mut g = StableHasher::new("example"); g.usize(3); g.usizes(&[1, 2]); g.finish() });
/// ```
#[derive(Clone, Debug)]
pub struct StableHasher {
    state: [u64; 4],
    words: u64,
}

impl StableHasher {
    /// Starts a hash in a domain, so that things of different kinds hash differently even if their fields are equal.
    #[inline]
    pub fn new(domain: &str) -> Self {
        // Digits of pi; any constants serve as long as they never change.
        const KEYS: [u64; 2] = [0x2436_86a8_85a3_08d3, 0x1319_8a2e_0370_7344];
        // "somepseudorandomlygeneratedbytes", and the mark of hashes of 128 bits.
        let mut this = Self {
            state: [
                KEYS[0] ^ 0x736f_6d65_7073_6575,
                KEYS[1] ^ 0x646f_7261_6e64_6f6d ^ 0xee,
                KEYS[0] ^ 0x6c79_6765_6e65_7261,
                KEYS[1] ^ 0x7465_6462_7974_6573,
            ],
            words: 0,
        };
        this.str(domain);
        this
    }

    /// Feeds one integer.
    #[inline]
    pub fn u64(&mut self, value: u64) {
        self.state[3] ^= value;
        round(&mut self.state);
        self.state[0] ^= value;
        self.words += 1;
    }

    /// Feeds one 128-bit integer, such as another content hash.
    #[inline]
    pub fn u128(&mut self, value: u128) {
        self.u64(value as u64);
        self.u64((value >> 64) as u64);
    }

    /// Feeds one size or index.
    #[inline]
    pub fn usize(&mut self, value: usize) {
        self.u64(value as u64);
    }

    /// Feeds one signed offset.
    #[inline]
    pub fn isize(&mut self, value: isize) {
        self.u64(value as i64 as u64);
    }

    /// Feeds a list of sizes, its length first.
    pub fn usizes(&mut self, values: &[usize]) {
        self.usize(values.len());
        for &value in values {
            self.usize(value);
        }
    }

    /// Feeds text, its length first.
    #[inline]
    pub fn str(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// Feeds bytes, eight to a word, their number first.
    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.usize(bytes.len());
        let (words, rest) = bytes.as_chunks();
        for &word in words {
            self.u64(u64::from_le_bytes(word));
        }
        if !rest.is_empty() {
            let last = rest.iter().rev();
            self.u64(last.fold(0, |word, &byte| word << 8 | u64::from(byte)));
        }
    }

    /// The hash of everything fed so far.
    #[inline]
    pub fn finish(&self) -> u128 {
        let mut end = self.clone();
        end.u64(self.words);
        let mut half = |at: usize, mark: u64| {
            end.state[at] ^= mark;
            (0..3).for_each(|_| round(&mut end.state));
            end.state.iter().fold(0, |half, part| half ^ part)
        };
        let low = half(2, 0xee);
        u128::from(half(1, 0xdd)) << 64 | u128::from(low)
    }
}

/// A round of SipHash.
#[inline]
fn round([a, b, c, d]: &mut [u64; 4]) {
    *a = a.wrapping_add(*b);
    *c = c.wrapping_add(*d);
    *b = b.rotate_left(13) ^ *a;
    *d = d.rotate_left(16) ^ *c;
    *a = a.rotate_left(32);
    *c = c.wrapping_add(*b);
    *a = a.wrapping_add(*d);
    *b = b.rotate_left(17) ^ *c;
    *d = d.rotate_left(21) ^ *a;
    *c = c.rotate_left(32);
}

/// Types that derive `std::hash::Hash` feed their fields through this: each integer as a word, whatever its width.
impl Hasher for StableHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.bytes(bytes);
    }

    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.u64(value.into());
    }

    #[inline]
    fn write_u16(&mut self, value: u16) {
        self.u64(value.into());
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.u64(value.into());
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.u64(value);
    }

    #[inline]
    fn write_u128(&mut self, value: u128) {
        self.u128(value);
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.usize(value);
    }

    #[inline]
    fn write_isize(&mut self, value: isize) {
        Self::isize(self, value);
    }

    /// The first half of the 128 bits.
    fn finish(&self) -> u64 {
        Self::finish(self) as u64
    }
}

/// Content that has a [`StableHasher`] hash: equal values hash equally on every rank.
pub trait ContentHash {
    /// Feeds the content, and nothing of its address, capacity or history.
    fn feed(&self, hasher: &mut StableHasher);

    /// The 128-bit hash of the content alone.
    fn content_hash(&self) -> u128 {
        let mut hasher = StableHasher::new("content");
        self.feed(&mut hasher);
        hasher.finish()
    }
}
