//! Attention and its gradient on GPUs.
//!
//! Numbers of up to 32 bits are multiplied by the GPU's units for matrices, as sums of parts ([`Tiled`]). Only the GPU sees whether
//! there are infinities or other numbers that have no parts. So both kernels are queued, and either leaves at once.

use super::rule::Masks;
use super::{Attention, Backward, Forward};
use crate::cuda::kept::{Kept, Lists, Positions};
use crate::cuda::source::{PHILOX, POSITIONS, TILES};
use crate::cuda::view::define;
use crate::cuda::{AXES, CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use crate::error::InOp;
use crate::host::partial_type;
use crate::rng::least_kept;
use crate::{OperandBox, Result};
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;
use shard_comm::{BufferMut, DType, Device};
use std::iter::once;

const CALL: &str = include_str!("attention.cuh");
const SOURCE: KernelSource = cuda_source!(
    "attention",
    POSITIONS,
    PHILOX,
    CALL,
    include_str!("attention.cu")
);
const TILED: KernelSource = cuda_source!(
    "attention_tiles",
    POSITIONS,
    PHILOX,
    TILES,
    CALL,
    include_str!("tiles.cu")
);
/// A text of [`TILED`] for tests: the type, the dims, whether there is a mask, segments and dropout, and what the kernel is for.
macro_rules! tried {
    ($stored:literal, $dim:literal, $masked:literal, $segmented:literal, $drops:literal, $kernel:literal) => {
        (
            TILED,
            concat!(
                "#define T ",
                $stored,
                "\n#define A f32\n#define DIM ",
                $dim,
                "\n#define VDIM ",
                $dim,
                "\n#define MASKED ",
                $masked,
                "\n#define SEGMENTED ",
                $segmented,
                "\n#define DROPS ",
                $drops,
                "\n#define KERNEL_OF ",
                $kernel,
                "\n",
            ),
        )
    };
}
/// What tests compile its texts for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[
    (
        SOURCE,
        "#define T f16\n#define A f32\n#define OUT f16\n#define DIM 64\n\
         #define VDIM 64\n#define KEYS 32\n#define ADDS 0\n",
    ),
    (
        SOURCE,
        "#define T f64\n#define A f64\n#define OUT f64\n#define DIM 64\n\
         #define VDIM 72\n#define KEYS 16\n#define ADDS 1\n",
    ),
    tried!("f32", "64", "0", "0", "0", "0"),
    tried!("f32", "64", "0", "0", "0", "1"),
    tried!("bf16", "64", "0", "1", "0", "1"),
    tried!("f16", "128", "1", "0", "1", "1"),
    tried!("f32", "64", "2", "1", "1", "2"),
    tried!("bf16", "128", "0", "0", "0", "2"),
    tried!("f32", "128", "0", "1", "0", "3"),
    tried!("bf16", "64", "2", "0", "1", "3"),
];

/// Threads of a block; each has a query or a key.
const THREADS: u32 = 128;
/// Bytes of a block's tiles.
const SHARED: usize = 32 << 10;
/// Rows of a block of the kernels of tiles, which has [`THREADS`] threads on any GPU.
const ROWS: i64 = 64;
/// The most elements of a key or a value for which these kernels have enough registers.
const MOST_DIMS: i64 = 128;
/// The scales for which logits of numbers that have parts, and their gradients, are finite.
const SCALES: std::ops::Range<f64> = 1e-6..1e6;

/// The kernels of `tiles.cu`.
#[derive(Clone, Copy)]
enum Tiled {
    Pack,
    Fold,
    GradQueries,
    GradKeys,
}

impl Tiled {
    fn name(self) -> &'static str {
        match self {
            Self::Pack => "pack",
            Self::Fold => "fold_tiles",
            Self::GradQueries => "grad_queries_tiles",
            Self::GradKeys => "grad_keys_tiles",
        }
    }
}

/// Where kernels of a fold tell each other that there are numbers that have no parts.
const APART: (DType, usize) = (DType::I32, 1);

/// Of how many parts a number is the sum; `None` for numbers that kernels of tiles do not take.
fn parts(stored: DType) -> Option<usize> {
    match stored {
        DType::BF16 => Some(1),
        DType::F16 => Some(2),
        DType::F32 => Some(3),
        _ => None,
    }
}

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
    of_queries: CudaView,
    of_keys: CudaView,
    max: u64,
    sum: u64,
    acc: u64,
    lse: u64,
    delta: u64,
    dq: u64,
    parts: [u64; 5],
    apart: u64,
    queries: Positions,
    keys: Positions,
    batches: Positions,
    heads: Positions,
    low: i64,
    high: i64,
    masked: i64,
    segmented: i64,
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
    /// The call's operands as parts, if kernels of tiles take it.
    packed: Vec<BufferMut>,
    /// Lists of positions, which live until the kernels are queued.
    _lists: Lists,
}

