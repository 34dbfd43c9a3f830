//! Elements repeated along dims, and the sums that undo it: each is the other's derivative.

#[cfg(feature = "cuda")]
mod cuda;

use super::elementwise::cast;
use super::over_dims::OverDims;
use super::shape::reshape;
use crate::host::with_element;
use crate::{
    Access, Cotangents, Exec, Grads, Halves, HostCall, Keeps, Linearity, Meta, Op, OpError,
    Precision, Result, Rule, Saved, Value, key_of,
};
use shard_comm::{DType, DeviceKind};
use shard_kernels::copy::copy;
use shard_spec::{Dims, ReduceOp};
use smallvec::smallvec;
use std::sync::Arc;

/// Repeats dims of extent 1 to `shape`, which may have more leading dims. No communication.
///
/// # Collective
/// All members of the mesh.
///
/// # Errors
/// A shape the operand does not broadcast to.
pub fn expand(exec: &dyn Exec, x: &Value, shape: &[usize]) -> Result<Value> {
    let op = Expand {
        shape: shape.iter().copied().collect(),
    };
    exec.apply1(Arc::new(op), &[x])
}

/// Lists, or numbers, as coordinates of a grid: each is repeated along the dims of the others, and tells of its own dim's index, in the
/// order of PyTorch's `indexing="ij"`. No communication: each divides the grid as it is divided.
///
/// # Collective
/// All members of the mesh.
///
/// # Errors
/// Operands of two or more dims, of types that differ, or none.
pub fn meshgrid(exec: &dyn Exec, lists: &[&Value]) -> Result<Vec<Value>> {
    const OP: &str = "meshgrid";
    let Some(first) = lists.first() else {
        return Err(OpError::arity(OP, "at least one operand", 0));
    };
    if lists.iter().any(|x| x.ndim() > 1) {
        return Err(OpError::Shape {
            op: OP,
            problem: "not all are lists".into(),
            shapes: lists.iter().map(|x| x.shape().to_vec()).collect(),
            fix: "give tensors of one dim",
        });
    }
    if let Some(operand) = lists.iter().position(|x| x.dtype() != first.dtype()) {
        return Err(OpError::dtype(
            OP,
            operand,
            first.dtype().to_string(),
            lists[operand].dtype(),
        ));
    }
    let extent = |x: &Value| x.shape().first().copied().unwrap_or(1);
    let shape: Vec<usize> = lists.iter().map(|x| extent(x)).collect();
    let along = |(dim, x): (usize, &&Value)| {
        let mut line = vec![1; shape.len()];
        line[dim] = shape[dim];
        expand(exec, &reshape(exec, x, &line)?, &shape)
    };
    lists.iter().enumerate().map(along).collect()
}

/// As [`expand`] to the shape of `like`, whose layout the result takes: what a sum's vjp needs, so that the
/// gradient of a sharded operand is sharded too. `like`'s elements are not read.
///
/// # Collective
/// All members of the mesh.
///
/// # Errors
/// A shape the operand does not broadcast to.
pub fn expand_like(exec: &dyn Exec, x: &Value, like: &Value) -> Result<Value> {
    if like.layout().is_partial() || like.dtype() != x.dtype() {
        return expand(exec, x, like.shape());
    }
    let op = Expand {
        shape: like.shape().iter().copied().collect(),
    };
    exec.apply1(Arc::new(op), &[x, &like.detach()])
}

/// The sum over dims; 0 over nothing. Of integers and truth values it is `i64`, and wraps.
///
/// Reduced dims disappear, or stay with extent 1 if `keepdim`. No dims means no reduction.
///
/// # Collective
/// All members of the mesh. No communication: the result is partial over the axes that shard reduced dims.
///
/// # Errors
/// A dim out of range or named twice; a 16-bit float.
pub fn sum(exec: &dyn Exec, x: &Value, dims: &[usize], keepdim: bool) -> Result<Value> {
    let op = Sum(OverDims::new("sum", ReduceOp::Sum, dims, keepdim));
    exec.apply1(Arc::new(op), &[x])
}

/// As [`sum`], of floats of 16 bits in `f32`: for what goes on with it and rounds once. No copy of the operand is made.
///
/// # Collective
/// As [`sum`].
///
/// # Errors
/// As [`sum`].
pub(super) fn sum_in_full(
    exec: &dyn Exec,
    x: &Value,
    dims: &[usize],
    keepdim: bool,
) -> Result<Value> {
    let op = Sum(OverDims::in_full("sum", dims, keepdim));
    exec.apply1(Arc::new(op), &[x])
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

/// Dims of extent 1, and missing leading dims, repeated. A second operand only lends its layout.
#[derive(Clone, Debug)]
struct Expand {
    shape: Dims,
}

impl Op for Expand {
    fn name(&self) -> &'static str {
        "expand"
    }

    fn key(&self) -> u128 {
        key_of("expand", &self.shape)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let x = &inputs[0];
        let fits = x.shape.len() <= self.shape.len()
            && x.shape
                .iter()
                .rev()
                .zip(self.shape.iter().rev())
                .all(|(&n, &m)| n == m || n == 1);
        if !fits {
            return Err(OpError::Shape {
                op: "expand",
                problem: format!("does not broadcast to {:?}", &self.shape[..]),
                shapes: vec![x.shape.to_vec()],
                fix: "expand dims of extent 1 only",
            });
        }
        let mut rule = Rule::builder("expand", inputs).any_order();
        let factors: Vec<usize> = self.shape.iter().map(|&n| rule.factor(n)).collect();
        let lead = self.shape.len() - x.shape.len();
        let dims = x.shape.iter().enumerate().map(|(d, &n)| {
            if n == self.shape[lead + d] {
                Access::factor(factors[lead + d])
            } else {
                Access::WHOLE
            }
        });
        let all: Vec<Access> = factors.iter().map(|&f| Access::factor(f)).collect();
        let mut rule = rule.input(dims.collect());
        if inputs.len() == 2 {
            rule = rule.input(all.clone()).unread(1);
        }
        rule.output(all, self.shape.clone(), x.dtype)
            .linearity(Linearity::Each(smallvec![0]))
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_element!(call.dtype(), T => {
            let x = call.input::<T>(0);
            let mut y = call.output::<T>(0);
            let shape = y.shape().to_vec();
            if let Some(x) = x.broadcast_to(&shape) {
                copy(&x, &mut y);
            }
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        // What tells the layout, if it is given, has no part in the values.
        saved.pull_back_to(0, cotangents, |dy| {
            sum_to(exec, dy, saved.inputs[0].shape())
        })
    }
}

/// The sum over dims.
#[derive(Clone, Debug)]
struct Sum(OverDims);

impl Op for Sum {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn precision(&self) -> Precision {
        Precision::Full
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
        Keeps::NOTHING
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        saved.pull_back(cotangents, |dy, x| {
            let x = &saved.inputs[x];
            // Of a sum that stayed `f32` the cotangent is rounded where it is small.
            let dy = cast(exec, dy, x.dtype())?;
            expand_like(exec, &self.0.with_kept_dims(exec, &dy, x)?, x)
        })
    }
}
