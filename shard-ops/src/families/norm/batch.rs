//! Norms with running statistics.

use super::{Cells, Statistics, normalise_by, statistics};
use crate::elementwise::{add, add_scalar, cast, div, mul_scalar, number};
use crate::families::broadcast::expand;
use crate::families::full::sums;
use crate::families::index::{cat, slice};
use crate::families::reduce::mean;
use crate::families::shape::{reshape, unsqueeze};
use crate::{Exec, OpError, Result, Value};
use shard_comm::DType;

/// The statistics that a norm keeps between steps, `[C]` each.
#[derive(Clone, Debug)]
pub struct Running {
    /// Means.
    pub mean: Value,
    /// Unbiased variances.
    pub var: Value,
}

/// Normalises each channel of `x`, (N, C, ...), over all samples and positions, then scales and shifts it by `weight` and `bias`, (C).
///
/// In training the statistics are those of `x` as a whole, however it is divided; `running` ones come back as
/// `(1 - momentum) running + momentum x's`, of the unbiased variance, or as they are if `x` has no elements. Otherwise the running ones are
/// used and come back as they are.
///
/// # Collective
/// All members of the mesh. In training communicates three numbers per channel if other dims are sharded; otherwise nothing.
///
/// # Errors
/// Fewer than two dims; in training, a single value per channel; otherwise, no running statistics; operands of other shapes.
#[expect(clippy::too_many_arguments, reason = "those of PyTorch")]
pub fn batch_norm(
    exec: &dyn Exec,
    x: &Value,
    running: Option<&Running>,
    weight: Option<&Value>,
    bias: Option<&Value>,
    training: bool,
    momentum: f64,
    eps: f64,
) -> Result<(Value, Option<Running>)> {
    let op = "batch_norm";
    check(op, x, running)?;
    let (cells, affine) = (Cells::Channels, [weight, bias]);
    if training {
        let others = x.shape().iter().enumerate().filter(|(d, _)| *d != 1);
        if others.map(|(_, n)| n).product::<usize>() == 1 {
            return Err(misfit(
                op,
                x,
                "one value per channel has no variance",
                "give more than one value per channel, or do not train",
            ));
        }
        let [x] = &sums(exec, [x])?;
        let stats = statistics(exec, x, cells, Statistics::Moments)?;
        let by = (cells, Statistics::Moments);
        let y = normalise_by(exec, x, Some(&stats), by, affine, eps)?;
        let running = running.map(|old| old.moved_to(exec, x, &stats, momentum));
        return Ok((y, running.transpose()?));
    }
    let Some(old) = running else {
        return Err(misfit(
            op,
            x,
            "there are no statistics",
            "give running statistics, or train",
        ));
    };
    let stats = old.as_moments(exec)?;
    let by = (cells, Statistics::Given);
    let y = normalise_by(exec, x, Some(&stats), by, affine, eps)?;
    Ok((y, Some(old.clone())))
}

/// [`instance_norm`](super::instance_norm) with statistics that are kept: in training those of each channel of each sample are used, and
/// running ones take the mean over samples; otherwise it is [`batch_norm`].
///
/// # Collective
/// As [`group_norm`](super::group_norm); in training also two numbers per channel if samples are sharded.
///
/// # Errors
/// As [`batch_norm`].
#[expect(clippy::too_many_arguments, reason = "those of PyTorch")]
pub fn instance_norm_running(
    exec: &dyn Exec,
    x: &Value,
    running: &Running,
    weight: Option<&Value>,
    bias: Option<&Value>,
    training: bool,
    momentum: f64,
    eps: f64,
) -> Result<(Value, Running)> {
    let op = "instance_norm";
    check(op, x, Some(running))?;
    if !training {
        let (y, _) = batch_norm(exec, x, Some(running), weight, bias, false, momentum, eps)?;
        return Ok((y, running.clone()));
    }
    if x.shape()[2..].iter().product::<usize>() == 1 {
        return Err(misfit(
            op,
            x,
            "one value per channel of a sample has no variance",
            "give more than one position, or do not train",
        ));
    }
    let cells = Cells::Groups(x.shape()[1].max(1));
    let [x] = &sums(exec, [x])?;
    let stats = statistics(exec, x, cells, Statistics::Moments)?;
    let by = (cells, Statistics::Moments);
    let y = normalise_by(exec, x, Some(&stats), by, [weight, bias], eps)?;
    Ok((y, running.moved_to(exec, x, &stats, momentum)?))
}

fn check(op: &'static str, x: &Value, running: Option<&Running>) -> Result<()> {
    let fits = |old: &Running| [&old.mean, &old.var].map(|v| v.shape() == [x.shape()[1]]);
    if x.ndim() < 2 || running.is_some_and(|old| fits(old) != [true; 2]) {
        return Err(misfit(
            op,
            x,
            "the dims are not those of samples and channels with statistics for each channel",
            "give (N, C, ...) and running statistics of (C)",
        ));
    }
    Ok(())
}

fn misfit(op: &'static str, x: &Value, problem: &str, fix: &'static str) -> OpError {
    OpError::Shape {
        op,
        problem: problem.to_owned(),
        shapes: vec![x.shape().to_vec()],
        fix,
    }
}

impl Running {
    /// A step of length `momentum` towards the statistics of a batch, or their mean over samples. Nothing has none.
    fn moved_to(&self, exec: &dyn Exec, x: &Value, stats: &Value, momentum: f64) -> Result<Self> {
        if x.shape().contains(&0) {
            return Ok(self.clone());
        }
        let [count, m, m2] = columns(exec, stats)?;
        let var = div(exec, &m2, &add_scalar(exec, &count, -1.0)?)?;
        let step = |old: &Value, new: &Value| {
            let new = match new.ndim() {
                2 => mean(exec, new, &[0], false)?,
                _ => new.clone(),
            };
            let new = mul_scalar(exec, &new, momentum)?;
            let left = cast(exec, &old.detach(), new.dtype())?;
            let left = mul_scalar(exec, &left, 1.0 - momentum)?;
            cast(exec, &add(exec, &left, &new)?, old.dtype())
        };
        Ok(Self {
            mean: step(&self.mean, &m)?,
            var: step(&self.var, &var)?,
        })
    }

    /// The statistics as moments of one value each.
    fn as_moments(&self, exec: &dyn Exec) -> Result<Value> {
        let column = |v: &Value| unsqueeze(exec, &cast(exec, &v.detach(), DType::F64)?, 1);
        let (m, var) = (column(&self.mean)?, column(&self.var)?);
        let one = expand(exec, &number("batch_norm", &m, 1.0)?, m.shape())?;
        Ok(cat(exec, &[&one, &m, &var], 1)?.detach())
    }
}

/// The means and the biased variances of moments.
pub(super) fn mean_and_variance(exec: &dyn Exec, stats: &Value) -> Result<[Value; 2]> {
    let [count, mean, m2] = columns(exec, stats)?;
    Ok([mean, div(exec, &m2, &count)?])
}

/// Counts, means and M2 of moments.
fn columns(exec: &dyn Exec, stats: &Value) -> Result<[Value; 3]> {
    let last = stats.ndim() - 1;
    let column = |k| {
        let one = slice(exec, stats, last, k, 1, 1)?;
        reshape(exec, &one, &stats.shape()[..last])
    };
    Ok([column(0)?, column(1)?, column(2)?])
}
