//! The derivative of a normalisation, for passes that are not recorded.

use super::Statistics;
use super::cells::{Cells, Channels, Like, along, scale};
use crate::families::types::float_types;
use crate::host::{flat, with_float, with_half};
use crate::{Halves, HostCall, Meta, Op, Result, Rule, key_of};
use shard_comm::{DType, DeviceKind};
use shard_kernels::normalise::{self as kernels, Along};
use shard_kernels::{Real, ViewMut};

/// The parts of the derivative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    /// Per cell, Σ w·dy, or 0 where no mean was taken off, and Σ w·dy·x̂.
    CellSums,
    /// Per weight, Σ dy and Σ dy·x̂.
    WeightSums,
    /// `(w·dy - (Σ w·dy + x̂ Σ w·dy·x̂) / n) / σ`, given the cell sums.
    Input,
    /// All of it, where cells lie whole on ranks: the derivative by elements, and if weights have ones too, per weight Σ dy·x̂ and Σ dy.
    Whole {
        /// Whether cotangents of weights are wanted.
        weights: bool,
    },
}

/// The fused derivative of a normalisation: sums over cells and over weights, and one pointwise pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GradOp {
    pub(crate) cells: Cells,
    pub(crate) by: Statistics,
    pub(crate) eps: u64,
    pub(crate) weight: bool,
    pub(crate) part: Part,
}

impl Op for GradOp {
    fn name(&self) -> &'static str {
        match self.part {
            Part::CellSums => "norm_cell_sums",
            Part::WeightSums => "norm_weight_sums",
            Part::Input => "norm_input_grad",
            Part::Whole { .. } => "norm_grad",
        }
    }

    fn key(&self) -> u128 {
        let part = (self.weight, self.part);
        key_of("norm_grad", &(self.cells, self.by, self.eps, part))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        float_types(self.name(), &inputs[..1])?;
        let weight = [Like::Weight];
        let weight = if self.weight { &weight[..] } else { &[] };
        let dtype = inputs[0].dtype;
        let from = [Like::X, Like::Stats(3), Like::X];
        let (sides, to): (Vec<Like>, Vec<(Like, DType)>) = match self.part {
            Part::CellSums => ([&from, weight].concat(), vec![(Like::Stats(2), DType::F64)]),
            Part::WeightSums => (from.to_vec(), vec![(Like::WeightSums(2), dtype)]),
            Part::Input => {
                let sums = &[Like::Stats(2)][..usize::from(self.takes_sums())];
                ([&from, sums, weight].concat(), vec![(Like::X, dtype)])
            }
            Part::Whole { weights } => {
                let to = [Like::X, Like::Weight, Like::Weight].map(|like| (like, dtype));
                let count = if weights { 3 } else { 1 };
                ([&from, weight].concat(), to[..count].to_vec())
            }
        };
        let whole = matches!(self.part, Part::Whole { .. });
        self.cells.rule(self.name(), inputs, whole, &sides, &to)
    }

    crate::kernel::gpu_kernel!();

    fn halves(&self, _: DType, _: &[Meta], on: DeviceKind) -> Halves {
        let sums = matches!(self.part, Part::CellSums | Part::WeightSums);
        match on.is_cuda() {
            true => Halves::ALL,
            // Weights are few, and so are sums.
            false => Halves {
                reads: &[0, 2],
                writes: !sums,
            },
        }
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_half!(call, T, U => return self.in_halves::<T, U>(call));
        with_float!(call.inputs[0].dtype(), T => self.compute::<T>(call));
    }
}

impl GradOp {
    /// Whether means are taken off.
    pub(super) fn takes_means(&self) -> bool {
        self.by == Statistics::Moments
    }

    /// Whether the cell sums are an operand.
    pub(crate) fn takes_sums(&self) -> bool {
        self.part == Part::Input
    }

    /// Writes the cell sums of channels of which Σ dy and Σ dy·x̂ were found.
    pub(super) fn put_cell_sums<T: Real>(
        &self,
        found: &[[f64; 2]],
        weight: Option<&[T]>,
        out: &mut [f64],
    ) {
        for (c, (to, [sum, unit])) in out.chunks_exact_mut(2).zip(found).enumerate() {
            let gain = weight.map_or(1.0, |w| w[c].wide());
            to[0] = if self.takes_means() { gain * sum } else { 0.0 };
            to[1] = gain * unit;
        }
    }

    fn compute<T: Real>(&self, call: &mut HostCall<'_, '_>) {
        let (x, stats, dy) = (call.input::<T>(0), call.input::<f64>(1), call.input::<T>(2));
        let shape = x.shape().to_vec();
        let weight_at = 3 + usize::from(self.takes_sums());
        let has_weight = self.weight && self.part != Part::WeightSums;
        let weight: Option<Vec<T>> = has_weight.then(|| call.input::<T>(weight_at).to_vec());
        let sums = self.takes_sums().then(|| flat(&call.input::<f64>(3)));
        let pieces = Pieces {
            op: self,
            cells: self.cells.local(&shape, &call.cx.inputs[0].global),
            x: &flat(&x),
            stats: &flat(&stats),
            dy: &flat(&dy),
            weight: weight.as_deref(),
            eps: f64::from_bits(self.eps),
            shape,
        };
        match self.part {
            Part::Whole { .. } => pieces.whole(&mut call.outputs_from::<T>(0)),
            Part::CellSums => pieces.cell_sums(call.output::<f64>(0).data_mut()),
            Part::WeightSums => pieces.weight_sums(call.output::<T>(0).data_mut()),
            Part::Input => pieces.input(sums.as_deref(), call.output::<T>(0).data_mut()),
        }
    }
}

