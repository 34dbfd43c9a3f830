//! What norms over many arrays are made of: a sum of powers per array.

use crate::families::types::float_types;
use crate::host::with_float;
use crate::{
    Access, Exec, HostCall, Keeps, Linearity, Meta, Op, OpError, Reduction, Result, Rule, Value,
    key_of,
};
use shard_comm::DType;
use shard_kernels::powers::sum_of_powers;
use shard_spec::ReduceOp;
use smallvec::smallvec;
use std::sync::Arc;

/// The sum over all elements of `|x|^p`, or for `p = ∞` the largest `|x|`, as one `f64`: NaN if an element is.
///
/// # Collective
/// All members of the mesh. No communication: the result is partial over the axes that shard the operand.
///
/// # Errors
/// An order that is not above 0; an operand that is not of floats.
pub fn power_sum(exec: &dyn Exec, x: &Value, p: f64) -> Result<Value> {
    exec.apply1(Arc::new(PowerSum(p)), &[x])
}

/// A sum of powers of this order.
#[derive(Clone, Copy, Debug)]
pub(super) struct PowerSum(pub(super) f64);

impl Op for PowerSum {
    fn name(&self) -> &'static str {
        "power_sum"
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &self.0.to_bits())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let name = self.name();
        let [x] = inputs else {
            return Err(OpError::arity(name, "one operand", inputs.len()));
        };
        float_types(name, inputs)?;
        if self.0.is_nan() || self.0 <= 0.0 {
            return Err(OpError::Shape {
                op: name,
                problem: format!("there is no norm of order {}", self.0),
                shapes: vec![x.shape.to_vec()],
                fix: "give an order above 0, or infinity",
            });
        }
        let mut rule = Rule::builder(name, inputs).any_order();
        let dims: Vec<Access> = (x.shape.iter())
            .map(|&n| Access::factor(rule.factor(n)))
            .collect();
        let joined = match self.0 {
            f64::INFINITY => ReduceOp::Max,
            _ => ReduceOp::Sum,
        };
        rule.input(dims)
            .output(Vec::new(), smallvec![], DType::F64)
            .reduction(Reduction::Partial(joined))
            .linearity(Linearity::None)
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let of = call.inputs[0].dtype();
        let sum = with_float!(of, T => {
            let x = call.input::<T>(0);
            match x.as_slice() {
                Some(x) => sum_of_powers(x, self.0),
                None => sum_of_powers(&x.to_vec(), self.0),
            }
        });
        call.output::<f64>(0).data_mut()[0] = sum;
    }

    crate::kernel::gpu_kernel!();

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }
}
