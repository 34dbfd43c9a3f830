//! Distances of pairs of points on GPUs.

use super::{Powers, Slopes};
use crate::Result;
use crate::cuda::view::define;
use crate::cuda::{AXES, CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;

const SOURCE: KernelSource = cuda_source!("pairwise", include_str!("pairwise.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[(SOURCE, "#define T f32\n#define ORDER 0\n")];

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    x: CudaView,
    y: CudaView,
    g: CudaView,
    to: CudaView,
    p: f64,
}

impl CudaKernel for Powers {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let to = call.output(0)?;
        let [x, y] = [call.input(0)?, call.input(1)?].map(|view| batched(&view, &to));
        launch(
            call,
            "powers",
            Params {
                x,
                y,
                g: x,
                to,
                p: self.p,
            },
        )
    }
}

impl CudaKernel for Slopes {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let to = call.output(0)?;
        let [x, y, g] = [call.input(0)?, call.input(1)?, call.input(2)?].map(|v| batched(&v, &to));
        launch(
            call,
            "slopes",
            Params {
                x,
                y,
                g,
                to,
                p: self.p,
            },
        )
    }
}

fn launch(call: &mut CudaCall<'_>, name: &'static str, params: Params) -> Result<()> {
    let order = match params.p {
        1.0 => 1,
        2.0 => 2,
        _ => 0,
    };
    let types = define(&[("T", call.outputs[0].dtype())]);
    let defines = format!("{types}#define ORDER {order}\n");
    call.launch_own(&SOURCE, &defines, name, params.to.numel(), &params)
}

/// A view whose leading dims are those of `to`, repeated where it lacks them.
fn batched(view: &CudaView, to: &CudaView) -> CudaView {
    let (own, all) = (view.ndim as usize, to.ndim as usize);
    let front = all - own;
    let mut strides = [0; AXES];
    let mut shape = to.shape;
    for d in 0..own {
        let at = front + d;
        if own - d <= 2 {
            (shape[at], strides[at]) = (view.shape[d], view.strides[d]);
        } else if view.shape[d] == to.shape[at] {
            strides[at] = view.strides[d];
        }
    }
    CudaView {
        ndim: to.ndim,
        shape,
        strides,
        ..*view
    }
}
