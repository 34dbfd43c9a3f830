//! Bringing what kernels made under another choice to where the strategy says the results lie.

use super::{Applied, Arrays, note, submit};
use crate::error::InOp;
use crate::strategy::Outcome;
use crate::{KernelPhase, Result, Rule, Strategy};
use shard_comm::{Buffer, BufferMut};
use shard_redistribute::{Array, MeshComm};
use shard_spec::numel;
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::Arc;

/// Moves every output, and merges those that are partial results.
pub(super) fn run(
    op: Applied<'_>,
    cx: &Rc<MeshComm>,
    rule: &Rule,
    strategy: &Strategy,
    outcome: &Outcome,
    outputs: Vec<BufferMut>,
) -> Result<Arrays> {
    let name = op.name();
    let mut arrays = Arrays::with_capacity(outputs.len());
    for (step, output) in outcome.moves.iter().zip(outputs) {
        let made =
            Array::from_parts(cx, &step.made, Some(output.freeze()), step.dtype).in_op(name)?;
        arrays.push(step.plan.run(&made).in_op(name)?);
    }
    let Some(call) = &outcome.merge else {
        return Ok(arrays);
    };
    let device = cx.device();
    let parts: Vec<Buffer> = arrays.iter().filter_map(|a| a.buffer().cloned()).collect();
    drop(arrays);
    let mut merged = Vec::with_capacity(rule.outputs.len());
    for (output, at) in rule.outputs.iter().zip(&call.outputs) {
        let len = numel(&at.shape);
        merged.push(device.alloc(output.meta.dtype, len).in_op(name)?);
    }
    if call.writes() {
        let call = Arc::new(vec![call.clone()]);
        let parts: SmallVec<[&Buffer; 4]> = parts.iter().collect();
        merged = submit(op, cx, KernelPhase::Merge, &call, None, &parts, merged)?;
    }
    note(cx, name, "merge");
    let made = merged.into_iter().zip(&strategy.outputs);
    made.zip(&rule.outputs)
        .map(|((buffer, layout), output)| {
            Array::from_parts(cx, layout, Some(buffer.freeze()), output.meta.dtype).in_op(name)
        })
        .collect()
}
