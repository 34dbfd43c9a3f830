//! Norms of what is stored in 16 bits, and their gradients.
//!
//! Cells, runs and rows are widened some at a time, to where the nearest cache holds them.

use super::cells::{Channels, along, scale};
use super::grad::{GradOp, Part};
use super::{MomentsOp, Normalise};
use crate::HostCall;
use crate::host::{flat, with_stored};
use shard_comm::Element;
use shard_kernels::attention::Stored;
use shard_kernels::normalise::{self as kernels, Along, Scale, WholeCells};
use shard_kernels::reduce::Half;
use shard_kernels::together::{by_blocks, by_cells, by_columns, by_runs, by_some};
use shard_kernels::{Real, View, moments};

impl Normalise {
    /// Normalises cells that are stored in 16 bits.
    pub(super) fn in_halves<T: Half + Element, U: Stored<Acc = f32> + Element>(
        &self,
        call: &mut HostCall<'_, '_>,
    ) {
        let x = call.input::<T>(0);
        let cells = self.cells.local(x.shape(), &call.cx.inputs[0].global);
        let whole = cells.whole(x.shape(), self.by, self.eps());
        let [weight, bias] = self.affine(call);
        let (mut out, mut stats) = call.output_pair::<U, f64>();
        let stats = stats.data_mut();
        if x.is_empty() {
            return stats.fill(0.0);
        }
        let (cell, affine) = (whole.runs * whole.len, [weight.as_deref(), bias.as_deref()]);
        let (x, out) = (&*flat(&x), out.data_mut());
        by_cells(cell, [x], out, |before, [x], out| {
            let stats = &mut stats[3 * before..][..3 * (x.len() / cell)];
            let cells = WholeCells { before, ..whole };
            kernels::normalise_cells(cells, x, affine, out, stats);
        });
    }

    /// Normalises what is stored in 16 bits by statistics that are an operand.
    pub(super) fn in_halves_by_given<T: Half + Element, U: Stored<Acc = f32> + Element>(
        &self,
        call: &mut HostCall<'_, '_>,
    ) {
        let (x, stats) = (call.input::<T>(0), call.input::<f64>(1));
        let shape = x.shape().to_vec();
        let cells = self.cells.local(&shape, &call.cx.inputs[0].global);
        let [weight, bias] = self.affine(call);
        let (x, stats, mut out) = (flat(&x), flat(&stats), call.output::<U>(0));
        let out = out.data_mut();
        if let Some(run) = cells.short_runs(&shape) {
            let channels = Channels::of(&stats, shape[1], run, self.eps());
            let by = channels.scaling(weight.as_deref(), bias.as_deref());
            let by = by.each_ref().map(Vec::as_slice);
            return by_cells(shape[1] * run, [&x], out, |_, [x], out| {
                kernels::normalise_rows(x, out, by);
            });
        }
        if let Some(channels) = in_few(cells.channels(&shape, &stats, self.eps())) {
            let affine = [weight.as_deref(), bias.as_deref()];
            return by_cells(channels.run, [&x], out, |before, [x], out| {
                kernels::normalise_runs(x, out, channels.runs(before, affine[0]), affine[1]);
            });
        }
        by_runs(cells.run_len(&shape), [&x], out, |at, [x], out| {
            let (cell, w, step) = cells.run(&shape, at[0]);
            let scale = scale(&stats, cell, self.eps());
            let gain = along(weight.as_deref(), 1.0, w + at[1] * step, step);
            let shift = along(bias.as_deref(), 0.0, w + at[1] * step, step);
            kernels::normalise(x, out, scale, gain, shift);
        });
    }

    /// Weight and bias.
    fn affine(&self, call: &HostCall<'_, '_>) -> [Option<Vec<f32>>; 2] {
        let at = [self.first_weight(), self.bias_at()];
        let given = [self.weight, self.bias];
        [0, 1].map(|k| given[k].then(|| call.input::<f32>(at[k]).to_vec()))
    }
}

/// The longest runs that are widened some at a time.
const IN_FEW: usize = 512;

/// The channels, where their runs are so short that some are widened together.
fn in_few(channels: Option<Channels<f32>>) -> Option<Channels<f32>> {
    channels.filter(|channels| (1..=IN_FEW).contains(&channels.run))
}

/// Σ dy and Σ dy·x̂ of each channel, where runs are no longer than those of [`in_few`].
fn channel_sums<T: Half>(
    [x, dy]: [&[T]; 2],
    channels: &Channels<f32>,
    are_short: bool,
) -> Vec<[f64; 2]> {
    let (count, run) = (channels.scales.len(), channels.run);
    if are_short {
        let means = channels.means();
        let [mut sums, mut along] = [(); 2].map(|()| vec![0.0; means.len()]);
        by_columns(kernels::ROWS, means.len(), [x, dy], |of, [x, dy]| {
            let (sums, along) = (&mut sums[of.clone()], &mut along[of.clone()]);
            kernels::add_column_sums(x, dy, &means[of], sums, along);
        });
        return channels.sums([&sums, &along]);
    }
    let mut sums = vec![[0.0; 2]; count];
    by_some(2 * IN_FEW / run * run, [x, dy], |before, [x, dy]| {
        kernels::add_run_sums(x, dy, channels.runs(before / run, None), &mut sums);
    });
    sums
}

