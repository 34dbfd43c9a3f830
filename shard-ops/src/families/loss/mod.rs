//! Losses: an error per element or per class, and how errors become one number. Made of other ops, so that they lie under any
//! layout as these do; a mean is the global one, whatever the sizes of shards.

mod classes;
mod ctc;
mod distances;
mod likelihoods;
mod margins;

pub use self::classes::{Classes, IGNORED, cross_entropy, nll_loss};
pub use self::ctc::{Labels, ctc_loss};
pub use self::distances::{huber_loss, l1_loss, mse_loss, smooth_l1_loss};
pub use self::likelihoods::{
    binary_cross_entropy, binary_cross_entropy_with_logits, gaussian_nll_loss, kl_div,
    poisson_nll_loss,
};
pub use self::margins::{
    cosine_embedding_loss, hinge_embedding_loss, margin_ranking_loss, multi_margin_loss,
    multilabel_margin_loss, multilabel_soft_margin_loss, soft_margin_loss, triplet_margin_loss,
};

use super::elementwise::{div_scalar, mul, mul_scalar};
use super::reduce::{mean, sum};
use crate::{Exec, Result, Value};

/// How the errors of elements become a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LossReduction {
    /// They stay as they are.
    None,
    /// Their mean, over all ranks: NaN over nothing.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// Their sum divided by the extent of the first dim.
    BatchMean,
}

/// Errors, each times a weight if there is one, as a loss.
fn reduced(
    exec: &dyn Exec,
    errors: Value,
    weight: Option<&Value>,
    reduction: LossReduction,
) -> Result<Value> {
    let errors = match weight {
        Some(weight) => mul(exec, &errors, weight)?,
        None => errors,
    };
    let all: Vec<usize> = (0..errors.ndim()).collect();
    match reduction {
        LossReduction::None => Ok(errors),
        LossReduction::Mean => mean(exec, &errors, &all, false),
        LossReduction::Sum | LossReduction::BatchMean => {
            let total = sum(exec, &errors, &all, false)?;
            of_total(exec, total, errors.shape(), reduction)
        }
    }
}

/// The sum of floats of this shape as a loss.
fn of_total(
    exec: &dyn Exec,
    total: Value,
    shape: &[usize],
    reduction: LossReduction,
) -> Result<Value> {
    match reduction {
        LossReduction::None | LossReduction::Sum => Ok(total),
        LossReduction::Mean => {
            let count: usize = shape.iter().product();
            mul_scalar(exec, &total, 1.0 / count as f64)
        }
        LossReduction::BatchMean => {
            let batch = shape.first().copied().unwrap_or(1);
            div_scalar(exec, &total, batch as f64)
        }
    }
}
