//! What an engine refuses with the same error on all ranks, nearly all of it before anything moves or runs.

use super::metas;
use crate::strategy::Strategy;
use crate::{Op, OpError, Result, Rule, wide};
use shard_comm::DeviceRef;
use shard_redistribute::Array;
use shard_spec::Layout;
use std::sync::Arc;

/// The error of a strategy that would move an operand where moves are explicit.
pub(super) fn refuse_moves(
    op: &'static str,
    rule: &Rule,
    strategy: &Strategy,
    inputs: &[&Array],
) -> Result<()> {
    let Some(operand) = strategy.inputs.iter().position(|step| step.realigned) else {
        return Ok(());
    };
    let layouts: Vec<&Layout> = inputs.iter().map(|input| input.layout()).collect();
    Err(OpError::ImplicitMove {
        op,
        operand,
        layout: layouts[operand].to_string(),
        wanted: strategy.wanted(rule, &layouts, operand),
    })
}

/// An error, the same on all ranks, if the op cannot run where its operands are.
pub(super) fn refuse_without_kernel(op: &Arc<dyn Op>, device: &DeviceRef) -> Result<()> {
    if device.runs_host_jobs() || op.kernel(device.kind()).is_some() {
        return Ok(());
    }
    Err(OpError::NoKernel {
        op: op.name(),
        device: device.name(),
    })
}

/// An error if a handler gave another number of results than the op has: those who apply the op, and its vjp, count on them. Of operands
/// that the op's rule refuses the handler alone knows what comes of them.
pub(super) fn refuse_other_count(op: &Arc<dyn Op>, inputs: &[&Array], got: usize) -> Result<()> {
    let Some(first) = inputs.first() else {
        return Ok(());
    };
    match wide::rule(&**op, &metas(inputs), 0, first.cx().device().kind()) {
        Ok(rule) if rule.outputs.len() != got => Err(OpError::arity(
            op.name(),
            format!("its handler to give {} results", rule.outputs.len()),
            got,
        )),
        _ => Ok(()),
    }
}
