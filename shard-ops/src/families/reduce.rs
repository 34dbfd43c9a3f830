//! Reductions over dims: mean, largest, smallest, product. The [`sum`] stands beside
//! [what it undoes](crate::broadcast).
//!
//! A reduced dim that is sharded makes the result partial: each rank reduces its own part, and nothing moves
//! until the result is used.

use super::broadcast::{expand_like, sum_in_full};
pub use super::broadcast::{sum, sum_to};
use super::elementwise::{
    UnaryMap, cast, div, eq, isinf, logical_and, logical_not, logical_or, masked, masked_fill, mul,
    mul_scalar, number, sub, unary, where_,
};
use super::full::{in_full, rounded_once};
use super::fused::Fused;
use super::over_dims::OverDims;
use super::types::floats;
use crate::host::is_whole;
use crate::{
    Cotangents, Exec, Grads, Halves, HostCall, Keeps, Meta, Op, Precision, Result, Rule, Saved,
    Value,
};
use shard_comm::{DType, DeviceKind};
use shard_kernels::unary::Unary;
use shard_spec::ReduceOp;
use std::sync::{Arc, LazyLock};

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident => $of:ident $op:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// Reduced dims disappear, or stay with extent 1 if `keepdim`. No dims means no reduction.
        ///
        /// # Collective
        /// All members of the mesh. No communication: the result is partial over the axes that shard reduced dims.
        ///
        /// # Errors
        /// A dim out of range or named twice.
        pub fn $name(exec: &dyn Exec, x: &Value, dims: &[usize], keepdim: bool) -> Result<Value> {
            let op = Reduce(OverDims::$of(stringify!($name), ReduceOp::$op, dims, keepdim));
            exec.apply1(Arc::new(op), &[x])
        }
    )*};
}

reductions! {
    /// The largest over dims; NaN if any is; -∞ over nothing, of integers the least there is. Gradients are shared evenly
    /// between ties, and NaN where it is.
    amax => new Max;
    /// The smallest over dims; NaN if any is; ∞ over nothing, of integers the most there is. Gradients are shared evenly
    /// between ties, and NaN where it is.
    amin => new Min;
    /// The product over dims; 1 over nothing. Of integers and truth values it is `i64`, and wraps.
    prod => new Prod;
    /// Whether any element over dims is not zero, as `bool`; false over nothing.
    any => of_truths Any;
    /// Whether all elements over dims are not zero, as `bool`; true over nothing.
    all => of_truths All;
    /// How many elements over dims are not zero, as `i64`.
    count_nonzero => of_truths Sum;
}

/// The smallest and the largest over dims, as [`amin`] and [`amax`] give them.
///
/// # Collective
/// All members of the mesh. No communication: the results are partial over the axes that shard reduced dims.
///
/// # Errors
/// As [`amax`].
pub fn aminmax(
    exec: &dyn Exec,
    x: &Value,
    dims: &[usize],
    keepdim: bool,
) -> Result<(Value, Value)> {
    Ok((amin(exec, x, dims, keepdim)?, amax(exec, x, dims, keepdim)?))
}

/// The mean over dims: a sum, divided by the global count, so that uneven shards weigh what they hold.
///
/// # Collective
/// As [`sum`].
///
/// # Errors
/// As [`sum`]; integers and truth values, which have no mean of their own type.
pub fn mean(exec: &dyn Exec, x: &Value, dims: &[usize], keepdim: bool) -> Result<Value> {
    floats("mean", 0, x)?;
    let x = &exec.in_full(x)?;
    let total = sum_in_full(exec, x, dims, keepdim)?;
    let count: usize = dims.iter().map(|&d| x.shape()[d]).product();
    cast(
        exec,
        &mul_scalar(exec, &total, 1.0 / count as f64)?,
        x.dtype(),
    )
}

