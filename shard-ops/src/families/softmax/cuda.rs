//! Softmax on GPUs.

use super::{Softmax, SoftmaxGrad};
use crate::Result;
#[cfg(test)]
use crate::cuda::tests::compiles;
use crate::cuda::view::define;
use crate::cuda::{AXES, CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use bytemuck::{Pod, Zeroable};
use shard_comm::DType;
use shard_comm::cuda::KernelSource;

const SOURCE: KernelSource = cuda_source!("softmax", include_str!("softmax.cu"));
#[cfg(test)]
compiles!(SOURCE, "#define T f32\n");

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    x: CudaView,
    pairs: CudaView,
    y: CudaView,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct GradParams {
    y: CudaView,
    dy: CudaView,
    sums: CudaView,
    dx: CudaView,
}

fn defines(log: bool, dtype: DType) -> String {
    let log = if log { "#define LOG\n" } else { "" };
    format!("{log}{}", define(&[("T", dtype)]))
}

impl CudaKernel for Softmax {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (x, found, y) = (call.input(0)?, call.input(1)?, call.output(0)?);
        let mut pairs = CudaView {
            data: found.data,
            strides: [0; AXES],
            ..x
        };
        let kept = (0..x.ndim as usize).filter(|d| !self.dims.contains(d));
        for (k, d) in kept.enumerate() {
            pairs.strides[d] = found.strides[k];
        }
        let defines = defines(self.log, call.outputs[0].dtype());
        let params = Params { x, pairs, y };
        call.launch_own(&SOURCE, &defines, "softmax", y.numel(), &params)
    }
}

impl CudaKernel for SoftmaxGrad {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (y, dy, dx) = (call.input(0)?, call.input(1)?, call.output(0)?);
        let sums = call.input(2)?.broadcast_to(&dx);
        let defines = defines(self.log, call.outputs[0].dtype());
        let params = GradParams { y, dy, sums, dx };
        call.launch_own(&SOURCE, &defines, "softmax_grad", dx.numel(), &params)
    }
}
