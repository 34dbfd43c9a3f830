//! A 128-bit content hash that is the same on every process, platform and run.
//!
//! `std::hash::Hash` feeds native-endian, platform-wide integers and unspecified discriminants, so equal values may hash
//! differently on two machines of one job. Here every field is fed as a little-endian `u64`, lists with their length.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

/// Feeds fields to a keyed SipHash-1-3 with fixed keys.
///
/// ```
/// use shard_spec::StableHasher;
/// let mut h = StableHasher::new("example");
/// h.usize(3);
/// h.usizes(&[1, 2]);
/// assert_eq!(h.finish(), { let mut g = StableHasher::new("example"); g.usize(3); g.usizes(&[1, 2]); g.finish() });
/// ```
#[derive(Clone, Debug)]
pub struct StableHasher(SipHasher13);

impl StableHasher {
    /// Starts a hash in a domain, so that things of different kinds hash differently even if their fields are equal.
    pub fn new(domain: &str) -> Self {
        // Digits of pi; any constants serve as long as they never change.
        let mut this = Self(SipHasher13::new_with_keys(
            0x2436_86a8_85a3_08d3,
            0x1319_8a2e_0370_7344,
        ));
        this.str(domain);
        this
    }

    /// Feeds one integer.
    pub fn u64(&mut self, value: u64) {
        self.0.write(&value.to_le_bytes());
    }

    /// Feeds one 128-bit integer, such as another content hash.
    pub fn u128(&mut self, value: u128) {
        self.0.write(&value.to_le_bytes());
    }

    /// Feeds one size or index.
    pub fn usize(&mut self, value: usize) {
        self.u64(value as u64);
    }

    /// Feeds one signed offset.
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
    pub fn str(&mut self, text: &str) {
        self.usize(text.len());
        self.0.write(text.as_bytes());
    }

    /// The hash of everything fed so far.
    pub fn finish(&self) -> u128 {
        self.0.finish128().as_u128()
    }
}

/// Types that derive `std::hash::Hash` feed their fields through this: sizes as `u64`, and everything little-endian.
impl Hasher for StableHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    fn write_u16(&mut self, value: u16) {
        self.0.write(&value.to_le_bytes());
    }

    fn write_u32(&mut self, value: u32) {
        self.0.write(&value.to_le_bytes());
    }

    fn write_u64(&mut self, value: u64) {
        self.u64(value);
    }

    fn write_u128(&mut self, value: u128) {
        self.u128(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.usize(value);
    }

    fn write_isize(&mut self, value: isize) {
        Self::isize(self, value);
    }

    /// The first half of the 128 bits.
    fn finish(&self) -> u64 {
        self.0.finish128().h1
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