/// What a rank has of the operands, one element after the other.
struct Pieces<'a, T> {
    op: &'a GradOp,
    cells: Cells,
    x: &'a [T],
    stats: &'a [f64],
    dy: &'a [T],
    weight: Option<&'a [T]>,
    eps: f64,
    shape: Vec<usize>,
}

impl<T: Real> Pieces<'_, T> {
    fn whole(&self, outputs: &mut [ViewMut<'_, T>]) {
        let [dx, weights @ ..] = outputs else {
            unreachable!("the rule has this output")
        };
        let grad = kernels::CellGrad {
            x: self.x,
            stats: self.stats,
            dy: self.dy,
            gain: self.weight,
            dx: dx.data_mut(),
            weights: match weights {
                [units, sums] => Some([units.data_mut(), sums.data_mut()]),
                _ => None,
            },
        };
        let cells = self.cells.whole(&self.shape, self.op.by, self.eps);
        kernels::cell_grad(cells, grad);
    }

    /// Of each channel Σ dy and Σ dy·x̂: where runs are short, row by row.
    fn channel_sums(&self, channels: &Channels<T>) -> Vec<[f64; 2]> {
        if self.cells.short_runs(&self.shape).is_none() {
            let mut sums = vec![[0.0; 2]; channels.scales.len()];
            kernels::add_run_sums(self.x, self.dy, channels.runs(0, None), &mut sums);
            return sums;
        }
        let width = channels.scales.len() * channels.run;
        let (mut sums, mut along) = (vec![0.0; width], vec![0.0; width]);
        kernels::add_column_sums(self.x, self.dy, &channels.means(), &mut sums, &mut along);
        channels.sums([&sums, &along])
    }

    /// The channels, where they are cells.
    fn channels(&self) -> Option<Channels<T>> {
        (self.cells).channels(&self.shape, self.stats, self.eps)
    }

    fn cell_sums(&self, out: &mut [f64]) {
        if let Some(channels) = self.channels() {
            let found = self.channel_sums(&channels);
            return self.op.put_cell_sums(&found, self.weight, out);
        }
        out.fill(0.0);
        self.cells.for_each_run(&self.shape, |run, cell, w, step| {
            let gain = along(self.weight, 1.0, w, step);
            let scale = scale(self.stats, cell, self.eps);
            let (a, b) = kernels::cell_sums(&self.x[run.clone()], &self.dy[run], scale, gain);
            if self.op.takes_means() {
                out[2 * cell] += a;
            }
            out[2 * cell + 1] += b;
        });
    }

    fn weight_sums(&self, out: &mut [T]) {
        if let Some(channels) = self.channels() {
            for (to, found) in out.chunks_exact_mut(2).zip(self.channel_sums(&channels)) {
                to.copy_from_slice(&found.map(T::of));
            }
            return;
        }
        let [mut sums, mut units] = [(); 2].map(|()| vec![0.0_f64; out.len() / 2]);
        self.cells.for_each_run(&self.shape, |run, cell, w, step| {
            let scale = scale(self.stats, cell, self.eps);
            let (x, dy) = (&self.x[run.clone()], &self.dy[run]);
            if step == 0 {
                let (a, b) = kernels::cell_sums(x, dy, scale, Along::One(T::of(1.0)));
                sums[w] += a;
                units[w] += b;
            } else {
                kernels::add_weight_sums(x, dy, scale, &mut sums, &mut units);
            }
        });
        for (to, (sum, unit)) in out.chunks_exact_mut(2).zip(sums.iter().zip(units)) {
            to.copy_from_slice(&[T::of(*sum), T::of(unit)]);
        }
    }

    fn input(&self, sums: Option<&[f64]>, out: &mut [T]) {
        let mean = |cell: usize, k: usize| match sums {
            Some(sums) => T::of(sums[2 * cell + k] / self.stats[3 * cell]),
            None => T::zero(),
        };
        if let Some(channels) = self.channels() {
            if self.cells.short_runs(&self.shape).is_none() {
                let runs = channels.runs(0, self.weight);
                let means = channels.pairs(mean);
                return kernels::input_grad_runs(self.x, self.dy, out, runs, &means);
            }
            let by = channels.slopes(self.weight, mean);
            let by = by.each_ref().map(Vec::as_slice);
            return kernels::input_grad_rows(self.x, self.dy, out, by);
        }
        self.cells.for_each_run(&self.shape, |run, cell, w, step| {
            let means = [mean(cell, 0), mean(cell, 1)];
            let gain = along(self.weight, 1.0, w, step);
            let scale = scale(self.stats, cell, self.eps);
            let (x, dy) = (&self.x[run.clone()], &self.dy[run.clone()]);
            kernels::input_grad(x, dy, &mut out[run], scale, means, gain);
        });
    }
}
