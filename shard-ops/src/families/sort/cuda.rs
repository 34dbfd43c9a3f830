//! Sorting along a dim.

use super::{MergeRuns, SortRuns, lines};
use crate::cuda::view::define;
use crate::cuda::{CudaCall, CudaKernel};
use crate::cuda_source;
use crate::error::InOp;
use crate::{OperandBox, Result};
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;
use shard_comm::{Buffer, DType, Device as _};

const SOURCE: KernelSource = cuda_source!("sort", include_str!("sort.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] =
    &[(SOURCE, "#define T f32\n#define DESCENDING\n")];

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
    to_ends: u64,
    first: i64,
    to_n: i64,
    cuts: u64,
    read_values: u64,
    read_indices: u64,
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

fn defines(descending: bool, dtype: DType) -> String {
    let order = if descending {
        "#define DESCENDING\n"
    } else {
        ""
    };
    format!("{}{order}", define(&[("T", dtype)]))
}

impl CudaKernel for SortRuns {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let at = &call.cx.inputs[0];
        let (dtype, len) = (call.outputs[0].dtype(), call.inputs[0].len());
        let runs = self.within(at.start[self.dim], at.shape[self.dim]);
        let ends: Vec<usize> = runs.iter().map(|run| run.end).collect();
        let longest = runs.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        let kept: Vec<usize> = (runs.iter())
            .scan(0, |end, run| {
                *end += run.len().min(self.first);
                Some(*end)
            })
            .collect();
        let (uploaded, to_ends) = (upload(call, &ends)?, upload(call, &kept)?);
        let address = call.gpu.address(&uploaded).in_op(call.op)?;
        let mut params = Params::new(at, self.dim, ends.len(), address);
        (params.first, params.to_n, params.to_ends) = (params.n, params.n, address);
        let last = Params {
            first: self.first.min(params.n as usize) as i64,
            to_n: call.cx.outputs[0].shape[self.dim] as i64,
            to_ends: call.gpu.address(&to_ends).in_op(call.op)?,
            ..params
        };
        let defines = defines(self.descending, dtype);
        let passes = longest.max(1).next_power_of_two().trailing_zeros();
        // Passes take turns in writing the outputs and memory beside them; where not all elements are kept, only the last has room there.
        let turns = passes.min(if last.to_n == params.n { 1 } else { 2 });
        let mut scratch = Vec::new();
        for _ in 0..turns {
            let (mut values, mut indices) =
                (call.scratch(dtype, len)?, call.scratch(DType::I64, len)?);
            let place = [
                call.gpu.address_mut(&mut values).in_op(call.op)?,
                call.gpu.address_mut(&mut indices).in_op(call.op)?,
            ];
            scratch.push((place, values, indices));
        }
        let own = [call.output(0)?.data, call.output(1)?.data];
        let to = |pass: u32| match (passes - pass, turns) {
            (0, _) => own,
            (left, 1) if left % 2 == 0 => own,
            (left, turns) => scratch[(left % turns) as usize].0,
        };
        for pass in 0..=passes {
            let bounds = if pass == passes { last } else { params };
            let [values, indices] = match pass {
                0 => [call.input(0)?.data, 0],
                _ => to(pass - 1),
            };
            let [to_values, to_indices] = to(pass);
            let params = Params {
                values,
                indices,
                to_values,
                to_indices,
                width: if pass == 0 { 0 } else { 1 << (pass - 1) },
                ..bounds
            };
            let kernel = if pass == 0 { "begin" } else { "pass" };
            call.launch_own(&SOURCE, &defines, kernel, len, &params)?;
        }
        Ok(())
    }
}

impl CudaKernel for MergeRuns {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (from, to) = (&call.cx.inputs[1], &call.cx.outputs[0]);
        let (held, start) = (to.shape[self.dim], self.from + to.start[self.dim]);
        let uploaded = upload(call, &self.ends)?;
        let address = call.gpu.address(&uploaded).in_op(call.op)?;
        let params = Params {
            values: call.input(1)?.data,
            indices: call.input(2)?.data,
            to_values: call.output(0)?.data,
            to_indices: call.output(1)?.data,
            from: start as i64,
            held: held as i64,
            ..Params::new(from, self.dim, self.ends.len(), address)
        };
        let defines = defines(self.descending, call.outputs[0].dtype());
        // Where all runs are at hand there are no cuts.
        let (kernel, count, params) = match call.inputs[0].is_empty() {
            true => ("merge", call.inputs[1].len(), params),
            false => {
                let cut = Params {
                    cuts: call.input(0)?.data,
                    read_values: call.input(3)?.data,
                    read_indices: call.input(4)?.data,
                    ..params
                };
                ("merge_parts", call.outputs[0].len(), cut)
            }
        };
        call.launch_own(&SOURCE, &defines, kernel, count, &params)
    }
}
