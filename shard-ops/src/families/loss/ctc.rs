//! Likelihoods of labels that stand somewhere along a sequence, in this order (Graves et al., 2006).

use super::{LossReduction, reduced};
use crate::error::InOp;
use crate::families::broadcast::expand;
use crate::families::decided::within;
use crate::families::elementwise::{
    add, add_scalar, cast, div, eq, gt, le, logaddexp, logical_and, logical_not, logical_or, lt,
    masked_fill, maximum, mul_scalar, ne, number, unary, where_,
};
use crate::families::full::{in_full, sums};
use crate::families::index::{pad, slice, stack, unbind};
use crate::families::indexing::gather;
use crate::families::shape::{reshape, unsqueeze};
use crate::families::statistics::logsumexp;
use crate::families::types::integers;
use crate::{Exec, OpError, Result, Value};
use shard_comm::DType;
use shard_kernels::unary::Unary;
use shard_redistribute::Array;
use shard_spec::{EdgeMap, Layout};

const OP: &str = "ctc_loss";

/// The logarithm of what cannot be. Sums of such, as of finite numbers, have no NaN for a gradient.
const NEVER: f64 = -1e30;

/// What [`ctc_loss`] takes beside logarithms of probabilities.
#[derive(Clone, Copy, Debug)]
pub struct Labels<'a> {
    /// Classes, `[batch, labels]`; those beyond a sample's own may be anything.
    pub targets: &'a Value,
    /// How many steps a sample has, `[batch]`.
    pub steps: &'a Value,
    /// How many labels a sample has, `[batch]`.
    pub lengths: &'a Value,
    /// The class that stands between labels and is none.
    pub blank: usize,
    /// Whether labels that cannot stand in so few steps count 0, and not infinity.
    pub zero_infinity: bool,
}

/// The negative logarithm of the probability that a sequence of classes gives a sample's labels, once repetitions and blanks are left out; of
/// logarithms of probabilities `[time, batch, classes]`. A mean is that of losses, each divided by the number of labels, as PyTorch's.
///
/// # Collective
/// All members of the mesh. Two reductions of a number find out whether the lengths are such; nothing else moves where the batch is divided
/// alike in all operands. A divided time or list of labels moves step by step.
///
/// # Errors
/// Shapes that do not belong together, or no steps; labels and lengths that are no integers; a blank that is no class; on all ranks, a
/// length that is longer than there is, and a label that is no class.
pub fn ctc_loss(
    exec: &dyn Exec,
    log_probs: &Value,
    labels: Labels<'_>,
    reduction: LossReduction,
) -> Result<Value> {
    check(log_probs, &labels)?;
    let (steps, most) = (log_probs.shape()[0], labels.targets.shape()[1]);
    let whole = |x: &Value| cast(exec, &x.detach(), DType::I64);
    let (targets, lengths, valid) = (
        whole(labels.targets)?,
        unsqueeze(exec, &whole(labels.lengths)?, 1)?,
        unsqueeze(exec, &whole(labels.steps)?, 1)?,
    );
    within(exec, OP, &valid, steps + 1)?;
    within(exec, OP, &lengths, most + 1)?;
    in_full(exec, [log_probs], |[log_probs]| {
        let [log_probs] = &sums(exec, [log_probs])?;
        let path = path(exec, &targets, &lengths, labels.blank)?;
        let found = likelihood(exec, log_probs, &path, &lengths, &valid, labels.blank)?;
        let loss = mul_scalar(exec, &found, -1.0)?;
        let never = gt(exec, &loss, &number(OP, &loss, -0.5 * NEVER)?)?;
        let instead = if labels.zero_infinity {
            0.0
        } else {
            f64::INFINITY
        };
        let loss = masked_fill(exec, &loss, &never, instead)?;
        let loss = match reduction {
            LossReduction::Mean => {
                let one = number(OP, &lengths, 1.0)?;
                let lengths = cast(exec, &maximum(exec, &lengths, &one)?, loss.dtype())?;
                div(exec, &loss, &reshape(exec, &lengths, loss.shape())?)?
            }
            _ => loss,
        };
        reduced(exec, loss, None, reduction)
    })
}

fn check(log_probs: &Value, labels: &Labels<'_>) -> Result<()> {
    let &[steps, batch, classes] = log_probs.shape() else {
        return Err(misfit(log_probs, labels));
    };
    let whole = [labels.targets, labels.steps, labels.lengths];
    let fits = labels.targets.ndim() == 2
        && labels.targets.shape()[0] == batch
        && whole[1..].iter().all(|x| x.shape() == [batch]);
    if !fits || steps == 0 || labels.blank >= classes {
        return Err(misfit(log_probs, labels));
    }
    (1..)
        .zip(whole)
        .try_for_each(|(operand, x)| integers(OP, operand, x))
}

fn misfit(log_probs: &Value, labels: &Labels<'_>) -> OpError {
    let all = [log_probs, labels.targets, labels.steps, labels.lengths];
    OpError::Shape {
        op: OP,
        problem: format!(
            "with class {} as blank they do not belong together",
            labels.blank
        ),
        shapes: all.map(|x| x.shape().to_vec()).into(),
        fix: "give [time, batch, classes], labels of [batch, labels], lengths of [batch], and one of the classes",
    }
}

