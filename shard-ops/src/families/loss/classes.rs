//! Losses of classes: what a distribution over classes costs, given the right class or the right distribution.

use super::{LossReduction, reduced};
use crate::families::broadcast::sum;
use crate::families::elementwise::{
    add, add_scalar, cast, div, masked, mul, mul_scalar, ne, neg, number,
};
use crate::families::full::{in_full_after, in_full_with};
use crate::families::indexing::{pick_each, pick_one};
use crate::families::shape::reshape;
use crate::families::softmax::log_softmax_in_full;
use crate::host::is_whole;
use crate::{Exec, OpError, Result, Value};
use shard_comm::DType;

/// The class of targets that counts nothing where none is named, as in PyTorch.
pub const IGNORED: i64 = -100;

/// How classes count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Classes<'a> {
    /// A weight per class, `[classes]`.
    pub weight: Option<&'a Value>,
    /// A class of targets that counts nothing; [`IGNORED`] if not given.
    pub ignore: Option<i64>,
    /// How much of the right distribution is spread evenly over all classes.
    pub smoothing: f64,
}

impl Classes<'_> {
    fn ignore(&self) -> i64 {
        self.ignore.unwrap_or(IGNORED)
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
    let name = "nll_loss";
    if classes.smoothing > 0.0 {
        return in_full_with(exec, [x], [classes.weight], |[x], [weight]| {
            let classes = Classes { weight, ..classes };
            of_indices(exec, name, x, target, classes, reduction)
        });
    }
    // Of 16 bits only what is picked is widened.
    let targets = Targets::of(exec, name, x, target, classes)?;
    let right = targets.right(exec, x)?;
    in_full_with(exec, [&right], [classes.weight], |[right], [weight]| {
        let errors = targets.errors(exec, right, weight)?;
        targets.reduced(exec, errors, reduction)
    })
}

/// [`nll_loss`] of the [logarithm of the softmax](fn@crate::softmax::log_softmax) of `x` over classes. Targets may also be distributions, of the
/// shape and type of `x`; a mean is then over batch and further dims.
///
/// # Collective
/// As [`nll_loss`] and [`log_softmax`](fn@crate::softmax::log_softmax): numbers per target, never the classes.
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
    const NAME: &str = "cross_entropy";
    let distributions = (!is_whole(target.dtype())).then_some(target);
    let others = [classes.weight, distributions];
    let dim = class_dim(NAME, x, target)?;
    if !(0.0..=1.0).contains(&classes.smoothing) {
        let problem = format!("a label smoothing of {}", classes.smoothing);
        return Err(unfit(NAME, problem, x, target, "give a number from 0 to 1"));
    }
    let logs = |x: &Value| log_softmax_in_full(exec, x, &[dim]);
    in_full_after(exec, x, others, logs, |logs, [weight, distributions]| {
        let classes = Classes { weight, ..classes };
        match distributions {
            Some(target) => of_distributions(exec, NAME, logs, target, classes, reduction),
            None => of_indices(exec, NAME, logs, target, classes, reduction),
        }
    })
}

fn of_distributions(
    exec: &dyn Exec,
    name: &'static str,
    x: &Value,
    target: &Value,
    classes: Classes<'_>,
    reduction: LossReduction,
) -> Result<Value> {
    let dim = class_dim(name, x, target)?;
    if target.shape() != x.shape() {
        let problem = "distributions of another shape".into();
        return Err(unfit(
            name,
            problem,
            x,
            target,
            "give a probability per class, or classes as integers: `.to(DType::I64)`",
        ));
    }
    if classes.ignore.is_some_and(|class| class >= 0) {
        let problem = "a class to ignore, of distributions".into();
        return Err(unfit(name, problem, x, target, "set its probability to 0"));
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
        &weighted(exec, name, x, classes.weight, dim)?,
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
    let targets = Targets::of(exec, name, logs, target, classes)?;
    let right = targets.right(exec, logs)?;
    let (mut errors, weights) = targets.errors(exec, &right, classes.weight)?;
    if classes.smoothing > 0.0 {
        let (dim, count) = (targets.dim, logs.shape()[targets.dim]);
        let all = weighted(exec, name, logs, classes.weight, dim)?;
        let all = sum(exec, &all, &[dim], false)?;
        let even = masked(exec, &all, &targets.counted(exec)?)?;
        let even = mul_scalar(exec, &even, -classes.smoothing / count as f64)?;
        let right = mul_scalar(exec, &errors, 1.0 - classes.smoothing)?;
        errors = add(exec, &right, &even)?;
    }
    targets.reduced(exec, (errors, weights), reduction)
}

/// The class of each place.
struct Targets {
    /// The dim of classes.
    dim: usize,
    /// The classes.
    named: Value,
    /// The one that counts nothing.
    ignored: i64,
}

impl Targets {
    fn of(
        exec: &dyn Exec,
        name: &'static str,
        logs: &Value,
        target: &Value,
        classes: Classes<'_>,
    ) -> Result<Self> {
        let dim = class_dim(name, logs, target)?;
        check_places(name, logs, target, dim)?;
        if let Some(weight) = classes.weight {
            check_weight(name, weight, logs, logs.shape()[dim])?;
        }
        Ok(Self {
            dim,
            named: cast(exec, &target.detach(), DType::I64)?,
            ignored: classes.ignore(),
        })
    }

    /// Whether a place has a class that is not ignored.
    fn counted(&self, exec: &dyn Exec) -> Result<Value> {
        let ignored = number("classes", &self.named, self.ignored as f64)?;
        ne(exec, &self.named, &ignored)
    }

    /// What stands for the right class of each place.
    fn right(&self, exec: &dyn Exec, logs: &Value) -> Result<Value> {
        pick_one(exec, logs, self.dim, &self.named, self.ignored)
    }

    /// The error of each place, times the weight of its class, and these weights if there are any, which are 0 where the class is ignored.
    fn errors(
        &self,
        exec: &dyn Exec,
        right: &Value,
        weight: Option<&Value>,
    ) -> Result<(Value, Option<Value>)> {
        let right = neg(exec, right)?;
        Ok(match weight {
            Some(weight) => {
                let weights = pick_each(exec, weight, &self.named, self.ignored)?;
                (mul(exec, &right, &weights)?, Some(weights))
            }
            None => (right, None),
        })
    }

    /// Errors and their weights as the reduction has them.
    fn reduced(
        &self,
        exec: &dyn Exec,
        (errors, weights): (Value, Option<Value>),
        reduction: LossReduction,
    ) -> Result<Value> {
        if reduction != LossReduction::Mean {
            return reduced(exec, errors, None, reduction);
        }
        let all: Vec<usize> = (0..errors.ndim()).collect();
        let total = sum(exec, &errors, &all, false)?;
        let weights = match weights {
            Some(weights) => weights,
            None => cast(exec, &self.counted(exec)?, errors.dtype())?,
        };
        div(exec, &total, &sum(exec, &weights, &all, false)?)
    }
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
