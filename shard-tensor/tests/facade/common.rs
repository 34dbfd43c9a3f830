//! What tests have in common: programs of `f64`, what they read, and how close it is to be.

use shard_tensor::{Context, DType, Launch, Result, ShardTensor};

/// Runs a program of `f64` numbers on ranks.
pub(crate) fn on(ranks: usize, program: impl Fn(&Context) -> Result<()> + Sync) {
    Launch::new(ranks).dtype(DType::F64).run(program).unwrap();
}

/// All elements of a tensor of `f64`.
pub(crate) fn read(t: &ShardTensor) -> Result<Vec<f64>> {
    Ok(t.to_array::<f64>()?.into_iter().collect())
}

/// All elements of a tensor of any type.
pub(crate) fn numbers(x: &ShardTensor) -> Result<Vec<f64>> {
    read(&x.to(DType::F64)?)
}

/// A number in -1..1 that no neighbour has.
pub(crate) fn pattern(seed: usize, index: &[usize]) -> f64 {
    let mixed = index.iter().fold(seed + 1, |h, i| h * 31 + 7 * i + 3);
    (mixed as f64 * 0.618_033_988_75).fract() * 2.0 - 1.0
}

/// Ten digits are as expected, or ten behind the point.
pub(crate) fn close(what: &str, got: &ShardTensor, expected: &[f64]) -> Result<()> {
    let got = got.to_array::<f64>()?;
    assert_eq!(got.len(), expected.len(), "{what}: {got:?}");
    for (got, expected) in got.iter().zip(expected) {
        let scale = expected.abs().max(1.0);
        assert!(
            (got - expected).abs() < 1e-10 * scale,
            "{what}: {got} is not {expected}"
        );
    }
    Ok(())
}
