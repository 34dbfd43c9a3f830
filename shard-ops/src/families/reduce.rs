//! Reductions over dims: mean, largest, smallest, product. The [`sum`] stands beside
//! [what it undoes](crate::broadcast).
//!
//! A reduced dim that is sharded makes the result partial: each rank reduces its own part, and nothing moves
//! until the result is used.

use super::broadcast::expand_like;
pub use super::broadcast::{sum, sum_to};
use super::elementwise::{Map, add, cast, div, eq, masked, mul, mul_scalar, unary};
use super::over_dims::OverDims;
use crate::host::is_whole;
use crate::{Exec, HostCall, Keeps, Meta, Op, OpError, Precision, Result, Rule, Saved, Value};
use shard_kernels::unary::Unary;
use shard_spec::ReduceOp;
use std::sync::Arc;

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
        /// A dim out of range or named twice; a 16-bit float.
        pub fn $name(exec: &dyn Exec, x: &Value, dims: &[usize], keepdim: bool) -> Result<Value> {
            let op = Reduce(OverDims::$of(stringify!($name), ReduceOp::$op, dims, keepdim));
            exec.apply1(Arc::new(op), &[x])
        }
    )*};
}

reductions! {
    /// The largest over dims; NaN if any is; -∞ over nothing, of integers the least there is. Gradients are shared evenly
    /// between ties.
    amax => new Max;
    /// The smallest over dims; NaN if any is; ∞ over nothing, of integers the most there is. Gradients are shared evenly
    /// between ties.
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

/// The mean over dims: a sum, divided by the global count, so that uneven shards weigh what they hold.
///
/// # Collective
/// As [`sum`].
///
/// # Errors
/// As [`sum`]; integers and truth values, which have no mean of their own type.
pub fn mean(exec: &dyn Exec, x: &Value, dims: &[usize], keepdim: bool) -> Result<Value> {
    let x = &exec.in_full(x)?;
    if is_whole(x.dtype()) {
        return Err(OpError::DType {
            op: "mean",
            operand: 0,
            expected: "f32 or f64".into(),
            got: x.dtype(),
        });
    }
    let total = sum(exec, x, dims, keepdim)?;
    let count: usize = dims.iter().map(|&d| x.shape()[d]).product();
    mul_scalar(exec, &total, 1.0 / count as f64)
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

/// The gradient of a product: each element gets the product of the others. Where one factor is zero only it gets
/// anything, where two are nobody does; so the product is taken without zeros and put back by their count.
fn prod_vjp(exec: &dyn Exec, x: &Value, dy: &Value, dims: &[usize]) -> Result<Value> {
    let zero = is_zero(exec, &x.detach())?;
    let zeros = sum(exec, &zero, dims, true)?;
    let rest = add(exec, x, &zero)?;
    let product = mul(exec, dy, &prod(exec, &rest, dims, true)?)?;
    let none = mul(exec, &product, &is_zero(exec, &zeros)?)?;
    let one = is_zero(
        exec,
        &unary(exec, &zeros, Unary::AddScalar { value: -1.0 })?,
    )?;
    let one = mul(exec, &product, &one)?;
    let usual = div(exec, &expand_like(exec, &none, x)?, &rest)?;
    let lone = mul(exec, &expand_like(exec, &one, x)?, &zero)?;
    add(exec, &usual, &lone)
}

/// 1 where `x` is 0, else 0.
fn is_zero(exec: &dyn Exec, x: &Value) -> Result<Value> {
    let nonzero = unary(exec, &unary(exec, x, Unary::Sign)?, Unary::Abs)?;
    unary(
        exec,
        &unary(exec, &nonzero, Unary::MulScalar { value: -1.0 })?,
        Unary::AddScalar { value: 1.0 },
    )
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

    crate::kernel::gpu_kernel!(halves 0);

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

    fn vjp(
        &self,
        exec: &dyn Exec,
        saved: &Saved<'_>,
        cotangents: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>> {
        saved.pull_back(cotangents, |dy, x| {
            let x = &saved.inputs[x];
            let dy = self.0.with_kept_dims(exec, dy, x)?;
            if self.0.op == ReduceOp::Prod {
                return prod_vjp(exec, x, &dy, &self.0.dims);
            }
            if self.0.is_of_squares() {
                let slope = Map {
                    map: Unary::Square,
                    order: 1,
                };
                return exec.apply1(Arc::new(slope), &[x, &expand_like(exec, &dy, x)?]);
            }
            let best = self.0.with_kept_dims(exec, &saved.outputs[0].detach(), x)?;
            let hit = eq(exec, &x.detach(), &expand_like(exec, &best, x)?)?;
            let ties = cast(exec, &sum(exec, &hit, &self.0.dims, true)?, x.dtype())?;
            let share = expand_like(exec, &div(exec, &dy, &ties)?, x)?;
            masked(exec, &share, &hit)
        })
    }
}
