//! Steps of optimizers on GPUs.

use super::powers::PowerSum;
use super::{Adam, Sgd, Step, Update};
use crate::Result;
use crate::cuda::view::define;
use crate::cuda::{CudaCall, CudaKernel};
use crate::cuda_source;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;

const SOURCE: KernelSource = cuda_source!("optimize", include_str!("optimize.cu"));
/// What tests compile its texts for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[
    (SOURCE, "#define T f32\n#define ADAM\n#define AMSGRAD\n"),
    (
        SOURCE,
        "#define T f32\n#define RMS_PROP\n#define MOMENTUM\n#define CENTERED\n",
    ),
    (
        POWERS,
        "#define T f32\n#define TERM(x) (x * x)\n#define JOIN(a, b) (a + b)\n",
    ),
];

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    old: [u64; 5],
    new: [u64; 4],
    count: i64,
    numbers: [f64; 8],
}

impl CudaKernel for Step {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (mut old, mut new) = ([0; 5], [0; 4]);
        for (i, address) in old.iter_mut().enumerate().take(call.inputs.len()) {
            *address = call.dense(i)?;
        }
        for (o, address) in new.iter_mut().enumerate().take(call.outputs.len()) {
            *address = call.output(o)?.data;
        }
        let name = match self.0 {
            Update::Sgd(Sgd { momentum: 0.0, .. }) => "SGD",
            Update::Sgd(_) => "SGD\n#define MOMENTUM",
            Update::Adam(Adam { amsgrad: false, .. }) => "ADAM",
            Update::Adam(_) => "ADAM\n#define AMSGRAD",
            Update::NAdam(_) => "NADAM",
            Update::RAdam(_) => "RADAM",
            Update::Adamax(_) => "ADAMAX",
            Update::Lion(_) => "LION",
            Update::RmsProp(step) => match (step.momentum != 0.0, step.centered) {
                (false, false) => "RMS_PROP",
                (true, false) => "RMS_PROP\n#define MOMENTUM",
                (false, true) => "RMS_PROP\n#define CENTERED",
                (true, true) => "RMS_PROP\n#define MOMENTUM\n#define CENTERED",
            },
            Update::Adagrad(_) => "ADAGRAD",
            Update::Adadelta(_) => "ADADELTA",
            Update::Rprop(_) => "RPROP",
            Update::Asgd(_) => "ASGD",
            Update::Average { .. } => "AVERAGE",
        };
        let count = call.input(0)?.numel();
        let params = Params {
            old,
            new,
            count: count as i64,
            numbers: self.0.numbers(),
        };
        let defines = format!(
            "{}#define {name}\n",
            define(&[("T", call.outputs[0].dtype())])
        );
        call.launch_own(&SOURCE, &defines, "step", count, &params)
    }
}

const POWERS: KernelSource = cuda_source!("powers", include_str!("powers.cu"));

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct PowersParams {
    x: u64,
    y: u64,
    count: i64,
    order: f64,
}

impl CudaKernel for PowerSum {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let params = PowersParams {
            x: call.dense(0)?,
            y: call.output(0)?.data,
            count: call.input(0)?.numel() as i64,
            order: self.0,
        };
        let term = match self.0 {
            2.0 => "x * x",
            1.0 | f64::INFINITY => "x < 0 ? -x : x",
            _ => "pow(x < 0 ? -x : x, p.order)",
        };
        let join = match self.0 {
            f64::INFINITY => "a != a || a > b ? a : b",
            _ => "a + b",
        };
        let defines = format!(
            "{}#define TERM(x) ({term})\n#define JOIN(a, b) ({join})\n",
            define(&[("T", call.inputs[0].dtype())])
        );
        let threads = call.gpu.block();
        call.launch_own_blocks(&POWERS, &defines, "powers", [1, 1, 1], threads, &params)
    }
}
