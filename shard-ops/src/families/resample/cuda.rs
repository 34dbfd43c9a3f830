//! Interpolation and its adjoint on GPUs.

use super::Interpolate;
use crate::Result;
use crate::cuda::source::WINDOWS;
use crate::cuda::view::define;
use crate::cuda::windows::lift;
use crate::cuda::{CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use crate::error::InOp;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;
use shard_comm::{DType, Device};
use shard_kernels::resample::Table;

const SOURCE: KernelSource = cuda_source!("resample", WINDOWS, include_str!("resample.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[(SOURCE, "#define T f32\n")];

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    x: CudaView,
    y: CudaView,
    starts: u64,
    index: u64,
    weight: u64,
    first: [i64; 3],
}

impl CudaKernel for Interpolate {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (x, y) = (lift(&call.input(0)?), lift(&call.output(0)?));
        let tables = self.tables(&call.cx.inputs[0], &call.cx.outputs[0]);
        let one = Table::from_rows([[(0, 1.0)]]);
        let missing = 3 - tables.len();
        // The three tables, joined into one.
        let (mut starts, mut index, mut weight) = (vec![0_i64], Vec::new(), Vec::new());
        let mut first = [0; 3];
        for (d, first) in first.iter_mut().enumerate() {
            let table = d.checked_sub(missing).map_or(&one, |d| &tables[d]);
            *first = starts.len() as i64 - 1;
            for r in 0..table.rows() {
                for (i, w) in table.row(r) {
                    index.push(i as i64);
                    weight.push(w);
                }
                starts.push(index.len() as i64);
            }
        }
        let up = |dtype, bytes: &[u8]| call.gpu.upload(dtype, bytes).in_op(call.op);
        let starts = up(DType::I64, bytemuck::cast_slice(&starts))?;
        let index = up(DType::I64, bytemuck::cast_slice(&index))?;
        let weight = up(DType::F64, bytemuck::cast_slice(&weight))?;
        let address = |buffer| call.gpu.address(buffer).in_op(call.op);
        let params = Params {
            x,
            y,
            starts: address(&starts)?,
            index: address(&index)?,
            weight: address(&weight)?,
            first,
        };
        let defines = define(&[("T", call.outputs[0].dtype())]);
        call.launch_own(&SOURCE, &defines, "resample", y.numel(), &params)
    }
}
