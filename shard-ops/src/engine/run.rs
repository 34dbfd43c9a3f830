//! One op by a strategy: moves, kernel calls, and what becomes of their results.

use super::arriving::{post, post_all};
use super::route::{self, Side, Whose};
use super::rows::{self, SharedWork, Work};
use super::submit::submit;
use super::{Arrays, note, outcome, ring};
use crate::error::InOp;
use crate::strategy::{Blocks, Routing};
use crate::{KernelCx, KernelPhase, KernelPolicy, Op, OpError, Reduction, Result, Rule, Strategy};
use shard_comm::{Buffer, BufferMut, CommError, DType};
use shard_redistribute::{Array, Exchange, MeshComm};
use shard_spec::{Layout, ReduceOp};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

/// One run of a strategy on a member of the mesh, whose inputs' partial sums have been reduced.
pub(super) struct Run<'a> {
    pub(super) op: Applied<'a>,
    pub(super) cx: &'a Rc<MeshComm>,
    pub(super) rule: &'a Rule,
    pub(super) strategy: &'a Strategy,
}

/// An op, and how its kernels go about it.
#[derive(Clone, Copy)]
pub(super) struct Applied<'a> {
    pub(super) op: &'a Arc<dyn Op>,
    pub(super) name: &'static str,
    pub(super) kernels: KernelPolicy,
    /// The rule, where kernels get 16-bit operands as `f32`, and the blocks into which a call is divided.
    pub(super) wide: Option<(&'a Rule, &'a Blocks)>,
}

impl Applied<'_> {
    pub(super) fn name(self) -> &'static str {
        self.name
    }

    /// As it is, by calls that are not divided.
    pub(super) fn undivided(self) -> Self {
        let wide = self.wide.map(|(rule, _)| (rule, Blocks::ONE));
        Self { wide, ..self }
    }
}

/// The pieces of an op's operands: a rank's own, or what was moved in their place.
pub(super) type Pieces<'a> = SmallVec<[Cow<'a, Buffer>; 4]>;

