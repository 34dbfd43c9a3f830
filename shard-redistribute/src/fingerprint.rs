//! A 128-bit content hash that is the same on every rank and in every process.

use shard_spec::StableHasher;
use std::hash::Hash;

/// Accumulates a 128-bit fingerprint of plain values.
///
/// This is the hash of [`StableHasher`], fed by anything that is `Hash`. It is no defence against an adversary, but it is the
/// same on every rank and in every run, which `std`'s default hasher does not promise.
///
/// ```
/// use shard_redistribute::Fingerprint;
/// let a = Fingerprint::new("halo").with(&[1usize, 2]).finish();
/// let b = Fingerprint::new("halo").with(&[1usize, 2]).finish();
/// assert_eq!(a, b);
/// assert_ne!(a, Fingerprint::new("halo").with(&[2usize, 1]).finish());
/// ```
#[derive(Clone, Debug)]
pub struct Fingerprint(StableHasher);

impl Fingerprint {
    /// Starts a fingerprint of something called `what`.
    pub fn new(what: &str) -> Self {
        Self(StableHasher::new(what))
    }

    /// Adds a value.
    #[must_use]
    pub fn with<T: Hash + ?Sized>(mut self, value: &T) -> Self {
        value.hash(&mut self.0);
        self
    }

    /// The fingerprint of everything added so far.
    pub fn finish(&self) -> u128 {
        self.0.finish()
    }
}