/// Σ gain·dy and Σ gain·dy·x̂ of a run.
fn sums_of_run<T: Half>(x: &[T], dy: &[T], scale: Scale<f32>, gain: Along<'_, f32>) -> [f64; 2] {
    let (mut sums, mut at) = ([0.0; 2], 0);
    by_blocks([x, dy], |[x, dy]| {
        let gain = match gain {
            Along::Each(all) => Along::Each(&all[at..]),
            one => one,
        };
        let (sum, unit) = kernels::cell_sums(x, dy, scale, gain);
        sums = [sums[0] + sum, sums[1] + unit];
        at += x.len();
    });
    sums
}

impl MomentsOp {
    /// Moments of channels, of which rows have one element each, that are stored in 16 bits.
    pub(super) fn in_halves<T: Half + Element>(&self, call: &mut HostCall<'_, '_>) {
        let x = call.input::<T>(0);
        let channels = x.shape()[1];
        let mut out = call.output::<f64>(0);
        let out = out.data_mut();
        out.fill(0.0);
        by_columns(moments::ROWS, channels, [&*flat(&x)], |of, [x]| {
            let rows = View::contiguous(x, &[x.len() / of.len(), of.len()]);
            let found = moments::moments(&rows, &[0], None);
            let found = found.count.iter().zip(&found.mean).zip(&found.m2);
            let to = out[3 * of.start..].chunks_exact_mut(3);
            for (to, ((&count, &mean), &m2)) in to.zip(found) {
                let mut all = [to[0], to[1], to[2]];
                moments::merge(&mut all, [count, mean, m2]);
                to.copy_from_slice(&all);
            }
        });
    }
}

impl GradOp {
    /// Any part of what is stored in 16 bits.
    pub(super) fn in_halves<T: Half + Element, U: Stored<Acc = f32> + Element>(
        &self,
        call: &mut HostCall<'_, '_>,
    ) {
        match self.part {
            Part::Whole { .. } => self.whole_in_halves::<T, U>(call),
            Part::Input => self.input_in_halves::<T, U>(call),
            Part::CellSums => self.cell_sums_in_halves::<T>(call),
            Part::WeightSums => self.weight_sums_in_halves::<T>(call),
        }
    }

    fn whole_in_halves<T: Half + Element, U: Stored<Acc = f32> + Element>(
        &self,
        call: &mut HostCall<'_, '_>,
    ) {
        let (x, stats, dy) = (call.input::<T>(0), call.input::<f64>(1), call.input::<T>(2));
        let gain = self.weight.then(|| call.input::<f32>(3).to_vec());
        let gain = gain.as_deref();
        let cells = self.cells.local(x.shape(), &call.cx.inputs[0].global);
        let whole = cells.whole(x.shape(), self.by, f64::from_bits(self.eps));
        let weights = match self.part {
            Part::Whole { weights: true } => call.cx.outputs[1].shape.iter().product(),
            _ => 0,
        };
        let (cell, stats) = (whole.runs * whole.len, flat(&stats));
        let of = [&*flat(&x), &*flat(&dy)];
        let mut out = call.output::<U>(0);
        let mut sums = kernels::WeightGrads::new(whole, weights);
        by_cells(cell, of, out.data_mut(), |before, [x, dy], dx| {
            let grad = kernels::CellGrad {
                x,
                stats: &stats[3 * before..][..3 * (x.len() / cell)],
                dy,
                gain,
                dx,
                weights: None,
            };
            let cells = WholeCells { before, ..whole };
            kernels::add_cell_grad(cells, grad, &mut sums);
        });
        if weights > 0 {
            for (o, totals) in sums.totals().into_iter().enumerate() {
                let dtype = call.outputs[1 + o].dtype();
                with_stored!(dtype, V => {
                    let mut out = call.output::<V>(1 + o);
                    for (to, total) in out.data_mut().iter_mut().zip(totals) {
                        *to = V::narrow(Real::of(total));
                    }
                });
            }
        }
    }

