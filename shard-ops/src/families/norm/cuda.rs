//! Norms and their derivatives on GPUs.

use super::grad::{GradOp, Part};
use super::{Cells, MomentsOp, Normalise, Statistics};
use crate::Result;
use crate::cuda::parts::Division;
use crate::cuda::view::define;
use crate::cuda::{CudaCall, CudaKernel};
use crate::cuda_source;
use crate::error::InOp;
use crate::host::partial_type;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;
use shard_comm::{BufferMut, DType};

const SOURCE: KernelSource = cuda_source!("norm", include_str!("norm.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] =
    &[(SOURCE, "#define S bf16\n#define T f32\n#define R bf16\n")];

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
    rstd: u64,
    found: u64,
    cells: i64,
    length: i64,
    inner: i64,
    groups: i64,
    channels: i64,
    rows: i64,
    across: i64,
    about_zero: i64,
    apart: i64,
    parts: i64,
    eps: f64,
}

/// The types of a kernel that writes output `o`.
fn defines(call: &CudaCall<'_>, o: usize) -> String {
    let (of, to) = (call.inputs[0].dtype(), call.outputs[o].dtype());
    define(&[("S", of), ("T", partial_type(of)), ("R", to)])
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
        let defines = defines(call, 0);
        call.launch_own(&SOURCE, &defines, name, count as usize, self)
    }

    /// Finds moments, or sums, of every cell, and puts them at `y`.
    fn of_cells(&self, call: &CudaCall<'_>, names: [&str; 3], numbers: usize) -> Result<()> {
        let division = Division::of(call, self.cells as usize, self.length as usize, false);
        self.divided(call, 0, division, names, numbers)
    }

    /// Sums of weights, which are `apart` from each other, in the type of output `o`.
    fn of_weights(&self, call: &CudaCall<'_>, o: usize) -> Result<()> {
        let names = ["element_sums", "channel_sums", "joined_weight_sums"];
        let division = match self.channels {
            0 => Division::of_threads(call, self.inner as usize, self.rows as usize),
            channels => {
                let each = (self.rows * self.inner) as usize;
                Division::of(call, channels as usize, each, false)
            }
        };
        self.divided(call, o, division, names, 2)
    }

    /// Finds so many numbers for every part, by one of the first two kernels, and joins them by the third.
    fn divided(
        &self,
        call: &CudaCall<'_>,
        o: usize,
        division: Division,
        names: [&str; 3],
        numbers: usize,
    ) -> Result<()> {
        let mut found = call.scratch(DType::F64, numbers * division.found())?;
        let params = Self {
            found: call.gpu.address_mut(&mut found).in_op(call.op)?,
            parts: division.parts as i64,
            ..*self
        };
        let defines = defines(call, o);
        let [by_threads, by_teams, joined] = names;
        division.launch_as(call, &SOURCE, &defines, [by_threads, by_teams], &params)?;
        division.join_as(call, &SOURCE, &defines, joined, &params)
    }

    /// Memory for the inverse deviations of cells, which are found now.
    fn rstds(&mut self, call: &CudaCall<'_>) -> Result<BufferMut> {
        let mut memory = call.scratch(DType::F64, self.cells as usize)?;
        self.rstd = call.gpu.address_mut(&mut memory).in_op(call.op)?;
        self.launch(call, "rstds", self.cells)?;
        Ok(memory)
    }
}

const MOMENTS: [&str; 3] = ["", "moments", "joined_moments"];
const CELL_SUMS: [&str; 3] = ["", "cell_sums", "joined_cell_sums"];

impl CudaKernel for MomentsOp {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let mut params = Params::new(call, self.cells, 0.0)?;
        params.about_zero = i64::from(self.squares);
        params.of_cells(call, MOMENTS, 3)
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
            moments.of_cells(call, MOMENTS, 3)?;
        } else {
            params.stats = call.dense(1)?;
        }
        if self.weight {
            params.weight = call.dense(weight)?;
        }
        if self.bias {
            params.bias = call.dense(weight + usize::from(self.weight))?;
        }
        let _rstds = params.rstds(call)?;
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
        let _rstds = params.rstds(call)?;
        match self.part {
            Part::CellSums => params.of_cells(call, CELL_SUMS, 2),
            Part::WeightSums => {
                let units = params.y + call.outputs[0].dtype().size() as u64;
                Params {
                    units,
                    apart: 2,
                    ..params
                }
                .of_weights(call, 0)
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
                .of_cells(call, CELL_SUMS, 2)?;
                params.launch(call, "input_grad", params.cells * params.length)?;
                if !weights {
                    return Ok(());
                }
                (params.units, params.y) = (call.output(1)?.data, call.output(2)?.data);
                // These may be terms of a sum over ranks, in `f32`, where the first output is not.
                Params { apart: 1, ..params }.of_weights(call, 1)
            }
        }
    }
}
