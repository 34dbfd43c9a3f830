//! Contractions on GPUs: products of matrices.

use super::contract::Contract;
use crate::cuda::{CudaCall, CudaKernel};
use crate::families::matmul::multiply;
use crate::{OpError, Result};

impl CudaKernel for Contract {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        match self.matrices(&call.cx.inputs, &call.cx.outputs[0]) {
            [Some(a), Some(b), Some(y)] => {
                let [left, right] = [0, 1].map(|i| call.inputs[i].clone());
                multiply(call, [(&left, &a), (&right, &b)], &y, None)
            }
            _ => Err(OpError::Shape {
                op: call.op,
                problem: "a box has gaps, which its kernel on a GPU does not take".into(),
                shapes: call.cx.inputs.iter().map(|at| at.shape.to_vec()).collect(),
                fix: "let the engine fall back to the host",
            }),
        }
    }
}
