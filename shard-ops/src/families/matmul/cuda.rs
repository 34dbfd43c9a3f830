//! Products of matrices on GPUs.

use super::MatMul;
use crate::cuda::view::{define, strided};
use crate::cuda::{CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use crate::error::InOp;
use crate::host::partial_type;
use crate::{OperandBox, Result};
use bytemuck::{Pod, Zeroable};
use shard_comm::Strided;
use shard_comm::cuda::KernelSource;
use shard_spec::{Dims, Strides};

const SOURCE: KernelSource = cuda_source!("matmul", include_str!("matmul.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[(
    SOURCE,
    "#define T bf16\n#define W f32\n#define R f32\n#define TILE 16\n",
)];

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
        let y = strided(&call.cx.outputs[0]);
        let a = side(&call.cx.inputs[0], self.transpose_a, &y);
        let b = side(&call.cx.inputs[1], self.transpose_b, &y);
        let biased = self.bias && call.cx.adds_once;
        multiply(call, &a, &b, &y, biased.then_some(2))
    }
}

/// `y = a b` of batches of matrices, the last two dims; `bias` is the number of an input that is added to every row.
pub(in crate::families) fn multiply(
    call: &mut CudaCall<'_>,
    a: &Strided,
    b: &Strided,
    y: &Strided,
    bias: Option<usize>,
) -> Result<()> {
    let (of, to) = (call.inputs[0].dtype(), call.outputs[0].dtype());
    // Of terms of a sum, which are `f32`, the bias is `f32` too.
    let bias = match bias {
        Some(i) => Some(call.converted(i, to)?),
        None => None,
    };
    if call.policy.libraries {
        let bias = bias.as_ref().map(|(bias, view)| (bias, view));
        let (left, right) = ((&call.inputs[0], a), (&call.inputs[1], b));
        let into = (&mut call.outputs[0], y);
        let did = (call.gpu).matmul(left, right, bias, into, call.policy.precision);
        if call.by_library(did.in_op(call.op)?) {
            return Ok(());
        }
    }
    let last = y.ndim() - 1;
    let into = call.output_as(0, y)?;
    let params = Params {
        a: call.input_as(0, a)?,
        b: call.input_as(1, b)?,
        y: into,
        bias: match &bias {
            Some((bias, view)) => {
                let address = call.gpu.address(bias).in_op(call.op)?;
                CudaView::new(call.op, address, to, view)?
            }
            None => into,
        },
        batches: y.shape[..last - 1].iter().product::<usize>() as i64,
        m: into.shape[last - 1],
        n: into.shape[last],
        k: a.shape[last] as i64,
        biased: i64::from(bias.is_some()),
    };
    let tile = call.gpu.block().isqrt();
    let defines = format!(
        "{}#define TILE {tile}\n",
        define(&[("T", of), ("W", partial_type(to)), ("R", to)])
    );
    let tiles = |n: i64| (n as u64).div_ceil(u64::from(tile)) as u32;
    let batches = params.batches.min(1 << 15) as u32;
    let blocks = [tiles(params.n), tiles(params.m), batches];
    call.launch_own_blocks(&SOURCE, &defines, "matmul", blocks, tile * tile, &params)
}

/// An operand with the batch dims of `y`, its rows and columns last.
fn side(at: &OperandBox, transposed: bool, y: &Strided) -> Strided {
    let (batch, own) = (y.ndim() - 2, at.shape.len() - 2);
    let mut shape: Dims = y.shape[..batch].into();
    let mut strides = Strides::from_elem(0, batch);
    for d in 0..own {
        let to = batch - own + d;
        if at.shape[d] == shape[to] {
            strides[to] = at.strides[d];
        }
    }
    let (r, c) = if transposed {
        (own + 1, own)
    } else {
        (own, own + 1)
    };
    shape.extend([at.shape[r], at.shape[c]]);
    strides.extend([at.strides[r], at.strides[c]]);
    Strided::new(at.offset, shape, strides)
}