impl Run<'_> {
    /// A move: the exchange that is the op.
    pub(super) fn assemble(&self, exchange: &Exchange, inputs: &[&Array]) -> Result<Arrays> {
        let (name, dtype) = (self.op.name(), inputs[0].dtype());
        let sources = owned(local_buffers(name, self.rule, inputs)?);
        let local = exchange.run(self.cx, dtype, &sources).in_op(name)?;
        self.only_output(Some(local), dtype)
    }

    /// The first input's piece, once in place, under another shape.
    pub(super) fn relabel(&self, inputs: &[&Array]) -> Result<Arrays> {
        let name = self.op.name();
        let mut buffers = local_buffers(name, self.rule, inputs)?;
        let mut flying = vec![post(name, &self.strategy.inputs[0], inputs[0])?];
        self.settle(inputs, &mut flying, &mut buffers, None)?;
        let local = buffers.into_iter().next().map(Cow::into_owned);
        self.only_output(local, inputs[0].dtype())
    }

    fn only_output(&self, local: Option<Buffer>, dtype: DType) -> Result<Arrays> {
        let array = Array::from_parts(self.cx, &self.strategy.outputs[0], local, dtype);
        Ok(Arrays::from_buf([array.in_op(self.op.name())?]))
    }

    /// Kernel calls, the interior's while a halo flies.
    pub(super) fn kernels(&self, inputs: &[&Array]) -> Result<Arrays> {
        if let Some(routing) = &self.strategy.routing {
            return self.routed(routing, inputs);
        }
        let (op, cx, strategy, name) = (self.op, self.cx, self.strategy, self.op.name());
        let mut buffers = local_buffers(name, self.rule, inputs)?;
        let mut outputs = allocate(name, cx, strategy)?;
        let mut flying = post_all(name, strategy, inputs, None)?;
        if strategy.overlaps() {
            // What flies is not needed yet; everything else is.
            self.settle(inputs, &mut flying, &mut buffers, strategy.flying_halo)?;
            outputs = run_calls(op, cx, &buffers, outputs, &strategy.early, None)?;
            note(cx, name, "interior");
        }
        self.settle(inputs, &mut flying, &mut buffers, None)?;
        let decides = self.rule.decides_rows().is_some();
        let work = (decides || strategy.ring.is_some()).then(|| Work::shared(self.rule));
        let ran = match (&strategy.ring, &work) {
            (Some(ring), Some(work)) => {
                ring::run(op, cx, ring, inputs, &owned(buffers), outputs, work)
            }
            _ => {
                let op = match strategy.overlaps() {
                    true => op.undivided(),
                    false => op,
                };
                let ran = run_calls(op, cx, &buffers, outputs, &strategy.late, work.as_ref());
                // What was moved for the kernels makes room for what moves after them.
                drop(buffers);
                ran
            }
        };
        match &work {
            Some(work) if decides => rows::settle(op, cx, self.rule, strategy, ran, work),
            _ => self.settle_outputs(ran?),
        }
    }

    /// A kernel call on rows that an operand names, once those of others have come, and what it makes of rows of others goes home.
    fn routed(&self, routing: &Routing, inputs: &[&Array]) -> Result<Arrays> {
        if routing.merging.is_some() {
            return self.merged(routing, inputs);
        }
        let (op, cx, strategy, name) = (self.op, self.cx, self.strategy, self.op.name());
        let fold = match self.rule.reduction {
            Some(Reduction::Partial(op)) => op,
            _ => ReduceOp::Sum,
        };
        let index = routing.index;
        let exchange = strategy.inputs[index].exchange.as_ref();
        let routed = route::find(op, cx, routing, inputs[index], exchange, fold)?;
        let mut buffers = local_buffers(name, self.rule, inputs)?;
        let mut outputs = allocate(name, cx, strategy)?;
        let mut flying = post_all(name, strategy, inputs, Some(index))?;
        self.settle(inputs, &mut flying, &mut buffers, None)?;
        let mut buffers = owned(buffers);
        let call = routed.call(&strategy.late[0]);
        let ghosts = routed.fetch(&call, &buffers)?;
        buffers.extend(ghosts);
        let own = outputs.len();
        outputs.extend(routed.away(&call, &outputs)?);
        let run = |call: KernelCx, whose, outputs| {
            let (mut call, mut inputs) = (call, buffers.clone());
            inputs[index] = routed.keys(whose)?;
            routed.push_sorted(whose, &mut call, &mut inputs)?;
            run_calls(
                op,
                cx,
                &borrowed(&inputs),
                outputs,
                &Arc::new(vec![call]),
                None,
            )
        };
        let waits = routed.waits();
        let whose = if waits { Whose::Others } else { Whose::All };
        outputs = run(call.clone(), whose, outputs)?;
        let away = outputs.split_off(own);
        let came = routed.send_home(&call, away)?;
        if waits {
            // Contributions are folded in by the order of the ranks they come from, of which this is one.
            routed.settle(Side::Front, &call, &mut outputs, &came)?;
            let call = routed.goes_on(&call);
            outputs.extend(routed.away(&call, &outputs)?);
            outputs = run(call, Whose::Own, outputs)?;
            outputs.truncate(own);
        }
        routed.settle(Side::Behind, &call, &mut outputs, &came)?;
        self.settle_outputs(outputs)
    }

    /// A kernel call on runs that are merged, once the parts of others' runs have come that this rank's stretch is made of.
    fn merged(&self, routing: &Routing, inputs: &[&Array]) -> Result<Arrays> {
        let (op, cx, strategy, name) = (self.op, self.cx, self.strategy, self.op.name());
        let mut buffers = local_buffers(name, self.rule, inputs)?;
        let outputs = allocate(name, cx, strategy)?;
        let mut flying = post_all(name, strategy, inputs, None)?;
        self.settle(inputs, &mut flying, &mut buffers, None)?;
        let mut buffers = owned(buffers);
        let call = route::bring_runs(op, cx, routing, &strategy.late[0], &mut buffers)?;
        let calls = Arc::new(vec![call]);
        let outputs = run_calls(op, cx, &borrowed(&buffers), outputs, &calls, None)?;
        drop(buffers);
        self.settle_outputs(outputs)
    }

    /// What the kernels wrote, where it belongs.
    fn settle_outputs(&self, outputs: Vec<BufferMut>) -> Result<Arrays> {
        let (cx, rule, strategy, name) = (self.cx, self.rule, self.strategy, self.op.name());
        if strategy.ring.is_none() {
            let what = match strategy.overlaps() {
                true => "boundary",
                false => "kernel",
            };
            note(cx, name, what);
            if let Some(outcome) = &strategy.outcome {
                return outcome::run(self.op, cx, rule, strategy, outcome, outputs);
            }
        }
        finish(name, cx, strategy, &strategy.outputs, outputs)
    }
}

