//! Moments of cells, and what normalises by them.

use super::batch;
use super::cells::{Apart, Cells, Channels, Like, along, scale};
use super::grad::{GradOp, Part};
use crate::families::elementwise::{add_scalar, cast, mul, sub, unary};
use crate::families::full::{rounded_once, sums as sums_over_ranks};
use crate::families::reduce::{mean, sum};
use crate::families::shape::reshape;
use crate::families::types::float_types;
use crate::host::{flat, with_float, with_half};
use crate::{
    Cotangents, Exec, Grads, Halves, HostCall, Keeps, Meta, Op, OpError, Precision, Result, Rule,
    Saved, Value, key_of,
};
use shard_comm::{DType, DeviceKind};
use shard_kernels::moments::{Groups, about_zero, moments};
use shard_kernels::normalise as kernels;
use shard_kernels::unary::Unary;
use std::cell::LazyCell;
use std::sync::Arc;

/// What cells are normalised by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Statistics {
    /// The mean and the variance of the cell.
    Moments,
    /// The mean square of the cell: moments about zero.
    Squares,
    /// Moments that do not depend on the cell.
    Given,
}

/// Moments of every cell: (count, mean, M2) in double precision, or (count, 0, sum of squares).
#[derive(Clone, Copy, Debug)]
pub(crate) struct MomentsOp {
    pub(crate) cells: Cells,
    pub(crate) squares: bool,
}

impl MomentsOp {
    /// Whether cells are channels, of which rows have one element each.
    fn are_columns(&self, shape: &[usize]) -> bool {
        self.cells == Cells::Channels && !self.squares && self.cells.run_len(shape) == 1
    }
}

impl Op for MomentsOp {
    fn name(&self) -> &'static str {
        "moments"
    }

    fn key(&self) -> u128 {
        key_of("moments", &(self.cells, self.squares))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        float_types("moments", inputs)?;
        let to = [(Like::Stats(3), DType::F64)];
        self.cells.rule("moments", inputs, false, &[Like::X], &to)
    }

    crate::kernel::gpu_kernel!();

    fn halves(&self, _: DType, inputs: &[Meta], on: DeviceKind) -> Halves {
        match on.is_cuda() {
            true => Halves::ALL,
            false if self.are_columns(&inputs[0].shape) => Halves {
                reads: &[0],
                writes: false,
            },
            false => Halves::NONE,
        }
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        match call.inputs[0].dtype() {
            DType::F16 => return self.in_halves::<half::f16>(call),
            DType::BF16 => return self.in_halves::<half::bf16>(call),
            _ => {}
        }
        with_float!(call.inputs[0].dtype(), T => {
            let x = call.input::<T>(0);
            let found = match self.cells.local(x.shape(), &call.cx.inputs[0].global) {
                Cells::Groups(groups) => {
                    let dims: Vec<usize> = (2..x.ndim()).collect();
                    let channels = x.shape()[1];
                    moments(&x, &dims, Some(Groups { dim: 1, start: 0, channels, groups }))
                }
                Cells::Last(last) => moments(&x, &(x.ndim() - last..x.ndim()).collect::<Vec<_>>(), None),
                Cells::Channels => {
                    let dims: Vec<usize> = (0..x.ndim()).filter(|&d| d != 1).collect();
                    moments(&x, &dims, None)
                }
            };
            // Squares are those of the last dims.
            let all = LazyCell::new(|| flat(&x));
            let has_nan = |c: usize| {
                let len = all.len() / found.count.len();
                all[c * len..][..len].iter().any(|x| x.is_nan())
            };
            let mut out = call.output::<f64>(0);
            let cells = found.count.iter().zip(&found.mean).zip(&found.m2);
            let to = out.data_mut().chunks_exact_mut(3);
            for (c, (to, ((&count, &mean), &m2))) in to.zip(cells).enumerate() {
                to.copy_from_slice(&match self.squares {
                    true => [count, 0.0, about_zero([count, mean, m2], || has_nan(c))],
                    false => [count, mean, m2],
                });
            }
        });
    }
}

/// `(x - mean) / sqrt(M2 / count + eps) * weight + bias`, given the moments of `x`, or with them as a second output.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Normalise {
    pub cells: Cells,
    pub by: Statistics,
    pub eps: u64,
    /// Whether moments are found here, as they can be where cells lie whole on ranks. Otherwise they are the second operand.
    pub finds: bool,
    pub weight: bool,
    pub bias: bool,
}

