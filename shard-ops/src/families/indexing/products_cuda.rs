//! Rows multiplied with matrices by key, on GPUs, tile by tile. No call of the vendor's library is made: those for groups of matrices are told
//! their extents by the host, which does not know them here.

use super::products::{EachOuter, EachProduct};
use crate::Result;
use crate::cuda::view::define;
use crate::cuda::{CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use bytemuck::{Pod, Zeroable};
use shard_comm::DType;
use shard_comm::cuda::KernelSource;

const SOURCE: KernelSource = cuda_source!("products", include_str!("products.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[(
    SOURCE,
    "#define T bf16\n#define W f32\n#define R f32\n#define TILE 16\n#define PRODUCT\n#define SUMS\n",
)];

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    x: CudaView,
    y: CudaView,
    table: CudaView,
    ghosts: CudaView,
    keys: u64,
    order: u64,
    starts: u64,
    own: i64,
    ghost_count: i64,
    rows: i64,
    n: i64,
    k: i64,
    goes_on: i64,
}

impl Params {
    /// Launches a kernel whose blocks take tiles of the results, of so many lines, in so many matrices.
    fn launch(
        &self,
        call: &CudaCall<'_>,
        (name, define_it): (&'static str, &'static str),
        (lines, deep): (i64, i64),
    ) -> Result<()> {
        let tile = call.gpu.block().isqrt();
        let (of, to) = (call.inputs[2].dtype(), call.outputs[0].dtype());
        let sums = if to == DType::F64 { "f64" } else { "f32" };
        let defines = format!(
            "{}#define W {sums}\n#define TILE {tile}\n#define {define_it}\n",
            define(&[("T", of), ("R", to)])
        );
        let tiles = |n: i64| (n as u64).div_ceil(u64::from(tile)).clamp(1, 1 << 15) as u32;
        let blocks = [tiles(self.n), tiles(lines), deep.clamp(1, 1 << 15) as u32];
        call.launch_own_blocks(&SOURCE, &defines, name, blocks, tile * tile, self)
    }
}

impl CudaKernel for EachProduct {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let turned = |mut table: CudaView| {
            if self.transposed {
                table.shape.swap(1, 2);
                table.strides.swap(1, 2);
            }
            table
        };
        let (x, y) = (call.input(2)?, call.output(0)?);
        let [table, ghosts] = [call.input(0)?, call.input(3)?].map(turned);
        let params = Params {
            x,
            y,
            table,
            ghosts,
            keys: call.input(1)?.data,
            own: table.shape[0],
            ghost_count: ghosts.shape[0],
            rows: x.shape[0],
            n: y.shape[1],
            k: x.shape[1],
            ..Params::zeroed()
        };
        params.launch(call, ("multiply_each", "PRODUCT"), (params.rows, 1))
    }
}

impl CudaKernel for EachOuter {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (x, y) = (call.input(2)?, call.input(3)?);
        let (table, ghosts) = (call.output(0)?, call.output(1)?);
        let params = Params {
            x,
            y,
            table,
            ghosts,
            order: call.input(4)?.data,
            starts: call.input(5)?.data,
            own: table.shape[0],
            ghost_count: ghosts.shape[0],
            n: y.shape[1],
            k: x.shape[1],
            goes_on: i64::from(!call.cx.fold.first),
            ..Params::zeroed()
        };
        let matrices = params.own + params.ghost_count;
        params.launch(call, ("outer_each", "SUMS"), (params.k, matrices))
    }
}
