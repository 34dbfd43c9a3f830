//! Steps of optimizers on GPUs.

use super::{Step, Update};
use crate::Result;
#[cfg(test)]
use crate::cuda::tests::compiles;
use crate::cuda::view::define;
use crate::cuda::{CudaCall, CudaKernel};
use crate::cuda_source;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;

const SOURCE: KernelSource = cuda_source!("optimize", include_str!("optimize.cu"));
#[cfg(test)]
compiles!(SOURCE, "#define T f32\n#define ADAMW\n");

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    old: [u64; 4],
    new: [u64; 3],
    count: i64,
    first: i64,
    numbers: [f64; 6],
}

impl CudaKernel for Step {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (mut old, mut new) = ([0; 4], [0; 3]);
        for (i, address) in old.iter_mut().enumerate().take(call.inputs.len()) {
            *address = call.dense(i)?;
        }
        for (o, address) in new.iter_mut().enumerate().take(call.outputs.len()) {
            *address = call.output(o)?.data;
        }
        let (name, first, numbers) = match self.0 {
            Update::Sgd {
                rate,
                momentum,
                decay,
                first,
            } => ("SGD", first, [rate, momentum, decay, 0.0, 0.0, 0.0]),
            Update::AdamW {
                keep,
                betas: [beta1, beta2],
                size,
                root,
                eps,
            } => ("ADAMW", false, [keep, beta1, beta2, size, root, eps]),
        };
        let count = call.input(0)?.numel();
        let params = Params {
            old,
            new,
            count: count as i64,
            first: i64::from(first),
            numbers,
        };
        let defines = format!(
            "{}#define {name}\n",
            define(&[("T", call.outputs[0].dtype())])
        );
        call.launch_own(&SOURCE, &defines, "step", count, &params)
    }
}
