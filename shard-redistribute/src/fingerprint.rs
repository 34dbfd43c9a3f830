//! A 128-bit content hash that is the same on every rank and in every process.

use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::{Hash, Hasher};

/// Accumulates a 128-bit fingerprint of plain values.
///
/// SipHash-1-3 with fixed keys: not a defence against an adversary, but the same number on every rank, every
/// run and every platform of one word size, which `std`'s default hasher does not promise.
///
/// ```
/// use shard_redistribute::Fingerprint;
/// let a = Fingerprint::new("halo").with(&[1usize, 2]).finish();
/// let b = Fingerprint::new("halo").with(&[1usize, 2]).finish();
/// assert_eq!(a, b);
/// assert_ne!(a, Fingerprint::new("halo").with(&[2usize, 1]).finish());
/// ```
#[derive(Clone, Debug)]
pub struct Fingerprint(SipHasher13);

impl Fingerprint {
    /// Starts a fingerprint of something called `what`.
    pub fn new(what: &str) -> Self {
        let mut hasher = SipHasher13::new_with_keys(0x7368_6172_6474_656e, 0x736f_7266_6f72_7273);
        what.hash(&mut hasher);
        Self(hasher)
    }

    /// Adds a value.
    #[must_use]
    pub fn with<T: Hash + ?Sized>(mut self, value: &T) -> Self {
        value.hash(&mut self.0);
        self
    }

    /// The fingerprint of everything added so far.
    pub fn finish(&self) -> u128 {
        self.0.finish128().as_u128()
    }
}

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    fn finish(&self) -> u64 {
        self.0.finish()
    }
}