impl Normalise {
    fn sides(&self) -> Vec<Like> {
        let mut sides = vec![Like::X, Like::Stats(3)];
        sides.truncate(self.first_weight());
        sides.extend((0..usize::from(self.weight) + usize::from(self.bias)).map(|_| Like::Weight));
        sides
    }

    /// The number of the operand that is the weight, or the bias if there is none.
    pub(crate) fn first_weight(&self) -> usize {
        2 - usize::from(self.finds)
    }

    /// The number of the operand that is the bias, if there is one.
    pub(super) fn bias_at(&self) -> usize {
        self.first_weight() + usize::from(self.weight)
    }

    pub(crate) fn eps(&self) -> f64 {
        f64::from_bits(self.eps)
    }
}

impl Op for Normalise {
    fn name(&self) -> &'static str {
        "normalise"
    }

    fn precision(&self) -> Precision {
        Precision::First
    }

    fn key(&self) -> u128 {
        let affine = (self.weight, self.bias);
        key_of(
            "normalise",
            &(self.cells, self.by, self.eps, self.finds, affine),
        )
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let x = float_types("normalise", &inputs[..1])?;
        for (operand, meta) in inputs.iter().enumerate().skip(self.first_weight()) {
            if meta.dtype != x {
                let expected = x.to_string();
                return Err(OpError::dtype("normalise", operand, expected, meta.dtype));
            }
        }
        let outputs = [(Like::X, x), (Like::Stats(3), DType::F64)];
        let outputs = &outputs[..1 + usize::from(self.finds)];
        self.cells
            .rule("normalise", inputs, self.finds, &self.sides(), outputs)
    }

    crate::kernel::gpu_kernel!();

    fn halves(&self, _: DType, _: &[Meta], on: DeviceKind) -> Halves {
        match on.is_cuda() {
            true => Halves::ALL,
            // Weights are few.
            false => Halves {
                reads: &[0],
                writes: true,
            },
        }
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_half!(call, T, U => return match self.finds {
            true => self.in_halves::<T, U>(call),
            false => self.in_halves_by_given::<T, U>(call),
        });
        with_float!(call.dtype(), T => {
            let x = call.input::<T>(0);
            let shape = x.shape().to_vec();
            let cells = self.cells.local(&shape, &call.cx.inputs[0].global);
            let weight_at = self.first_weight();
            let weight = self.weight.then(|| call.input::<T>(weight_at).to_vec());
            let bias_at = weight_at + usize::from(self.weight);
            let bias = self.bias.then(|| call.input::<T>(bias_at).to_vec());
            let data = flat(&x);
            if self.finds {
                let whole = cells.whole(&shape, self.by, self.eps());
                let (mut out, mut stats) = call.output_pair::<T, f64>();
                let affine = [weight.as_deref(), bias.as_deref()];
                kernels::normalise_cells(whole, &data, affine, out.data_mut(), stats.data_mut());
                return;
            }
            let stats = call.input::<f64>(1);
            let stats = flat(&stats);
            let mut out = call.output::<T>(0);
            let out = out.data_mut();
            if let Some(run) = cells.short_runs(&shape) {
                let channels = Channels::of(&stats, shape[1], run, self.eps());
                let by = channels.scaling(weight.as_deref(), bias.as_deref());
                kernels::normalise_rows(&data, out, by.each_ref().map(Vec::as_slice));
                return;
            }
            if let Some(channels) = cells.channels(&shape, &stats, self.eps()) {
                let runs = channels.runs(0, weight.as_deref());
                return kernels::normalise_runs(&data, out, runs, bias.as_deref());
            }
            cells.for_each_run(&shape, |run, cell, w, step| {
                let scale = scale(&stats, cell, self.eps());
                let gain = along(weight.as_deref(), 1.0, w, step);
                let shift = along(bias.as_deref(), 0.0, w, step);
                kernels::normalise(&data[run.clone()], &mut out[run], scale, gain, shift);
            });
        });
    }

    fn keeps(&self) -> Keeps {
        match (self.finds, self.weight) {
            (true, false) => Keeps::inputs(&[0]).and_outputs(&[1]),
            (true, true) => Keeps::inputs(&[0, 1]).and_outputs(&[1]),
            (false, false) => Keeps::inputs(&[0, 1]),
            (false, true) => Keeps::inputs(&[0, 1, 2]),
        }
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let Some(dy) = &cotangents[0] else {
            return Ok(vec![None; saved.inputs.len()]);
        };
        let x = &saved.inputs[0];
        let stats = match self.finds {
            true => &saved.outputs[1],
            false => &saved.inputs[1],
        };
        let weight = self.weight.then(|| &saved.inputs[self.first_weight()]);
        if exec.records() {
            return self.vjp_of_parts(exec, saved, dy);
        }
        let operands: Vec<&Value> = [Some(x), Some(stats), Some(dy), weight]
            .into_iter()
            .flatten()
            .collect();
        let mut back = vec![None; saved.inputs.len()];
        match saved.needs[0] && self.finds {
            true => self.vjp_at_once(exec, saved, &operands, &mut back)?,
            false => self.vjp_by_part(exec, saved, &operands, &mut back)?,
        }
        Ok(back)
    }
}

