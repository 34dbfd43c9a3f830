//! Neighbour search, its gradients, and the steps of farthest point sampling on GPUs.

use super::{NearestGrad, NearestOp, PairsGrad, RadiusOp, Step};
use crate::Result;
use crate::cuda::kept::{Kept, Lists, Positions};
use crate::cuda::source::POSITIONS;
use crate::cuda::view::define;
use crate::cuda::{CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use crate::error::InOp;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;
use shard_comm::{DType, Device, Strided};
use shard_kernels::neighbors::limit;

const SOURCE: KernelSource = KernelSource {
    exact: true,
    ..cuda_source!("neighbors", POSITIONS, include_str!("neighbors.cu"))
};
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] =
    &[(SOURCE, "#define T f32\n#define DIM 3\n#define TILE 256\n")];

/// Threads of a block; each has a query.
const THREADS: u32 = 128;
/// Bytes of a tile of points.
const TILE: usize = 16 << 10;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    queries: CudaView,
    points: CudaView,
    first: CudaView,
    second: CudaView,
    third: CudaView,
    g: CudaView,
    by_points: CudaView,
    query_clouds: CudaView,
    point_clouds: CudaView,
    query_at: Positions,
    point_at: Positions,
    distances: u64,
    indices: u64,
    offsets: u64,
    starts: u64,
    by_queries: u64,
    limit: f64,
    k: i64,
    bounded: i64,
    by_cloud: i64,
    is_part: i64,
}

/// A kernel's parameters, and the definitions that it is compiled under.
struct Search {
    params: Params,
    dtype: DType,
    dim: usize,
    lists: Lists,
}

impl Search {
    /// For points of a type and a number of coordinates.
    fn new(dtype: DType, dim: usize) -> Self {
        Self {
            params: Params::zeroed(),
            dtype,
            dim,
            lists: Lists::default(),
        }
    }

    /// For a call whose first operands are queries and points.
    fn of(call: &CudaCall<'_>) -> Result<Self> {
        let boxes = &call.cx.inputs;
        let mut new = Self::new(call.inputs[0].dtype(), boxes[0].shape[1]);
        new.params.queries = call.input(0)?;
        new.params.points = call.input(1)?;
        new.params.query_at = new.lists.positions(call, &boxes[0].held[0])?;
        new.params.point_at = new.lists.positions(call, &boxes[1].held[0])?;
        Ok(new)
    }

    /// As [`of`](Self::of), with the clouds that may follow the two.
    fn with_clouds(call: &CudaCall<'_>) -> Result<Self> {
        let mut new = Self::of(call)?;
        if call.inputs.len() > 2 {
            new.params.by_cloud = 1;
            (new.params.query_clouds, new.params.point_clouds) = (call.input(2)?, call.input(3)?);
        }
        Ok(new)
    }

    fn queries(&self) -> usize {
        self.params.queries.shape[0] as usize
    }

    fn tile(&self) -> usize {
        (TILE / (self.dim.max(1) * self.dtype.size())).clamp(1, 256)
    }

    fn defines(&self) -> String {
        let (dim, tile) = (self.dim, self.tile());
        let types = define(&[("T", self.dtype)]);
        format!("{types}#define DIM {dim}\n#define TILE {tile}\n")
    }

    /// Launches a kernel over `n` items.
    fn each(&self, call: &CudaCall<'_>, name: &str, n: usize) -> Result<()> {
        call.launch_own(&SOURCE, &self.defines(), name, n, &self.params)
    }

    fn blocks(&self, call: &CudaCall<'_>, name: &str, blocks: u32, threads: u32) -> Result<()> {
        let grid = [blocks, 1, 1];
        call.launch_own_blocks(&SOURCE, &self.defines(), name, grid, threads, &self.params)
    }

    /// Allocates empty rows of `k` neighbours.
    fn rows(&mut self, call: &CudaCall<'_>) -> Result<Kept> {
        let entries = self.queries() * self.params.k as usize;
        let mut rows = Kept::new(call, [(self.dtype, entries), (DType::I64, entries)])?;
        self.on(call, &mut rows)?;
        self.each(call, "start", entries)?;
        Ok(rows)
    }

    fn on(&mut self, call: &CudaCall<'_>, rows: &mut Kept) -> Result<()> {
        [self.params.distances, self.params.indices] = rows.addresses(call)?;
        Ok(())
    }

    /// Writes rows to the outputs: distances, indices and, if there is a third output, the number of neighbours.
    fn finish(&mut self, call: &mut CudaCall<'_>) -> Result<()> {
        (self.params.first, self.params.second) = (call.output(0)?, call.output(1)?);
        self.params.is_part = i64::from(call.cx.is_part);
        self.each(call, "finish", self.params.first.numel())?;
        if call.outputs.len() > 2 {
            self.params.third = call.output(2)?;
            self.each(call, "count", self.params.third.numel())?;
        }
        Ok(())
    }
}

