//! Windows as columns on GPUs.

use super::Unfold;
use crate::Result;
use crate::cuda::source::WINDOWS;
use crate::cuda::view::define;
use crate::cuda::windows::Meeting;
use crate::cuda::{CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;

const SOURCE: KernelSource = cuda_source!("unfold", WINDOWS, include_str!("unfold.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[(SOURCE, "#define T f32\n")];

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    x: CudaView,
    y: CudaView,
    window: Meeting,
    spatial: i64,
}

impl CudaKernel for Unfold {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (from, to) = (call.input(0)?, call.output(0)?);
        let (input, output) = (&call.cx.inputs[0], &call.cx.outputs[0]);
        let (name, [x, y], [x_at, y_at]) = match self.adjoint {
            true => ("fold", [to, from], [output, input]),
            false => ("unfold", [from, to], [input, output]),
        };
        let params = Params {
            x,
            y,
            window: Meeting::new(&self.kernel, &self.local(x_at, y_at)),
            spatial: self.kernel.len() as i64,
        };
        let defines = define(&[("T", call.outputs[0].dtype())]);
        call.launch_own(&SOURCE, &defines, name, to.numel(), &params)
    }
}
