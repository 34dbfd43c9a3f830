//! Losses that are negative logarithms of likelihoods, element by element.

use super::{LossReduction, reduced};
use crate::families::elementwise::{
    add, add_scalar, gt, logical_not, lt, masked, masked_fill, mul, mul_scalar, neg, number,
    rsub_scalar, sub, unary, where_,
};
use crate::families::full::{in_full, in_full_with, sums};
use crate::families::fused::Fused;
use crate::{Exec, Result, Value};
use shard_kernels::unary::Unary;
use std::f64::consts::PI;
use std::sync::{Arc, LazyLock};

/// `-(target ln p + (1 - target) ln(1 - p))`, logarithms from -100 on, each times `weight` if there is one. Of a
/// share below 1e-12 the logarithm's slope is 1e12, PyTorch's. What is no probability gives NaN.
///
/// # Collective
/// All members of the mesh. Communicates to align misaligned operands; a mean or sum is partial over the axes that shard them.
///
/// # Errors
/// Shapes that do not broadcast; types that differ or are no floats.
pub fn binary_cross_entropy(
    exec: &dyn Exec,
    p: &Value,
    target: &Value,
    weight: Option<&Value>,
    reduction: LossReduction,
) -> Result<Value> {
    in_full_with(exec, [p, target], [weight], |operands, [weight]| {
        let [p, target] = &sums(exec, operands)?;
        let hit = cut_log(exec, p, false)?;
        let miss = cut_log(exec, p, true)?;
        let hits = mul(exec, target, &hit)?;
        let misses = mul(exec, &complement(exec, target)?, &miss)?;
        let errors = neg(exec, &add(exec, &hits, &misses)?)?;
        reduced(exec, errors, weight, reduction)
    })
}

/// [`binary_cross_entropy`] of `sigmoid(x)`, without overflow; `positive` weighs the targets' share, class by class.
///
/// # Collective
/// As [`binary_cross_entropy`].
///
/// # Errors
/// As [`binary_cross_entropy`].
pub fn binary_cross_entropy_with_logits(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    weight: Option<&Value>,
    positive: Option<&Value>,
    reduction: LossReduction,
) -> Result<Value> {
    let others = [weight, positive];
    in_full_with(
        exec,
        [x, target],
        others,
        |[x, target], [weight, positive]| {
            let errors = of_logits(exec, x, target, positive)?;
            reduced(exec, errors, weight, reduction)
        },
    )
}

fn of_logits(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    positive: Option<&Value>,
) -> Result<Value> {
    const NAME: &str = "binary_cross_entropy_with_logits";
    static PLAIN: LazyLock<Arc<Fused>> =
        LazyLock::new(|| Fused::new(NAME, |[x, target]| [(-target + 1.0) * x - x.log_sigmoid()]));
    static WEIGHED: LazyLock<Arc<Fused>> = LazyLock::new(|| {
        Fused::new(NAME, |[x, target, positive]| {
            let log = x.log_sigmoid() * ((positive - 1.0) * target + 1.0);
            [(-target + 1.0) * x - log]
        })
    });
    match positive {
        Some(positive) => WEIGHED.apply1(exec, &[x, target, positive]),
        None => PLAIN.apply1(exec, &[x, target]),
    }
}

/// The divergence of Kullback and Leibler, `target (ln target - x)` for logarithms `x`; with `log_target`, targets are logarithms too.
/// A target of 0 counts nothing.
///
/// # Collective
/// As [`binary_cross_entropy`].
///
/// # Errors
/// As [`binary_cross_entropy`].
pub fn kl_div(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    log_target: bool,
    reduction: LossReduction,
) -> Result<Value> {
    static OF_LOGS: LazyLock<Arc<Fused>> =
        LazyLock::new(|| Fused::new("kl_div", |[x, target]| [target.exp() * (target - x)]));
    static OF_SHARES: LazyLock<Arc<Fused>> = LazyLock::new(|| {
        Fused::new("kl_div", |[x, target]| {
            // 1 where it is 0: neither its logarithm nor a slope of that.
            let counted = target.below(0.0, target, (-target).below(0.0, target, 1.0));
            [target * counted.log() - target * x]
        })
    });
    in_full(exec, [x, target], |[x, target]| {
        let errors = match log_target {
            true => &OF_LOGS,
            false => &OF_SHARES,
        };
        reduced(exec, errors.apply1(exec, &[x, target])?, None, reduction)
    })
}