/// Adds a block of points to rows of `k`; after the last block, writes the rows.
fn fold(call: &mut CudaCall<'_>, k: usize, limit: Option<f64>) -> Result<()> {
    let mut search = Search::with_clouds(call)?;
    search.params.k = k as i64;
    search.params.bounded = i64::from(limit.is_some());
    search.params.limit = limit.unwrap_or_default();
    let mut rows = match Kept::take(call) {
        Some(rows) => rows,
        None => search.rows(call)?,
    };
    search.on(call, &mut rows)?;
    if k > 0 {
        let threads = THREADS.min(call.gpu.block());
        let blocks = (search.queries() as u64).div_ceil(u64::from(threads)) as u32;
        search.blocks(call, "fold", blocks, threads)?;
    }
    if call.cx.fold.last {
        return search.finish(call);
    }
    *call.state = Some(Box::new(rows));
    Ok(())
}

/// Merges the rows of parts of the points into those of all: squared distances and indices `[parts, queries, k]`.
fn merge(call: &mut CudaCall<'_>) -> Result<()> {
    let mut search = Search::new(call.inputs[0].dtype(), 0);
    let (first, second) = (call.input(0)?, call.input(1)?);
    search.params.k = first.shape[2];
    search.params.queries.shape[0] = first.shape[1];
    // The rows live until the work on them is queued.
    let rows = search.rows(call)?;
    (search.params.first, search.params.second) = (first, second);
    if search.params.k > 0 {
        search.each(call, "merge", search.queries())?;
    }
    search.finish(call)?;
    drop(rows);
    Ok(())
}

impl CudaKernel for NearestOp {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        fold(call, self.k, None)
    }

    fn merge(&self, call: &mut CudaCall<'_>) -> Result<()> {
        merge(call)
    }
}

/// Gradients by the queries, summed over all blocks, and by the points of this block.
fn grad(call: &mut CudaCall<'_>, by_queries: &str, by_points: &str) -> Result<()> {
    let mut search = Search::of(call)?;
    let found = Kept::take(call);
    let (fresh, len) = (found.is_none(), search.queries() * search.dim);
    let mut kept = match found {
        Some(kept) => kept,
        None => Kept::new(call, [(search.dtype, len)])?,
    };
    [search.params.by_queries] = kept.addresses(call)?;
    search.params.g = call.input(4)?;
    search.params.by_points = call.output(1)?;
    // A table has the distances as input 2 and the indices as input 3; pairs come in the other order.
    let types = [2, 3].map(|i| call.inputs[i].dtype());
    let [first, second] = if types[0] == DType::I64 {
        [3, 2]
    } else {
        [2, 3]
    };
    (search.params.first, search.params.second) = (call.input(first)?, call.input(second)?);
    if fresh {
        search.each(call, "clear_queries", len)?;
    }
    search.each(call, by_queries, search.queries())?;
    search.each(call, by_points, search.params.points.shape[0] as usize)?;
    if !call.cx.fold.last {
        *call.state = Some(Box::new(kept));
        return Ok(());
    }
    search.params.first = call.output(0)?;
    search.each(call, "store_queries", search.params.first.numel())
}

impl CudaKernel for NearestGrad {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        grad(call, "table_queries", "table_points")
    }
}

impl CudaKernel for PairsGrad {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        grad(call, "pairs_queries", "pairs_points")
    }
}

/// All hits of one rank's queries, by block.
struct Hits {
    queries: Search,
    blocks: Vec<Block>,
}

/// The hits in one block of points.
struct Block {
    /// Where each query's hits begin; the last entry is the number of hits.
    offsets: Vec<i64>,
    /// The squared distances and indices of the hits.
    hits: Kept,
}

/// Where rows of these lengths begin; the last entry is the sum of the lengths.
fn offsets(counts: impl Iterator<Item = i64>) -> Vec<i64> {
    let mut sum = 0;
    let ends = counts.map(|count| {
        sum += count;
        sum
    });
    std::iter::once(0).chain(ends.collect::<Vec<_>>()).collect()
}

impl Block {
    /// Finds the points within a limit: counts them, downloads the counts, and writes the hits.
    fn find(call: &CudaCall<'_>, search: &mut Search) -> Result<Self> {
        let n = search.queries();
        let mut counts = Kept::new(call, [(DType::I64, n)])?;
        [search.params.offsets] = counts.addresses(call)?;
        search.each(call, "count_hits", n)?;
        let counts = counts.buffers.pop().map(|counts| counts.freeze());
        let counts: Vec<i64> = match counts {
            Some(counts) => {
                let bytes = call.gpu.download(&counts).in_op(call.op)?;
                bytemuck::pod_collect_to_vec(&bytes)
            }
            None => Vec::new(),
        };
        let offsets = offsets(counts.into_iter());
        let sum = offsets[n] as usize;
        let mut hits = Kept::new(call, [(search.dtype, sum), (DType::I64, sum)])?;
        search.on(call, &mut hits)?;
        search.params.offsets = search.lists.upload(call, &offsets)?;
        search.each(call, "hits", n)?;
        Ok(Self { offsets, hits })
    }

