//! The order in which samples come.

use crate::rng::Stream;

/// The numbers below `n` in an order that seed and epoch alone decide, by Fisher and Yates.
pub fn shuffled(n: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let stream = Stream::new(seed, epoch);
    let mut order: Vec<usize> = (0..n).collect();
    for last in (1..n).rev() {
        let [a, b, ..] = stream.words(last as u64);
        let random = u128::from(a) << 32 | u128::from(b);
        // The upper half of a product of 64 bits: even to one part in 2^64 / n.
        let pick = (random * (last as u128 + 1)) >> 64;
        order.swap(last, pick as usize);
    }
    order
}
