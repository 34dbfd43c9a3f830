//! Norms and their derivatives on GPUs.

use super::grad::{GradOp, Part};
use super::{Cells, MomentsOp, Normalise, Statistics};
use crate::Result;
use crate::cuda::view::define;
use crate::cuda::{CudaCall, CudaKernel};
use crate::cuda_source;
use crate::error::InOp;
use bytemuck::{Pod, Zeroable};
use shard_comm::DType;
use shard_comm::cuda::KernelSource;

const SOURCE: KernelSource = cuda_source!("norm", include_str!("norm.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[(SOURCE, "#define T f32\n")];

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    x: u64,
    stats: u64,
    dy: u64,
    sums: u64,
    weight: u64,
    bias: u64,
    y: u64,
    units: u64,
    cells: i64,
    length: i64,
    inner: i64,
    groups: i64,
    channels: i64,
    rows: i64,
    across: i64,
    about_zero: i64,
    apart: i64,
    eps: f64,
}

impl Params {
    /// The geometry of the first input's piece, and its address.
    fn new(call: &mut CudaCall<'_>, cells: Cells, eps: f64) -> Result<Self> {
        let x = &call.cx.inputs[0];
        let shape: Vec<i64> = x.shape.iter().map(|&n| n as i64).collect();
        let mut params = Self {
            x: call.dense(0)?,
            eps,
            y: call.output(0)?.data,
            ..Self::zeroed()
        };
        match cells.local(&x.shape, &x.global) {
            Cells::Groups(groups) => {
                let groups = groups as i64;
                params.inner = shape[2..].iter().product();
                params.length = shape[1].checked_div(groups).unwrap_or(0) * params.inner;
                params.cells = shape[0] * groups;
                (params.groups, params.channels, params.rows) = (groups, shape[1], shape[0]);
            }
            Cells::Last(last) => {
                let (rows, row) = shape.split_at(shape.len() - last);
                params.rows = rows.iter().product();
                params.inner = row.iter().product();
                (params.cells, params.length) = (params.rows, params.inner);
            }
            Cells::Channels => {
                params.inner = shape[2..].iter().product();
                params.length = shape[0] * params.inner;
                (params.cells, params.channels, params.rows) = (shape[1], shape[1], shape[0]);
                params.across = 1;
            }
        }
        Ok(params)
    }

    fn launch(&self, call: &CudaCall<'_>, name: &str, count: i64) -> Result<()> {
        let defines = define(&[("T", call.inputs[0].dtype())]);
        call.launch_own(&SOURCE, &defines, name, count as usize, self)
    }

    /// Sums of weights, which are `apart` from each other.
    fn launch_weights(&self, call: &CudaCall<'_>) -> Result<()> {
        let weights = match self.channels {
            0 => self.inner,
            channels => channels,
        };
        self.launch_blocks(call, "weight_sums", weights)
    }

    fn launch_blocks(&self, call: &CudaCall<'_>, name: &str, count: i64) -> Result<()> {
        let defines = define(&[("T", call.inputs[0].dtype())]);
        let blocks = [count.min(1 << 16) as u32, 1, 1];
        call.launch_own_blocks(&SOURCE, &defines, name, blocks, call.gpu.block(), self)
    }
}

impl CudaKernel for MomentsOp {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let mut params = Params::new(call, self.cells, 0.0)?;
        params.about_zero = i64::from(self.squares);
        params.launch_blocks(call, "moments", params.cells)
    }
}

impl CudaKernel for Normalise {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let mut params = Params::new(call, self.cells, self.eps())?;
        let weight = self.first_weight();
        if self.finds {
            params.stats = call.output(1)?.data;
            let moments = Params {
                y: params.stats,
                about_zero: i64::from(self.by == Statistics::Squares),
                ..params
            };
            moments.launch_blocks(call, "moments", params.cells)?;
        } else {
            params.stats = call.dense(1)?;
        }
        if self.weight {
            params.weight = call.dense(weight)?;
        }
        if self.bias {
            params.bias = call.dense(weight + usize::from(self.weight))?;
        }
        params.launch(call, "normalise", params.cells * params.length)
    }
}

impl CudaKernel for GradOp {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let mut params = Params::new(call, self.cells, f64::from_bits(self.eps))?;
        (params.stats, params.dy) = (call.dense(1)?, call.dense(2)?);
        params.about_zero = i64::from(self.by == Statistics::Squares);
        let weight_at = 3 + usize::from(self.takes_sums());
        if self.weight && self.part != Part::WeightSums {
            params.weight = call.dense(weight_at)?;
        }
        match self.part {
            Part::CellSums => params.launch_blocks(call, "cell_sums", params.cells),
            Part::WeightSums => {
                let units = params.y + call.inputs[0].dtype().size() as u64;
                Params {
                    units,
                    apart: 2,
                    ..params
                }
                .launch_weights(call)
            }
            Part::Input => {
                if self.takes_sums() {
                    params.sums = call.dense(3)?;
                }
                params.launch(call, "input_grad", params.cells * params.length)
            }
            Part::Whole { weights } => {
                let mut sums = call.scratch(DType::F64, 2 * params.cells as usize)?;
                params.sums = call.gpu.address_mut(&mut sums).in_op(call.op)?;
                Params {
                    y: params.sums,
                    ..params
                }
                .launch_blocks(call, "cell_sums", params.cells)?;
                params.launch(call, "input_grad", params.cells * params.length)?;
                if !weights {
                    return Ok(());
                }
                (params.units, params.y) = (call.output(1)?.data, call.output(2)?.data);
                Params { apart: 1, ..params }.launch_weights(call)
            }
        }
    }
}
