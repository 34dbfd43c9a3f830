//! Losses that end where things are far enough from each other.

use super::classes::{check_weight, class_dim, unfit};
use super::{LossReduction, binary_cross_entropy_with_logits, reduced};
use crate::families::elementwise::{
    add, add_scalar, cast, div, div_scalar, eq, logical_or, lt, masked_fill, minimum, mul,
    mul_scalar, ne, neg, number, sub, unary,
};
use crate::families::full::{in_full, in_full_with, sums};
use crate::families::indexing::pick;
use crate::families::one_hot::is_class;
use crate::families::pairwise::pairwise_distance;
use crate::families::reduce::{any, mean, sum};
use crate::families::scan::cumsum;
use crate::families::shape::unsqueeze;
use crate::host::is_whole;
use crate::{Exec, OpError, Result, Value};
use shard_comm::DType;
use shard_kernels::unary::Unary;

/// `max(0, margin - target (a - b))`: zero where `a` is above `b` by the margin, for targets of 1, or below, for -1. Shapes broadcast.
///
/// # Collective
/// All members of the mesh. Communicates to align misaligned operands; a mean or sum is partial over the axes that shard them.
///
/// # Errors
/// Shapes that do not broadcast; types that differ or are no floats.
pub fn margin_ranking_loss(
    exec: &dyn Exec,
    a: &Value,
    b: &Value,
    target: &Value,
    margin: f64,
    reduction: LossReduction,
) -> Result<Value> {
    in_full(exec, [a, b, target], |operands| {
        let [a, b, target] = &sums(exec, operands)?;
        let above = mul(exec, target, &sub(exec, a, b)?)?;
        let lacks = add_scalar(exec, &mul_scalar(exec, &above, -1.0)?, margin)?;
        reduced(exec, not_below_zero(exec, &lacks)?, None, reduction)
    })
}

/// Distances as they are for targets of 1, and `max(0, margin - x)` for targets of -1.
///
/// # Collective
/// As [`margin_ranking_loss`].
///
/// # Errors
/// Shapes that do not broadcast; operands that are no floats. Targets may be of any type.
pub fn hinge_embedding_loss(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    margin: f64,
    reduction: LossReduction,
) -> Result<Value> {
    in_full(exec, [x], |[x]| {
        let [x] = &sums(exec, [x])?;
        let lacks = add_scalar(exec, &mul_scalar(exec, x, -1.0)?, margin)?;
        // As in PyTorch, a target that is neither counts both.
        let far = masked_fill(
            exec,
            &not_below_zero(exec, &lacks)?,
            &is(exec, target, 1.0)?,
            0.0,
        )?;
        let near = masked_fill(exec, x, &is(exec, target, -1.0)?, 0.0)?;
        reduced(exec, add(exec, &near, &far)?, None, reduction)
    })
}

/// `1 - cos` of the angle between `a` and `b`, `[batch, features]` or `[features]`, for targets of 1, and `max(0, cos - margin)` for
/// targets of -1.
///
/// # Collective
/// As [`margin_ranking_loss`]; three numbers per sample, if features are sharded.
///
/// # Errors
/// As [`hinge_embedding_loss`]; operands of two shapes, or without dims.
pub fn cosine_embedding_loss(
    exec: &dyn Exec,
    a: &Value,
    b: &Value,
    target: &Value,
    margin: f64,
    reduction: LossReduction,
) -> Result<Value> {
    in_full(exec, [a, b], |operands| {
        let [a, b] = &sums(exec, operands)?;
        if a.shape() != b.shape() {
            return Err(OpError::Shape {
                op: "cosine_embedding_loss",
                problem: "operands of two shapes".into(),
                shapes: vec![a.shape().to_vec(), b.shape().to_vec()],
                fix: "expand one to the other's shape",
            });
        }
        let dim = last_dim("cosine_embedding_loss", a)?;
        let product = |a: &Value, b: &Value| sum(exec, &mul(exec, a, b)?, &[dim], false);
        // What keeps lengths of 0 apart from it is PyTorch's.
        let square = |x: &Value| add_scalar(exec, &product(x, x)?, 1e-12);
        let lengths = unary(exec, &mul(exec, &square(a)?, &square(b)?)?, Unary::Sqrt)?;
        let [cosine] = &sums(exec, [&div(exec, &product(a, b)?, &lengths)?])?;
        let apart = add_scalar(exec, &mul_scalar(exec, cosine, -1.0)?, 1.0)?;
        let close = not_below_zero(exec, &add_scalar(exec, cosine, -margin)?)?;
        let of = |errors: &Value, value| {
            let others = ne(
                exec,
                &target.detach(),
                &number("cosine_embedding_loss", target, value)?,
            )?;
            masked_fill(exec, errors, &others, 0.0)
        };
        let errors = add(exec, &of(&apart, 1.0)?, &of(&close, -1.0)?)?;
        reduced(exec, errors, None, reduction)
    })
}

