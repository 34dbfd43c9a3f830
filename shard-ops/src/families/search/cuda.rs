//! Places among sorted elements.

use super::Search;
use crate::Result;
use crate::cuda::view::define;
use crate::cuda::{CudaCall, CudaKernel};
use crate::cuda_source;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;
use shard_spec::numel;

const SOURCE: KernelSource = cuda_source!("search", include_str!("search.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[(SOURCE, "#define T f32\n")];

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    sorted: u64,
    values: u64,
    counts: u64,
    n: i64,
    each: i64,
    count: i64,
    right: i64,
}

impl CudaKernel for Search {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let shape = &call.cx.inputs[0].shape;
        let (n, rows) = match shape.split_last() {
            Some((&n, lead)) => (n, lead.iter().product::<usize>()),
            None => (0, 1),
        };
        let count = numel(&call.cx.outputs[0].shape);
        let params = Params {
            sorted: call.dense(0)?,
            values: call.dense(1)?,
            counts: call.output(0)?.data,
            n: n as i64,
            each: (count / rows.max(1)).max(1) as i64,
            count: count as i64,
            right: i64::from(self.right),
        };
        let defines = define(&[("T", call.inputs[1].dtype())]);
        call.launch_own(&SOURCE, &defines, "count_before", count, &params)
    }
}
