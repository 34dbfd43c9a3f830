//! Other orders and extents of the same elements: copies, which every device has.

use super::view::strided;
use super::{CudaCall, CudaKernel};
use crate::Result;
use crate::error::InOp;
use crate::moves::{Expand, Permute};
use shard_comm::{Device, Strided};
use shard_spec::Strides;

fn copy(call: &mut CudaCall<'_>, from: &Strided) -> Result<()> {
    let to = strided(&call.cx.outputs[0]);
    call.gpu
        .copy(&call.inputs[0], from, &mut call.outputs[0], &to)
        .in_op(call.op)
}

impl CudaKernel for Permute {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let x = &call.cx.inputs[0];
        let from = Strided::new(
            x.offset,
            self.order.iter().map(|&d| x.shape[d]).collect(),
            self.order.iter().map(|&d| x.strides[d]).collect(),
        );
        copy(call, &from)
    }
}

impl CudaKernel for Expand {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (x, y) = (&call.cx.inputs[0], &call.cx.outputs[0]);
        let front = y.shape.len() - x.shape.len();
        let mut strides = Strides::from_elem(0, y.shape.len());
        for (d, (&extent, &stride)) in x.shape.iter().zip(&x.strides).enumerate() {
            if extent == y.shape[front + d] {
                strides[front + d] = stride;
            }
        }
        let from = Strided::new(x.offset, y.shape.clone(), strides);
        copy(call, &from)
    }
}
