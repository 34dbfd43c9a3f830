//! Products of matrices.

use super::view::{define, source};
use super::{CudaCall, CudaKernel, CudaView};
use crate::Result;
use crate::matmul::MatMul;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;

pub(super) const SOURCE: KernelSource = source!("matmul", "matmul.cu");
/// Definitions under which the source compiles.
#[cfg(test)]
pub(super) const EXAMPLE: &str = "#define T f32\n#define TILE 16\n";

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    a: CudaView,
    b: CudaView,
    y: CudaView,
    bias: CudaView,
    batches: i64,
    m: i64,
    n: i64,
    k: i64,
    biased: i64,
}

impl CudaKernel for MatMul {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let y = call.output(0)?;
        let last = y.ndim as usize - 1;
        let (a, [m, k]) = side(&call.input(0)?, self.transpose_a, &y);
        let (b, [_, n]) = side(&call.input(1)?, self.transpose_b, &y);
        let biased = self.bias && call.cx.adds_once;
        let bias = if biased { call.input(2)? } else { y };
        let batches: i64 = y.shape[..last - 1].iter().product();
        let params = Params {
            a,
            b,
            y,
            bias,
            batches,
            m,
            n,
            k,
            biased: i64::from(biased),
        };
        let tile = call.gpu.block().isqrt();
        let defines = format!(
            "{}#define TILE {tile}\n",
            define(&[("T", call.outputs[0].dtype())])
        );
        let tiles = |n: i64| (n as u64).div_ceil(u64::from(tile)) as u32;
        let blocks = [tiles(n), tiles(m), batches.min(1 << 15) as u32];
        call.launch_blocks(&SOURCE, &defines, "matmul", blocks, tile * tile, &params)
    }
}

/// An operand with the batch dims of `y`, its rows and columns last, and how many these are.
fn side(view: &CudaView, transposed: bool, y: &CudaView) -> (CudaView, [i64; 2]) {
    let (r, c) = (view.ndim as usize - 2, view.ndim as usize - 1);
    let (r, c) = if transposed { (c, r) } else { (r, c) };
    let (mut batch, mut batches) = (*view, *y);
    (batch.ndim, batches.ndim) = (view.ndim - 2, y.ndim - 2);
    let last = y.ndim as usize - 1;
    let mut side = batch.broadcast_to(&batches);
    side.ndim = y.ndim;
    side.strides[last - 1] = view.strides[r];
    side.strides[last] = view.strides[c];
    (side, [view.shape[r], view.shape[c]])
}
