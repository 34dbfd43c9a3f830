//! How variables vary together.

use crate::families::elementwise::{
    add_scalar, cast, clamp_by, div, div_scalar, gt, logical_not, masked_fill, mul, number, sub,
    unary,
};
use crate::families::full::{in_full, in_full_with, sums};
use crate::families::matmul::product;
use crate::families::reduce::{mean, sum};
use crate::families::shape::{reshape, unsqueeze};
use crate::families::triangle::diagonal;
use crate::families::types::floats;
use crate::{Exec, OpError, Result, Value};
use shard_kernels::unary::Unary;

/// The covariances of variables, the rows of `x`, over observations, its columns: `[variables, variables]`; of a list the variance of
/// its elements, without dims. Sums of products of deviations are divided by the number of observations less `correction`, or by 0 if
/// that is below it. Weights, `[observations]`, say how often each was seen, and how much it counts.
///
/// # Collective
/// All members of the mesh. Where observations are sharded, a number per variable, and the result is partial; where variables are, what
/// [`matmul`](fn@crate::matmul::matmul) of them moves.
///
/// # Errors
/// More than two dims, or none; weights that are not one for each observation; integers and truth values.
pub fn cov(
    exec: &dyn Exec,
    x: &Value,
    correction: f64,
    [often, much]: [Option<&Value>; 2],
) -> Result<Value> {
    check("cov", x)?;
    let observations = x.shape()[x.ndim() - 1];
    for weight in [often, much].into_iter().flatten() {
        if weight.shape() != [observations] {
            return Err(OpError::Shape {
                op: "cov",
                problem: format!("weights of {observations} observations"),
                shapes: vec![x.shape().to_vec(), weight.shape().to_vec()],
                fix: "give a list with a weight for each column",
            });
        }
    }
    in_full_with(exec, [x], [much], |[x], [much]| {
        let [x] = &sums(exec, [x])?;
        let often = often.map(|often| cast(exec, &often.detach(), x.dtype()));
        let weights = [often.transpose()?, much.cloned()];
        let rows = reshape(
            exec,
            x,
            &[x.shape()[..x.ndim() - 1].iter().product(), observations],
        )?;
        let all = weighted(exec, &rows, correction, weights)?;
        match x.ndim() {
            1 => reshape(exec, &all, &[]),
            _ => Ok(all),
        }
    })
}

fn weighted(
    exec: &dyn Exec,
    x: &Value,
    correction: f64,
    [often, much]: [Option<Value>; 2],
) -> Result<Value> {
    let weight = match (&often, &much) {
        (None, None) => {
            let rest = sub(exec, x, &mean(exec, x, &[1], true)?)?;
            let count = (x.shape()[1] as f64 - correction).max(0.0);
            return div_scalar(exec, &product(exec, &rest, &rest, false, true)?, count);
        }
        (Some(often), Some(much)) => mul(exec, often, much)?,
        (Some(one), None) | (None, Some(one)) => one.clone(),
    };
    let total = |x: &Value| sum(exec, x, &[x.ndim() - 1], x.ndim() == 2);
    let [all] = &sums(exec, [&total(&weight)?])?;
    let center = div(exec, &total(&mul(exec, x, &weight)?)?, all)?;
    let rest = sub(exec, x, &center)?;
    // An observation that is seen twice is two; one that counts twice is one.
    let lost = match &much {
        None => number("cov", all, correction)?,
        Some(much) => {
            let square = total(&mul(exec, &weight, much)?)?;
            let correction = number("cov", all, correction)?;
            mul(exec, &div(exec, &square, all)?, &correction)?
        }
    };
    let count = sub(exec, all, &lost)?;
    let count = clamp_by(exec, &count, Some(&number("cov", &count, 0.0)?), None)?;
    let products = product(exec, &mul(exec, &rest, &weight)?, &rest, false, true)?;
    div(exec, &products, &count)
}

/// Pearson's correlations of variables, the rows of `x`, over observations, its columns: [`cov`], divided by both deviations, from -1 to 1.
/// Of a list it is 1. Of a variable that does not vary they are NaN.
///
/// # Collective
/// As [`cov`], whose sum over ranks is taken.
///
/// # Errors
/// As [`cov`].
pub fn corrcoef(exec: &dyn Exec, x: &Value) -> Result<Value> {
    check("corrcoef", x)?;
    in_full(exec, [x], |[x]| {
        let [all] = &sums(exec, [&cov(exec, x, 1.0, [None, None])?])?;
        if all.ndim() == 0 {
            return div(exec, all, all);
        }
        let deviations = unary(exec, &diagonal(exec, all, 0, 0, 1)?, Unary::Sqrt)?;
        let by_rows = div(exec, all, &unsqueeze(exec, &deviations, 1)?)?;
        let found = div(exec, &by_rows, &unsqueeze(exec, &deviations, 0)?)?;
        let (min, max) = (-1.0, 1.0);
        unary(exec, &found, Unary::Clamp { min, max })
    })
}

/// A list or a matrix of floats.
fn check(op: &'static str, x: &Value) -> Result<()> {
    floats(op, 0, x)?;
    match x.ndim() {
        1 | 2 => Ok(()),
        n => Err(OpError::Shape {
            op,
            problem: format!("{n} dims"),
            shapes: vec![x.shape().to_vec()],
            fix: "give variables as rows and observations as columns, or a list",
        }),
    }
}

/// `x` with everything at an index of dim `dim` scaled so that its norm of some order is at most `most`: as `torch.renorm`, which is a
/// little below it.
///
/// # Collective
/// As [`norm`](fn@super::norm) over the other dims.
///
/// # Errors
/// As [`norm`](fn@super::norm); a dim out of range, and a bound below 0.
pub fn renorm(
    exec: &dyn Exec,
    x: &Value,
    order: impl Into<super::NormOrder>,
    dim: usize,
    most: f64,
) -> Result<Value> {
    let order = order.into();
    super::check_dims("renorm", x, &[dim])?;
    if most.is_nan() || most < 0.0 {
        return Err(OpError::Shape {
            op: "renorm",
            problem: format!("a norm of at most {most}"),
            shapes: vec![x.shape().to_vec()],
            fix: "give a bound of 0 or above",
        });
    }
    in_full(exec, [x], |[x]| {
        let [x] = &sums(exec, [x])?;
        let others: Vec<usize> = (0..x.ndim()).filter(|&d| d != dim).collect();
        let length = |of: &Value| {
            let [length] = sums(exec, [&super::norm(exec, of, order, &others, true)?])?;
            Ok::<_, OpError>(length)
        };
        let bound = number("renorm", x, most)?;
        let whole = length(&x.detach())?;
        // A norm that is NaN is not above the bound either.
        let below = logical_not(exec, &gt(exec, &whole, &bound)?)?;
        // A norm that does not count has no derivative either, also where that would be NaN.
        let counted = match exec.records() {
            true => length(&masked_fill(exec, x, &below, 0.0)?)?,
            false => whole,
        };
        // What keeps 0 from being divided by is PyTorch's.
        let shrunk = div(exec, &bound, &add_scalar(exec, &counted, 1e-7)?)?;
        mul(exec, x, &masked_fill(exec, &shrunk, &below, 1.0)?)
    })
}
