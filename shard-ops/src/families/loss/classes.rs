//! Losses of classes: what a distribution over classes costs, given the right class or the right distribution.

use super::{LossReduction, reduced};
use crate::families::broadcast::sum;
use crate::families::elementwise::{
    add, add_scalar, cast, div, logical_not, masked, masked_fill, mul, mul_scalar, ne, neg, number,
};
use crate::families::full::in_full_with;
use crate::families::indexing::{ABSENT, pick};
use crate::families::shape::reshape;
use crate::families::softmax::log_softmax;
use crate::host::is_whole;
use crate::{Exec, OpError, Result, Value};
use shard_comm::DType;

/// How classes count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Classes<'a> {
    /// A weight per class, `[classes]`.
    pub weight: Option<&'a Value>,
    /// A class of targets that counts nothing; -100 if not given, as in PyTorch.
    pub ignore: Option<i64>,
    /// How much of the right distribution is spread evenly over all classes.
    pub smoothing: f64,
}

impl Classes<'_> {
    fn ignore(&self) -> i64 {
        self.ignore.unwrap_or(-100)
    }
}

/// The negative logarithm of the probability of the right class: logarithms `x` are `[classes]`, or `[batch, classes, ...]`;
/// targets are integers, without the dim of classes. A mean is weighted, and counts no ignored target.
///
/// # Collective
/// All members of the mesh. Where classes are sharded, what [`gather`](fn@crate::indexing::gather) of one element per target takes;
/// targets that are no class are found out at the first use of the targets. Else nothing moves but to align the operands. A mean or
/// sum is partial over the axes that shard the others.
///
/// # Errors
/// Shapes or types that do not belong together; on all ranks, targets that are no class.
pub fn nll_loss(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    classes: Classes<'_>,
    reduction: LossReduction,
) -> Result<Value> {
    in_full_with(exec, [x], [classes.weight], |[x], [weight]| {
        let classes = Classes { weight, ..classes };
        of_indices(exec, "nll_loss", x, target, classes, reduction)
    })
}

/// [`nll_loss`] of the [logarithm of the softmax](fn@log_softmax) of `x` over classes. Targets may also be distributions, of the
/// shape and type of `x`; a mean is then over batch and further dims.
///
/// # Collective
/// As [`nll_loss`] and [`log_softmax`]: numbers per target, never the classes.
///
/// # Errors
/// As [`nll_loss`]; a smoothing that is not between 0 and 1; an ignored class of targets that are distributions.
pub fn cross_entropy(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    classes: Classes<'_>,
    reduction: LossReduction,
) -> Result<Value> {
    let distributions = (!is_whole(target.dtype())).then_some(target);
    let others = [classes.weight, distributions];
    in_full_with(exec, [x], others, |[x], [weight, distributions]| {
        let target = distributions.unwrap_or(target);
        of_logits(exec, x, target, Classes { weight, ..classes }, reduction)
    })
}

fn of_logits(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    classes: Classes<'_>,
    reduction: LossReduction,
) -> Result<Value> {
    const NAME: &str = "cross_entropy";
    let dim = class_dim(NAME, x, target)?;
    if !(0.0..=1.0).contains(&classes.smoothing) {
        let problem = format!("a label smoothing of {}", classes.smoothing);
        return Err(unfit(NAME, problem, x, target, "give a number from 0 to 1"));
    }
    let logs = log_softmax(exec, x, &[dim])?;
    if is_whole(target.dtype()) {
        return of_indices(exec, NAME, &logs, target, classes, reduction);
    }
    if target.shape() != x.shape() {
        let problem = "distributions of another shape".into();
        return Err(unfit(
            NAME,
            problem,
            x,
            target,
            "give a probability per class, or classes as integers: `.to(DType::I64)`",
        ));
    }
    if classes.ignore.is_some_and(|class| class >= 0) {
        let problem = "a class to ignore, of distributions".into();
        return Err(unfit(NAME, problem, x, target, "set its probability to 0"));
    }
    let target = match classes.smoothing {
        0.0 => target.clone(),
        smoothing => {
            let even = smoothing / x.shape()[dim] as f64;
            add_scalar(exec, &mul_scalar(exec, target, 1.0 - smoothing)?, even)?
        }
    };
    let each = mul(
        exec,
        &weighted(exec, NAME, &logs, classes.weight, dim)?,
        &target,
    )?;
    let errors = neg(exec, &sum(exec, &each, &[dim], false)?)?;
    reduced(exec, errors, None, reduction)
}

