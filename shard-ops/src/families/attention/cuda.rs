//! Attention and its gradient on GPUs.

use super::{Attention, Backward, Forward};
use crate::cuda::kept::{Kept, Lists, Positions};
use crate::cuda::source::{PHILOX, POSITIONS};
use crate::cuda::view::define;
use crate::cuda::{AXES, CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use crate::error::InOp;
use crate::host::partial_type;
use crate::{OperandBox, Result};
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;
use shard_comm::{DType, Device};

const SOURCE: KernelSource =
    cuda_source!("attention", POSITIONS, PHILOX, include_str!("attention.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[(
    SOURCE,
    "#define T f16\n#define A f32\n#define OUT f16\n#define DIM 64\n\
     #define VDIM 64\n#define KEYS 32\n#define ADDS 0\n",
)];

/// Threads of a block; each has a query or a key.
const THREADS: u32 = 128;
/// Bytes of a block's tiles.
const TILES: usize = 32 << 10;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    q: CudaView,
    k: CudaView,
    v: CudaView,
    mask: CudaView,
    out: CudaView,
    dout: CudaView,
    dk: CudaView,
    dv: CudaView,
    dmask: CudaView,
    max: u64,
    sum: u64,
    acc: u64,
    lse: u64,
    delta: u64,
    dq: u64,
    queries: Positions,
    keys: Positions,
    batches: Positions,
    heads: Positions,
    low: i64,
    high: i64,
    masked: i64,
    dropping: i64,
    least: i64,
    all_heads: i64,
    all_queries: i64,
    all_keys: i64,
    stream: [u32; 4],
    scale: f64,
    kept: f64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct MergeParams {
    outs: u64,
    sums: u64,
    lse: u64,
    out: CudaView,
    parts: i64,
    rows: i64,
}

/// A call's parameters, the definitions it is compiled under, and memory that the parameters point to.
struct Problem {
    params: Params,
    defines: String,
    stored: DType,
    /// Lists of positions, which live until the kernels are queued.
    _lists: Lists,
}

impl Problem {
    /// A problem whose queries, keys, values and mask are the call's first operands.
    fn new(call: &CudaCall<'_>, options: &Attention, mask: Option<DType>) -> Result<Self> {
        let boxes = &call.cx.inputs;
        let (queries, keys) = (boxes[0].global[2], boxes[1].global[2]);
        let (low, high) = options.band(queries, keys).bounds();
        let stored = call.inputs[0].dtype();
        let mut lists = Lists::default();
        let mut positions = |part| lists.positions(call, part);
        let mut params = Params {
            q: call.input(0)?,
            k: call.input(1)?,
            v: call.input(2)?,
            queries: positions(&boxes[0].held[2])?,
            keys: positions(&boxes[1].held[2])?,
            batches: positions(&boxes[0].held[0])?,
            heads: positions(&boxes[0].held[1])?,
            low,
            high,
            all_heads: boxes[0].global[1] as i64,
            all_queries: queries as i64,
            all_keys: keys as i64,
            scale: (options.scale)
                .unwrap_or_else(|| 1.0 / (boxes[0].shape[3].max(1) as f64).sqrt()),
            kept: 1.0,
            ..Params::zeroed()
        };
        if let Some((rate, stream)) = options.dropout {
            params.dropping = 1;
            params.least = (rate * 4_294_967_296.0) as i64;
            params.kept = 1.0 - rate;
            params.stream = stream.numbers();
        }
        if let Some(mask) = mask {
            params.masked = if mask == DType::Bool { 1 } else { 2 };
            let mut pairs = params.q;
            (pairs.ndim, pairs.shape[3]) = (4, params.k.shape[2]);
            params.mask = call.input(3)?.broadcast_to(&pairs);
        }
        let (dim, value_dim) = (params.k.shape[3] as usize, params.v.shape[3] as usize);
        let wide = partial_type(stored);
        let keys = (TILES / ((dim + value_dim).max(1) * wide.size())).clamp(1, 64);
        let defines = format!(
            "{}#define DIM {dim}\n#define VDIM {value_dim}\n#define KEYS {keys}\n",
            define(&[("T", stored), ("A", wide)])
        );
        Ok(Self {
            params,
            defines,
            stored,
            _lists: lists,
        })
    }

    fn wide(&self) -> DType {
        partial_type(self.stored)
    }

    fn rows(&self) -> usize {
        self.params.q.shape[..3].iter().product::<i64>() as usize
    }

    /// Launches a kernel over rows, each computed by a thread.
    fn each(
        &self,
        call: &CudaCall<'_>,
        name: &str,
        out: DType,
        adds: bool,
        n: usize,
    ) -> Result<()> {
        call.launch_own(&SOURCE, &self.texts(out, adds), name, n, &self.params)
    }

    /// Launches a kernel on blocks of threads that share tiles, with a thread for each of `rows` rows of each of `heads` heads.
    fn tiles(&self, call: &CudaCall<'_>, name: &str, rows: i64, heads: i64) -> Result<()> {
        let threads = THREADS.min(call.gpu.block());
        let blocks = (rows as u64).div_ceil(u64::from(threads)) as u32;
        let grid = [blocks, heads as u32, self.params.q.shape[0] as u32];
        let texts = self.texts(self.stored, false);
        call.launch_own_blocks(&SOURCE, &texts, name, grid, threads, &self.params)
    }

    fn texts(&self, out: DType, adds: bool) -> String {
        let adds = i32::from(adds);
        format!(
            "{}{}#define ADDS {adds}\n",
            self.defines,
            define(&[("OUT", out)])
        )
    }
}

impl CudaKernel for Forward {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let mut problem = Problem::new(call, &self.options, self.mask)?;
        let rows = problem.rows();
        let found = Kept::take(call);
        let fresh = found.is_none();
        let width = problem.params.v.shape[3] as usize;
        let mut kept = match found {
            Some(kept) => kept,
            None => Kept::new(
                call,
                [rows, rows, rows * width].map(|len| (problem.wide(), len)),
            )?,
        };
        let [max, sum, acc] = kept.addresses(call)?;
        (problem.params.max, problem.params.sum, problem.params.acc) = (max, sum, acc);
        if fresh {
            problem.each(call, "start", problem.stored, false, rows)?;
        }
        let (queries, heads) = (problem.params.q.shape[2], problem.params.q.shape[1]);
        problem.tiles(call, "fold", queries, heads)?;
        if call.cx.fold.last {
            problem.params.out = call.output(0)?;
            problem.params.lse = call.output(1)?.data;
            // Partial results that are merged later are kept in the type of the sums.
            let out = call.outputs[0].dtype();
            problem.each(call, "finish", out, false, rows)
        } else {
            *call.state = Some(Box::new(kept));
            Ok(())
        }
    }

    fn merge(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (outs, sums) = (call.input(0)?, call.input(1)?);
        let (out, lse) = (call.output(0)?, call.output(1)?);
        let rows: i64 = out.shape[..3].iter().product();
        let params = MergeParams {
            outs: outs.data,
            sums: sums.data,
            lse: lse.data,
            out,
            parts: outs.shape[0],
            rows,
        };
        let defines = format!(
            "{}#define DIM 1\n#define VDIM {}\n#define KEYS 1\n#define ADDS 0\n",
            define(&[
                ("T", call.outputs[0].dtype()),
                ("A", call.outputs[1].dtype()),
                ("OUT", call.outputs[0].dtype()),
            ]),
            out.shape[3]
        );
        call.launch_own(&SOURCE, &defines, "merge", rows as usize, &params)
    }
}

