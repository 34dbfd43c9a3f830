//! Softmax on GPUs.

use super::{Softmax, SoftmaxGrad};
use crate::Result;
use crate::cuda::parts::{are_short, launch_teams};
use crate::cuda::view::define;
use crate::cuda::{AXES, CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use crate::host::partial_type;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;

const SOURCE: KernelSource = cuda_source!("softmax", include_str!("softmax.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] =
    &[(SOURCE, "#define S bf16\n#define T f32\n#define R bf16\n")];

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

/// Cells and their elements, of what is read and of what is written.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RowParams {
    x: [CudaView; 2],
    y: [CudaView; 2],
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RowGradParams {
    y: [CudaView; 2],
    dy: [CudaView; 2],
    dx: [CudaView; 2],
}

fn defines(log: bool, call: &CudaCall<'_>) -> String {
    let log = if log { "#define LOG\n" } else { "" };
    let (of, to) = (call.inputs[0].dtype(), call.outputs[0].dtype());
    let types = define(&[("S", of), ("T", partial_type(of)), ("R", to)]);
    format!("{log}{types}")
}

impl Softmax {
    /// Rows, and their elements.
    fn split(&self, view: &CudaView) -> [CudaView; 2] {
        let (rows, elements) = view.split(&self.dims);
        [rows.merged(), elements.merged()]
    }

    /// Queues a kernel with a team for each row.
    fn launch_rows<P: Pod>(
        &self,
        call: &CudaCall<'_>,
        name: &str,
        [rows, elements]: [CudaView; 2],
        params: &P,
    ) -> Result<()> {
        let defines = defines(self.log, call);
        let lanes = are_short(call.gpu, elements.numel());
        launch_teams(call, &SOURCE, &defines, name, rows.numel(), lanes, params)
    }
}

impl CudaKernel for Softmax {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        if self.rows {
            let [x, y] = [call.input(0)?, call.output(0)?].map(|v| self.split(&v));
            let params = RowParams { x, y };
            return self.launch_rows(call, "softmax_rows", x, &params);
        }
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
        let defines = defines(self.log, call);
        let params = Params {
            x: x.merged(),
            pairs: pairs.merged(),
            y: y.merged(),
        };
        call.launch_own(&SOURCE, &defines, "softmax", y.numel(), &params)
    }
}

impl CudaKernel for SoftmaxGrad {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (y, dy, dx) = (call.input(0)?, call.input(1)?, call.output(0)?);
        if self.0.rows {
            let [y, dy, dx] = [y, dy, dx].map(|v| self.0.split(&v));
            let params = RowGradParams { y, dy, dx };
            return self.0.launch_rows(call, "softmax_rows_grad", y, &params);
        }
        let sums = call.input(2)?.broadcast_to(&dx);
        let defines = defines(self.0.log, call);
        let [y, dy, sums, dx] = [y, dy, sums, dx].map(|v| v.merged());
        let params = GradParams { y, dy, sums, dx };
        call.launch_own(&SOURCE, &defines, "softmax_grad", dx.numel(), &params)
    }
}
