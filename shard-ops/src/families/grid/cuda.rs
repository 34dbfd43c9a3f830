//! Coordinates on GPUs.

use super::affine::AffineGrid;
use super::taps::{GridTaps, GridTapsAfter, GridTapsGrad};
use super::{SampleEdge, SampleMode};
use crate::Result;
use crate::cuda::view::define;
use crate::cuda::windows::lifted;
use crate::cuda::{CudaCall, CudaKernel};
use crate::cuda_source;
use crate::families::indexing::ABSENT;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;
use shard_kernels::grid::Reading;

const SOURCE: KernelSource = cuda_source!("grid", include_str!("grid.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[(SOURCE, "#define T f32\n")];

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    grid: u64,
    weight: u64,
    index: u64,
    theta: u64,
    count: i64,
    places: i64,
    spatial: i64,
    taps: i64,
    mode: i64,
    edge: i64,
    aligned: i64,
    in_elements: i64,
    absent: i64,
    plane: [i64; 3],
    start: [i64; 3],
    shape: [i64; 3],
    orders: [i64; 3],
}

fn numbers(of: &[usize]) -> Vec<i64> {
    of.iter().map(|&n| n as i64).collect()
}

impl GridTaps {
    fn params(&self, grid: u64, count: usize) -> Params {
        let Reading {
            sampling,
            in_elements,
        } = self.reading;
        Params {
            grid,
            count: (count / self.plane.len()) as i64,
            spatial: self.plane.len() as i64,
            taps: sampling.mode.taps() as i64,
            mode: match sampling.mode {
                SampleMode::Nearest => 0,
                SampleMode::Linear => 1,
                SampleMode::Cubic => 2,
            },
            edge: match sampling.edge {
                SampleEdge::Zeros => 0,
                SampleEdge::Border => 1,
                SampleEdge::Reflection => 2,
            },
            aligned: sampling.aligned.into(),
            in_elements: in_elements.into(),
            absent: ABSENT,
            plane: lifted(&numbers(&self.plane), 1),
            ..Params::zeroed()
        }
    }
}

impl CudaKernel for GridTaps {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let count = call.cx.inputs[0].shape.iter().product();
        let mut params = self.params(call.dense(0)?, count);
        params.weight = call.output(0)?.data;
        params.index = call.output(1)?.data;
        let defines = define(&[("T", call.inputs[0].dtype())]);
        let places = params.count as usize;
        call.launch_own(&SOURCE, &defines, "grid_taps", places, &params)
    }
}

impl CudaKernel for GridTapsGrad {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let count = call.cx.inputs[0].shape.iter().product();
        let mut params = self.0.params(call.dense(0)?, count);
        params.weight = call.dense(1)?;
        params.theta = call.output(0)?.data;
        let defines = define(&[("T", call.inputs[0].dtype())]);
        let places = params.count as usize;
        call.launch_own(&SOURCE, &defines, "grid_taps_grad", places, &params)
    }
}

impl CudaKernel for GridTapsAfter {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let count = call.cx.inputs[0].shape.iter().product();
        let mut params = self.taps.params(call.dense(0)?, count);
        params.weight = call.output(0)?.data;
        let orders = self.orders.map(i64::from);
        params.orders = lifted(&orders[..self.taps.plane.len()], 0);
        let defines = define(&[("T", call.inputs[0].dtype())]);
        let places = params.count as usize;
        call.launch_own(&SOURCE, &defines, "grid_taps_after", places, &params)
    }
}

impl CudaKernel for AffineGrid {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (from, to) = (call.dense(0)?, call.output(0)?.data);
        let (grid, maps) = match self.adjoint {
            true => (&call.cx.inputs[0], &call.cx.outputs[0]),
            false => (&call.cx.outputs[0], &call.cx.inputs[0]),
        };
        let [start, shape] = self.places(grid);
        let (places, maps) = (shape.iter().product::<usize>(), maps.shape[0]);
        let nd = self.plane.len();
        let params = Params {
            grid: if self.adjoint { from } else { to },
            theta: if self.adjoint { to } else { from },
            count: (maps * places) as i64,
            places: places as i64,
            spatial: nd as i64,
            aligned: self.aligned.into(),
            plane: lifted(&numbers(&self.plane), 1),
            start: lifted(&numbers(start), 0),
            shape: lifted(&numbers(shape), 1),
            ..Params::zeroed()
        };
        let defines = define(&[("T", call.inputs[0].dtype())]);
        if self.adjoint {
            let blocks = [(maps * nd * (nd + 1)) as u32, 1, 1];
            let block = call.gpu.block();
            return call.launch_own_blocks(
                &SOURCE,
                &defines,
                "affine_adjoint",
                blocks,
                block,
                &params,
            );
        }
        call.launch_own(&SOURCE, &defines, "affine_grid", maps * places, &params)
    }
}