impl Problem {
    /// A problem whose queries, keys, values and mask are the call's first operands.
    fn new(call: &CudaCall<'_>, options: &Attention, masks: Masks) -> Result<Self> {
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
            scale: options.scale_of(boxes[0].shape[3]),
            kept: 1.0,
            ..Params::zeroed()
        };
        if let Some((rate, stream)) = options.dropout {
            params.dropping = 1;
            params.least = least_kept(rate).into();
            params.kept = 1.0 - rate;
            params.stream = stream.numbers();
        }
        if masks.segments {
            params.segmented = 1;
            let of = |operand, like: &CudaView| -> Result<CudaView> {
                let mut tokens = *like;
                (tokens.ndim, tokens.shape[1]) = (2, like.shape[2]);
                Ok(call.input(operand)?.broadcast_to(&tokens))
            };
            params.of_queries = of(masks.first_segments(), &params.q)?;
            params.of_keys = of(masks.first_segments() + 1, &params.k)?;
        }
        if let Some(mask) = masks.mask {
            params.masked = if mask == DType::Bool { 1 } else { 2 };
            let mut pairs = params.q;
            (pairs.ndim, pairs.shape[3]) = (4, params.k.shape[2]);
            params.mask = call.input(3)?.broadcast_to(&pairs);
        }
        let (dim, value_dim) = (params.k.shape[3] as usize, params.v.shape[3] as usize);
        let wide = partial_type(stored);
        let keys = (SHARED / ((dim + value_dim).max(1) * wide.size())).clamp(1, 64);
        let defines = format!(
            "{}#define DIM {dim}\n#define VDIM {value_dim}\n#define KEYS {keys}\n",
            define(&[("T", stored), ("A", wide)])
        );
        Ok(Self {
            params,
            defines,
            stored,
            packed: Vec::new(),
            _lists: lists,
        })
    }

    fn wide(&self) -> DType {
        partial_type(self.stored)
    }

    fn rows(&self) -> usize {
        self.params.q.shape[..3].iter().product::<i64>() as usize
    }

    /// Packs the operands for kernels of tiles, if these take the call. `apart` is where they tell the other kernels of numbers that
    /// have no parts; it is zero before the first block of a fold.
    fn pack(&mut self, call: &CudaCall<'_>, apart: u64) -> Result<()> {
        let Params {
            q, k, v, dout, out, ..
        } = self.params;
        let Some(parts) = parts(self.stored) else {
            return Ok(());
        };
        let widths = 1..=MOST_DIMS;
        let fit = [&k, &v].iter().all(|x| widths.contains(&x.shape[3]));
        if !(fit && SCALES.contains(&self.params.scale)) {
            return Ok(());
        }
        let operands = [q, k, v, dout, out];
        // A gradient has them all.
        let operands = &operands[..if dout.data == 0 { 3 } else { 5 }];
        let mut most = 0;
        for (operand, at) in operands.iter().zip(&mut self.params.parts) {
            let [batch, heads, rows, width, ..] = operand.shape;
            let len = batch * heads * whole(rows, ROWS) * whole(width, 16);
            let mut buffer = call.scratch(DType::BF16, parts * len as usize)?;
            *at = call.gpu.address_mut(&mut buffer).in_op(call.op)?;
            self.packed.push(buffer);
            most = most.max(len as u64 / 8);
        }
        self.params.apart = apart;
        let threads = call.gpu.block();
        let blocks = most.div_ceil(u64::from(threads)).min(1 << 16) as u32;
        let grid = [blocks, 1, operands.len() as u32];
        self.launch_tiled(call, Tiled::Pack, grid, threads)
    }

    fn launch_tiled(
        &self,
        call: &CudaCall<'_>,
        kernel: Tiled,
        grid: [u32; 3],
        threads: u32,
    ) -> Result<()> {
        let Params {
            k,
            v,
            masked,
            segmented,
            dropping,
            ..
        } = &self.params;
        let texts = format!(
            "{}#define DIM {}\n#define VDIM {}\n#define MASKED {masked}\n#define SEGMENTED {segmented}\n#define DROPS {dropping}\n#define KERNEL_OF {}\n",
            define(&[("T", self.stored), ("A", self.wide())]),
            k.shape[3],
            v.shape[3],
            kernel as u32,
        );
        call.launch_own_blocks(&TILED, &texts, kernel.name(), grid, threads, &self.params)
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

    /// Launches a kernel on blocks of threads that share tiles, with a thread for each of `rows` rows of each of `heads` heads; and
    /// the one by the units for matrices, if the operands are packed.
    fn tiles(
        &self,
        call: &CudaCall<'_>,
        name: &str,
        tiled: Tiled,
        rows: i64,
        heads: i64,
    ) -> Result<()> {
        if self.params.apart != 0 {
            let blocks = whole(rows, ROWS) / ROWS;
            let grid = [blocks as u32, heads as u32, self.params.q.shape[0] as u32];
            self.launch_tiled(call, tiled, grid, THREADS)?;
        }
        let threads = THREADS.min(call.gpu.block());
        let blocks = (rows as u64).div_ceil(u64::from(threads)) as u32;
        let grid = [blocks, heads as u32, self.params.q.shape[0] as u32];
        let texts = self.texts(self.stored, false);
        call.launch_own_blocks(&SOURCE, &texts, name, grid, threads, &self.params)
    }

    /// The mask's cotangent.
    fn grad_mask(&mut self, call: &mut CudaCall<'_>, rows: usize) -> Result<()> {
        self.params.dmask = four(&call.output(3)?);
        let adds = !call.cx.fold.first && shared(&call.cx.outputs[3], &call.cx.inputs[1]);
        let n = self.params.dmask.numel();
        // Its products are summed as those of the other kernels, not as those of tiles.
        self.params.apart = 0;
        self.each(call, "products", self.stored, false, rows)?;
        self.each(call, "grad_mask", self.stored, adds, n)
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
        let mut problem = Problem::new(call, &self.options, self.masks)?;
        let rows = problem.rows();
        let found = Kept::take(call);
        let fresh = found.is_none();
        let width = problem.params.v.shape[3] as usize;
        let mut kept = match found {
            Some(kept) => kept,
            None => Kept::new(
                call,
                once(APART).chain([rows, rows, rows * width].map(|len| (problem.wide(), len))),
            )?,
        };
        let [apart, max, sum, acc] = kept.addresses(call)?;
        (problem.params.max, problem.params.sum, problem.params.acc) = (max, sum, acc);
        if fresh {
            problem.params.apart = apart;
            problem.each(call, "start", problem.stored, false, rows * width.max(1))?;
            problem.params.apart = 0;
        }
        problem.pack(call, apart)?;
        let (queries, heads) = (problem.params.q.shape[2], problem.params.q.shape[1]);
        problem.tiles(call, "fold", Tiled::Fold, queries, heads)?;
        if call.cx.fold.last {
            problem.params.out = call.output(0)?;
            problem.params.lse = call.output(1)?.data;
            // Partial results that are merged later are kept in the type of the sums.
            let out = call.outputs[0].dtype();
            problem.each(call, "finish", out, false, rows * width.max(1))
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
        let mut problem = Problem::new(call, &self.options, self.masks)?;
        let rows = problem.rows();
        let dim = problem.params.q.shape[3] as usize;
        let found = Kept::take(call);
        let fresh = found.is_none();
        let mut kept = match found {
            Some(kept) => kept,
            None => Kept::new(
                call,
                once(APART).chain([rows, rows * dim].map(|len| (problem.wide(), len))),
            )?,
        };
        let [apart, delta, dq] = kept.addresses(call)?;
        self.point(call, &mut problem.params, [delta, dq])?;
        if fresh {
            problem.params.apart = apart;
            problem.each(call, "start_grad", problem.stored, false, rows * dim.max(1))?;
            problem.params.apart = 0;
        }
        problem.pack(call, apart)?;
        if fresh {
            problem.each(call, "products", problem.stored, false, rows)?;
        }
        let (heads, kv_heads) = (problem.params.q.shape[1], problem.params.k.shape[1]);
        let (queries, keys) = (problem.params.q.shape[2], problem.params.k.shape[2]);
        problem.tiles(call, "grad_queries", Tiled::GradQueries, queries, heads)?;
        problem.tiles(call, "grad_keys", Tiled::GradKeys, keys, kv_heads)?;
        if self.wants_mask {
            problem.grad_mask(call, rows)?;
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

impl Backward {
    /// Has the parameters point to what kernels of the derivative read and write beside queries, keys and values.
    fn point(
        &self,
        call: &mut CudaCall<'_>,
        params: &mut Params,
        [delta, dq]: [u64; 2],
    ) -> Result<()> {
        let first = self.masks.end();
        (params.delta, params.dq) = (delta, dq);
        (params.out, params.dout) = (call.input(first)?, call.input(first + 2)?);
        params.lse = call.input(first + 1)?.data;
        (params.dk, params.dv) = (call.output(1)?, call.output(2)?);
        Ok(())
    }
}

/// The least multiple of a number that is not less.
fn whole(n: i64, of: i64) -> i64 {
    (n + of - 1) / of * of
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
