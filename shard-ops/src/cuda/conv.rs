//! Convolutions and their gradients.

use super::view::{define, source};
use super::windows::{Meeting, lift};
use super::{CudaCall, CudaKernel, CudaView};
use crate::Result;
use crate::conv::{Conv, ConvInputGrad, ConvWeightGrad, Geometry, local_groups};
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;

pub(super) const SOURCE: KernelSource = source!("conv", "windows.cuh", "conv.cu");
/// Definitions under which the source compiles.
#[cfg(test)]
pub(super) const EXAMPLE: &str = "#define T f32\n";

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    x: CudaView,
    w: CudaView,
    y: CudaView,
    bias: u64,
    groups: i64,
    window: Meeting,
}

impl Params {
    fn new(
        geometry: &Geometry,
        call: &CudaCall<'_>,
        [x, w, y]: [CudaView; 3],
        [x_at, y_at, w_at]: [&crate::OperandBox; 3],
    ) -> (Self, String) {
        let groups = local_groups(geometry, x_at.shape[1], w_at) as i64;
        let window = geometry.local(x_at, y_at);
        let params = Self {
            x: lift(&x),
            w: lift(&w),
            y: lift(&y),
            bias: 0,
            groups,
            window: Meeting::new(&w_at.shape[2..], &window),
        };
        (params, define(&[("T", call.outputs[0].dtype())]))
    }
}

impl CudaKernel for Conv {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let views = [call.input(0)?, call.input(1)?, call.output(0)?];
        let at = [&call.cx.inputs[0], &call.cx.outputs[0], &call.cx.inputs[1]];
        let (mut params, defines) = Params::new(&self.geometry, call, views, at);
        if self.bias && call.cx.adds_once {
            params.bias = call.dense(2)?;
        }
        call.launch(&SOURCE, &defines, "forward", params.y.numel(), &params)
    }
}

impl CudaKernel for ConvInputGrad {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let views = [call.output(0)?, call.input(1)?, call.input(0)?];
        let at = [&call.cx.outputs[0], &call.cx.inputs[0], &call.cx.inputs[1]];
        let (params, defines) = Params::new(&self.geometry, call, views, at);
        call.launch(&SOURCE, &defines, "input_grad", params.x.numel(), &params)
    }
}

impl CudaKernel for ConvWeightGrad {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let views = [call.input(0)?, call.output(0)?, call.input(1)?];
        let at = [&call.cx.inputs[0], &call.cx.inputs[1], &call.cx.outputs[0]];
        let (params, defines) = Params::new(&self.geometry, call, views, at);
        let blocks = [params.w.numel().min(1 << 16) as u32, 1, 1];
        let threads = call.gpu.block();
        call.launch_blocks(&SOURCE, &defines, "weight_grad", blocks, threads, &params)
    }
}