impl Normalise {
    /// The op that finds a part of the derivative.
    fn grad(&self, part: Part) -> Arc<GradOp> {
        Arc::new(GradOp {
            cells: self.cells,
            by: self.by,
            eps: self.eps,
            weight: self.weight,
            part,
        })
    }

    /// Puts the cotangents of weight and bias, where there are any and they are wanted: `found` has them, by whether it is the weight's,
    /// and the operand's number.
    fn set_weights(
        &self,
        saved: &Saved<'_>,
        back: &mut Grads,
        mut found: impl FnMut(bool, usize) -> Result<Option<Value>>,
    ) -> Result<()> {
        let weight = self.weight.then(|| (true, self.first_weight()));
        let bias = self.bias.then(|| (false, self.bias_at()));
        for (is_weight, i) in [weight, bias].into_iter().flatten() {
            if saved.needs[i] {
                back[i] = found(is_weight, i)?;
            }
        }
        Ok(())
    }

    /// All that is wanted by one op, where cells lie whole on ranks.
    fn vjp_at_once(
        &self,
        exec: &dyn Exec,
        saved: &Saved<'_>,
        operands: &[&Value],
        back: &mut Grads,
    ) -> Result<()> {
        let weights = saved.needs[self.first_weight()..].contains(&true);
        let mut found = (exec.apply(self.grad(Part::Whole { weights }), operands)?).into_iter();
        back[0] = found.next();
        let (mut units, mut sums) = (found.next(), found.next());
        self.set_weights(saved, back, |is_weight, _| match is_weight {
            true => Ok(units.take()),
            false => Ok(sums.take()),
        })
    }

    /// An op for what cells sum to, one for the input's cotangent and one for those of weight and bias.
    fn vjp_by_part(
        &self,
        exec: &dyn Exec,
        saved: &Saved<'_>,
        operands: &[&Value],
        back: &mut Grads,
    ) -> Result<()> {
        let wants_weights = saved.needs[self.first_weight()..].contains(&true);
        if saved.needs[0] {
            back[0] = Some(match self.by {
                Statistics::Given => self.vjp_by_given(exec, saved, operands[2])?,
                _ => {
                    let sums = match self.by {
                        Statistics::Moments if self.cells == Cells::Channels && wants_weights => {
                            self.channel_sums(exec, saved, operands, back)?
                        }
                        _ => exec.apply1(self.grad(Part::CellSums), operands)?,
                    };
                    let mut operands = operands.to_vec();
                    operands.insert(3, &sums);
                    exec.apply1(self.grad(Part::Input), &operands)?
                }
            });
        }
        let is_set = back[self.first_weight()..].iter().any(Option::is_some);
        if !wants_weights || is_set {
            return Ok(());
        }
        let sums = exec.apply1(self.grad(Part::WeightSums), &operands[..3])?;
        self.set_from_sums(exec, saved, &sums, back)
    }

    /// The cell sums of channels, and the cotangents of weight and bias: what a weight is a factor of is one cell, so that both are found of what is
    /// read once.
    fn channel_sums(
        &self,
        exec: &dyn Exec,
        saved: &Saved<'_>,
        operands: &[&Value],
        back: &mut Grads,
    ) -> Result<Value> {
        let unweighted = GradOp {
            weight: false,
            ..*self.grad(Part::CellSums)
        };
        let sums = exec.apply1(Arc::new(unweighted), &operands[..3])?;
        // They are read twice, and added over ranks once.
        let [sums] = sums_over_ranks(exec, [&sums])?;
        self.set_from_sums(exec, saved, &sums, back)?;
        let Some(weight) = operands.get(3) else {
            return Ok(sums);
        };
        let weight = cast(exec, weight, sums.dtype())?;
        mul(exec, &sums, &reshape(exec, &weight, &[sums.shape()[0], 1])?)
    }

