//! Reductions over dims.

use super::OverDims;
use crate::Result;
#[cfg(test)]
use crate::cuda::tests::compiles;
use crate::cuda::view::define;
use crate::cuda::{AXES, CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;
use shard_spec::ReduceOp;

const SOURCE: KernelSource = cuda_source!("reduce", include_str!("reduce.cu"));
#[cfg(test)]
compiles!(
    SOURCE,
    "#define T f32\n#define START T(0)\n#define LIFT(x) x\n#define JOIN(a, b) a + b\n"
);

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    cells: CudaView,
    along: CudaView,
    y: CudaView,
}

/// Cells from which on each thread has one of its own, if they lie side by side.
const COLUMNS: usize = 4096;

impl CudaKernel for OverDims {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (x, y) = (call.input(0)?, call.output(0)?);
        let of = |wanted: bool| {
            let mut view = CudaView {
                ndim: 0,
                shape: [1; AXES],
                strides: [0; AXES],
                ..x
            };
            for d in (0..x.ndim as usize).filter(|d| self.dims.contains(d) == wanted) {
                let at = view.ndim as usize;
                (view.shape[at], view.strides[at]) = (x.shape[d], x.strides[d]);
                view.ndim += 1;
            }
            view
        };
        let (cells, along) = (of(false), of(true));
        let (start, lift, join) = match self.op {
            ReduceOp::Sum => ("T(0)", "x", "a + b"),
            ReduceOp::Prod => ("T(1)", "x", "a * b"),
            ReduceOp::Max => ("T(-INFINITE)", "x", "larger(a, b)"),
            ReduceOp::Min => ("T(INFINITE)", "x", "smaller(a, b)"),
            ReduceOp::Any => ("T(0)", "(x == 0 ? T(0) : T(1))", "larger(a, b)"),
            ReduceOp::All => ("T(1)", "(x == 0 ? T(0) : T(1))", "smaller(a, b)"),
        };
        let dtype = call.outputs[0].dtype();
        let defines = format!(
            "{}#define START {start}\n#define LIFT(x) {lift}\n#define JOIN(a, b) {join}\n",
            define(&[("T", dtype)])
        );
        let params = Params { cells, along, y };
        let count = cells.numel();
        let last = (cells.ndim - 1).max(0) as usize;
        if cells.strides[last] == 1 && count >= COLUMNS {
            return call.launch_own(&SOURCE, &defines, "columns", count, &params);
        }
        let threads = call.gpu.block();
        let blocks = count.min(1 << 16) as u32;
        call.launch_own_blocks(&SOURCE, &defines, "cells", [blocks, 1, 1], threads, &params)
    }
}
