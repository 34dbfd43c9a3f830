//! Sorting along a dim.

use super::{MergeRuns, SortRuns, lines};
#[cfg(test)]
use crate::cuda::tests::compiles;
use crate::cuda::view::define;
use crate::cuda::{CudaCall, CudaKernel};
use crate::cuda_source;
use crate::error::InOp;
use crate::{OperandBox, Result};
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;
use shard_comm::{Buffer, DType, Device as _};

const SOURCE: KernelSource = cuda_source!("sort", include_str!("sort.cu"));
#[cfg(test)]
compiles!(SOURCE, "#define T f32\n#define DESCENDING\n");

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    values: u64,
    indices: u64,
    to_values: u64,
    to_indices: u64,
    ends: u64,
    runs: i64,
    lines: i64,
    n: i64,
    after: i64,
    start: i64,
    width: i64,
    from: i64,
    held: i64,
}

impl Params {
    /// The lines of a box, in runs that end so.
    fn new(at: &OperandBox, dim: usize, runs: usize, ends: u64) -> Self {
        let (before, n, after) = lines(&at.shape, dim);
        Self {
            ends,
            runs: runs as i64,
            lines: (before * after) as i64,
            n: n as i64,
            after: after.max(1) as i64,
            start: at.start[dim] as i64,
            ..Self::zeroed()
        }
    }
}

fn upload(call: &CudaCall<'_>, ends: &[usize]) -> Result<Buffer> {
    let ends: Vec<i64> = ends.iter().map(|&e| e as i64).collect();
    (call.gpu)
        .upload(DType::I64, bytemuck::cast_slice(&ends))
        .in_op(call.op)
}

fn defines(op: &SortRuns, dtype: DType) -> String {
    let order = if op.descending {
        "#define DESCENDING\n"
    } else {
        ""
    };
    format!("{}{order}", define(&[("T", dtype)]))
}

impl CudaKernel for SortRuns {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let at = &call.cx.inputs[0];
        let (dtype, len) = (call.outputs[0].dtype(), call.outputs[0].len());
        let ends = self.ends_within(at.start[self.dim], at.shape[self.dim]);
        let longest = ends.iter().scan(0, |from, &end| {
            let len = end - *from;
            *from = end;
            Some(len)
        });
        let longest = longest.max().unwrap_or(0);
        let uploaded = upload(call, &ends)?;
        let address = call.gpu.address(&uploaded).in_op(call.op)?;
        let mut params = Params::new(at, self.dim, ends.len(), address);
        let defines = defines(self, dtype);
        let passes = longest.max(1).next_power_of_two().trailing_zeros();
        let own = [call.output(0)?.data, call.output(1)?.data];
        let (mut values, mut indices) = (call.scratch(dtype, len)?, call.scratch(DType::I64, len)?);
        let other = [
            call.gpu.address_mut(&mut values).in_op(call.op)?,
            call.gpu.address_mut(&mut indices).in_op(call.op)?,
        ];
        // The last pass writes the outputs.
        let turns = [own, other];
        let mut turn = passes as usize % 2;
        params.values = call.input(0)?.data;
        [params.to_values, params.to_indices] = turns[turn];
        call.launch_own(&SOURCE, &defines, "begin", len, &params)?;
        params.width = 1;
        for _ in 0..passes {
            [params.values, params.indices] = turns[turn];
            turn = 1 - turn;
            [params.to_values, params.to_indices] = turns[turn];
            call.launch_own(&SOURCE, &defines, "pass", len, &params)?;
            params.width *= 2;
        }
        Ok(())
    }
}

impl CudaKernel for MergeRuns {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (from, to) = (&call.cx.inputs[0], &call.cx.outputs[0]);
        let (dim, held, start) = (self.0.dim, to.shape[self.0.dim], to.start[self.0.dim]);
        let uploaded = upload(call, &self.0.ends)?;
        let address = call.gpu.address(&uploaded).in_op(call.op)?;
        let params = Params {
            values: call.input(0)?.data,
            indices: call.input(1)?.data,
            from: start as i64,
            held: held as i64,
            ..Params::new(from, dim, self.0.ends.len(), address)
        };
        let params = Params {
            to_values: call.output(0)?.data,
            to_indices: call.output(1)?.data,
            ..params
        };
        let defines = defines(&self.0, call.outputs[0].dtype());
        let count = call.inputs[0].len();
        call.launch_own(&SOURCE, &defines, "merge", count, &params)
    }
}
