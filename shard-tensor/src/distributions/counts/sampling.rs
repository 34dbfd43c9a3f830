//! How counts are drawn: of a law whose probabilities are found one after the other, or by candidates that are taken or refused.

use crate::{DType, Fused, Result, ShardTensor};
use std::sync::LazyLock;

/// Means from which on candidates are drawn.
pub(super) const MANY: f64 = 10.0;

/// So many counts are looked at one after the other: a larger one comes with a probability below 1e-17 if the mean is below [`MANY`].
const FEW: usize = 48;

/// Counts that one formula looks at.
const AT_ONCE: usize = 8;

/// How often a candidate is drawn, at most: of means of [`MANY`] and more each fits with a probability above 0.7, and of angles above 0.65, so
/// that none of them does with one below 1e-13.
const TRIES: usize = 30;

/// Counts of probabilities that follow one another as `p[k + 1] = p[k] (a + b / (k + 1))` (Panjer's recursion): as many as there are
/// sums of them up to a uniform number. All in `f64`.
#[track_caller]
pub(super) fn one_by_one([first, a, b]: [&ShardTensor; 3]) -> Result<ShardTensor> {
    static STEPS: LazyLock<Fused<7, 3>> = LazyLock::new(|| {
        Fused::new("counts_one_by_one", |[p, sum, k, a, b, u, before]| {
            let (mut p, mut sum, mut k) = (p, sum, k);
            for i in 0..AT_ONCE {
                sum = sum + p;
                k = k + u.below(sum, 0.0, 1.0);
                p = p * (a + b / (before + (i + 1) as f64));
            }
            [p, sum, k]
        })
    });
    let u = first.rand_like()?;
    let (mut p, mut sum) = (first.clone(), first.zeros_like()?);
    let mut k = sum.clone();
    for before in (0..FEW).step_by(AT_ONCE) {
        let before = first.number(before as f64)?;
        [p, sum, k] = STEPS.of([&p, &sum, &k, a, b, &u, &before])?;
    }
    Ok(k)
}

/// The first candidate that fits: a candidate of two uniform numbers, and how far it is from being refused, which is below 0 then.
#[track_caller]
pub(in crate::distributions) fn by_candidates(
    like: &ShardTensor,
    candidate: impl Fn(&ShardTensor, &ShardTensor) -> Result<[ShardTensor; 2]>,
) -> Result<ShardTensor> {
    let next = || candidate(&like.rand_like()?, &like.rand_like()?.rsub_scalar(1.0)?);
    let [mut found, mut open] = next()?;
    for _ in 1..TRIES {
        let [number, refused] = next()?;
        let fits = open.lt_scalar(0.0)?;
        found = fits.where_(&found, &number)?;
        open = fits.where_(&open, &refused)?;
    }
    Ok(found)
}

/// Zeros in `f64` for each of so many samples, as a parameter lies.
#[track_caller]
pub(super) fn zeros(largest: &ShardTensor) -> Result<ShardTensor> {
    largest.to(DType::F64)?.zeros_like()
}