    fn input_in_halves<T: Half + Element, U: Stored<Acc = f32> + Element>(
        &self,
        call: &mut HostCall<'_, '_>,
    ) {
        let (x, stats, dy) = (call.input::<T>(0), call.input::<f64>(1), call.input::<T>(2));
        let shape = x.shape().to_vec();
        let cells = self.cells.local(&shape, &call.cx.inputs[0].global);
        let weight_at = 3 + usize::from(self.takes_sums());
        let weight = self.weight.then(|| call.input::<f32>(weight_at).to_vec());
        let sums = self.takes_sums().then(|| flat(&call.input::<f64>(3)));
        let (weight, eps) = (weight.as_deref(), f64::from_bits(self.eps));
        let (of, stats) = ([&*flat(&x), &*flat(&dy)], flat(&stats));
        let mut out = call.output::<U>(0);
        let out = out.data_mut();
        let mean = |cell: usize, k: usize| match &sums {
            Some(sums) => (sums[2 * cell + k] / stats[3 * cell]) as f32,
            None => 0.0,
        };
        if let Some(run) = cells.short_runs(&shape) {
            let channels = Channels::of(&stats, shape[1], run, eps);
            let by = channels.slopes(weight, mean);
            let by = by.each_ref().map(Vec::as_slice);
            return by_cells(shape[1] * run, of, out, |_, [x, dy], dx| {
                kernels::input_grad_rows(x, dy, dx, by);
            });
        }
        if let Some(channels) = in_few(cells.channels(&shape, &stats, eps)) {
            let means = channels.pairs(mean);
            return by_cells(channels.run, of, out, |before, [x, dy], dx| {
                kernels::input_grad_runs(x, dy, dx, channels.runs(before, weight), &means);
            });
        }
        by_runs(cells.run_len(&shape), of, out, |at, [x, dy], dx| {
            let (cell, w, step) = cells.run(&shape, at[0]);
            let gain = along(weight, 1.0, w + at[1] * step, step);
            let means = [mean(cell, 0), mean(cell, 1)];
            kernels::input_grad(x, dy, dx, scale(&stats, cell, eps), means, gain);
        });
    }

    fn cell_sums_in_halves<T: Half + Element>(&self, call: &mut HostCall<'_, '_>) {
        let (x, stats, dy) = (call.input::<T>(0), call.input::<f64>(1), call.input::<T>(2));
        let shape = x.shape().to_vec();
        let cells = self.cells.local(&shape, &call.cx.inputs[0].global);
        let weight = self.weight.then(|| call.input::<f32>(3).to_vec());
        let (x, stats, dy) = (flat(&x), flat(&stats), flat(&dy));
        let eps = f64::from_bits(self.eps);
        let mut out = call.output::<f64>(0);
        let out = out.data_mut();
        if let Some(channels) = in_few(cells.channels(&shape, &stats, eps)) {
            let are_short = cells.short_runs(&shape).is_some();
            let found = channel_sums([&x, &dy], &channels, are_short);
            return self.put_cell_sums(&found, weight.as_deref(), out);
        }
        out.fill(0.0);
        cells.for_each_run(&shape, |run, cell, w, step| {
            let gain = along(weight.as_deref(), 1.0, w, step);
            let (x, dy, scale) = (&x[run.clone()], &dy[run], scale(&stats, cell, eps));
            let [sum, unit] = sums_of_run(x, dy, scale, gain);
            if self.takes_means() {
                out[2 * cell] += sum;
            }
            out[2 * cell + 1] += unit;
        });
    }

    fn weight_sums_in_halves<T: Half + Element>(&self, call: &mut HostCall<'_, '_>) {
        let (x, stats, dy) = (call.input::<T>(0), call.input::<f64>(1), call.input::<T>(2));
        let shape = x.shape().to_vec();
        let cells = self.cells.local(&shape, &call.cx.inputs[0].global);
        let (x, stats, dy) = (flat(&x), flat(&stats), flat(&dy));
        let eps = f64::from_bits(self.eps);
        if let Some(channels) = in_few(cells.channels(&shape, &stats, eps)) {
            let are_short = cells.short_runs(&shape).is_some();
            let found = channel_sums([&x, &dy], &channels, are_short);
            let mut out = call.output::<f32>(0);
            for (to, found) in out.data_mut().chunks_exact_mut(2).zip(found) {
                to.copy_from_slice(&found.map(|sum| sum as f32));
            }
            return;
        }
        let weights = call.cx.outputs[0].shape.iter().product::<usize>() / 2;
        let [mut sums, mut units] = [(); 2].map(|()| vec![0.0_f64; weights]);
        cells.for_each_run(&shape, |run, cell, w, step| {
            let (x, dy, scale) = (&x[run.clone()], &dy[run], scale(&stats, cell, eps));
            if step == 0 {
                let [sum, unit] = sums_of_run(x, dy, scale, Along::One(1.0));
                sums[w] += sum;
                units[w] += unit;
                return;
            }
            let mut at = w;
            by_blocks([x, dy], |[x, dy]| {
                let of = at..at + x.len();
                kernels::add_weight_sums(x, dy, scale, &mut sums[of.clone()], &mut units[of]);
                at += x.len();
            });
        });
        let mut out = call.output::<f32>(0);
        for (to, (sum, unit)) in out
            .data_mut()
            .chunks_exact_mut(2)
            .zip(sums.iter().zip(units))
        {
            to.copy_from_slice(&[*sum as f32, unit as f32]);
        }
    }
}