pub(super) fn outputs_without_data(
    cx: &Rc<MeshComm>,
    rule: &Rule,
    layouts: &[Layout],
) -> Result<Arrays> {
    rule.outputs
        .iter()
        .zip(layouts)
        .map(|(o, layout)| Array::from_parts(cx, layout, None, o.meta.dtype).in_op(rule.name))
        .collect()
}

/// Each operand's piece; nothing where only the layout is asked for.
pub(super) fn local_buffers<'a>(
    op: &'static str,
    rule: &Rule,
    arrays: &[&'a Array],
) -> Result<Pieces<'a>> {
    let mut locals = Pieces::new();
    for (operand, array) in arrays.iter().enumerate() {
        locals.push(match array.buffer() {
            Some(buffer) => Cow::Borrowed(buffer),
            None if rule.unread.contains(&operand) => {
                let device = array.cx().device();
                Cow::Owned(device.alloc(array.dtype(), 0).in_op(op)?.freeze())
            }
            None => return Err(OpError::NoData { op, operand }),
        });
    }
    Ok(locals)
}

/// The pieces as handles that may outlive the arrays.
pub(super) fn owned(pieces: Pieces<'_>) -> Vec<Buffer> {
    pieces.into_iter().map(Cow::into_owned).collect()
}

/// Buffers as pieces.
pub(super) fn borrowed(buffers: &[Buffer]) -> Pieces<'_> {
    buffers.iter().map(Cow::Borrowed).collect()
}

pub(super) fn allocate(
    op: &'static str,
    cx: &Rc<MeshComm>,
    strategy: &Strategy,
) -> Result<Vec<BufferMut>> {
    let mut outputs = Vec::with_capacity(strategy.lens.len());
    for (o, &len) in strategy.lens.iter().enumerate() {
        let made = strategy.outcome.as_ref().map(|outcome| &outcome.moves[o]);
        let dtype = made.map_or(strategy.left[o], |made| made.dtype);
        outputs.push(cx.device().alloc(dtype, len).in_op(op)?);
    }
    Ok(outputs)
}

/// Runs kernel calls over their boxes, in stream order. Those that leave something behind have a place for it.
pub(super) fn run_calls(
    op: Applied<'_>,
    cx: &Rc<MeshComm>,
    inputs: &[Cow<'_, Buffer>],
    outputs: Vec<BufferMut>,
    calls: &Arc<Vec<KernelCx>>,
    work: Option<&SharedWork>,
) -> Result<Vec<BufferMut>> {
    if !calls.iter().any(|call| Work::needs(work, call)) {
        return Ok(outputs);
    }
    let inputs: SmallVec<[&Buffer; 4]> = inputs.iter().map(|input| &**input).collect();
    submit(op, cx, KernelPhase::Compute, calls, work, &inputs, outputs)
}

/// Freezes the outputs and combines them if the rule says so.
pub(super) fn finish(
    op: &'static str,
    cx: &Rc<MeshComm>,
    strategy: &Strategy,
    layouts: &[Layout],
    outputs: Vec<BufferMut>,
) -> Result<Arrays> {
    let mut arrays = Arrays::new();
    for (buffer, layout) in outputs.into_iter().zip(layouts) {
        let (dtype, mut local) = (buffer.dtype(), buffer.freeze());
        if let Some((axes, monoid)) = &strategy.combine {
            let Some(comm) = cx.along(axes) else {
                return Err(OpError::Comm {
                    op,
                    source: Box::new(CommError::Closed { op }),
                });
            };
            local = comm.all_reduce(&local, *monoid).in_op(op)?;
        }
        arrays.push(Array::from_parts(cx, layout, Some(local), dtype).in_op(op)?);
    }
    Ok(arrays)
}
