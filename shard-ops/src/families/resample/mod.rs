//! Interpolation of any spatial dims, to a size or by a factor: nearest, nearest-exact, linear, cubic, antialiased, and means over
//! equal areas, which are adaptive pools as well.
//!
//! Each dim is a window whose coordinates and weights are PyTorch's ([`Window::sample`]). Forward and adjoint are
//! one op, a sparse matrix along each dim, so derivatives of any order are in this family.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;

use crate::error::InOp;
use crate::families::types::float_types;
use crate::host::with_float;
use crate::{
    Access, Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, OpError, OperandBox,
    Result, Rule, Saved, Value, key_of,
};
use shard_kernels::resample::{Table, resample};
use shard_spec::{Dims, ResampleMode, Sample, Window};
use smallvec::smallvec;
use std::sync::Arc;

/// The extents to interpolate to. Lists have one entry per spatial dim; one entry serves all dims.
#[derive(Clone, Debug, PartialEq)]
pub enum ResampleTo {
    /// Output extents.
    Size(Vec<usize>),
    /// Factors: the output extent is `floor(n * factor)`, and coordinates are computed with the factor itself.
    Scale(Vec<f64>),
}

/// Interpolates the spatial dims of `x`, (N, C, spatial...).
///
/// # Collective
/// All members of the mesh; communicates the samples that lie on other ranks.
///
/// # Errors
/// No spatial dims; a target with a wrong number of entries; an extent of 0.
pub fn interpolate(
    exec: &dyn Exec,
    x: &Value,
    target: &ResampleTo,
    mode: ResampleMode,
) -> Result<Value> {
    let nd = x.ndim().saturating_sub(2);
    let given = match target {
        ResampleTo::Size(sizes) => sizes.len(),
        ResampleTo::Scale(factors) => factors.len(),
    };
    if nd == 0 || (given != 1 && given != nd) {
        return Err(OpError::Shape {
            op: "interpolate",
            problem: format!("{given} target entries for {nd} spatial dims"),
            shapes: vec![x.shape().to_vec()],
            fix: "give (N, C, spatial...) and one entry, or one per spatial dim",
        });
    }
    let windows = (0..nd)
        .map(|d| {
            let n = x.shape()[2 + d];
            match target {
                ResampleTo::Size(sizes) => Window::resample(n, sizes[d.min(given - 1)], mode, None),
                ResampleTo::Scale(factors) => {
                    Window::resample_by(n, factors[d.min(given - 1)], mode)
                }
            }
            .in_op("interpolate")
        })
        .collect::<Result<Vec<_>>>()?;
    let input = x.shape()[2..].iter().copied().collect();
    exec.apply1(
        Arc::new(Interpolate {
            windows,
            input,
            adjoint: false,
        }),
        &[x],
    )
}

#[derive(Clone, Debug)]
pub(crate) struct Interpolate {
    windows: Vec<Window>,
    /// Spatial extents of the forward's input.
    input: Dims,
    adjoint: bool,
}

impl Interpolate {
    fn output(&self) -> Result<Dims> {
        self.windows
            .iter()
            .zip(&self.input)
            .map(|(w, &n)| w.output_extent(n).in_op(self.name()))
            .collect()
    }

    /// The tables of the spatial dims: their rows are those of a box that is written, their columns those of a box that is read.
    pub(crate) fn tables(&self, input: &OperandBox, output: &OperandBox) -> Vec<Table> {
        let table = |d| match self.adjoint {
            true => self.table(d, output, input).transposed(output.shape[2 + d]),
            false => self.table(d, input, output),
        };
        (0..self.windows.len()).map(table).collect()
    }

    /// The order of the passes. The last dim, whose neighbours are not side by side, takes longest: it is passed over while there are
    /// fewest elements. Of the global extents alone, so that sums are the same on all ranks.
    fn order(&self) -> impl Iterator<Item = usize> {
        let nd = self.windows.len();
        let grows = |d: usize| {
            self.windows[d]
                .output_extent(self.input[d])
                .is_ok_and(|n| n > self.input[d])
        };
        let last_first = (nd > 0 && grows(nd - 1)) != self.adjoint;
        (0..nd).map(move |d| if last_first { nd - 1 - d } else { d })
    }

    /// The table of spatial dim `d`: its rows are those of a box of outputs, its columns those of a box of inputs.
    fn table(&self, d: usize, input: &OperandBox, output: &OperandBox) -> Table {
        let (from, count) = (input.start[2 + d], input.shape[2 + d]);
        let window = &self.windows[d];
        Table::from_rows((0..output.shape[2 + d]).map(|o| {
            let sample = window.sample(output.start[2 + d] + o);
            let pairs = sample.iter().flat_map(Sample::pairs);
            let read = pairs.filter(|&(i, w)| w != 0.0 && (from..from + count).contains(&i));
            read.map(|(i, w)| (i - from, w)).collect::<Vec<_>>()
        }))
    }
}

impl Op for Interpolate {
    fn name(&self) -> &'static str {
        if self.adjoint {
            "interpolate_adjoint"
        } else {
            "interpolate"
        }
    }

    fn key(&self) -> u128 {
        key_of("interpolate", &(&self.windows, &self.input, self.adjoint))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(self.name(), inputs)?;
        let x = &inputs[0].shape;
        let mut rule = Rule::builder(self.name(), inputs).any_order();
        let lead = [
            Access::factor(rule.factor(x[0])),
            Access::factor(rule.factor(x[1])),
        ];
        let (mut from, mut to) = (lead.to_vec(), lead.to_vec());
        let extents = if self.adjoint {
            self.input.clone()
        } else {
            self.output()?
        };
        for (window, &n) in self.windows.iter().zip(&extents) {
            let (factor, window) = (rule.factor(n), window.clone());
            from.push(if self.adjoint {
                Access::Adjoint { factor, window }
            } else {
                Access::Window { factor, window }
            });
            to.push(Access::factor(factor));
        }
        let shape = x[..2].iter().copied().chain(extents).collect();
        rule.input(from)
            .output(to, shape, dtype)
            .linearity(Linearity::Each(smallvec![0]))
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let tables = self.tables(&call.cx.inputs[0], &call.cx.outputs[0]);
        with_float!(call.dtype(), T => {
            let x = call.input::<T>(0);
            let passes: Vec<(usize, &Table)> = self.order().map(|d| (2 + d, &tables[d])).collect();
            resample(&x, &passes, &mut call.output::<T>(0));
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let adjoint = Self {
            adjoint: !self.adjoint,
            ..self.clone()
        };
        saved.pull_back_by(exec, cotangents, adjoint)
    }
}
