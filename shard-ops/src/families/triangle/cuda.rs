//! Triangles and diagonals.

use super::{Diagonal, Embed, Triangle};
use crate::cuda::kept::{Lists, Positions};
use crate::cuda::source::POSITIONS;
use crate::cuda::{CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use crate::families::elementwise::unsigned;
use crate::{OperandBox, Result};
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;

const SOURCE: KernelSource = cuda_source!("triangle", POSITIONS, include_str!("triangle.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[(SOURCE, "#define T u16\n")];

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    x: CudaView,
    y: CudaView,
    rows: Positions,
    columns: Positions,
    height: i64,
    width: i64,
    diagonal: i64,
    upper: i64,
}

/// Launches a kernel that tells elements by the positions of rows and columns, which are those of the matrices' box.
fn launch(
    call: &mut CudaCall<'_>,
    name: &str,
    at: &OperandBox,
    diagonal: i64,
    upper: bool,
) -> Result<()> {
    let (x, y) = (call.input(0)?, call.output(0)?);
    let n = at.shape.len();
    let mut lists = Lists::default();
    // Distances are between positions in memory, so no diagonal lies further away than this.
    let furthest = i64::MAX / 2;
    let params = Params {
        x,
        y,
        rows: lists.positions(call, &at.held[n - 2])?,
        columns: lists.positions(call, &at.held[n - 1])?,
        height: at.shape[n - 2] as i64,
        width: at.shape[n - 1] as i64,
        diagonal: diagonal.clamp(-furthest, furthest),
        upper: upper.into(),
    };
    let defines = format!("#define T {}\n", unsigned(call.outputs[0].dtype().size()));
    call.launch_own(&SOURCE, &defines, name, y.numel(), &params)
}

impl CudaKernel for Triangle {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let at = call.cx.outputs[0].clone();
        launch(call, "triangle", &at, self.diagonal, self.upper)
    }
}

impl CudaKernel for Embed {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let at = call.cx.outputs[0].clone();
        launch(call, "embed", &at, 0, false)
    }
}

impl CudaKernel for Diagonal {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let at = call.cx.inputs[0].clone();
        launch(call, "take", &at, 0, false)
    }
}
