//! States of cells on GPUs.

use super::states::{States, StatesGrad};
use crate::Result;
use crate::cuda::parts::Division;
use crate::cuda::view::define;
use crate::cuda::{AXES, CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use crate::error::InOp;
use crate::families::elementwise::as_number;
use crate::host::is_whole;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;
use shard_comm::{DType, Monoid};

const SOURCE: KernelSource = cuda_source!("statistics", include_str!("statistics.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[(
    SOURCE,
    "#define T f32\n#define R f32\n#define W f64\n#define KIND 0\n",
)];

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    cells: CudaView,
    along: CudaView,
    numbers: CudaView,
    y: u64,
    found: u64,
    first: i64,
    parts: i64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct GradParams {
    x: CudaView,
    states: CudaView,
    dy: CudaView,
    y: CudaView,
}

/// The type of the numbers of a state.
fn wide(of: DType) -> DType {
    if is_whole(of) { DType::I64 } else { DType::F64 }
}

impl States {
    fn defines(&self, of: DType, to: DType) -> String {
        let whole = is_whole(of);
        let least = "(W)(1ull << 63)";
        let most = "(W)(~0ull >> 1)";
        let (kind, none) = match (self.monoid, whole) {
            (Monoid::Moments, _) => (0, "0"),
            (Monoid::MaxSumExp, _) => (1, "0"),
            (Monoid::ArgMin, true) => (3, most),
            (Monoid::ArgMin, false) => (3, "INFINITE"),
            (_, true) => (2, least),
            (_, false) => (2, "-INFINITE"),
        };
        let end = if whole { most } else { "INFINITE" };
        let types = define(&[("T", as_number(of)), ("R", as_number(to)), ("W", wide(of))]);
        format!("{types}#define KIND {kind}\n#define NONE {none}\n#define END {end}\n")
    }

    /// A view of the operand's states with the dims of the operand: steps of 0 along those of cells.
    fn beside(&self, x: &CudaView, states: &CudaView) -> CudaView {
        let mut view = CudaView {
            data: states.data,
            strides: [0; AXES],
            ..*x
        };
        let kept = (0..x.ndim as usize).filter(|d| !self.dims.contains(d));
        for (k, d) in kept.enumerate() {
            view.strides[d] = states.strides[k];
        }
        view
    }
}

impl CudaKernel for States {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let x = call.input(0)?;
        let (cells, along) = x.split(&self.dims);
        let (first, steps) = self.indices(&call.cx.inputs[0]);
        let mut numbers = along;
        for (to, step) in numbers.strides.iter_mut().zip(steps) {
            *to = step as i64;
        }
        let y = call.output(0)?.data;
        let of = call.inputs[0].dtype();
        let division = Division::new(call, &cells, &along);
        // A state has at most three numbers.
        let mut found = call.scratch(wide(of), 3 * division.found())?;
        let params = Params {
            cells: cells.merged(),
            along: along.merged(),
            numbers: numbers.merged(),
            y,
            found: call.gpu.address_mut(&mut found).in_op(call.op)?,
            first,
            parts: division.parts as i64,
        };
        let defines = self.defines(of, of);
        division.launch(call, &SOURCE, &defines, &params)?;
        division.join(call, &SOURCE, &defines, &params)
    }
}

impl CudaKernel for StatesGrad {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (x, y) = (call.input(0)?, call.output(0)?);
        let params = GradParams {
            x,
            states: self.0.beside(&x, &call.input(1)?),
            dy: self.0.beside(&x, &call.input(2)?),
            y,
        };
        let defines = self
            .0
            .defines(call.inputs[0].dtype(), call.outputs[0].dtype());
        call.launch_own(&SOURCE, &defines, "states_grad", y.numel(), &params)
    }
}
