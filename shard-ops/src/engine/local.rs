//! Ops for which nothing moves: most ops, and those whose calls have to be short.

use super::submit::{submit, submit_now};
use super::{Run, note};
use crate::error::InOp;
use crate::{KernelCx, KernelPhase, OpError, Result, Value, Values};
use shard_comm::{Buffer, BufferMut, DType};
use shard_redistribute::Array;
use shard_spec::Layout;
use smallvec::SmallVec;
use std::rc::Rc;
use std::slice;

impl Run<'_> {
    /// The kernel call of an op for which nothing moves, and whose results are what it writes.
    pub(super) fn local(&self, inputs: &[&Array]) -> Result<Values> {
        let (strategy, op) = (self.strategy, self.op.name());
        let mut pieces: SmallVec<[&Buffer; 4]> = SmallVec::new();
        for (operand, array) in inputs.iter().enumerate() {
            let Some(piece) = array.buffer() else {
                return Err(OpError::NoData { op, operand });
            };
            pieces.push(piece);
        }
        let outputs = match (&strategy.left[..], &strategy.lens[..]) {
            // Most ops have one output, which needs no list.
            (&[dtype], &[len]) => {
                let mut made = self.alloc(dtype, len)?;
                if self.runs_now(&pieces, slice::from_mut(&mut made))? {
                    note(self.cx, op, "kernel");
                    let value = self.made(made, &strategy.shared[0]);
                    return Ok(Values::from_buf([value]));
                }
                vec![made]
            }
            (dtypes, lens) => {
                let each = dtypes.iter().zip(lens);
                let made = each.map(|(&dtype, &len)| self.alloc(dtype, len));
                made.collect::<Result<Vec<_>>>()?
            }
        };
        let ran = self.submitted(&pieces, outputs)?;
        note(self.cx, op, "kernel");
        let made = ran.into_iter().zip(&strategy.shared);
        Ok(made.map(|(made, layout)| self.made(made, layout)).collect())
    }

    #[inline]
    fn alloc(&self, dtype: DType, len: usize) -> Result<BufferMut> {
        self.cx.device().alloc(dtype, len).in_op(self.op.name())
    }

    /// Whether the kernel has run, if it gets the operands as they are and the device does its work when it is asked for.
    fn runs_now(&self, pieces: &[&Buffer], outputs: &mut [BufferMut]) -> Result<bool> {
        if self.op.wide.is_some() {
            return Ok(false);
        }
        let calls = &self.strategy.late;
        if !calls.iter().any(KernelCx::writes) {
            return Ok(true);
        }
        submit_now(
            self.op,
            self.cx,
            KernelPhase::Compute,
            calls,
            None,
            pieces,
            outputs,
        )
    }

    /// What the kernel writes, whenever the device runs it.
    fn submitted(&self, pieces: &[&Buffer], outputs: Vec<BufferMut>) -> Result<Vec<BufferMut>> {
        let calls = &self.strategy.late;
        match calls.iter().any(KernelCx::writes) {
            true => submit(
                self.op,
                self.cx,
                KernelPhase::Compute,
                calls,
                None,
                pieces,
                outputs,
            ),
            false => Ok(outputs),
        }
    }

    /// A result under its layout, which is of the operands' mesh.
    #[inline]
    fn made(&self, made: BufferMut, layout: &Rc<Layout>) -> Value {
        let (dtype, layout) = (made.dtype(), layout.clone());
        Value::new(Array::on_mesh(self.cx, layout, Some(made.freeze()), dtype))
    }
}
