//! The order in which samples come.

use crate::rng::Stream;
use shard_ops::key_of;
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
        let random = u128::from(bits(&stream, last));
        // The upper half of a product of 64 bits: even to one part in 2^64 / n.
        let pick = (random * (last as u128 + 1)) >> 64;
        order.swap(last, pick as usize);
    }
    Ok(order)
}

/// The random bits of a place.
fn bits(stream: &Stream, at: usize) -> u64 {
    let [a, b, ..] = stream.words(at as u64);
    u64::from(a) << 32 | u64::from(b)
}

/// How probable samples are, and how many are drawn.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    each: Vec<f64>,
    draws: usize,
    /// Of all of it, for ranks to compare.
    key: u128,
}

impl Weights {
    pub(crate) fn new(each: Vec<f64>, draws: usize) -> Self {
        let bits: Vec<u64> = each.iter().map(|weight| weight.to_bits()).collect();
        let key = key_of("weights", &(bits, draws));
        Self { each, draws, key }
    }

    pub(crate) fn draws(&self) -> usize {
        self.draws
    }

    pub(crate) fn key(&self) -> u128 {
        self.key
    }

    /// What makes them no weights of so many samples.
    pub(crate) fn misfit(&self, samples: usize) -> Option<String> {
        if self.each.len() != samples {
            return Some(format!("{} weights", self.each.len()));
        }
        let wrong = |weight: &&f64| !(weight.is_finite() && **weight >= 0.0);
        if let Some(wrong) = self.each.iter().find(wrong) {
            return Some(wrong.to_string());
        }
        let sum: f64 = self.each.iter().sum();
        let fits = sum.is_finite() && (sum > 0.0 || self.draws == 0);
        (!fits).then(|| format!("a sum of {sum}"))
    }

    /// Samples that seed and epoch draw by these weights, each among all.
    ///
    /// # Errors
    /// If there is no memory for so many.
    pub(crate) fn drawn(&self, seed: u64, epoch: u64) -> Result<Vec<usize>, TryReserveError> {
        let stream = Stream::new(seed, epoch);
        let (mut sums, mut order) = (Vec::new(), Vec::new());
        sums.try_reserve_exact(self.each.len())?;
        order.try_reserve_exact(self.draws)?;
        let mut total = 0.0;
        for weight in &self.each {
            total += weight;
            sums.push(total);
        }
        // A share of all may be rounded up to all: the last that has a weight is taken then.
        let last = sums.partition_point(|&sum| sum < total);
        for at in 0..self.draws {
            let share = (bits(&stream, at) >> 11) as f64 * 2_f64.powi(-53);
            let pick = sums.partition_point(|&sum| sum <= share * total);
            order.push(pick.min(last));
        }
        Ok(order)
    }
}