    /// Puts the cotangents of weight and bias, which are a column each of what is summed for every weight.
    fn set_from_sums(
        &self,
        exec: &dyn Exec,
        saved: &Saved<'_>,
        sums: &Value,
        back: &mut Grads,
    ) -> Result<()> {
        let last = sums.ndim() - 1;
        self.set_weights(saved, back, |is_weight, i| {
            let column = usize::from(is_weight);
            let sums = crate::families::index::slice(exec, sums, last, column, 1, 1)?;
            let found = reshape(exec, &sums, saved.inputs[i].shape())?;
            cast(exec, &found, saved.inputs[0].dtype()).map(Some)
        })
    }

    /// The input's cotangent where statistics were given: elements only have a factor each, whatever they are.
    fn vjp_by_given(&self, exec: &dyn Exec, saved: &Saved<'_>, dy: &Value) -> Result<Value> {
        let [_, variance] = batch::mean_and_variance(exec, &saved.inputs[1])?;
        let shifted = add_scalar(exec, &variance, self.eps())?;
        let mut factor = unary(exec, &shifted, Unary::Rsqrt)?;
        if self.weight {
            let weight = cast(exec, &saved.inputs[self.first_weight()], factor.dtype())?;
            factor = mul(exec, &factor, &weight)?;
        }
        let apart = self.cells.apart(dy.shape());
        rounded_once(exec, [dy], |[dy]| {
            let factor = reshape(exec, &cast(exec, &factor, dy.dtype())?, &apart.weight)?;
            mul(exec, dy, &factor)
        })
    }

    /// The same derivative, made of ops that have derivatives themselves: for second order.
    fn vjp_of_parts(&self, exec: &dyn Exec, saved: &Saved<'_>, dy: &Value) -> Result<Grads> {
        let x = &saved.inputs[0];
        let apart = self.cells.apart(x.shape());
        let over = |v: &Value| mean(exec, v, &apart.cells, true);
        let dys = reshape(exec, dy, &apart.shape)?;
        let [centred, variance] = self.centred(exec, saved, &apart)?;
        let shifted = add_scalar(exec, &variance, self.eps())?;
        let rstd = unary(exec, &shifted, Unary::Rsqrt)?;
        let unit = mul(exec, &centred, &rstd)?;
        let scaled = match self.weight {
            true => mul(
                exec,
                &dys,
                &reshape(exec, &saved.inputs[self.first_weight()], &apart.weight)?,
            )?,
            false => dys.clone(),
        };
        let mut back = vec![None; saved.inputs.len()];
        if saved.needs[0] {
            let along = || mul(exec, &unit, &over(&mul(exec, &scaled, &unit)?)?);
            let rest = match self.by {
                Statistics::Moments => sub(exec, &sub(exec, &scaled, &over(&scaled)?)?, &along()?)?,
                Statistics::Squares => sub(exec, &scaled, &along()?)?,
                Statistics::Given => scaled.clone(),
            };
            back[0] = Some(reshape(exec, &mul(exec, &rest, &rstd)?, x.shape())?);
        }
        self.set_weights(saved, &mut back, |is_weight, i| {
            let terms = match is_weight {
                true => mul(exec, &dys, &unit)?,
                false => dys.clone(),
            };
            let summed = sum(exec, &terms, &apart.beside_weight(), true)?;
            reshape(exec, &summed, saved.inputs[i].shape()).map(Some)
        })?;
        Ok(back)
    }

    /// What is normalised, taken apart, less the mean that is taken from it; and the variance of cells.
    fn centred(&self, exec: &dyn Exec, saved: &Saved<'_>, apart: &Apart) -> Result<[Value; 2]> {
        let x = &saved.inputs[0];
        let xs = reshape(exec, x, &apart.shape)?;
        let over = |v: &Value| mean(exec, v, &apart.cells, true);
        Ok(match self.by {
            Statistics::Moments => {
                let centred = sub(exec, &xs, &over(&xs)?)?;
                let variance = over(&unary(exec, &centred, Unary::Square)?)?;
                [centred, variance]
            }
            Statistics::Squares => {
                let variance = over(&unary(exec, &xs, Unary::Square)?)?;
                [xs, variance]
            }
            Statistics::Given => {
                let [mean, variance] = batch::mean_and_variance(exec, &saved.inputs[1])?;
                let broad = |v: &Value| reshape(exec, &cast(exec, v, x.dtype())?, &apart.weight);
                [sub(exec, &xs, &broad(&mean)?)?, broad(&variance)?]
            }
        })
    }
}
