//! Whole numbers from 0 on.

mod poisson;
mod sampling;
mod trials;

pub use poisson::{NegativeBinomial, Poisson};
pub(super) use sampling::by_candidates;
pub use trials::{Binomial, Geometric};

use super::categorical::epsilon;
use crate::{Result, ShardTensor};

/// The logits of probabilities; those of 0 and 1 are finite.
#[track_caller]
pub(super) fn logits(probs: &ShardTensor) -> Result<ShardTensor> {
    probs.logit(epsilon(probs.dtype()))
}