fn of_indices(
    exec: &dyn Exec,
    name: &'static str,
    logs: &Value,
    target: &Value,
    classes: Classes<'_>,
    reduction: LossReduction,
) -> Result<Value> {
    let dim = class_dim(name, logs, target)?;
    check_places(name, logs, target, dim)?;
    let count = logs.shape()[dim];
    let mut one_each = logs.shape().to_vec();
    one_each[dim] = 1;
    let target = cast(exec, &target.detach(), DType::I64)?;
    let ignored = number(name, &target, classes.ignore() as f64)?;
    let counted = ne(exec, &target, &ignored)?;
    let named = masked_fill(exec, &target, &logical_not(exec, &counted)?, ABSENT as f64)?;
    let right = pick(exec, logs, dim, &reshape(exec, &named, &one_each)?)?;
    let right = neg(exec, &reshape(exec, &right, target.shape())?)?;
    // The weights of the right classes, 0 where they are ignored.
    let weights = match classes.weight {
        Some(weight) => {
            check_weight(name, weight, logs, count)?;
            Some(pick(exec, weight, 0, &named)?)
        }
        None => None,
    };
    let mut errors = match &weights {
        Some(weights) => mul(exec, &right, weights)?,
        None => right,
    };
    if classes.smoothing > 0.0 {
        let all = weighted(exec, name, logs, classes.weight, dim)?;
        let all = sum(exec, &all, &[dim], false)?;
        let even = masked(exec, &all, &counted)?;
        let even = mul_scalar(exec, &even, -classes.smoothing / count as f64)?;
        let right = mul_scalar(exec, &errors, 1.0 - classes.smoothing)?;
        errors = add(exec, &right, &even)?;
    }
    if reduction != LossReduction::Mean {
        return reduced(exec, errors, None, reduction);
    }
    let all: Vec<usize> = (0..errors.ndim()).collect();
    let total = sum(exec, &errors, &all, false)?;
    let weights = match weights {
        Some(weights) => weights,
        None => cast(exec, &counted, logs.dtype())?,
    };
    div(exec, &total, &sum(exec, &weights, &all, false)?)
}

/// There is a class for each place.
fn check_places(name: &'static str, logs: &Value, target: &Value, dim: usize) -> Result<()> {
    let mut places = logs.shape().to_vec();
    places.remove(dim);
    if target.shape() == places {
        return Ok(());
    }
    let fix = match dim {
        0 => "give one class: of logits without a batch there is one dim, of classes",
        _ => {
            "give a class for each place: the shape without dim 1, which has the classes; where they are another dim of the \
             logits, `movedim` brings them there"
        }
    };
    Err(unfit(name, "targets do not fit".into(), logs, target, fix))
}

/// Logarithms, each times the weight of its class if there is one.
fn weighted(
    exec: &dyn Exec,
    name: &'static str,
    logs: &Value,
    weight: Option<&Value>,
    dim: usize,
) -> Result<Value> {
    let Some(weight) = weight else {
        return Ok(logs.clone());
    };
    let count = logs.shape()[dim];
    check_weight(name, weight, logs, count)?;
    let mut shape = vec![1; logs.ndim()];
    shape[dim] = count;
    mul(exec, logs, &reshape(exec, weight, &shape)?)
}

/// The dim of classes: the second, or the only one.
pub(super) fn class_dim(name: &'static str, x: &Value, target: &Value) -> Result<usize> {
    match x.ndim() {
        0 => Err(unfit(
            name,
            "there are no classes".into(),
            x,
            target,
            "give a dim of classes",
        )),
        1 => Ok(0),
        _ => Ok(1),
    }
}

pub(super) fn check_weight(
    name: &'static str,
    weight: &Value,
    x: &Value,
    count: usize,
) -> Result<()> {
    match weight.shape() == [count] {
        true => Ok(()),
        false => Err(unfit(
            name,
            "weights do not fit".into(),
            x,
            weight,
            "give a weight per class",
        )),
    }
}

pub(super) fn unfit(
    op: &'static str,
    problem: String,
    x: &Value,
    other: &Value,
    fix: &'static str,
) -> OpError {
    OpError::Shape {
        op,
        problem,
        shapes: vec![x.shape().to_vec(), other.shape().to_vec()],
        fix,
    }
}