impl CudaKernel for Backward {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let mut problem = Problem::new(call, &self.options, self.mask)?;
        let rows = problem.rows();
        let first = 3 + usize::from(self.mask.is_some());
        let found = Kept::take(call);
        let fresh = found.is_none();
        let dim = problem.params.q.shape[3] as usize;
        let mut kept = match found {
            Some(kept) => kept,
            None => Kept::new(call, [rows, rows * dim].map(|len| (problem.wide(), len)))?,
        };
        let [delta, dq] = kept.addresses(call)?;
        let params = &mut problem.params;
        (params.delta, params.dq) = (delta, dq);
        (params.out, params.dout) = (call.input(first)?, call.input(first + 2)?);
        params.lse = call.input(first + 1)?.data;
        (params.dk, params.dv) = (call.output(1)?, call.output(2)?);
        if fresh {
            problem.each(call, "start_grad", problem.stored, false, rows)?;
        }
        let (heads, kv_heads) = (problem.params.q.shape[1], problem.params.k.shape[1]);
        let (queries, keys) = (problem.params.q.shape[2], problem.params.k.shape[2]);
        problem.tiles(call, "grad_queries", queries, heads)?;
        problem.tiles(call, "grad_keys", keys, kv_heads)?;
        if self.wants_mask {
            problem.params.dmask = four(&call.output(3)?);
            let adds = !call.cx.fold.first && shared(&call.cx.outputs[3], &call.cx.inputs[1]);
            let n = problem.params.dmask.numel();
            problem.each(call, "grad_mask", problem.stored, adds, n)?;
        }
        if !call.cx.fold.last {
            *call.state = Some(Box::new(kept));
            return Ok(());
        }
        let Some(dq) = kept.buffers.pop() else {
            return Ok(());
        };
        // The copy is dense, as the output is.
        let all = shard_comm::Strided::contiguous(&[dq.len()]);
        let to = shard_comm::Strided::contiguous_at(call.cx.outputs[0].offset, &[dq.len()]);
        call.gpu
            .copy(&dq.freeze(), &all, &mut call.outputs[0], &to)
            .in_op(call.op)
    }
}

/// A view with four dims; missing ones are added in front.
fn four(view: &CudaView) -> CudaView {
    let n = view.ndim as usize;
    let mut four = CudaView {
        ndim: 4,
        shape: [1; AXES],
        strides: [0; AXES],
        ..*view
    };
    four.shape[4 - n..4].copy_from_slice(&view.shape[..n]);
    four.strides[4 - n..4].copy_from_slice(&view.strides[..n]);
    four
}

/// Whether a mask's gradient is the same memory for all blocks of keys: all keys share the mask.
fn shared(mask: &OperandBox, keys: &OperandBox) -> bool {
    mask.global.len() == 4 && mask.global[3] == 1 && keys.global[2] > 1
}
