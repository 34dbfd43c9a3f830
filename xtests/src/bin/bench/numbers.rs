//! Fixed numbers to compute with.

use shard_tensor::nn::{ModelExt, Tree};
use shard_tensor::{DType, Mesh, Placements, Result, ShardTensor};

/// A tensor of fixed numbers in [-0.5, 1), of which sums do not cancel.
pub(crate) fn fill(
    mesh: &Mesh,
    shape: &[usize],
    placements: impl Into<Placements>,
    seed: u64,
) -> Result<ShardTensor> {
    mesh.from_fn(shape, placements, |index| number(seed, place(index, shape)))
}

/// As [`fill`], integers from 0 on, below an end.
pub(crate) fn below(
    mesh: &Mesh,
    end: usize,
    shape: &[usize],
    placements: impl Into<Placements>,
    seed: u64,
) -> Result<ShardTensor> {
    let mesh = mesh.with_dtype(DType::I64);
    mesh.from_fn(shape, placements, |index| {
        ((number(seed, place(index, shape)) + 0.5) / 1.5 * end as f64).floor()
    })
}

/// Gives a model's parameters fixed numbers, which depend on their names: those of norms are about 1, of biases about 0, and
/// others as large as lets sums of as many products stay as large as what is multiplied.
pub(crate) fn numbered<M: Tree>(model: M) -> Result<M> {
    for (name, p) in model.parameters() {
        let shape = p.shape().to_vec();
        let seed = name.bytes().fold(0x811c_9dc5, |seed: u32, byte| {
            (seed ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        let inputs: usize = shape.iter().skip(1).product();
        let (centre, scale) = match shape.len() {
            0 | 1 if name.ends_with("weight") => (1.0, 0.1),
            0 | 1 => (0.0, 0.1),
            _ => (0.0, 2.0 / (inputs as f64).sqrt()),
        };
        let value = |index: &[usize]| {
            let centred = number(u64::from(seed), place(index, &shape)) - 0.25;
            scale * centred + centre
        };
        p.set(&p.mesh().from_fn(&shape[..], p.layout(), value)?)?;
    }
    Ok(model)
}

/// Where an element is among all.
fn place(index: &[usize], shape: &[usize]) -> u64 {
    (index.iter().zip(shape)).fold(0, |at, (&i, &n)| at * n as u64 + i as u64)
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
