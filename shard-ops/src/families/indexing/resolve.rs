//! Indices from either end as indices from the start.

use crate::error::InOp;
use crate::{
    Access, Cotangents, Exec, Grads, HostCall, Keeps, Meta, Op, Result, Routes, Rule, Saved, Value,
    key_of,
};
use shard_comm::DType;
use shard_redistribute::Array;
use shard_spec::Layout;
use std::sync::Arc;

/// Indices of a dim as those from the start, `i64`: inputs are a table of that extent, which is not read, and the indices. What is out of
/// range is found as in any other op that looks up rows.
#[derive(Clone, Copy, Debug)]
pub struct Resolve {
    /// The op it is done for, for messages.
    pub name: &'static str,
}

impl Resolve {
    /// Indices of a dim of `n`, for an op of this name.
    pub(crate) fn apply(
        exec: &dyn Exec,
        name: &'static str,
        index: &Value,
        n: usize,
    ) -> Result<Value> {
        let layout = Layout::replicated(index.layout().mesh(), &[n]);
        let cx = index.array().cx();
        let dim = Array::from_parts(cx, &layout, None, DType::Bool).in_op(name)?;
        exec.apply1(Arc::new(Self { name }), &[&dim.into(), &index.detach()])
    }
}

impl Op for Resolve {
    fn name(&self) -> &'static str {
        self.name
    }

    fn key(&self) -> u128 {
        key_of("resolve_indices", &self.name)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let mut rule = Rule::builder(self.name, inputs).any_order();
        let factor = rule.factor(inputs[0].shape[0]);
        let dims: Vec<Access> = (inputs[1].shape.iter())
            .map(|&n| Access::factor(rule.factor(n)))
            .collect();
        rule.input(vec![Access::Routed { factor }])
            .input(dims.clone())
            .output(dims, inputs[1].shape.clone(), DType::I64)
            .unread(0)
            .routes(Routes::by(1).counted_from_either_end())
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        // All rows are at hand: a key is the index.
        let keys = call.input::<i64>(1);
        call.output::<i64>(0)
            .data_mut()
            .copy_from_slice(keys.data());
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(&self, _: &dyn Exec, _: &Saved<'_>, _: &Cotangents) -> Result<Grads> {
        Ok(vec![None, None])
    }
}
