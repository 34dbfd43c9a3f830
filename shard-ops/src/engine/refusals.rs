//! What an engine refuses before anything moves or runs, with the same error on all ranks.

use crate::strategy::Strategy;
use crate::{Op, OpError, Result, Rule};
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
