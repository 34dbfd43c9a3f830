//! Keys: numbers of 128 bits in place of an op with its attributes, and of such an op with its operands.
//!
//! They are made anew for each op that is applied, so they are hashed by words, a multiplication for each, where layouts and plans,
//! hashed once, are hashed byte by byte with [`StableHasher`](shard_spec::StableHasher). Like these they are the same on every rank
//! and in every run, and no defence against an adversary.

use shard_comm::DType;
use std::hash::{Hash, Hasher};

/// An odd number: digits of the golden ratio.
const SPREAD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

/// The key of an op with these attributes.
///
/// ```
/// use shard_ops::key_of;
/// assert_eq!(key_of("scale", &2.5_f64.to_bits()), key_of("scale", &2.5_f64.to_bits()));
/// assert_ne!(key_of("scale", &2.5_f64.to_bits()), key_of("shift", &2.5_f64.to_bits()));
/// ```
#[inline]
pub fn key_of<A: Hash + ?Sized>(name: &str, attributes: &A) -> u128 {
    let mut hasher = Words(SPREAD);
    hasher.write(name.as_bytes());
    attributes.hash(&mut hasher);
    hasher.key()
}

/// The key of an op, or of an op and its operands so far, with an operand more. Keys and layouts are hashes of 128 bits, and for one
/// operand different keys never give the same, nor for one key different operands.
#[inline]
pub fn with_operand(key: u128, layout: u128, dtype: DType) -> u128 {
    stir(key, layout ^ dtype as u128)
}

/// A state with 128 bits more: different ones give different states, and so do different states.
#[inline]
fn stir(state: u128, bits: u128) -> u128 {
    (state.rotate_left(47) ^ bits).wrapping_mul(SPREAD)
}

/// What was hashed so far. Numbers are fed as words of 64 bits each, bytes as words of eight with how many there are. `std` feeds a list
/// of integers as the bytes that it lies in, so ranks come to the same keys on machines with one order of bytes and one width of sizes.
struct Words(u128);

impl Words {
    fn key(&self) -> u128 {
        // The upper half knows of all bits, the lower of those below alone.
        let mixed = (self.0 ^ (self.0 >> 64)).wrapping_mul(SPREAD);
        mixed ^ (mixed >> 64)
    }
}

impl Hasher for Words {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.write_u64(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        let rest = rest.iter().rev();
        self.write_u64(rest.fold(0, |word, &byte| (word << 8) | u64::from(byte)));
    }

    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    #[inline]
    fn write_u16(&mut self, value: u16) {
        self.write_u64(value.into());
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.0 = stir(self.0, value.into());
    }

    #[inline]
    fn write_u128(&mut self, value: u128) {
        self.0 = stir(self.0, value);
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    #[inline]
    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as i64 as u64);
    }

    fn finish(&self) -> u64 {
        self.key() as u64
    }
}