/// `max(0, margin + |anchor - positive| - |anchor - negative|)`, of Euclidean distances along the last dim; with `swap` of the negative's
/// distance from the positive, if that is shorter. As in PyTorch each difference has 10⁻⁶ added.
///
/// # Collective
/// As [`margin_ranking_loss`]; a number per distance, if the last dim is sharded.
///
/// # Errors
/// As [`margin_ranking_loss`]; operands without dims.
pub fn triplet_margin_loss(
    exec: &dyn Exec,
    anchor: &Value,
    [positive, negative]: [&Value; 2],
    margin: f64,
    swap: bool,
    reduction: LossReduction,
) -> Result<Value> {
    in_full(exec, [anchor, positive, negative], |operands| {
        let [anchor, positive, negative] = &sums(exec, operands)?;
        last_dim("triplet_margin_loss", anchor)?;
        let distance = |a: &Value, b: &Value| pairwise_distance(exec, a, b, 2.0, 1e-6, false);
        let near = distance(anchor, positive)?;
        let mut far = distance(anchor, negative)?;
        if swap {
            far = minimum(exec, &far, &distance(positive, negative)?)?;
        }
        let lacks = add_scalar(exec, &sub(exec, &near, &far)?, margin)?;
        reduced(exec, not_below_zero(exec, &lacks)?, None, reduction)
    })
}

/// `ln(1 + exp(-target x))`, for targets of 1 and -1. Shapes broadcast.
///
/// # Collective
/// As [`margin_ranking_loss`].
///
/// # Errors
/// As [`margin_ranking_loss`].
pub fn soft_margin_loss(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    reduction: LossReduction,
) -> Result<Value> {
    in_full(exec, [x, target], |operands| {
        let [x, target] = &sums(exec, operands)?;
        let log = unary(exec, &mul(exec, x, target)?, Unary::LogSigmoid)?;
        reduced(exec, neg(exec, &log)?, None, reduction)
    })
}

/// How far classes of scores `[classes]` or `[batch, classes]` come to the right one: the mean over all classes of
/// `max(0, margin - x[right] + x[class])`, of its square for a `power` of 2, but for the right class itself; times the weight of the right
/// class, `[classes]`.
///
/// # Collective
/// All members of the mesh. Where classes are sharded, what [`gather`](fn@crate::indexing::gather) of one element per target takes, and a
/// number per target; targets that are no class are found out at the first use of the targets. Else nothing moves but to align the
/// operands. A mean or sum is partial over the axes that shard the batch.
///
/// # Errors
/// Shapes or types that do not belong together, another power than 1 and 2; on all ranks, targets that are no class.
pub fn multi_margin_loss(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    power: u32,
    margin: f64,
    weight: Option<&Value>,
    reduction: LossReduction,
) -> Result<Value> {
    const NAME: &str = "multi_margin_loss";
    in_full_with(exec, [x], [weight], |[x], [weight]| {
        let [x] = &sums(exec, [x])?;
        let dim = class_dim(NAME, x, target)?;
        let mut one_each = x.shape().to_vec();
        let classes = one_each.remove(dim);
        if x.ndim() > 2 || target.shape() != one_each {
            let fix = "give scores of [batch, classes] and a class for each of the batch";
            return Err(unfit(NAME, "targets do not fit".into(), x, target, fix));
        }
        if !matches!(power, 1 | 2) {
            let problem = format!("a power of {power}");
            return Err(unfit(NAME, problem, x, target, "give 1 or 2"));
        }
        let target = cast(exec, &target.detach(), DType::I64)?;
        let right = pick(exec, x, dim, &unsqueeze(exec, &target, dim)?)?;
        let mut errors = not_below_zero(exec, &add_scalar(exec, &sub(exec, x, &right)?, margin)?)?;
        if power == 2 {
            errors = unary(exec, &errors, Unary::Square)?;
        }
        let own = is_class(exec, NAME, &target, classes)?;
        errors = masked_fill(exec, &errors, &own, 0.0)?;
        let mut errors = mean(exec, &errors, &[dim], false)?;
        if let Some(weight) = weight {
            check_weight(NAME, weight, x, classes)?;
            errors = mul(exec, &errors, &pick(exec, weight, 0, &target)?)?;
        }
        reduced(exec, errors, None, reduction)
    })
}

