//! A reduction over dims: what sums and the other reductions share.

#[cfg(feature = "cuda")]
mod cuda;

use super::shape::reshape;
use super::types::float_types;
use crate::host::with_float;
use crate::{
    Access, Exec, HostCall, Linearity, Meta, OpError, Reduction, Result, Rule, Value, key_of,
};
use shard_kernels::reduce as kernels;
use shard_spec::ReduceOp;
use smallvec::{SmallVec, smallvec};

/// A reduction over dims.
#[derive(Clone, Debug)]
pub(super) struct OverDims {
    pub(super) name: &'static str,
    pub(super) op: ReduceOp,
    pub(super) dims: SmallVec<[usize; 6]>,
    keepdim: bool,
}

impl OverDims {
    pub(super) fn new(name: &'static str, op: ReduceOp, dims: &[usize], keepdim: bool) -> Self {
        Self {
            name,
            op,
            dims: dims.iter().copied().collect(),
            keepdim,
        }
    }

    pub(super) fn key(&self) -> u128 {
        key_of(self.name, &(&self.dims, self.keepdim))
    }

    pub(super) fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let name = self.name;
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

    pub(super) fn host(&self, call: &mut HostCall<'_, '_>) {
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

    /// What the reduction of `x` gave, or its cotangent, with the reduced dims of extent 1.
    pub(super) fn with_kept_dims(&self, exec: &dyn Exec, y: &Value, x: &Value) -> Result<Value> {
        let extents = x.shape().iter().enumerate();
        let kept: Vec<usize> = extents
            .map(|(d, &n)| if self.dims.contains(&d) { 1 } else { n })
            .collect();
        if y.shape() == kept {
            return Ok(y.clone());
        }
        reshape(exec, y, &kept)
    }
}
