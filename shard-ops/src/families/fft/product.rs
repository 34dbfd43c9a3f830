//! Products of complex numbers.

use crate::families::broadcast::sum_to;
use crate::families::types::float_types;
use crate::host::with_float;
use crate::rule::broadcast;
use crate::{
    Access, Exec, HostCall, Linearity, Meta, Op, OpError, Result, Rule, Saved, Value, key_of,
};
use shard_kernels::fft::multiply;
use smallvec::smallvec;
use std::sync::Arc;

/// The products of complex numbers, which lie in the last dim; the other dims broadcast.
///
/// # Collective
/// All members of the mesh; communicates only to align operands whose boundaries differ. One partial operand stays partial.
///
/// # Errors
/// A last dim that is not 2; shapes that do not broadcast; types that differ or are not f32 or f64.
pub fn complex_mul(exec: &dyn Exec, a: &Value, b: &Value) -> Result<Value> {
    let op = ComplexMul {
        conjugate: [false, false],
    };
    exec.apply1(Arc::new(op), &[a, b])
}

/// A product of complex numbers, either of them conjugated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ComplexMul {
    pub(super) conjugate: [bool; 2],
}

impl Op for ComplexMul {
    fn name(&self) -> &'static str {
        "complex_mul"
    }

    fn key(&self) -> u128 {
        key_of("complex_mul", &self.conjugate)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types("complex_mul", inputs)?;
        if inputs.iter().any(|m| m.shape.last() != Some(&2)) {
            return Err(OpError::Shape {
                op: "complex_mul",
                problem: "operands are not complex".into(),
                shapes: inputs.iter().map(|m| m.shape.to_vec()).collect(),
                fix: "put real and imaginary parts in a last dim of 2",
            });
        }
        let shape = broadcast("complex_mul", inputs)?;
        let last = shape.len() - 1;
        let mut rule = Rule::builder("complex_mul", inputs).any_order();
        let factors: Vec<usize> = shape[..last].iter().map(|&n| rule.factor(n)).collect();
        for meta in inputs {
            let own = meta.shape.len() - 1;
            let dims = (0..own).map(|d| {
                let to = last - own + d;
                match meta.shape[d] == shape[to] {
                    true => Access::factor(factors[to]),
                    false => Access::WHOLE,
                }
            });
            rule = rule.input(dims.chain([Access::WHOLE]).collect());
        }
        let dims = factors.iter().map(|&f| Access::factor(f));
        rule.output(dims.chain([Access::WHOLE]).collect(), shape, dtype)
            .flops(6.0)
            .linearity(Linearity::Each(smallvec![0, 1]))
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.dtype(), T => {
            let (a, b) = (call.input::<T>(0), call.input::<T>(1));
            let mut out = call.output::<T>(0);
            let (a, b) = (a.broadcast_to(out.shape()), b.broadcast_to(out.shape()));
            if let (Some(a), Some(b)) = (a, b) {
                multiply(self.conjugate, &a, &b, &mut out);
            }
        });
    }

    crate::kernel::gpu_kernel!();

    fn vjp(
        &self,
        exec: &dyn Exec,
        saved: &Saved<'_>,
        cotangents: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>> {
        let [of_a, of_b] = self.conjugate;
        saved.pull_back(cotangents, |dy, operand| {
            // y = a b: the pull-back to a is dy b̄, conjugated if a was.
            let other = &saved.inputs[1 - operand];
            let [own, others] = if operand == 0 {
                [of_a, of_b]
            } else {
                [of_b, of_a]
            };
            let op = Self {
                conjugate: [own, others == own],
            };
            let full = exec.apply1(Arc::new(op), &[dy, other])?;
            sum_to(exec, &full, saved.inputs[operand].shape())
        })
    }
}
