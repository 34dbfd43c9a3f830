//! Pools and their gradients on GPUs.

use super::{AvgPool, Divide, Geometry, MaxPool, MaxPoolGrad, MaxPoolPick};
use crate::cuda::source::WINDOWS;
use crate::cuda::view::define;
use crate::cuda::windows::{Meeting, lift, lifted};
use crate::cuda::{CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use crate::{OperandBox, Result};
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;

const SOURCE: KernelSource = cuda_source!("pool", WINDOWS, include_str!("pool.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[(SOURCE, "#define T f32\n")];

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    x: CudaView,
    y: CudaView,
    index: CudaView,
    window: Meeting,
    start: [i64; 3],
    plane: [i64; 3],
    out_start: [i64; 3],
    pad: [i64; 3],
    outputs: [i64; 3],
    fixed: f64,
    include_pad: i64,
}

impl Geometry {
    /// The kernel for adaptive windows, or that for others.
    fn pick(&self, adaptive: &'static str, other: &'static str) -> &'static str {
        match self.adaptive {
            Some(_) => adaptive,
            None => other,
        }
    }
}

impl Params {
    /// The views and boxes of the input side and of the output side.
    fn new(
        geometry: &Geometry,
        [x, y, index]: [CudaView; 3],
        x_at: &OperandBox,
        y_at: &OperandBox,
    ) -> Self {
        let dims = |of: &[usize], missing| {
            lifted(&of.iter().map(|&n| n as i64).collect::<Vec<_>>(), missing)
        };
        Self {
            x: lift(&x),
            y: lift(&y),
            index: lift(&index),
            window: Meeting::new(&geometry.kernel, &geometry.local(x_at, y_at)),
            start: dims(&x_at.start[2..], 0),
            plane: dims(&geometry.input, 1),
            out_start: dims(&y_at.start[2..], 0),
            pad: dims(&geometry.padding, 0),
            outputs: dims(geometry.adaptive.as_deref().unwrap_or(&[]), 1),
            fixed: 1.0,
            include_pad: 0,
        }
    }

    fn dividing(mut self, divide: Divide) -> Self {
        self.fixed = divide.fixed.map_or(0.0, |by| by as f64);
        self.include_pad = i64::from(divide.include_pad);
        self
    }

    fn launch(&self, call: &CudaCall<'_>, name: &str, count: usize) -> Result<()> {
        let defines = define(&[("T", call.outputs[0].dtype())]);
        call.launch_own(&SOURCE, &defines, name, count, self)
    }
}

impl CudaKernel for MaxPool {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let views = [call.input(0)?, call.output(0)?, call.output(1)?];
        let (x_at, y_at) = (&call.cx.inputs[0], &call.cx.outputs[0]);
        let params = Params::new(&self.geometry, views, x_at, y_at);
        let name = self.geometry.pick("adaptive_max_pool", "max_pool");
        params.launch(call, name, params.y.numel())
    }
}

impl CudaKernel for MaxPoolGrad {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let views = [call.output(0)?, call.input(0)?, call.input(1)?];
        let (x_at, y_at) = (&call.cx.outputs[0], &call.cx.inputs[0]);
        let params = Params::new(&self.geometry, views, x_at, y_at);
        let name = self
            .geometry
            .pick("adaptive_max_pool_grad", "max_pool_grad");
        params.launch(call, name, params.x.numel())
    }
}

impl CudaKernel for MaxPoolPick {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let views = [call.input(0)?, call.output(0)?, call.input(1)?];
        let (x_at, y_at) = (&call.cx.inputs[0], &call.cx.outputs[0]);
        let params = Params::new(&self.geometry, views, x_at, y_at);
        params.launch(call, "pick", params.y.numel())
    }
}

impl CudaKernel for AvgPool {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (from, to) = (call.input(0)?, call.output(0)?);
        let (name, [x, y]) = match self.adjoint {
            true => ("avg_pool_grad", [to, from]),
            false => ("avg_pool", [from, to]),
        };
        let [x_at, y_at] = self.sides(call.cx);
        let params = Params::new(&self.geometry, [x, y, y], x_at, y_at).dividing(self.divide);
        params.launch(call, name, to.numel())
    }
}
