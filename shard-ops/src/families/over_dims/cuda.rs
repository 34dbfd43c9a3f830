//! Reductions over dims.

use super::{Of, OverDims};
use crate::Result;
use crate::cuda::parts::Division;
use crate::cuda::view::define;
use crate::cuda::{CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use crate::error::InOp;
use crate::families::elementwise::as_number;
use crate::host::partial_type;
use bytemuck::{Pod, Zeroable};
use shard_comm::DType;
use shard_comm::cuda::KernelSource;
use shard_spec::ReduceOp;

const SOURCE: KernelSource = cuda_source!("reduce", include_str!("reduce.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[(
    SOURCE,
    "#define T f32\n#define W f32\n#define R f32\n#define START W(0)\n#define LIFT(x) x\n#define LOWER(x) x\n\
     #define JOIN(a, b) a + b\n",
)];

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    cells: CudaView,
    along: CudaView,
    y: CudaView,
    found: u64,
    parts: i64,
}

impl CudaKernel for OverDims {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (x, y) = (call.input(0)?, call.output(0)?);
        let (cells, along) = x.split(&self.dims);
        let (of, to) = (call.inputs[0].dtype(), call.outputs[0].dtype());
        let defines = self.defines(of, to);
        let division = Division::new(call, &cells, &along);
        let mut found = call.scratch(self.wide(of), division.found())?;
        let params = Params {
            cells: cells.merged(),
            along: along.merged(),
            y: y.merged(),
            found: call.gpu.address_mut(&mut found).in_op(call.op)?,
            parts: division.parts as i64,
        };
        division.launch(call, &SOURCE, &defines, &params)?;
        division.join(call, &SOURCE, &defines, &params)
    }
}

impl OverDims {
    fn is_whole(&self, of: DType) -> bool {
        self.is_of_truths() || !of.is_float()
    }

    /// The type that elements are reduced in.
    fn wide(&self, of: DType) -> DType {
        match self.is_whole(of) {
            true => DType::I64,
            false => partial_type(of),
        }
    }

    /// The monoid on a type, in CUDA's language. Whole numbers are reduced as `i64`, which holds them all.
    fn defines(&self, of: DType, to: DType) -> String {
        let whole = self.is_whole(of);
        let (start, join) = match (self.op, whole) {
            (ReduceOp::Sum, true) => ("0", "(W)((u64)(a) + (u64)(b))"),
            (ReduceOp::Prod, true) => ("1", "(W)((u64)(a) * (u64)(b))"),
            (ReduceOp::Max | ReduceOp::Any, true) => ("(W)(1ull << 63)", "larger(a, b)"),
            (ReduceOp::Min | ReduceOp::All, true) => ("(W)(~0ull >> 1)", "smaller(a, b)"),
            (ReduceOp::Sum, false) => ("W(0)", "a + b"),
            (ReduceOp::Prod, false) => ("W(1)", "a * b"),
            (ReduceOp::Max | ReduceOp::Any, false) => ("W(-INFINITE)", "larger(a, b)"),
            (ReduceOp::Min | ReduceOp::All, false) => ("W(INFINITE)", "smaller(a, b)"),
        };
        let lift = match self.of {
            Of::Truth => "(x != 0 ? W(1) : W(0))",
            Of::Itself if of == DType::Bool => "(x != 0 ? W(1) : W(0))",
            Of::Itself => "x",
            Of::Square => "(x * x)",
        };
        // Of nothing, an extreme is the end of the result's type.
        let lower = match (self.op, to) {
            (_, to) if to.is_half() => "As<R>::of(w)".to_owned(),
            (ReduceOp::Sum | ReduceOp::Prod, _) => "(R)(w)".to_owned(),
            (_, DType::Bool) => "(R)(w > 0)".to_owned(),
            (_, DType::U8) => "(R)(w < 0 ? 0 : w > 255 ? 255 : w)".to_owned(),
            (_, DType::I32) => {
                let (least, most) = (i32::MIN, i32::MAX);
                format!("(R)(w < {least}ll ? {least}ll : w > {most}ll ? {most}ll : w)")
            }
            _ => "(R)(w)".to_owned(),
        };
        let types = define(&[
            ("T", as_number(of)),
            ("W", self.wide(of)),
            ("R", as_number(to)),
        ]);
        format!(
            "{types}#define START {start}\n#define LIFT(x) {lift}\n#define LOWER(w) {lower}\n#define JOIN(a, b) {join}\n"
        )
    }
}
