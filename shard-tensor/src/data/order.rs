//! The order in which samples come.

use crate::rng::Stream;
use std::collections::TryReserveError;

/// The numbers below `n` in an order that seed and epoch alone decide, by Fisher and Yates.
///
/// # Errors
/// If there is no memory for so many.
pub fn shuffled(n: usize, seed: u64, epoch: u64) -> Result<Vec<usize>, TryReserveError> {
    let stream = Stream::new(seed, epoch);
    let mut order: Vec<usize> = Vec::new();
    order.try_reserve_exact(n)?;
    order.extend(0..n);
    for last in (1..n).rev() {
        let [a, b, ..] = stream.words(last as u64);
        let random = u128::from(a) << 32 | u128::from(b);
        // The upper half of a product of 64 bits: even to one part in 2^64 / n.
        let pick = (random * (last as u128 + 1)) >> 64;
        order.swap(last, pick as usize);
    }
    Ok(order)
}
