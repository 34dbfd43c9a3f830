//! Reductions over dims: sum, mean, largest, smallest, product; and losses made of them.
//!
//! A reduced dim that is sharded makes the result partial: each rank reduces its own part, and nothing moves
//! until the result is used.

use crate::elementwise::{add, div, eq, float_types, mul, mul_scalar, sub, unary};
use crate::host::with_float;
use crate::moves::{expand_like, reshape};
use crate::{
    Access, Exec, HostCall, Linearity, Meta, Op, OpError, Reduction, Result, Rule, Saved, Value,
    key_of,
};
use shard_kernels::reduce as kernels;
use shard_kernels::unary::Unary;
use shard_spec::ReduceOp;
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// Reduced dims disappear, or stay with extent 1 if `keepdim`. No dims means no reduction.
        ///
        /// # Collective
        /// All members of the mesh. No communication: the result is partial over the axes that shard reduced dims.
        ///
        /// # Errors
        /// A dim out of range or named twice; a type other than f32 or f64.
        pub fn $name(exec: &dyn Exec, x: &Value, dims: &[usize], keepdim: bool) -> Result<Value> {
            exec.apply1(Arc::new(Reduce { op: ReduceOp::$op, dims: dims.iter().copied().collect(), keepdim }), &[x])
        }
    )*};
}

reductions! {
    /// The sum over dims; 0 over nothing.
    sum => Sum;
    /// The largest over dims; NaN if any is; -∞ over nothing. Gradients are shared evenly between ties.
    amax => Max;
    /// The smallest over dims; NaN if any is; ∞ over nothing. Gradients are shared evenly between ties.
    amin => Min;
    /// The product over dims; 1 over nothing.
    prod => Prod;
}

/// The mean over dims: a sum, divided by the global count, so that uneven shards weigh what they hold.
///
/// # Collective
/// As [`sum`].
///
/// # Errors
/// As [`sum`].
pub fn mean(exec: &dyn Exec, x: &Value, dims: &[usize], keepdim: bool) -> Result<Value> {
    let total = sum(exec, x, dims, keepdim)?;
    let count: usize = dims.iter().map(|&d| x.shape()[d]).product();
    mul_scalar(exec, &total, 1.0 / count as f64)
}

/// The mean squared difference, a scalar.
///
/// # Collective
/// As [`sum`].
///
/// # Errors
/// Shapes that do not broadcast; types that differ or are not f32 or f64.
pub fn mse_loss(exec: &dyn Exec, x: &Value, target: &Value) -> Result<Value> {
    let square = unary(exec, &sub(exec, x, target)?, Unary::Square)?;
    let dims: Vec<usize> = (0..square.ndim()).collect();
    mean(exec, &square, &dims, false)
}

/// Sums out what broadcasting added, so that the result has `shape`.
///
/// # Collective
/// As [`sum`].
///
/// # Errors
/// A shape that does not broadcast to the operand's.
pub fn sum_to(exec: &dyn Exec, x: &Value, shape: &[usize]) -> Result<Value> {
    if x.shape() == shape {
        return Ok(x.clone());
    }
    let lead = x.ndim().saturating_sub(shape.len());
    let dims: Vec<usize> = (0..x.ndim())
        .filter(|&d| d < lead || (shape[d - lead] == 1 && x.shape()[d] != 1))
        .collect();
    let summed = sum(exec, x, &dims, true)?;
    if summed.shape() == shape {
        Ok(summed)
    } else {
        reshape(exec, &summed, shape)
    }
}

/// The gradient of a product: each element gets the product of the others. Where one factor is zero only it gets
/// anything, where two are nobody does; so the product is taken without zeros and put back by their count.
fn prod_vjp(exec: &dyn Exec, x: &Value, dy: &Value, dims: &[usize]) -> Result<Value> {
    let zero = is_zero(exec, &x.detach())?;
    let zeros = sum(exec, &zero, dims, true)?;
    let rest = add(exec, x, &zero)?;
    let product = mul(exec, dy, &prod(exec, &rest, dims, true)?)?;
    let none = mul(exec, &product, &is_zero(exec, &zeros)?)?;
    let one = is_zero(exec, &unary(exec, &zeros, Unary::AddScalar(-1.0))?)?;
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
        &unary(exec, &nonzero, Unary::MulScalar(-1.0))?,
        Unary::AddScalar(1.0),
    )
}

