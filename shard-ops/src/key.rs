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
pub(crate) fn with_operand(key: u128, layout: u128, dtype: DType) -> u128 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Attributes that differ little have keys of which neither half is met twice.
    #[test]
    fn keys_that_differ_little_share_neither_half() {
        let mut all = Vec::new();
        for name in [
            "a",
            "b",
            "ab",
            "ba",
            "abcdefgh",
            "abcdefg",
            "abcdefgh\0",
            "",
        ] {
            for at in 0..64_u32 {
                all.push(key_of(name, &(1_u64 << at)));
                all.push(key_of(name, &(f64::from(at) + 0.5).to_bits()));
                all.push(key_of(name, &(1_u64 << at, 0_usize)));
                all.push(key_of(name, &(0_usize, 1_u64 << at)));
                all.push(key_of(name, &vec![0_u8; at as usize][..]));
            }
        }
        let high: HashSet<u64> = all.iter().map(|key| (key >> 64) as u64).collect();
        let low: HashSet<u64> = all.iter().map(|&key| key as u64).collect();
        assert_eq!([high.len(), low.len()], [all.len(); 2]);
    }

    /// An operand more, or another order of operands, is another key.
    #[test]
    fn operands_and_their_order_matter() {
        let key = key_of("add", &false);
        let with = |layouts: &[u128]| {
            (layouts.iter()).fold(key, |key, &layout| with_operand(key, layout, DType::F32))
        };
        let all = [
            with(&[]),
            with(&[0]),
            with(&[1, 2]),
            with(&[2, 1]),
            with(&[1, 2, 0]),
        ];
        assert_eq!(HashSet::from(all).len(), all.len());
        assert_ne!(with(&[1]), with_operand(key, 1, DType::F64));
    }

    /// Processes come to the same keys.
    #[test]
    fn keys_are_the_same_in_every_run() {
        assert_eq!(
            key_of("add", &false),
            0x9cf6_d78b_d007_9a42_6c95_8d25_5dde_d69b
        );
    }
}