/// The sum over dims of all that is not NaN; 0 if nothing else is. Of integers and truth values it is their [`sum`].
///
/// # Collective
/// As [`sum`]; a partial operand is reduced first, to see what is NaN.
///
/// # Errors
/// As [`sum`].
pub fn nansum(exec: &dyn Exec, x: &Value, dims: &[usize], keepdim: bool) -> Result<Value> {
    if is_whole(x.dtype()) {
        return sum(exec, x, dims, keepdim);
    }
    let (numbers, _) = numbers_of(exec, x)?;
    sum(exec, &numbers, dims, keepdim)
}

/// The mean over dims of all that is not NaN; NaN if nothing else is.
///
/// # Collective
/// As [`nansum`], and the same for how many there are.
///
/// # Errors
/// As [`mean`].
pub fn nanmean(exec: &dyn Exec, x: &Value, dims: &[usize], keepdim: bool) -> Result<Value> {
    floats("nanmean", 0, x)?;
    in_full(exec, [x], |[x]| {
        let (numbers, are) = numbers_of(exec, x)?;
        let total = sum(exec, &numbers, dims, keepdim)?;
        let count = cast(exec, &sum(exec, &are, dims, keepdim)?, x.dtype())?;
        div(exec, &total, &count)
    })
}

/// A value with 0 in place of NaN, and which of its elements are no NaN.
fn numbers_of(exec: &dyn Exec, x: &Value) -> Result<(Value, Value)> {
    let are = eq(exec, &x.detach(), &x.detach())?;
    Ok((masked(exec, x, &are)?, are))
}

/// The sum of the squares over dims, of floats, as a step of an op of this name: the [`sum`] of squares that are nowhere written.
pub(super) fn square_sum(
    exec: &dyn Exec,
    name: &'static str,
    x: &Value,
    dims: &[usize],
    keepdim: bool,
) -> Result<Value> {
    let op = Reduce(OverDims::of_squares(name, dims, keepdim));
    exec.apply1(Arc::new(op), &[x])
}

/// What each of so many ties has of the cotangent of their extreme, which is `best`: NaN where that is.
pub(super) fn share_of_ties(
    exec: &dyn Exec,
    dy: &Value,
    ties: &Value,
    best: &Value,
) -> Result<Value> {
    static SHARE: LazyLock<Arc<Fused>> = LazyLock::new(|| {
        Fused::new("share", |[dy, ties, best]| {
            let share = dy / ties;
            let unless_nan = (-best).below(f64::INFINITY, share, f64::NAN);
            [best.below(f64::INFINITY, share, unless_nan)]
        })
    });
    SHARE.apply1(exec, &[dy, ties, best])
}

/// The gradient of extremes over dims, which are `best`: ties have an even share each, and NaN, which is the largest and the smallest and equals
/// nothing, gives NaN to all.
fn shared_between_ties(
    exec: &dyn Exec,
    x: &Value,
    best: &Value,
    dy: &Value,
    dims: &[usize],
) -> Result<Value> {
    // What is neither below nor above is equal.
    static HIT: LazyLock<Arc<Fused>> = LazyLock::new(|| {
        Fused::new("is_extreme", |[x, best]| {
            [x.below(best, 0.0, best.below(x, 0.0, 1.0))]
        })
    });
    static SHARED: LazyLock<Arc<Fused>> = LazyLock::new(|| {
        Fused::new("shared", |[x, best, share]| {
            [x.below(best, 0.0, best.below(x, 0.0, share))]
        })
    });
    let ties = sum_in_full(exec, &HIT.apply1(exec, &[x, best])?, dims, true)?;
    let share = rounded_once(exec, [dy, best], |[dy, best]| {
        share_of_ties(exec, dy, &ties, best)
    })?;
    SHARED.apply1(exec, &[x, best, &share])
}

