//! The order in which samples come.

use crate::rng::Stream;

/// The numbers below `n` in an order that seed and epoch alone decide, by Fisher and Yates.
pub(super) fn shuffled(n: usize, seed: u64, epoch: u64) -> Vec<usize> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_once_in_an_order_of_the_epochs_own() {
        for n in [0, 1, 2, 100] {
            let mut order = shuffled(n, 7, 3);
            assert_eq!(order, shuffled(n, 7, 3));
            order.sort_unstable();
            assert!(order.into_iter().eq(0..n));
        }
        assert_ne!(shuffled(100, 7, 3), shuffled(100, 7, 4));
        assert_ne!(shuffled(100, 7, 3), shuffled(100, 8, 3));
        // Each place takes each number about as often.
        let mut first = [0; 4];
        (0..4000).for_each(|epoch| first[shuffled(4, 1, epoch)[0]] += 1);
        assert!(first.iter().all(|n| (900..1100).contains(n)), "{first:?}");
    }
}