    fn count(&self, query: usize) -> i64 {
        self.offsets[query + 1] - self.offsets[query]
    }
}

impl Hits {
    /// How many hits each query has.
    fn counts(&self) -> Vec<i64> {
        let of = |query| self.blocks.iter().map(|block| block.count(query)).sum();
        (0..self.queries.queries()).map(of).collect()
    }
}

impl CudaKernel for RadiusOp {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let limit = match call.inputs[0].dtype() {
            DType::F32 => f64::from(limit(self.radius as f32)),
            _ => limit(self.radius),
        };
        if let Some(cap) = self.cap {
            return fold(call, cap, Some(limit));
        }
        let mut search = Search::with_clouds(call)?;
        search.params.limit = limit;
        let found = call.state.take().and_then(|s| s.downcast::<Hits>().ok());
        let mut blocks = found.map_or_else(Vec::new, |found| found.blocks);
        blocks.push(Block::find(call, &mut search)?);
        let hits = Hits {
            queries: search,
            blocks,
        };
        if call.cx.fold.last {
            let (counts, at) = (hits.counts(), &call.cx.outputs[2]);
            *call.rows = counts.iter().sum::<i64>() as usize;
            let from = Strided::contiguous(&[counts.len()]);
            let to = Strided::new(at.offset, at.shape.clone(), at.strides.clone());
            let bytes = bytemuck::cast_slice(&counts);
            let counts = call.gpu.upload(DType::I64, bytes).in_op(call.op)?;
            (call.gpu)
                .copy(&counts, &from, &mut call.outputs[2], &to)
                .in_op(call.op)?;
        }
        *call.state = Some(Box::new(hits));
        Ok(())
    }

    fn merge(&self, call: &mut CudaCall<'_>) -> Result<()> {
        merge(call)
    }

    fn write_rows(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let found = call.state.take().and_then(|s| s.downcast::<Hits>().ok());
        let Some(mut found) = found else {
            unreachable!("rows are written after they were found")
        };
        let rows = offsets(found.counts().into_iter());
        let Hits { queries, blocks } = &mut *found;
        let n = queries.queries();
        let params = &mut queries.params;
        (params.first, params.second) = (call.output(1)?, call.output(0)?);
        params.k = n as i64;
        let mut starts = rows[..n].to_vec();
        for block in &mut *blocks {
            queries.on(call, &mut block.hits)?;
            queries.params.offsets = queries.lists.upload(call, &block.offsets)?;
            queries.params.starts = queries.lists.upload(call, &starts)?;
            queries.each(call, "place_hits", n)?;
            for (query, start) in starts.iter_mut().enumerate() {
                *start += block.count(query);
            }
        }
        if blocks.len() > 1 {
            queries.params.offsets = queries.lists.upload(call, &rows)?;
            queries.each(call, "sort_hits", n)?;
        }
        Ok(())
    }
}

impl CudaKernel for Step {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let boxes = &call.cx.inputs;
        let mut search = Search::new(call.inputs[0].dtype(), 0);
        let positions = |search: &mut Search, i: usize, d: usize| {
            let held = search.lists.positions(call, &boxes[i].held[d]);
            held.map(|held| search.params.point_at = held)
        };
        let clouds = |search: &mut Search, i: usize| -> Result<()> {
            if call.inputs.len() > i {
                search.params.by_cloud = 1;
                search.params.point_clouds = call.input(i)?;
            }
            Ok(())
        };
        match self {
            Self::Unsampled => search.params.queries = call.input(0)?,
            Self::Coordinates => {
                search.params.queries = call.input(0)?;
                search.params.second = call.input(1)?;
                positions(&mut search, 0, 1)?;
            }
            Self::Lower => {
                search.params.queries = call.input(0)?;
                (search.params.second, search.params.third) = (call.input(1)?, call.input(2)?);
                search.params.g = call.input(3)?;
                clouds(&mut search, 4)?;
                positions(&mut search, 0, 1)?;
            }
            Self::Best { .. } => {
                search.params.second = call.input(0)?;
                clouds(&mut search, 1)?;
                positions(&mut search, 0, 0)?;
            }
            Self::Take => {
                // These lists have indices, and no coordinates are read.
                search.dtype = DType::F64;
                (search.params.second, search.params.third) = (call.input(0)?, call.input(1)?);
            }
        }
        search.params.first = call.output(0)?;
        let n = search.params.first.numel();
        match self {
            Self::Unsampled => search.each(call, "unsampled", n),
            Self::Coordinates => search.each(call, "coordinates", n),
            Self::Lower => search.each(call, "lower", n),
            Self::Best { clouds } => {
                search.blocks(call, "best", *clouds as u32, call.gpu.block().min(1024))
            }
            Self::Take => search.each(call, "take", n),
        }
    }
}
