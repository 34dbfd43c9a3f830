//! Softmax and its logarithm over any dims: a reduction of (maximum, sum of exponentials), then a pass over the elements where they
//! are. The derivative is a sum per cell, and another such pass.

#[cfg(feature = "cuda")]
mod cuda;

use crate::families::broadcast::sum;
use crate::families::elementwise::{mul, neg, sub, unary};
use crate::families::statistics::states;
use crate::families::types::float_types;
use crate::host::with_float;
use crate::{
    Access, Exec, HostCall, Keeps, Linearity, Meta, Op, Precision, Result, Rule, Saved, Value,
    key_of,
};
use shard_comm::Monoid;
use shard_kernels::softmax as kernels;
use shard_kernels::unary::Unary;
use smallvec::SmallVec;
use std::sync::Arc;

/// `exp(x) / Σ exp(x)` over dims, without overflow.
///
/// # Collective
/// All members of the mesh. Communicates two numbers per cell if the dims are sharded, and one backward.
///
/// # Errors
/// A dim out of range or named twice; an operand that is not f32 or f64.
pub fn softmax(exec: &dyn Exec, x: &Value, dims: &[usize]) -> Result<Value> {
    apply(exec, x, dims, false)
}

/// The logarithm of the [softmax](fn@softmax).
///
/// # Collective
/// As [`softmax`](fn@softmax).
///
/// # Errors
/// As [`softmax`](fn@softmax).
pub fn log_softmax(exec: &dyn Exec, x: &Value, dims: &[usize]) -> Result<Value> {
    apply(exec, x, dims, true)
}

/// The [softmax](fn@softmax) of `-x`.
///
/// # Collective
/// As [`softmax`](fn@softmax).
///
/// # Errors
/// As [`softmax`](fn@softmax).
pub fn softmin(exec: &dyn Exec, x: &Value, dims: &[usize]) -> Result<Value> {
    softmax(exec, &neg(exec, x)?, dims)
}

fn apply(exec: &dyn Exec, x: &Value, dims: &[usize], log: bool) -> Result<Value> {
    let name = if log { "log_softmax" } else { "softmax" };
    // The derivative through the states is part of the op's vjp.
    let pairs = states(exec, name, Monoid::MaxSumExp, &x.detach(), dims)?.detach();
    let op = Softmax {
        dims: dims.into(),
        log,
    };
    exec.apply1(Arc::new(op), &[x, &pairs])
}

/// A softmax, given the (maximum, sum of exponentials) of every cell.
#[derive(Clone, Debug)]
pub(crate) struct Softmax {
    pub(crate) dims: SmallVec<[usize; 6]>,
    pub(crate) log: bool,
}

/// The derivative for passes that are not recorded, given the result, its cotangent, and the sums of cells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SoftmaxGrad {
    pub(crate) log: bool,
}

impl Op for Softmax {
    fn name(&self) -> &'static str {
        if self.log { "log_softmax" } else { "softmax" }
    }

    fn precision(&self) -> Precision {
        Precision::Full
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &self.dims)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(self.name(), &inputs[..1])?;
        let mut rule = Rule::builder(self.name(), inputs).any_order();
        let all: Vec<Access> = (inputs[0].shape.iter())
            .map(|&n| Access::factor(rule.factor(n)))
            .collect();
        let kept = (0..all.len()).filter(|d| !self.dims.contains(d));
        let mut cells: Vec<Access> = kept.map(|d| all[d].clone()).collect();
        cells.push(Access::WHOLE);
        rule.input(all.clone())
            .input(cells)
            .output(all, inputs[0].shape.clone(), dtype)
            .linearity(Linearity::None)
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.dtype(), T => {
            let (x, pairs) = (call.input::<T>(0), call.input::<f64>(1).to_vec());
            kernels::softmax(self.log, &x, &self.dims, &pairs, &mut call.output::<T>(0));
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING.and_outputs(&[0])
    }

    fn vjp(
        &self,
        exec: &dyn Exec,
        saved: &Saved<'_>,
        cotangents: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>> {
        let y = &saved.outputs[0];
        saved.pull_back_to(0, cotangents, |dy| {
            let along = match self.log {
                true => dy.clone(),
                false => mul(exec, y, dy)?,
            };
            let sums = sum(exec, &along, &self.dims, true)?;
            if !exec.records() {
                let op = SoftmaxGrad { log: self.log };
                return exec.apply1(Arc::new(op), &[y, dy, &sums]);
            }
            match self.log {
                true => sub(exec, dy, &mul(exec, &unary(exec, y, Unary::Exp)?, &sums)?),
                false => mul(exec, y, &sub(exec, dy, &sums)?),
            }
        })
    }
}

impl Op for SoftmaxGrad {
    fn name(&self) -> &'static str {
        "softmax_grad"
    }

    fn key(&self) -> u128 {
        key_of("softmax_grad", &self.log)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(self.name(), inputs)?;
        Rule::pointwise(self.name(), inputs, dtype, Linearity::None)
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.dtype(), T => {
            let (y, dy, sums) = (call.input::<T>(0), call.input::<T>(1), call.input::<T>(2));
            let mut out = call.output::<T>(0);
            if let Some(sums) = sums.broadcast_to(out.shape()) {
                kernels::softmax_grad(self.log, &y, &dy, &sums, &mut out);
            }
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }
}
