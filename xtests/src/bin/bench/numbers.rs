//! Fixed numbers to compute with.

use shard_tensor::{Mesh, Placements, Result, ShardTensor};

/// A tensor of fixed numbers in [-0.5, 1), of which sums do not cancel.
pub(crate) fn fill(
    mesh: &Mesh,
    shape: &[usize],
    placements: impl Into<Placements>,
    seed: u64,
) -> Result<ShardTensor> {
    mesh.from_fn(shape, placements, |index| {
        let mut at = 0;
        for (&i, &n) in index.iter().zip(shape) {
            at = at * n as u64 + i as u64;
        }
        number(seed, at)
    })
}

/// Number `at` of a sequence, in [-0.5, 1).
pub(crate) fn number(seed: u64, at: u64) -> f64 {
    // A step of SplitMix64.
    let mut z = (at + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(seed << 32);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    1.5 * ((z >> 40) as f64 / (1u64 << 24) as f64) - 0.5
}
