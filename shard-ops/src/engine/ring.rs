//! Running a fold over blocks that go round a ring.

use super::rows::SharedWork;
use super::run::{borrowed, run_calls};
use super::{Applied, note};
use crate::error::InOp;
use crate::strategy::{Columns, Ring, RingStep};
use crate::{OpError, Result};
use shard_comm::{Buffer, BufferMut, Monoid, Strided};
use shard_redistribute::{Array, Exchange, ExchangeHandle, MeshComm};
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
        let inputs = inputs_of(name, cx, step, buffers, arriving)?;
        let mut lent = Lent::new(name, cx, step, &mut outputs)?;
        let call = Arc::new(vec![step.cx.clone()]);
        outputs = run_calls(op, cx, &borrowed(&inputs), outputs, &call, Some(work))?;
        note(cx, name, "block");
        lent.fill(name, cx, &mut outputs)?;
        // What the step before sent home has had this computation to arrive in.
        for ((_, _, sums), (_, pending)) in lent.kept.iter_mut().zip(going_home) {
            add(name, cx, sums, pending, t)?;
        }
        going_home = lent.send_home(name, cx, &mut outputs)?;
    }
    let steps = ring.steps.len();
    for (o, pending) in going_home {
        add(name, cx, &mut outputs[o], pending, steps)?;
    }
    Ok(outputs)
}

/// What a step reads: the block that has arrived, the columns of it, and what stays.
fn inputs_of(
    name: &'static str,
    cx: &Rc<MeshComm>,
    step: &RingStep,
    buffers: &[Buffer],
    arriving: Vec<(usize, ExchangeHandle)>,
) -> Result<Vec<Buffer>> {
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
    Ok(inputs)
}

/// The memory of outputs of which a step writes a block in memory of its own. A call finds what the one before left in the others.
struct Lent<'a> {
    /// What is summed at home.
    kept: Vec<(usize, &'a Exchange, BufferMut)>,
    /// What is the rank's for all blocks.
    filled: Vec<(usize, &'a Columns, BufferMut)>,
}

impl<'a> Lent<'a> {
    fn new(
        name: &'static str,
        cx: &Rc<MeshComm>,
        step: &'a RingStep,
        outputs: &mut [BufferMut],
    ) -> Result<Self> {
        let mut fresh = |o: usize| {
            let len = numel(&step.cx.outputs[o].shape);
            let block = cx.device().alloc(outputs[o].dtype(), len).in_op(name)?;
            Ok::<_, OpError>(std::mem::replace(&mut outputs[o], block))
        };
        let mut lent = Self {
            kept: Vec::new(),
            filled: Vec::new(),
        };
        for (o, exchange) in &step.home {
            lent.kept.push((*o, exchange, fresh(*o)?));
        }
        for (o, columns) in &step.places {
            lent.filled.push((*o, columns, fresh(*o)?));
        }
        Ok(lent)
    }

    /// Puts columns of the block where they belong.
    fn fill(
        &mut self,
        name: &'static str,
        cx: &Rc<MeshComm>,
        outputs: &mut [BufferMut],
    ) -> Result<()> {
        for (o, columns, whole) in self.filled.drain(..) {
            let output = &mut outputs[o];
            let block = std::mem::replace(output, whole).freeze();
            for (from, to) in columns.block.iter().zip(&columns.whole) {
                cx.device().copy(&block, from, output, to).in_op(name)?;
            }
        }
        Ok(())
    }

    /// Sends contributions to the block to who has it.
    fn send_home(
        self,
        name: &'static str,
        cx: &Rc<MeshComm>,
        outputs: &mut [BufferMut],
    ) -> Result<Vec<(usize, ExchangeHandle)>> {
        let send = |(o, exchange, sums): (usize, &Exchange, BufferMut)| {
            let block = std::mem::replace(&mut outputs[o], sums).freeze();
            let dtype = block.dtype();
            Ok((o, exchange.start(cx, dtype, &[block]).in_op(name)?))
        };
        self.kept.into_iter().map(send).collect()
    }
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
