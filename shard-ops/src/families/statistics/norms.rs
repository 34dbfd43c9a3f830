//! Norms over dims, and what divides by them.

use super::{check_dims, square_root};
use crate::families::elementwise::{cast, div, eq, masked_fill, mul, ne, number, unary};
use crate::families::full::{in_full, sums};
use crate::families::reduce::{amax, amin, square_sum, sum};
use crate::{Exec, OpError, Result, Value};
use shard_kernels::unary::Unary;

/// The order of a norm: how the magnitudes of elements are put together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormOrder {
    /// How many elements are not zero.
    Zero,
    /// `(Σ |x|^p)^(1/p)`; below 1 and below 0 as well, where it is no norm in the strict sense.
    P(f64),
    /// The largest magnitude.
    Infinity,
    /// The smallest magnitude.
    NegInfinity,
}

impl NormOrder {
    /// The order under its own name, if it is a power that has one.
    pub(in crate::families) fn named(self) -> Self {
        match self {
            Self::P(p) => p.into(),
            named => named,
        }
    }
}

impl From<f64> for NormOrder {
    fn from(p: f64) -> Self {
        match p {
            0.0 => Self::Zero,
            f64::INFINITY => Self::Infinity,
            f64::NEG_INFINITY => Self::NegInfinity,
            p => Self::P(p),
        }
    }
}

/// The norm of some order over dims. Where it is 0 there is no gradient; largest and smallest magnitudes share theirs evenly
/// between ties.
///
/// Reduced dims disappear, or stay with extent 1 if `keepdim`. No dims means no reduction.
///
/// # Collective
/// All members of the mesh. Communicates a number per cell if reduced dims are sharded.
///
/// # Errors
/// A dim out of range or named twice; an operand of integers or truth values; an extreme of dims without elements.
pub fn norm(
    exec: &dyn Exec,
    x: &Value,
    order: impl Into<NormOrder>,
    dims: &[usize],
    keepdim: bool,
) -> Result<Value> {
    let order = order.into().named();
    check_dims("norm", x, dims)?;
    check_extremes(x, order, dims)?;
    if order == NormOrder::P(2.0) {
        let x = &exec.in_full(x)?;
        return cast(exec, &length(exec, x, dims, keepdim)?, x.dtype());
    }
    in_full(exec, [x], |[x]| of_order(exec, x, order, dims, keepdim))
}

fn of_order(
    exec: &dyn Exec,
    x: &Value,
    order: NormOrder,
    dims: &[usize],
    keepdim: bool,
) -> Result<Value> {
    let size = |x: &Value| unary(exec, x, Unary::Abs);
    match order {
        NormOrder::Infinity => amax(exec, &size(x)?, dims, keepdim),
        NormOrder::NegInfinity => amin(exec, &size(x)?, dims, keepdim),
        NormOrder::Zero => {
            let [x] = &sums(exec, [x])?;
            let sign = size(&unary(exec, x, Unary::Sign)?)?;
            let nan = ne(exec, &x.detach(), &x.detach())?;
            sum(exec, &masked_fill(exec, &sign, &nan, 1.0)?, dims, keepdim)
        }
        NormOrder::P(1.0) => sum(exec, &size(x)?, dims, keepdim),
        NormOrder::P(2.0) => length(exec, x, dims, keepdim),
        NormOrder::P(p) => {
            let powers = power(exec, &size(x)?, p)?;
            power(exec, &sum(exec, &powers, dims, keepdim)?, 1.0 / p)
        }
    }
}

/// The norm of order 2; of floats of 16 bits in `f32`, without a copy of them.
fn length(exec: &dyn Exec, x: &Value, dims: &[usize], keepdim: bool) -> Result<Value> {
    square_root(exec, &square_sum(exec, "norm", x, dims, keepdim)?)
}

/// Of nothing there is no largest or smallest magnitude.
fn check_extremes(x: &Value, order: NormOrder, dims: &[usize]) -> Result<()> {
    let extreme = matches!(order, NormOrder::Infinity | NormOrder::NegInfinity);
    match extreme && dims.iter().any(|&d| x.shape()[d] == 0) {
        false => Ok(()),
        true => Err(OpError::Shape {
            op: "norm",
            problem: format!("there is no extreme of the nothing in dims {dims:?}"),
            shapes: vec![x.shape().to_vec()],
            fix: "name dims that are not empty, or another order",
        }),
    }
}

/// `x / max(norm, eps)`: every cell over dims by its [norm] of some order.
///
/// # Collective
/// As [`norm`].
///
/// # Errors
/// As [`norm`].
pub fn normalize(
    exec: &dyn Exec,
    x: &Value,
    order: impl Into<NormOrder>,
    dims: &[usize],
    eps: f64,
) -> Result<Value> {
    in_full(exec, [x], |[x]| {
        let [x] = &sums(exec, [x])?;
        let length = norm(exec, x, order, dims, true)?;
        div(exec, x, &at_least(exec, &length, eps)?)
    })
}

/// The cosine of the angle between `a` and `b` along dim `dim`: their product, each divided by its length or by `eps` if that is
/// larger. Shapes broadcast.
///
/// # Collective
/// As [`norm`], of three numbers per cell; communicates to align misaligned operands.
///
/// # Errors
/// As [`norm`]; shapes that do not broadcast.
pub fn cosine_similarity(
    exec: &dyn Exec,
    a: &Value,
    b: &Value,
    dim: usize,
    eps: f64,
) -> Result<Value> {
    in_full(exec, [a, b], |operands| {
        let [a, b] = &sums(exec, operands)?;
        cosine(exec, a, b, dim, eps)
    })
}

fn cosine(exec: &dyn Exec, a: &Value, b: &Value, dim: usize, eps: f64) -> Result<Value> {
    let product = mul(exec, a, b)?;
    check_dims("cosine_similarity", &product, &[dim])?;
    // A dim that broadcasts is as long as in the other operand.
    let length = |v: &Value| {
        let v = match v.shape() == product.shape() {
            true => v.clone(),
            false => crate::families::broadcast::expand(exec, v, product.shape())?,
        };
        at_least(exec, &norm(exec, &v, 2.0, &[dim], false)?, eps)
    };
    let lengths = mul(exec, &length(a)?, &length(b)?)?;
    div(exec, &sum(exec, &product, &[dim], false)?, &lengths)
}

fn at_least(exec: &dyn Exec, x: &Value, min: f64) -> Result<Value> {
    let max = f64::INFINITY;
    unary(exec, x, Unary::Clamp { min, max })
}

/// `x^p` of numbers that are not negative, without a gradient where `x` is 0: zeros are raised to 1 for the power, which is taken back.
pub(in crate::families) fn power(exec: &dyn Exec, x: &Value, p: f64) -> Result<Value> {
    let whole = p >= 2.0 && p.fract() == 0.0;
    if whole {
        return unary(exec, x, Unary::PowScalar { exponent: p });
    }
    let zero = eq(exec, &x.detach(), &number("norm", x, 0.0)?)?;
    let raised = masked_fill(exec, x, &zero, 1.0)?;
    let powers = unary(exec, &raised, Unary::PowScalar { exponent: p })?;
    let at_zero = if p > 0.0 { 0.0 } else { f64::INFINITY };
    masked_fill(exec, &powers, &zero, at_zero)
}
