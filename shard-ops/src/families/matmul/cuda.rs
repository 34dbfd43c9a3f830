//! Products of matrices on GPUs.

use super::MatMul;
use crate::cuda::view::define;
use crate::cuda::{CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use crate::error::InOp;
use crate::{OpError, Result};
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;
use shard_comm::{Buffer, DType, Device, Strided};
use shard_spec::{Dims, Strides};
use smallvec::smallvec;

const SOURCE: KernelSource = cuda_source!("matmul", include_str!("matmul.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[
    (
        SOURCE,
        "#define T bf16\n#define W f32\n#define R f32\n#define TILE 16\n",
    ),
    (
        SOURCE,
        "#define T u8\n#define W u32\n#define R u8\n#define TILE 16\n",
    ),
];

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
        let y = call.cx.outputs[0].strided();
        let a = self.operand(call, 0, &y)?;
        let b = self.operand(call, 1, &y)?;
        let biased = self.bias && call.cx.adds_once;
        multiply(call, [(&a.0, &a.1), (&b.0, &b.1)], &y, biased.then_some(2))
    }
}

impl MatMul {
    /// An operand, rows and columns last, with the batch dims of `y`. Dims that are summed are a part of the contraction: in a copy, if
    /// it does not lie so.
    fn operand(&self, call: &CudaCall<'_>, i: usize, y: &Strided) -> Result<(Buffer, Strided)> {
        let mut at = call.cx.inputs[i].strided();
        let last = at.ndim() - 1;
        if [self.transpose_a, self.transpose_b][i] {
            at.shape.swap(last - 1, last);
            at.strides.swap(last - 1, last);
        }
        // Columns of the left operand, rows of the right one.
        let inner = last - i;
        let buffer = call.inputs[i].clone();
        if let Some(at) = in_contraction(&at, self.sums, inner) {
            return Ok((buffer, side(&at, y)));
        }
        // Then it does in this order: batch dims, the other side, sums, contraction.
        let outer = (self.sums..=last).filter(|&d| d != inner);
        let order: Dims = outer.chain(0..self.sums).chain([inner]).collect();
        let from = permuted(&at, &order);
        let dense = Strided::contiguous(&from.shape);
        let mut copy = call.scratch(buffer.dtype(), dense.numel())?;
        (call.gpu.copy(&buffer, &from, &mut copy, &dense)).in_op(call.op)?;
        let mut back: Dims = smallvec![0; order.len()];
        for (to, &d) in order.iter().enumerate() {
            back[d] = to;
        }
        let at = in_contraction(&permuted(&dense, &back), self.sums, inner);
        at.map(|at| (copy.freeze(), side(&at, y)))
            .ok_or_else(|| OpError::Shape {
                op: call.op,
                problem: "its sums are not a part of the contraction".into(),
                shapes: vec![from.shape.to_vec()],
                fix: "let the engine fall back to the host",
            })
    }
}

/// The view without its first dims, which dim `inner` has instead, if they lie so.
fn in_contraction(at: &Strided, sums: usize, inner: usize) -> Option<Strided> {
    let (mut shape, mut strides) = (at.shape.clone(), at.strides.clone());
    // Nothing lies anywhere.
    let is_empty = at.numel() == 0;
    for d in (0..sums).rev().filter(|&d| at.shape[d] != 1) {
        match shape[inner] {
            _ if is_empty => {}
            1 => strides[inner] = at.strides[d],
            n if at.strides[d] == strides[inner] * n as isize => {}
            _ => return None,
        }
        shape[inner] *= at.shape[d];
    }
    Some(Strided::new(
        at.offset,
        shape[sums..].into(),
        strides[sums..].into(),
    ))
}

fn permuted(at: &Strided, order: &[usize]) -> Strided {
    let shape = order.iter().map(|&d| at.shape[d]).collect();
    let strides = order.iter().map(|&d| at.strides[d]).collect();
    Strided::new(at.offset, shape, strides)
}

/// `y = a b` of batches of matrices, the last two dims; `bias` is the number of an input that is added to every row.
pub(in crate::families) fn multiply(
    call: &mut CudaCall<'_>,
    [a, b]: [(&Buffer, &Strided); 2],
    y: &Strided,
    bias: Option<usize>,
) -> Result<()> {
    let (of, to) = (a.0.dtype(), call.outputs[0].dtype());
    // Of terms of a sum, which are `f32`, the bias is `f32` too.
    let bias = match bias {
        Some(i) => Some(call.converted(i, to)?),
        None => None,
    };
    if call.policy.libraries {
        let bias = bias.as_ref().map(|(bias, view)| (bias, view));
        let into = (&mut call.outputs[0], y);
        let did = (call.gpu).matmul(a, b, bias, into, call.policy.precision);
        if call.by_library(did.in_op(call.op)?) {
            return Ok(());
        }
    }
    let last = y.ndim() - 1;
    let into = call.output_as(0, y)?;
    let viewed = |(buffer, view): (&Buffer, &Strided)| {
        let address = call.gpu.address(buffer).in_op(call.op)?;
        CudaView::new(call.op, address, buffer.dtype(), view)
    };
    let params = Params {
        a: viewed(a)?,
        b: viewed(b)?,
        y: into,
        bias: match &bias {
            Some((bias, view)) => viewed((bias, view))?,
            None => into,
        },
        batches: y.shape[..last - 1].iter().product::<usize>() as i64,
        m: into.shape[last - 1],
        n: into.shape[last],
        k: a.1.shape[last] as i64,
        biased: i64::from(bias.is_some()),
    };
    let tile = call.gpu.block().isqrt();
    let defines = format!(
        "{}#define W {}\n#define TILE {tile}\n",
        define(&[("T", of), ("R", to)]),
        sums_in(to)
    );
    let tiles = |n: i64| (n as u64).div_ceil(u64::from(tile)) as u32;
    let batches = params.batches.min(1 << 15) as u32;
    let blocks = [tiles(params.n), tiles(params.m), batches];
    call.launch_own_blocks(&SOURCE, &defines, "matmul", blocks, tile * tile, &params)
}

/// The type of the arithmetic. Integers wrap: it is done without signs, and not in types that are widened to signed ones.
fn sums_in(dtype: DType) -> &'static str {
    match dtype {
        DType::I64 => "u64",
        DType::I32 | DType::U8 | DType::Bool => "u32",
        DType::F64 => "f64",
        DType::F32 | DType::F16 | DType::BF16 => "f32",
    }
}

/// An operand with the batch dims of `y`, its rows and columns last.
fn side(at: &Strided, y: &Strided) -> Strided {
    let (batch, own) = (y.ndim() - 2, at.ndim() - 2);
    let mut shape: Dims = y.shape[..batch].into();
    let mut strides = Strides::from_elem(0, batch);
    for d in 0..own {
        let to = batch - own + d;
        if at.shape[d] == shape[to] {
            strides[to] = at.strides[d];
        }
    }
    shape.extend_from_slice(&at.shape[own..]);
    strides.extend_from_slice(&at.strides[own..]);
    Strided::new(at.offset, shape, strides)
}
