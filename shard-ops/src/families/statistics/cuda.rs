//! States of cells on GPUs.

use super::states::{States, StatesGrad};
use crate::Result;
use crate::cuda::view::define;
use crate::cuda::{AXES, CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use crate::families::elementwise::as_number;
use crate::host::is_whole;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;
use shard_comm::{DType, Monoid};

const SOURCE: KernelSource = cuda_source!("statistics", include_str!("statistics.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] =
    &[(SOURCE, "#define T f32\n#define W f64\n#define KIND 0\n")];

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    cells: CudaView,
    along: CudaView,
    numbers: CudaView,
    y: u64,
    first: i64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct GradParams {
    x: CudaView,
    states: CudaView,
    dy: CudaView,
    y: CudaView,
}

/// Cells from which on each thread has one of its own, if they lie side by side.
const COLUMNS: usize = 4096;

impl States {
    fn defines(&self, of: DType) -> String {
        let whole = is_whole(of);
        let wide = if whole { DType::I64 } else { DType::F64 };
        let least = "(W)(1ull << 63)";
        let most = "(W)(~0ull >> 1)";
        let (kind, none) = match (self.monoid, whole) {
            (Monoid::Moments, _) => (0, "0"),
            (Monoid::MaxSumExp, _) => (1, "0"),
            (Monoid::ArgMin, true) => (3, most),
            (Monoid::ArgMin, false) => (3, "INFINITE"),
            (_, true) => (2, least),
            (_, false) => (2, "-INFINITE"),
        };
        let end = if whole { most } else { "INFINITE" };
        let types = define(&[("T", as_number(of)), ("W", wide)]);
        format!("{types}#define KIND {kind}\n#define NONE {none}\n#define END {end}\n")
    }

    /// A view of the operand's states with the dims of the operand: steps of 0 along those of cells.
    fn beside(&self, x: &CudaView, states: &CudaView) -> CudaView {
        let mut view = CudaView {
            data: states.data,
            strides: [0; AXES],
            ..*x
        };
        let kept = (0..x.ndim as usize).filter(|d| !self.dims.contains(d));
        for (k, d) in kept.enumerate() {
            view.strides[d] = states.strides[k];
        }
        view
    }
}

impl CudaKernel for States {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let x = call.input(0)?;
        let (cells, along) = x.split(&self.dims);
        let (first, steps) = self.indices(&call.cx.inputs[0]);
        let mut numbers = along;
        for (to, step) in numbers.strides.iter_mut().zip(steps) {
            *to = step as i64;
        }
        let y = call.output(0)?.data;
        let params = Params {
            cells,
            along,
            numbers,
            y,
            first,
        };
        let defines = self.defines(call.inputs[0].dtype());
        let count = cells.numel();
        let last = (cells.ndim - 1).max(0) as usize;
        if cells.strides[last] == 1 && count >= COLUMNS {
            return call.launch_own(&SOURCE, &defines, "columns", count, &params);
        }
        let (threads, blocks) = (call.gpu.block(), count.min(1 << 16) as u32);
        call.launch_own_blocks(&SOURCE, &defines, "cells", [blocks, 1, 1], threads, &params)
    }
}

impl CudaKernel for StatesGrad {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (x, y) = (call.input(0)?, call.output(0)?);
        let params = GradParams {
            x,
            states: self.0.beside(&x, &call.input(1)?),
            dy: self.0.beside(&x, &call.input(2)?),
            y,
        };
        let defines = self.0.defines(call.inputs[0].dtype());
        call.launch_own(&SOURCE, &defines, "states_grad", y.numel(), &params)
    }
}
