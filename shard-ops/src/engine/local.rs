//! Ops for which nothing moves: most ops, and those whose calls have to be short.

use super::submit::{submit, submit_now};
use super::{Run, note};
use crate::error::InOp;
use crate::{KernelCx, OpError, Result, Stage, Value, Values};
use shard_comm::{Buffer, BufferMut};
use shard_redistribute::Array;
use smallvec::SmallVec;

impl Run<'_> {
    /// The kernel call of an op for which nothing moves, and whose results are what it writes.
    pub(super) fn local(&self, inputs: &[&Array]) -> Result<Values> {
        let (op, cx, strategy, name) = (self.op, self.cx, self.strategy, self.op.name());
        let mut pieces: SmallVec<[&Buffer; 4]> = SmallVec::new();
        for (operand, array) in inputs.iter().enumerate() {
            let Some(piece) = array.buffer() else {
                return Err(OpError::NoData { op: name, operand });
            };
            pieces.push(piece);
        }
        let device = cx.device();
        let mut outputs: SmallVec<[BufferMut; 1]> = SmallVec::new();
        for (output, &len) in self.rule.outputs.iter().zip(&strategy.lens) {
            outputs.push(device.alloc(output.meta.dtype, len).in_op(name)?);
        }
        let calls = &strategy.late;
        if calls.iter().any(KernelCx::writes)
            && !submit_now(op, cx, Stage::Compute, calls, None, &pieces, &mut outputs)?
        {
            let outputs = outputs.into_vec();
            let ran = submit(op, cx, Stage::Compute, calls, None, &pieces, outputs)?;
            return self.finished(ran.into());
        }
        self.finished(outputs)
    }

    /// What the kernels of an op wrote for which nothing moves.
    fn finished(&self, mut outputs: SmallVec<[BufferMut; 1]>) -> Result<Values> {
        let (cx, name) = (self.cx, self.op.name());
        note(cx, name, "kernel");
        let mut values = Values::new();
        // The strategy's layouts are of the operands' mesh.
        for (buffer, layout) in outputs.drain(..).zip(&self.strategy.outputs) {
            let dtype = buffer.dtype();
            let array = Array::on_mesh(cx, layout, Some(buffer.freeze()), dtype);
            values.push(Value::new(array));
        }
        Ok(values)
    }
}