/// The negative logarithm of the density of a normal distribution with mean `x` and variance `var`, at least `eps`:
/// `(ln var + (x - target)² / var) / 2`, and the constant that this lacks if `full`. Where `var` is below
/// `eps` it has the gradient that `eps` would have, as in PyTorch.
///
/// # Collective
/// As [`binary_cross_entropy`].
///
/// # Errors
/// As [`binary_cross_entropy`].
pub fn gaussian_nll_loss(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    var: &Value,
    full: bool,
    eps: f64,
    reduction: LossReduction,
) -> Result<Value> {
    static VARYING: LazyLock<Arc<Fused>> = LazyLock::new(|| {
        Fused::new("gaussian_nll_loss", |[x, target, var, rest]| {
            [(var.log() + (x - target).square() / var) * 0.5 + rest]
        })
    });
    in_full(exec, [x, target, var], |[x, target, var]| {
        let [var] = &sums(exec, [var])?;
        let var = at_least(exec, var, eps)?;
        let rest = if full { 0.5 * (2.0 * PI).ln() } else { 0.0 };
        let rest = number("gaussian_nll_loss", x, rest)?;
        let errors = VARYING.apply1(exec, &[x, target, &var, &rest])?;
        reduced(exec, errors, None, reduction)
    })
}

/// The negative logarithm of the probability of a count under a Poisson distribution: `exp(x) - target x` for the logarithm of its
/// mean, or `x - target ln(x + eps)` for the mean; and Stirling's approximation of the rest, for counts above 1, if `full`.
///
/// # Collective
/// As [`binary_cross_entropy`].
///
/// # Errors
/// As [`binary_cross_entropy`].
pub fn poisson_nll_loss(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    log_input: bool,
    full: bool,
    eps: f64,
    reduction: LossReduction,
) -> Result<Value> {
    in_full(exec, [x, target], |operands| {
        let [x, target] = &sums(exec, operands)?;
        let errors = of_count(exec, x, target, log_input, full, eps)?;
        reduced(exec, errors, None, reduction)
    })
}

fn of_count(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    log_input: bool,
    full: bool,
    eps: f64,
) -> Result<Value> {
    const NAME: &str = "poisson_nll_loss";
    static OF_LOGS: LazyLock<Arc<Fused>> =
        LazyLock::new(|| Fused::new(NAME, |[x, target]| [x.exp() - target * x]));
    static OF_MEANS: LazyLock<Arc<Fused>> =
        LazyLock::new(|| Fused::new(NAME, |[x, target, eps]| [x - target * (x + eps).log()]));
    let mut errors = match log_input {
        true => OF_LOGS.apply1(exec, &[x, target])?,
        false => OF_MEANS.apply1(exec, &[x, target, &number(NAME, x, eps)?])?,
    };
    if full {
        // t ln t - t + ln(2 π t) / 2
        let above = gt(exec, &target.detach(), &number(NAME, target, 1.0)?)?;
        let log = unary(
            exec,
            &masked_fill(exec, target, &logical_not(exec, &above)?, 1.0)?,
            Unary::Log,
        )?;
        let main = sub(exec, &mul(exec, target, &log)?, target)?;
        let rest = add_scalar(exec, &mul_scalar(exec, &log, 0.5)?, 0.5 * (2.0 * PI).ln())?;
        errors = add(
            exec,
            &errors,
            &masked(exec, &add(exec, &main, &rest)?, &above)?,
        )?;
    }
    Ok(errors)
}

/// `1 - x`
fn complement(exec: &dyn Exec, x: &Value) -> Result<Value> {
    rsub_scalar(exec, x, 1.0)
}

/// `max(x, min)`, of which the slope is 1 throughout.
fn at_least(exec: &dyn Exec, x: &Value, min: f64) -> Result<Value> {
    // What no tape records has no slope.
    if x.slot().is_none() {
        let max = f64::INFINITY;
        return unary(exec, x, Unary::Clamp { min, max });
    }
    let below = lt(exec, &x.detach(), &number("gaussian_nll_loss", x, min)?)?;
    let lifted = add_scalar(exec, &sub(exec, x, &x.detach())?, min)?;
    where_(exec, &below, &lifted, x)
}

/// The logarithm of a share, or of its rest, from -100 on. Of less than 1e-12 the slope is what it is there, as PyTorch divides by no less.
fn cut_log(exec: &dyn Exec, share: &Value, of_rest: bool) -> Result<Value> {
    const LEAST: f64 = 1e-12;
    // The rest of a small share has lost its digits.
    let log = |x: &Value| match of_rest {
        true => unary(exec, &neg(exec, x)?, Unary::Log1p),
        false => unary(exec, x, Unary::Log),
    };
    let cut = |x: &Value| {
        let (min, max) = (-100.0, f64::INFINITY);
        unary(exec, &log(x)?, Unary::Clamp { min, max })
    };
    // What no tape records has no slope.
    if share.slot().is_none() {
        return cut(share);
    }
    let fixed = share.detach();
    let size = match of_rest {
        true => complement(exec, &fixed)?,
        false => fixed.clone(),
    };
    let least = number("binary_cross_entropy", share, LEAST)?;
    let near = lt(exec, &unary(exec, &size, Unary::Abs)?, &least)?;
    let slope = if of_rest { -1.0 } else { 1.0 } / LEAST;
    let steep = mul_scalar(exec, &sub(exec, share, &fixed)?, slope)?;
    let line = add(exec, &cut(&fixed)?, &steep)?;
    where_(
        exec,
        &near,
        &line,
        &log(&masked_fill(exec, share, &near, 0.5)?)?,
    )
}
