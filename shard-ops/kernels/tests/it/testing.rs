//! Shared by the kernels' tests: seeded numbers, index lists, comparison.

use shard_kernels::Real;

/// A small seeded generator (splitmix64).
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `low..=high`.
    pub(crate) fn within(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low + 1) as u64) as usize
    }

    /// A number in [-1, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    pub(crate) fn vec<T: Real>(&mut self, n: usize) -> Vec<T> {
        (0..n).map(|_| T::of(self.unit())).collect()
    }
}

/// All indexes of `shape` in row-major order.
pub(crate) fn naive_index(shape: &[usize]) -> Vec<Vec<usize>> {
    let count = shape.iter().product();
    let mut at = vec![0; shape.len()];
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        all.push(at.clone());
        for (i, &n) in at.iter_mut().zip(shape).rev() {
            *i += 1;
            if *i < n {
                break;
            }
            *i = 0;
        }
    }
    all
}

/// Fails unless `got` is `expected` within `tolerance` of the largest expected magnitude (for f32; f64 gets 1e-9 of that).
pub(crate) fn assert_close<T: Real>(got: &[T], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len());
    let tolerance = if size_of::<T>() == 8 {
        tolerance * 1e-7
    } else {
        tolerance
    };
    let scale = expected.iter().fold(1.0f64, |m, e| m.max(e.abs()));
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        let g = g.wide();
        let same = g == *e || (g.is_nan() && e.is_nan()) || (g - e).abs() <= tolerance * scale;
        assert!(same, "element {i}: got {g}, expected {e}, scale {scale}");
    }
}
