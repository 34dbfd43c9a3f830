//! Choices by a mask of truth values.

use crate::families::broadcast::sum_to;
use crate::families::types::{same_types, truths};
use crate::host::with_element;
use crate::{
    Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, OpError, Result, Rule, Saved,
    Value, holds, key_of,
};
use shard_comm::{Bool, Element};
use shard_kernels::View;
use shard_kernels::whole::select;
use smallvec::smallvec;
use std::sync::Arc;

/// `a` where the mask is true and `b` elsewhere.
///
/// Shapes broadcast as in NumPy.
///
/// # Collective
/// All members of the mesh; communicates only to align operands whose boundaries differ, and to reduce partial ones.
///
/// # Errors
/// A mask that is not bool; `a` and `b` of different types; shapes that do not broadcast.
pub fn where_(exec: &dyn Exec, mask: &Value, a: &Value, b: &Value) -> Result<Value> {
    exec.apply1(Arc::new(Where), &[mask, a, b])
}

/// `x`, but `value` where the mask is true. A partial `x` stays partial if the value is 0.
///
/// Shapes broadcast as in NumPy.
///
/// # Collective
/// As [`where_`].
///
/// # Errors
/// A mask that is not bool; shapes that do not broadcast; a value that the type of `x` cannot hold.
pub fn masked_fill(exec: &dyn Exec, x: &Value, mask: &Value, value: f64) -> Result<Value> {
    fill(exec, x, mask, true, value)
}

/// `x` where the mask is true, and 0 elsewhere.
pub(crate) fn masked(exec: &dyn Exec, x: &Value, mask: &Value) -> Result<Value> {
    fill(exec, x, mask, false, 0.0)
}

fn fill(exec: &dyn Exec, x: &Value, mask: &Value, filled: bool, value: f64) -> Result<Value> {
    exec.apply1(Arc::new(MaskedFill { filled, value }), &[x, mask])
}

/// One of two operands, element by element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Where;

impl Op for Where {
    fn name(&self) -> &'static str {
        "where"
    }

    fn key(&self) -> u128 {
        key_of("where", &())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        truths("where", inputs, 0)?;
        let (a, b) = (inputs[1].dtype, inputs[2].dtype);
        if a != b {
            return Err(OpError::dtype("where", 2, a.to_string(), b));
        }
        Rule::pointwise("where", inputs, a, Linearity::None)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_element!(call.dtype(), T => {
            let (mask, a, b) = (call.elements::<Bool>(0), call.elements::<T>(1), call.elements::<T>(2));
            let mut out = call.elements_out::<T>(0);
            let all = (
                mask.shaped(out.shape()),
                a.shaped(out.shape()),
                b.shaped(out.shape()),
            );
            if let (Some(mask), Some(a), Some(b)) = all {
                select(&mask, &a, &b, &mut out);
            }
        });
    }

    crate::kernel::gpu_kernel!();

    fn keeps(&self) -> Keeps {
        Keeps::inputs(&[0])
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        saved.pull_back(cotangents, |dy, operand| {
            if operand == 0 {
                return Ok(None);
            }
            let own = fill(exec, dy, &saved.inputs[0], operand == 2, 0.0)?;
            sum_to(exec, &own, saved.inputs[operand].shape()).map(Some)
        })
    }
}

/// A number in place of the elements where the mask is as said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaskedFill {
    pub(crate) filled: bool,
    pub(crate) value: f64,
}

impl Op for MaskedFill {
    fn name(&self) -> &'static str {
        "masked_fill"
    }

    fn key(&self) -> u128 {
        key_of("masked_fill", &(self.filled, self.value.to_bits()))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let op = self.name();
        let dtype = same_types(op, &inputs[..1])?;
        truths(op, inputs, 1)?;
        if !holds(dtype, self.value) {
            return Err(OpError::Value {
                op,
                value: self.value,
                dtype,
            });
        }
        let linear = match self.value == 0.0 {
            true => Linearity::Each(smallvec![0]),
            false => Linearity::None,
        };
        Rule::pointwise(op, inputs, dtype, linear)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_element!(call.dtype(), T => {
            let (x, mask) = (call.elements::<T>(0), call.elements::<Bool>(1));
            let mut out = call.elements_out::<T>(0);
            let value = [T::from_f64(self.value)];
            let number = View::new(&value, 0, &[], &[]).broadcast_to(out.shape());
            let operands = (x.shaped(out.shape()), mask.shaped(out.shape()), number);
            if let (Some(x), Some(mask), Some(number)) = operands {
                let [kept, other] = if self.filled { [&number, &*x] } else { [&*x, &number] };
                select(&mask, kept, other, &mut out);
            }
        });
    }

    crate::kernel::gpu_kernel!();

    fn keeps(&self) -> Keeps {
        Keeps::inputs(&[1])
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        saved.pull_back_to(0, cotangents, |dy| {
            let own = fill(exec, dy, &saved.inputs[1], self.filled, 0.0)?;
            sum_to(exec, &own, saved.inputs[0].shape())
        })
    }
}
