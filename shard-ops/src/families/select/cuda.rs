//! Elements that a condition picks: counted row by row, and written where the counts say.

use super::{MaskedPut, MaskedSelect, Nonzero};
use crate::cuda::{self, CudaCall, CudaKernel};
use crate::cuda_source;
use crate::error::InOp;
use crate::{OpError, OperandBox, Result};
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;
use shard_comm::{Buffer, DType, Device as _};
use shard_spec::numel;

const SOURCE: KernelSource = cuda_source!("select", include_str!("select.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[(
    SOURCE,
    "#define C u32\n#define U u32\n#define MASK 0x7fffffffu\n#define COUNT\n#define PLACE\n",
)];

const DIMS: usize = 8;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    condition: u64,
    x: u64,
    counts: u64,
    starts: u64,
    to: u64,
    rows: i64,
    width: i64,
    first: i64,
    ndim: i64,
    shape: [i64; DIMS],
}

/// What `run` leaves for `write_rows`.
struct Found {
    params: Params,
    defines: String,
    /// What the addresses are of.
    memory: Vec<Buffer>,
}

/// Unsigned numbers of a type's size, and the bits that make one not zero: of floats all but the sign.
fn bits(dtype: DType) -> (&'static str, &'static str) {
    match dtype {
        DType::F64 => ("u64", "0x7fffffffffffffffull"),
        DType::F32 => ("u32", "0x7fffffffu"),
        DType::F16 | DType::BF16 => ("u16", "0x7fffu"),
        DType::I64 => ("u64", "~0ull"),
        DType::I32 => ("u32", "~0u"),
        DType::U8 | DType::Bool => ("u8", "255u"),
    }
}

fn defines(condition: DType, moved: DType, stage: &str) -> String {
    let ((c, mask), (u, _)) = (bits(condition), bits(moved));
    format!("#define C {c}\n#define U {u}\n#define MASK {mask}\n#define {stage}\n")
}

fn params(op: &'static str, at: &OperandBox) -> Result<Params> {
    if at.shape.len() > DIMS {
        return Err(OpError::Shape {
            op,
            problem: format!("kernels on a GPU take at most {DIMS} dims"),
            shapes: vec![at.shape.to_vec()],
            fix: "reshape to fewer dims first",
        });
    }
    let mut params = Params {
        rows: at.shape[0] as i64,
        width: numel(&at.shape[1..]) as i64,
        first: at.start[0] as i64,
        ndim: at.shape.len() as i64,
        ..Params::zeroed()
    };
    for (to, &n) in params.shape.iter_mut().zip(&at.shape) {
        *to = n as i64;
    }
    Ok(params)
}

/// Where the elements of each row begin, from how many each has; and how many there are.
fn starts(counts: &[i64]) -> (Vec<i64>, usize) {
    let mut all = 0;
    let starts = counts.iter().map(|&n| {
        let start = all;
        all += n;
        start
    });
    (starts.collect(), all as usize)
}

/// Counts what a condition picks in each row, and how many that makes.
fn count(call: &mut CudaCall<'_>, params: &mut Params, condition: DType) -> Result<Buffer> {
    let defines = defines(condition, condition, "COUNT");
    let rows = params.rows as usize;
    let mut counts = call.scratch(DType::I64, rows)?;
    params.counts = call.gpu.address_mut(&mut counts).in_op(call.op)?;
    call.launch_own(&SOURCE, &defines, "count", rows, params)?;
    Ok(counts.freeze())
}

/// Counts, and leaves what is needed to write.
fn find(call: &mut CudaCall<'_>, condition: usize, moved: Option<usize>) -> Result<()> {
    let mut params = params(call.op, &call.cx.inputs[condition])?;
    params.condition = call.dense(condition)?;
    let dtype = call.inputs[condition].dtype();
    let counts = count(call, &mut params, dtype)?;
    let n = counts.len();
    let view = shard_comm::Strided::contiguous(&[n]);
    call.gpu
        .copy(&counts, &view, &mut call.outputs[1], &view)
        .in_op(call.op)?;
    let (starts, rows) = starts(&counts.to_vec::<i64>().in_op(call.op)?);
    let starts = (call.gpu.upload(DType::I64, bytemuck::cast_slice(&starts))).in_op(call.op)?;
    params.starts = call.gpu.address(&starts).in_op(call.op)?;
    let mut memory = vec![call.inputs[condition].clone(), starts];
    if let Some(moved) = moved {
        params.x = call.dense(moved)?;
        memory.push(call.inputs[moved].clone());
    }
    let moved = moved.map_or(DType::I64, |i| call.inputs[i].dtype());
    let defines = defines(dtype, moved, "PLACE");
    *call.rows = rows;
    *call.state = Some(Box::new(Found {
        params,
        defines,
        memory,
    }));
    Ok(())
}

fn place(call: &mut CudaCall<'_>) -> Result<()> {
    let found = call.state.take().and_then(|s| s.downcast::<Found>().ok());
    let Some(mut found) = found else {
        unreachable!("rows are written after they were found")
    };
    found.params.to = call.output(0)?.data;
    let reads: Vec<&Buffer> = found.memory.iter().collect();
    let count = found.params.rows as usize;
    cuda::launch_own(
        call.gpu,
        call.op,
        &SOURCE,
        &found.defines,
        "place",
        count,
        &found.params,
        &reads,
    )
}

impl CudaKernel for Nonzero {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        find(call, 0, None)
    }

    fn write_rows(&self, call: &mut CudaCall<'_>) -> Result<()> {
        place(call)
    }
}

impl CudaKernel for MaskedSelect {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        find(call, 1, Some(0))
    }

    fn write_rows(&self, call: &mut CudaCall<'_>) -> Result<()> {
        place(call)
    }
}

impl CudaKernel for MaskedPut {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let mut params = params(call.op, &call.cx.inputs[0])?;
        params.condition = call.dense(0)?;
        let counts = count(call, &mut params, DType::Bool)?;
        let (starts, _) = starts(&counts.to_vec::<i64>().in_op(call.op)?);
        let starts = (call.gpu.upload(DType::I64, bytemuck::cast_slice(&starts))).in_op(call.op)?;
        params.starts = call.gpu.address(&starts).in_op(call.op)?;
        params.x = call.dense(1)?;
        params.to = call.output(0)?.data;
        let defines = defines(DType::Bool, call.outputs[0].dtype(), "PLACE");
        let mut reads: Vec<&Buffer> = call.inputs.iter().collect();
        reads.push(&starts);
        let rows = params.rows as usize;
        cuda::launch_own(
            call.gpu, call.op, &SOURCE, &defines, "put", rows, &params, &reads,
        )
    }
}
