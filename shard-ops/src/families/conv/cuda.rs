//! Convolutions and their gradients on GPUs.

use super::{Conv, ConvInputGrad, ConvWeightGrad, Geometry, local_groups};
use crate::Result;
use crate::cuda::source::WINDOWS;
use crate::cuda::view::define;
use crate::cuda::windows::{Meeting, lift};
use crate::cuda::{CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use crate::error::InOp;
use crate::families::elementwise::{goes_by_grains, grain};
use crate::host::partial_type;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::{ConvCall, ConvKind, KernelSource};

const SOURCE: KernelSource = cuda_source!("conv", WINDOWS, include_str!("conv.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] =
    &[(SOURCE, "#define T bf16\n#define W f32\n#define R f32\n")];

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
        (params, defines(call))
    }
}

fn defines(call: &CudaCall<'_>) -> String {
    let (of, to) = (call.inputs[0].dtype(), call.outputs[0].dtype());
    define(&[("T", of), ("W", partial_type(to)), ("R", to)])
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BiasParams {
    y: CudaView,
    bias: u64,
    channels: i64,
    length: i64,
}

/// Lets cuDNN compute the convolution without its bias; returns whether it did.
fn by_library(geometry: &Geometry, call: &mut CudaCall<'_>, kind: ConvKind) -> Result<bool> {
    if !call.policy.libraries {
        return Ok(false);
    }
    let (inputs, output) = (&call.cx.inputs, &call.cx.outputs[0]);
    let [x, w, y] = match kind {
        ConvKind::Forward => [&inputs[0], &inputs[1], output],
        ConvKind::InputGrad => [output, &inputs[1], &inputs[0]],
        ConvKind::WeightGrad => [&inputs[0], output, &inputs[1]],
    };
    let window = geometry.local(x, y);
    let convolution = ConvCall {
        kind,
        stride: &window.stride,
        dilation: &window.dilation,
        origin: &window.origin,
        groups: local_groups(geometry, x.shape[1], w),
        precision: call.policy.precision,
    };
    // The library knows one type for all. Terms of a sum are `f32`.
    let to = call.outputs[0].dtype();
    let [a, b] = [call.converted(0, to)?, call.converted(1, to)?];
    let reads = [(&a.0, &a.1), (&b.0, &b.1)];
    let write = (&mut call.outputs[0], &output.strided());
    let did = call
        .gpu
        .convolve(&convolution, reads, write)
        .in_op(call.op)?;
    Ok(call.by_library(did))
}

impl CudaKernel for Conv {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let done = by_library(&self.geometry, call, ConvKind::Forward)?;
        let biased = self.bias && call.cx.adds_once;
        if done && !biased {
            return Ok(());
        }
        let y = call.output(0)?;
        let bias = match biased {
            true => Some(call.in_a_row(2, call.outputs[0].dtype())?),
            false => None,
        };
        let bias = bias.as_ref().map_or(0, |(_, address)| *address);
        if done {
            let params = BiasParams {
                y: y.merged(),
                bias,
                channels: y.shape[1],
                length: y.shape[2..y.ndim as usize].iter().product(),
            };
            let of = call.outputs[0].dtype();
            let by_grains =
                goes_by_grains(&params.y, of) && (params.length as usize).is_multiple_of(grain(of));
            let (kernel, count) = match by_grains {
                true => ("add_bias_line", y.numel() / grain(of)),
                false => ("add_bias", y.numel()),
            };
            return call.launch_own(&SOURCE, &defines(call), kernel, count, &params);
        }
        let views = [call.input(0)?, call.input(1)?, y];
        let at = [&call.cx.inputs[0], &call.cx.outputs[0], &call.cx.inputs[1]];
        let (mut params, defines) = Params::new(&self.geometry, call, views, at);
        params.bias = bias;
        call.launch_own(&SOURCE, &defines, "forward", params.y.numel(), &params)
    }
}

impl CudaKernel for ConvInputGrad {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        if by_library(&self.geometry, call, ConvKind::InputGrad)? {
            return Ok(());
        }
        let views = [call.output(0)?, call.input(1)?, call.input(0)?];
        let at = [&call.cx.outputs[0], &call.cx.inputs[0], &call.cx.inputs[1]];
        let (params, defines) = Params::new(&self.geometry, call, views, at);
        call.launch_own(&SOURCE, &defines, "input_grad", params.x.numel(), &params)
    }
}

impl CudaKernel for ConvWeightGrad {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        if by_library(&self.geometry, call, ConvKind::WeightGrad)? {
            return Ok(());
        }
        let views = [call.input(0)?, call.output(0)?, call.input(1)?];
        let at = [&call.cx.inputs[0], &call.cx.inputs[1], &call.cx.outputs[0]];
        let (params, defines) = Params::new(&self.geometry, call, views, at);
        let blocks = [params.w.numel().min(1 << 16) as u32, 1, 1];
        let threads = call.gpu.block();
        call.launch_own_blocks(&SOURCE, &defines, "weight_grad", blocks, threads, &params)
    }
}
