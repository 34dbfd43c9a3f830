//! Reductions over dims.

use super::OverDims;
use crate::Result;
use crate::cuda::view::define;
use crate::cuda::{CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use crate::families::elementwise::as_number;
use bytemuck::{Pod, Zeroable};
use shard_comm::DType;
use shard_comm::cuda::KernelSource;
use shard_spec::ReduceOp;

const SOURCE: KernelSource = cuda_source!("reduce", include_str!("reduce.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[(
    SOURCE,
    "#define T f32\n#define W f32\n#define R f32\n#define START W(0)\n#define LIFT(x) x\n#define LOWER(x) x\n\
     #define JOIN(a, b) a + b\n",
)];

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
        let (cells, along) = x.split(&self.dims);
        let (of, to) = (call.inputs[0].dtype(), call.outputs[0].dtype());
        let defines = self.defines(of, to);
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

impl OverDims {
    /// The monoid on a type, in CUDA's language. Whole numbers are reduced as `i64`, which holds them all.
    fn defines(&self, of: DType, to: DType) -> String {
        let whole = self.truths || !of.is_float();
        let (start, join) = match (self.op, whole) {
            (ReduceOp::Sum, true) => ("0", "(W)((u64)(a) + (u64)(b))"),
            (ReduceOp::Prod, true) => ("1", "(W)((u64)(a) * (u64)(b))"),
            (ReduceOp::Max | ReduceOp::Any, true) => ("(W)(1ull << 63)", "larger(a, b)"),
            (ReduceOp::Min | ReduceOp::All, true) => ("(W)(~0ull >> 1)", "smaller(a, b)"),
            (ReduceOp::Sum, false) => ("W(0)", "a + b"),
            (ReduceOp::Prod, false) => ("W(1)", "a * b"),
            (ReduceOp::Max | ReduceOp::Any, false) => ("W(-INFINITE)", "larger(a, b)"),
            (ReduceOp::Min | ReduceOp::All, false) => ("W(INFINITE)", "smaller(a, b)"),
        };
        let lift = match self.truths || of == DType::Bool {
            true => "(x != 0 ? W(1) : W(0))",
            false => "x",
        };
        // Of nothing, an extreme is the end of the result's type.
        let lower = match (self.op, to) {
            (ReduceOp::Sum | ReduceOp::Prod, _) => "(R)(w)".to_owned(),
            (_, DType::Bool) => "(R)(w > 0)".to_owned(),
            (_, DType::U8) => "(R)(w < 0 ? 0 : w > 255 ? 255 : w)".to_owned(),
            (_, DType::I32) => {
                let (least, most) = (i32::MIN, i32::MAX);
                format!("(R)(w < {least}ll ? {least}ll : w > {most}ll ? {most}ll : w)")
            }
            _ => "(R)(w)".to_owned(),
        };
        let wide = if whole { DType::I64 } else { of };
        let types = define(&[("T", as_number(of)), ("W", wide), ("R", as_number(to))]);
        format!(
            "{types}#define START {start}\n#define LIFT(x) {lift}\n#define LOWER(w) {lower}\n#define JOIN(a, b) {join}\n"
        )
    }
}
