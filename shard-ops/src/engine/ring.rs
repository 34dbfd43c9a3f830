//! Running a fold over blocks that go round a ring.

use super::rows::SharedWork;
use super::run::{borrowed, run_calls};
use super::{Applied, note};
use crate::error::InOp;
use crate::strategy::{Ring, RingStep};
use crate::{OpError, Result};
use shard_comm::{Buffer, BufferMut, Monoid, Strided};
use shard_redistribute::{Array, ExchangeHandle, MeshComm};
use shard_spec::{ReduceOp, numel};
use std::rc::Rc;
use std::sync::Arc;

/// Folds every block into the outputs, the next one flying while one is computed. `buffers` hold the inputs that stay;
/// outputs over the ring dim come empty and are returned summed.
pub(super) fn run(
    op: Applied<'_>,
    cx: &Rc<MeshComm>,
    ring: &Ring,
    arrays: &[&Array],
    buffers: &[Buffer],
    mut outputs: Vec<BufferMut>,
    work: &SharedWork,
) -> Result<Vec<BufferMut>> {
    let name = op.name();
    let mut next = match ring.steps.first() {
        Some(step) => fetch(name, cx, step, arrays)?,
        None => Vec::new(),
    };
    let mut going_home: Vec<(usize, ExchangeHandle)> = Vec::new();
    for (t, step) in ring.steps.iter().enumerate() {
        let arriving = next;
        next = match ring.steps.get(t + 1) {
            Some(step) => fetch(name, cx, step, arrays)?,
            None => Vec::new(),
        };
        let mut inputs = buffers.to_vec();
        for (i, pending) in arriving {
            inputs[i] = pending.wait().in_op(name)?;
        }
        let device = cx.device();
        for (i, columns) in &step.columns {
            let whole = &buffers[*i];
            let mut block = device.alloc(whole.dtype(), columns.len).in_op(name)?;
            for (from, to) in columns.whole.iter().zip(&columns.block) {
                device.copy(whole, from, &mut block, to).in_op(name)?;
            }
            inputs[*i] = block.freeze();
        }
        // What is of the block is memory of its own; what stays is the rank's for all blocks. A call finds what the one before left.
        let mut written = outputs;
        let (mut kept, mut filled) = (Vec::new(), Vec::new());
        let fresh = |o: usize, written: &mut [BufferMut]| {
            let len = numel(&step.cx.outputs[o].shape);
            let block = device.alloc(written[o].dtype(), len).in_op(name)?;
            Ok::<_, OpError>(std::mem::replace(&mut written[o], block))
        };
        for (o, exchange) in &step.home {
            kept.push((*o, exchange, fresh(*o, &mut written)?));
        }
        for (o, columns) in &step.places {
            filled.push((*o, columns, fresh(*o, &mut written)?));
        }
        let call = Arc::new(vec![step.cx.clone()]);
        written = run_calls(op, cx, &borrowed(&inputs), written, &call, Some(work))?;
        note(cx, name, "block");
        for (o, columns, whole) in filled {
            let block = std::mem::replace(&mut written[o], whole).freeze();
            for (from, to) in columns.block.iter().zip(&columns.whole) {
                let whole = &mut written[o];
                device.copy(&block, from, whole, to).in_op(name)?;
            }
        }
        // What the step before sent home has had this computation to arrive in.
        for ((_, _, sums), (_, pending)) in kept.iter_mut().zip(going_home) {
            add(name, cx, sums, pending, t)?;
        }
        going_home = Vec::with_capacity(kept.len());
        for (o, exchange, sums) in kept {
            let block = std::mem::replace(&mut written[o], sums).freeze();
            let dtype = block.dtype();
            going_home.push((o, exchange.start(cx, dtype, &[block]).in_op(name)?));
        }
        outputs = written;
    }
    let steps = ring.steps.len();
    for (o, pending) in going_home {
        add(name, cx, &mut outputs[o], pending, steps)?;
    }
    Ok(outputs)
}

/// Starts to bring the block of a step.
fn fetch(
    name: &'static str,
    cx: &Rc<MeshComm>,
    step: &RingStep,
    arrays: &[&Array],
) -> Result<Vec<(usize, ExchangeHandle)>> {
    step.fetch
        .iter()
        .map(|(i, exchange)| {
            let Some(local) = arrays[*i].buffer() else {
                return Err(OpError::NoData {
                    op: name,
                    operand: *i,
                });
            };
            let pending = match exchange {
                Some(exchange) => exchange
                    .start(cx, arrays[*i].dtype(), std::slice::from_ref(local))
                    .in_op(name)?,
                None => ExchangeHandle::Ready(local.clone()),
            };
            Ok((*i, pending))
        })
        .collect()
}

/// Adds the contribution of step `step - 1` to the sums; the first one is them.
fn add(
    name: &'static str,
    cx: &Rc<MeshComm>,
    sums: &mut BufferMut,
    pending: ExchangeHandle,
    step: usize,
) -> Result<()> {
    let arrived = pending.wait().in_op(name)?;
    let view = Strided::contiguous(&[arrived.len()]);
    let device = cx.device();
    if step == 1 {
        device.copy(&arrived, &view, sums, &view).in_op(name)
    } else {
        let sum = Monoid::Op(ReduceOp::Sum);
        device.fold(sum, &arrived, &view, sums, &view).in_op(name)
    }
}