/// The mean over classes, the last dim, of how wrong each is as a question of its own: [`binary_cross_entropy_with_logits`] of scores and
/// targets of one shape, each times the weight of its class, which broadcasts.
///
/// # Collective
/// As [`margin_ranking_loss`].
///
/// # Errors
/// As [`margin_ranking_loss`]; operands without dims.
pub fn multilabel_soft_margin_loss(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    weight: Option<&Value>,
    reduction: LossReduction,
) -> Result<Value> {
    in_full_with(exec, [x, target], [weight], |[x, target], [weight]| {
        let dim = last_dim("multilabel_soft_margin_loss", x)?;
        let none = LossReduction::None;
        let each = binary_cross_entropy_with_logits(exec, x, target, weight, None, none)?;
        reduced(exec, mean(exec, &each, &[dim], false)?, None, reduction)
    })
}

/// How far classes of scores `[classes]` or `[batch, classes]` that are none of a sample's come to each of its own: the sum over all
/// pairs of `max(0, 1 - x[own] + x[other])`, divided by the number of classes. Targets are of the shape of the scores, the sample's own
/// classes first, of which the first number below 0 is the end. A class that is named twice counts twice.
///
/// # Collective
/// As [`multi_margin_loss`], with as many targets as scores. A rank holds the square of its scores of a sample meanwhile.
///
/// # Errors
/// Shapes that are not equal, targets that are no integers; on all ranks, targets that are no class.
pub fn multilabel_margin_loss(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    reduction: LossReduction,
) -> Result<Value> {
    const NAME: &str = "multilabel_margin_loss";
    in_full(exec, [x], |[x]| {
        let [x] = &sums(exec, [x])?;
        let dim = last_dim(NAME, x)?;
        if x.ndim() > 2 || target.shape() != x.shape() || !is_whole(target.dtype()) {
            let fix = "give scores of [batch, classes], and integers of the same shape";
            return Err(unfit(NAME, "targets do not fit".into(), x, target, fix));
        }
        let classes = x.shape()[dim];
        let target = cast(exec, &target.detach(), DType::I64)?;
        let zero = number(NAME, &target, 0.0)?;
        let ends = cast(exec, &lt(exec, &target, &zero)?, DType::I64)?;
        let after = ne(exec, &cumsum(exec, &ends, dim)?, &zero)?;
        let target = masked_fill(exec, &target, &after, 0.0)?;
        // Own classes as rows, and all as columns.
        let after = unsqueeze(exec, &after, dim + 1)?;
        let own = masked_fill(exec, &is_class(exec, NAME, &target, classes)?, &after, 0.0)?;
        let own = unsqueeze(exec, &any(exec, &own, &[dim], false)?, dim)?;
        let right = unsqueeze(exec, &pick(exec, x, dim, &target)?, dim + 1)?;
        let above = sub(exec, &unsqueeze(exec, x, dim)?, &right)?;
        let errors = not_below_zero(exec, &add_scalar(exec, &above, 1.0)?)?;
        let errors = masked_fill(exec, &errors, &logical_or(exec, &own, &after)?, 0.0)?;
        let total = sum(exec, &errors, &[dim, dim + 1], false)?;
        reduced(
            exec,
            div_scalar(exec, &total, classes as f64)?,
            None,
            reduction,
        )
    })
}

/// `max(0, x)`, which at 0 has no gradient, as PyTorch's losses have it.
fn not_below_zero(exec: &dyn Exec, x: &Value) -> Result<Value> {
    unary(exec, x, Unary::Relu)
}

/// Where a target has this value.
fn is(exec: &dyn Exec, target: &Value, value: f64) -> Result<Value> {
    eq(
        exec,
        &target.detach(),
        &number("hinge_embedding_loss", target, value)?,
    )
}

fn last_dim(op: &'static str, x: &Value) -> Result<usize> {
    x.ndim().checked_sub(1).ok_or_else(|| OpError::Shape {
        op,
        problem: "there is no dim of features".into(),
        shapes: vec![x.shape().to_vec()],
        fix: "give operands of [batch, features], or one of [features]",
    })
}