/// A sample's labels with blanks before, between and behind them: `[batch, 2 labels + 1]`. What is beyond its own labels is blank.
fn path(exec: &dyn Exec, targets: &Value, lengths: &Value, blank: usize) -> Result<Value> {
    let &[batch, most] = targets.shape() else {
        unreachable!("checked before")
    };
    let blank = blank as f64;
    let own = lt(exec, &places(targets, most)?, lengths)?;
    let own = where_(exec, &own, targets, &number(OP, targets, blank)?)?;
    let blanks = add_scalar(exec, &mul_scalar(exec, &own, 0.0)?, blank)?;
    let pairs = stack(exec, &[&blanks, &own], 2)?;
    let pairs = reshape(exec, &pairs, &[batch, 2 * most])?;
    pad(exec, &pairs, &[(0, 0), (0, 1)], EdgeMap::Zeros, blank)
}

/// The numbers from 0 to below `n`, on all ranks.
fn places(like: &Value, n: usize) -> Result<Value> {
    let layout = Layout::replicated(like.layout().mesh(), &[n]);
    let places = Array::from_fn(like.array().cx(), &layout, |i| i[0] as i64);
    Ok(Value::new(places.in_op(OP)?))
}

/// The logarithms of the probabilities of the paths of all samples, `[batch]`.
fn likelihood(
    exec: &dyn Exec,
    log_probs: &Value,
    path: &Value,
    lengths: &Value,
    valid: &Value,
    blank: usize,
) -> Result<Value> {
    let place = places(path, path.shape()[1])?;
    let never = number(OP, log_probs, NEVER)?;
    let emitted = emitted(exec, log_probs, path)?;
    let skips = skips(exec, path, blank, log_probs)?;
    let from = |reached: &Value, back: isize| {
        let pads = [(0, 0), (back, -back)];
        pad(exec, reached, &pads, EdgeMap::Zeros, NEVER)
    };
    let begins = lt(exec, &place, &number(OP, &place, 2.0)?)?;
    let mut reached = where_(exec, &begins, &emitted[0], &never)?;
    for (step, emitted) in emitted.iter().enumerate().skip(1) {
        let mut next = logaddexp(exec, &reached, &from(&reached, 1)?)?;
        if let Some(skips) = &skips {
            let over = add(exec, &from(&reached, 2)?, skips)?;
            next = logaddexp(exec, &next, &over)?;
        }
        let goes_on = gt(exec, valid, &number(OP, valid, step as f64)?)?;
        reached = where_(exec, &goes_on, &add(exec, &next, emitted)?, &reached)?;
    }
    // At the end stand the last label, or the blank behind it.
    let end = mul_scalar(exec, lengths, 2.0)?;
    let behind = eq(exec, &place, &end)?;
    let last = eq(exec, &place, &add_scalar(exec, &end, -1.0)?)?;
    let ends = logical_or(exec, &behind, &last)?;
    let found = where_(exec, &ends, &reached, &never)?;
    without_steps(exec, &logsumexp(exec, &found, &[1], false)?, lengths, valid)
}

/// The logarithms of the probabilities of what stands along the paths, one for each step.
fn emitted(exec: &dyn Exec, log_probs: &Value, path: &Value) -> Result<Vec<Value>> {
    let all = [&log_probs.shape()[..1], path.shape()].concat();
    let of_path = expand(exec, &unsqueeze(exec, path, 0)?, &all)?;
    let emitted = gather(exec, log_probs, 2, &of_path)?;
    // Logarithms of 0 are what cannot be.
    let (min, max) = (NEVER, f64::INFINITY);
    unbind(exec, &unary(exec, &emitted, Unary::Clamp { min, max })?, 0)
}

/// What was found, but of samples without steps: they can have no labels, and that is certain.
fn without_steps(exec: &dyn Exec, found: &Value, lengths: &Value, valid: &Value) -> Result<Value> {
    let zero = number(OP, valid, 0.0)?;
    let none = le(exec, valid, &zero)?;
    let certain = logical_and(exec, &none, &le(exec, lengths, &zero)?)?;
    let impossible = logical_and(exec, &none, &logical_not(exec, &certain)?)?;
    let list = |x: &Value| reshape(exec, x, found.shape());
    let found = masked_fill(exec, found, &list(&certain)?, 0.0)?;
    masked_fill(exec, &found, &list(&impossible)?, NEVER)
}

/// 0 where a label may follow the one before without a blank, as another one does, else what cannot be.
fn skips(exec: &dyn Exec, path: &Value, blank: usize, like: &Value) -> Result<Option<Value>> {
    let wide = path.shape()[1];
    if wide < 3 {
        return Ok(None);
    }
    let here = slice(exec, path, 1, 2, 1, wide - 2)?;
    let before = slice(exec, path, 1, 0, 1, wide - 2)?;
    let label = ne(exec, &here, &number(OP, &here, blank as f64)?)?;
    let may = logical_and(exec, &ne(exec, &here, &before)?, &label)?;
    let (zero, never) = (number(OP, like, 0.0)?, number(OP, like, NEVER)?);
    let cost = where_(exec, &may, &zero, &never)?;
    let cost = pad(exec, &cost, &[(0, 0), (2, 0)], EdgeMap::Zeros, NEVER)?;
    Ok(Some(cost))
}
