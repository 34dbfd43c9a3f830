//! Norms of whole cells that are stored in 16 bits, and their gradients.

use super::Normalise;
use super::grad::{GradOp, Part};
use crate::HostCall;
use crate::host::{flat, with_stored};
use shard_comm::Element;
use shard_kernels::Real;
use shard_kernels::attention::Stored;
use shard_kernels::normalise as kernels;
use shard_kernels::reduce::Half;
use shard_kernels::together::by_cells;

impl Normalise {
    /// Normalises cells that are stored in 16 bits.
    pub(super) fn in_halves<T: Half + Element, U: Stored<Acc = f32> + Element>(
        &self,
        call: &mut HostCall<'_, '_>,
    ) {
        let x = call.input::<T>(0);
        let cells = self.cells.local(x.shape(), &call.cx.inputs[0].global);
        let whole = cells.whole(x.shape(), self.by, self.eps());
        let weight_at = self.first_weight();
        let weight = self.weight.then(|| call.input::<f32>(weight_at).to_vec());
        let bias_at = weight_at + usize::from(self.weight);
        let bias = self.bias.then(|| call.input::<f32>(bias_at).to_vec());
        let (mut out, mut stats) = call.output_pair::<U, f64>();
        let stats = stats.data_mut();
        if x.is_empty() {
            return stats.fill(0.0);
        }
        let (cell, affine) = (whole.runs * whole.len, [weight.as_deref(), bias.as_deref()]);
        by_cells(cell, [&flat(&x)], out.data_mut(), |before, [x], out| {
            let stats = &mut stats[3 * before..][..3 * (x.len() / cell)];
            let cells = kernels::WholeCells { before, ..whole };
            kernels::normalise_cells(cells, x, affine, out, stats);
        });
    }
}

impl GradOp {
    /// [`Part::Whole`] of cells that are stored in 16 bits.
    pub(super) fn in_halves<T: Half + Element, U: Stored<Acc = f32> + Element>(
        &self,
        call: &mut HostCall<'_, '_>,
    ) {
        let (x, stats, dy) = (call.input::<T>(0), call.input::<f64>(1), call.input::<T>(2));
        let gain = self.weight.then(|| call.input::<f32>(3).to_vec());
        let cells = self.cells.local(x.shape(), &call.cx.inputs[0].global);
        let whole = cells.whole(x.shape(), self.by, f64::from_bits(self.eps));
        let weights = match self.part {
            Part::Whole { weights: true } => call.cx.outputs[1].shape.iter().product(),
            _ => 0,
        };
        let mut sums = kernels::WeightGrads::new(whole, weights);
        let (cell, stats) = (whole.runs * whole.len, flat(&stats));
        let of = [&*flat(&x), &*flat(&dy)];
        let mut out = call.output::<U>(0);
        by_cells(cell, of, out.data_mut(), |before, [x, dy], dx| {
            let grad = kernels::CellGrad {
                x,
                stats: &stats[3 * before..][..3 * (x.len() / cell)],
                dy,
                gain: gain.as_deref(),
                dx,
                weights: None,
            };
            let cells = kernels::WholeCells { before, ..whole };
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
}