#[derive(Clone, Debug)]
pub(crate) struct Reduce {
    pub(crate) op: ReduceOp,
    pub(crate) dims: SmallVec<[usize; 6]>,
    keepdim: bool,
}

impl Op for Reduce {
    fn name(&self) -> &'static str {
        match self.op {
            ReduceOp::Sum => "sum",
            ReduceOp::Max => "amax",
            ReduceOp::Min => "amin",
            _ => "prod",
        }
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &(&self.dims, self.keepdim))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let name = self.name();
        let dtype = float_types(name, inputs)?;
        let x = &inputs[0].shape;
        let twice = self
            .dims
            .iter()
            .enumerate()
            .any(|(k, d)| self.dims[..k].contains(d));
        if twice || self.dims.iter().any(|&d| d >= x.len()) {
            return Err(OpError::Shape {
                op: name,
                problem: format!(
                    "dims {:?} are not distinct dims of the operand",
                    &self.dims[..]
                ),
                shapes: vec![x.to_vec()],
                fix: "name each dim once, counting from 0",
            });
        }
        let mut rule = Rule::builder(name, inputs).any_order();
        let factors: Vec<usize> = x.iter().map(|&n| rule.factor(n)).collect();
        let mut out = Vec::new();
        let mut shape = SmallVec::new();
        for (d, &n) in x.iter().enumerate() {
            if !self.dims.contains(&d) {
                out.push(Access::factor(factors[d]));
                shape.push(n);
            } else if self.keepdim {
                out.push(Access::WHOLE);
                shape.push(1);
            }
        }
        let linear = if self.op == ReduceOp::Sum {
            Linearity::Each(smallvec![0])
        } else {
            Linearity::None
        };
        rule.input(factors.iter().map(|&f| Access::factor(f)).collect())
            .output(out, shape, dtype)
            .reduction(Reduction::Partial(self.op))
            .linearity(linear)
            .build()
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self) -> Option<&dyn crate::cuda::CudaKernel> {
        Some(self)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.dtype(), T => {
            let x = call.input::<T>(0);
            let op = match self.op {
                ReduceOp::Sum => kernels::Reduction::Sum,
                ReduceOp::Max => kernels::Reduction::Max,
                ReduceOp::Min => kernels::Reduction::Min,
                ReduceOp::Any => kernels::Reduction::Any,
                ReduceOp::All => kernels::Reduction::All,
                ReduceOp::Prod => kernels::Reduction::Prod,
            };
            // Reductions have no windows, so the output box is the whole piece.
            kernels::reduce(op, &x, &self.dims, call.output::<T>(0).data_mut());
        });
    }

    fn keeps_input(&self, _: usize) -> bool {
        self.op != ReduceOp::Sum
    }

    fn keeps_output(&self, _: usize) -> bool {
        matches!(self.op, ReduceOp::Max | ReduceOp::Min)
    }

    fn vjp(
        &self,
        exec: &dyn Exec,
        saved: &Saved<'_>,
        cotangents: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>> {
        let Some(dy) = &cotangents[0] else {
            return Ok(vec![None]);
        };
        let x = &saved.inputs[0];
        let kept: Vec<usize> = x
            .shape()
            .iter()
            .enumerate()
            .map(|(d, &n)| if self.dims.contains(&d) { 1 } else { n })
            .collect();
        let dy = if dy.shape() == kept {
            dy.clone()
        } else {
            reshape(exec, dy, &kept)?
        };
        let dx = match self.op {
            ReduceOp::Sum => expand_like(exec, &dy, x)?,
            ReduceOp::Max | ReduceOp::Min => {
                let best = reshape(exec, &saved.outputs[0].detach(), &kept)?;
                let hit = eq(exec, &x.detach(), &expand_like(exec, &best, x)?)?;
                let ties = sum(exec, &hit, &self.dims, true)?;
                mul(exec, &hit, &expand_like(exec, &div(exec, &dy, &ties)?, x)?)?
            }
            _ => prod_vjp(exec, x, &dy, &self.dims)?,
        };
        Ok(vec![Some(dx)])
    }
}
