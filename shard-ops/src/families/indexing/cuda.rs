//! Rows by key.

use super::Resolve;
use super::fold::FoldRows;
use super::rows::{Pack, Settle, side_by_side};
use super::take::Take;
use crate::cuda::view::define;
use crate::cuda::{CudaCall, CudaKernel};
use crate::cuda_source;
use crate::error::InOp;
use crate::{OpError, Result};
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;
use shard_comm::{DType, Device as _, Strided};
use shard_kernels::rows::Rows;
use shard_spec::ReduceOp;

const SOURCE: KernelSource = cuda_source!("indexing", include_str!("indexing.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[(
    SOURCE,
    "#define T f32\n#define PICK\n#define START T(0)\n#define JOIN(a, b) a + b\n",
)];

const DIMS: usize = 8;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    table: u64,
    ghosts: u64,
    keys: u64,
    other: u64,
    base: u64,
    order: u64,
    starts: u64,
    own: i64,
    ghost_rows: i64,
    list: i64,
    row: i64,
    keyed_dims: i64,
    keyed: [i64; DIMS],
    keyed_step: [i64; DIMS],
    list_dims: i64,
    lists: [i64; DIMS],
    list_step: [i64; DIMS],
    row_dims: i64,
    rows: [i64; DIMS],
    row_table: [i64; DIMS],
    row_other: [i64; DIMS],
}

impl Params {
    /// Of this geometry, without addresses.
    fn new(call: &CudaCall<'_>, rows: &Rows) -> Result<Self> {
        let row = rows.row();
        let most = [rows.keyed().len(), rows.list().len(), row.len()];
        if most.iter().any(|&n| n > DIMS) {
            return Err(OpError::Shape {
                op: call.op,
                problem: format!("kernels on a GPU take at most {DIMS} dims"),
                shapes: call.cx.inputs.iter().map(|b| b.shape.to_vec()).collect(),
                fix: "reshape to fewer dims first",
            });
        }
        let column = |values: &mut dyn Iterator<Item = usize>| {
            let mut column = [0; DIMS];
            for (to, value) in column.iter_mut().zip(values) {
                *to = value as i64;
            }
            column
        };
        Ok(Self {
            own: rows.keys() as i64,
            list: rows.list().iter().map(|l| l.0 as i64).product(),
            row: rows.row_len() as i64,
            keyed_dims: most[0] as i64,
            keyed: column(&mut rows.keyed().iter().map(|k| k.0)),
            keyed_step: column(&mut rows.keyed().iter().map(|k| k.1)),
            list_dims: most[1] as i64,
            lists: column(&mut rows.list().iter().map(|l| l.0)),
            list_step: column(&mut rows.list().iter().map(|l| l.1)),
            row_dims: most[2] as i64,
            rows: column(&mut row.iter().map(|d| d.extent)),
            row_table: column(&mut row.iter().map(|d| d.table)),
            row_other: column(&mut row.iter().map(|d| d.other)),
            ..Self::zeroed()
        })
    }

    fn pick(&self, call: &CudaCall<'_>) -> Result<()> {
        let defines = format!(
            "{}#define PICK\n",
            define(&[("T", call.outputs[0].dtype())])
        );
        let count = self.list * self.row;
        call.launch_own(&SOURCE, &defines, "pick", count as usize, self)
    }

    fn fold(&self, call: &CudaCall<'_>, how: ReduceOp, start: Option<&str>) -> Result<()> {
        let dtype = call.outputs[0].dtype();
        let join = match how {
            ReduceOp::Prod => "a * b",
            // NaN before all; of zeros the positive one is larger.
            ReduceOp::Max | ReduceOp::Any => "(a == b && a == 0 ? a + b : a != a || a > b ? a : b)",
            ReduceOp::Min | ReduceOp::All => {
                "(a == b && a == 0 ? -(-a - b) : a != a || a < b ? a : b)"
            }
            ReduceOp::Sum => "a + b",
        };
        let start = start.unwrap_or(identity(how, dtype));
        let defines = format!(
            "{}#define START {start}\n#define JOIN(a, b) {join}\n",
            define(&[("T", dtype)])
        );
        let count = (self.own + self.ghost_rows) * self.row;
        call.launch_own(&SOURCE, &defines, "fold", count as usize, self)
    }
}

/// What a fold of nothing gives, in words of the kernels.
fn identity(how: ReduceOp, dtype: DType) -> &'static str {
    match (how, dtype) {
        (ReduceOp::Sum, _) => "T(0)",
        (ReduceOp::Prod, _) => "T(1)",
        (ReduceOp::Max | ReduceOp::Any, DType::I64) => "T(at_bits<i64>(1ull << 63))",
        (ReduceOp::Min | ReduceOp::All, DType::I64) => "T(at_bits<i64>(~(1ull << 63)))",
        (ReduceOp::Max | ReduceOp::Any, DType::I32) => "T(at_bits<i32>(0x80000000ull))",
        (ReduceOp::Min | ReduceOp::All, DType::I32) => "T(at_bits<i32>(0x7fffffffull))",
        (ReduceOp::Max | ReduceOp::Any, DType::U8) => "T(0)",
        (ReduceOp::Min | ReduceOp::All, DType::U8) => "T(255)",
        (ReduceOp::Max | ReduceOp::Any, _) => "T(-INFINITE)",
        (ReduceOp::Min | ReduceOp::All, _) => "T(INFINITE)",
    }
}

impl CudaKernel for Take {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let rows = self
            .picked
            .geometry(&call.cx.inputs[0], &call.cx.outputs[0]);
        let params = Params {
            table: call.input(0)?.data,
            keys: call.input(1)?.data,
            ghosts: call.input(2)?.data,
            other: call.output(0)?.data,
            ..Params::new(call, &rows)?
        };
        params.pick(call)
    }
}

impl CudaKernel for Pack {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let rows = side_by_side(&self.keyed, &call.cx.inputs[0], &call.cx.outputs[0]);
        let params = Params {
            table: call.input(0)?.data,
            keys: call.input(1)?.data,
            other: call.output(0)?.data,
            ..Params::new(call, &rows)?
        };
        params.pick(call)
    }
}

impl CudaKernel for Resolve {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let count = call.inputs[1].len();
        let from = Strided::contiguous(&[count]);
        (call.gpu)
            .copy(&call.inputs[1], &from, &mut call.outputs[0], &from)
            .in_op(call.op)
    }
}

impl CudaKernel for FoldRows {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let rows = self
            .picked
            .geometry(&call.cx.outputs[0], &call.cx.inputs[2]);
        // A call that is not the first goes on with what it finds.
        let start = (!call.cx.fold.first).then_some("to");
        let base = match self.has_base && call.cx.adds_once && start.is_none() {
            true => call.input(0)?.data,
            false => 0,
        };
        let params = Params {
            table: call.output(0)?.data,
            ghosts: call.output(1)?.data,
            ghost_rows: call.cx.outputs[1].shape[0] as i64,
            other: call.input(2)?.data,
            base,
            order: call.input(3)?.data,
            starts: call.input(4)?.data,
            ..Params::new(call, &rows)?
        };
        params.fold(call, self.how, start)
    }
}

impl CudaKernel for Settle {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let rows = side_by_side(&self.keyed, &call.cx.outputs[0], &call.cx.inputs[0]);
        let params = Params {
            table: call.output(0)?.data,
            other: call.input(0)?.data,
            order: call.input(2)?.data,
            starts: call.input(3)?.data,
            ..Params::new(call, &rows)?
        };
        // Each row goes on from what it is.
        params.fold(call, self.fold, Some("to"))
    }
}