/// The gradient of a product: each element gets the product of the others. That is the product divided by the element but for zeros and
/// infinities, which are taken apart: the only one of them gets the product of the rest, and several have what theirs make together.
/// What zeros and infinities make together is NaN.
fn prod_vjp(exec: &dyn Exec, x: &Value, dy: &Value, dims: &[usize]) -> Result<Value> {
    let zero = eq(exec, &x.detach(), &number("prod", x, 0.0)?)?;
    let apart = logical_or(exec, &zero, &isinf(exec, x)?)?;
    let rest = masked_fill(exec, x, &apart, 1.0)?;
    let of_rest = mul(exec, dy, &prod(exec, &rest, dims, true)?)?;
    let those = masked_fill(exec, x, &logical_not(exec, &apart)?, 1.0)?;
    let of_those = expand_like(exec, &prod(exec, &those, dims, true)?, x)?;
    let count = sum(exec, &apart, dims, true)?;
    let so_many = |n| eq(exec, &count, &number("prod", &count, n)?);
    let is_only = so_many(1.0)?;
    // An infinity among several takes its sign back, and a zero leaves a product that is 0.
    let sign = unary(exec, &those.detach(), Unary::Sign)?;
    let others = mul(exec, &of_those, &sign)?;
    let is_only = logical_and(exec, &apart, &is_only)?;
    let mut others = masked_fill(exec, &others, &is_only, 1.0)?;
    if exec.records() {
        // Of two zeros each has the other, by which its product still changes.
        let zeros = masked_fill(exec, x, &logical_not(exec, &zero)?, 0.0)?;
        let both = expand_like(exec, &sum(exec, &zeros, dims, true)?, x)?;
        let is_of_two = logical_and(exec, &zero, &so_many(2.0)?)?;
        others = where_(exec, &is_of_two, &sub(exec, &both, &zeros)?, &others)?;
    }
    let each = div(exec, &expand_like(exec, &of_rest, x)?, &rest)?;
    mul(exec, &each, &others)
}

/// A reduction that is no sum of elements.
#[derive(Clone, Debug)]
struct Reduce(OverDims);

impl Op for Reduce {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn precision(&self) -> Precision {
        match self.0.op {
            ReduceOp::Sum | ReduceOp::Prod => Precision::Full,
            _ => Precision::Widest,
        }
    }

    fn key(&self) -> u128 {
        self.0.key()
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        self.0.rule(inputs)
    }

    crate::kernel::gpu_kernel!(0);

    fn halves(&self, _: DType, inputs: &[Meta], on: DeviceKind) -> Halves {
        self.0.halves(inputs, on)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        self.0.host(call);
    }

    fn keeps(&self) -> Keeps {
        match self.0.op {
            ReduceOp::Prod => Keeps::INPUTS,
            _ if self.0.is_of_squares() => Keeps::INPUTS,
            _ => Keeps::ALL,
        }
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        saved.pull_back(cotangents, |dy, x| {
            let x = &saved.inputs[x];
            let dy = self.0.with_kept_dims(exec, dy, x)?;
            if self.0.op == ReduceOp::Prod {
                return rounded_once(exec, [x, &dy], |[x, dy]| {
                    prod_vjp(exec, x, dy, &self.0.dims)
                });
            }
            if self.0.is_of_squares() {
                let slope = UnaryMap {
                    map: Unary::Square,
                    order: 1,
                };
                // Of floats of 16 bits the cotangent is `f32`, and a product with it is rounded once.
                let slope = Arc::new(slope);
                let of = |x: &Value| exec.apply1(slope, &[x, &expand_like(exec, &dy, x)?]);
                return match x.dtype() == dy.dtype() {
                    true => of(x),
                    false => cast(exec, &of(&cast(exec, x, dy.dtype())?)?, x.dtype()),
                };
            }
            let best = self.0.with_kept_dims(exec, &saved.outputs[0].detach(), x)?;
            shared_between_ties(exec, &x.detach(), &best, &dy, &self.0.dims)
        })
    }
}
