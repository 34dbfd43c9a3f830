//! Running extremes with their indices, and the derivative, which sums runs of equal indices.

use super::parts::{self, Parts, line_shape};
use crate::families::full::sums;
use crate::families::indexing::gather;
use crate::families::types::number_types;
use crate::host::{with_float, with_number};
use crate::{
    Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, OpError, Result, Rule, Saved,
    Value, key_of,
};
use shard_comm::DType;
use shard_kernels::scan::{Extreme, RunSum, extremes, runs};

use std::sync::Arc;

/// The largest element of a dim up to each, and its index: the last of equal ones, and NaN before all, as PyTorch's.
///
/// # Collective
/// As [`cumsum`](super::cumsum), with a number and an index per line and part.
///
/// # Errors
/// A dim out of range; a 16-bit float.
pub fn cummax(exec: &dyn Exec, x: &Value, dim: usize) -> Result<(Value, Value)> {
    running(exec, true, x, dim)
}

/// The smallest element of a dim up to each, and its index: the last of equal ones, and NaN before all.
///
/// # Collective
/// As [`cummax`].
///
/// # Errors
/// As [`cummax`].
pub fn cummin(exec: &dyn Exec, x: &Value, dim: usize) -> Result<(Value, Value)> {
    running(exec, false, x, dim)
}

fn running(exec: &dyn Exec, largest: bool, x: &Value, dim: usize) -> Result<(Value, Value)> {
    let name = if largest { "cummax" } else { "cummin" };
    let parts = Parts::of(name, x, dim)?;
    let scan = Extremes { largest, parts };
    let [values, indices] = if scan.parts.has_totals() {
        let [x] = &sums(exec, [x])?;
        let totals = Arc::new(ExtremeTotals(scan.clone()));
        let [values, indices] = exec.apply_n(totals, &[&x.detach()])?;
        let values = scan.parts.gathered(exec, &values)?;
        let indices = scan.parts.gathered(exec, &indices)?;
        exec.apply_n(Arc::new(scan), &[x, &values, &indices])?
    } else {
        exec.apply_n(Arc::new(scan), &[x])?
    };
    Ok((values, indices.detach()))
}

/// A scan for extremes that starts from those of the parts before, if there are any: the other operands.
#[derive(Clone, Debug)]
pub(crate) struct Extremes {
    pub(super) largest: bool,
    pub(super) parts: Parts,
}

/// The extremes of each part, with their indices; -1 of an empty one.
#[derive(Clone, Debug)]
pub(crate) struct ExtremeTotals(pub(super) Extremes);

impl Op for Extremes {
    fn name(&self) -> &'static str {
        if self.largest { "cummax" } else { "cummin" }
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &self.parts)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = number_types(self.name(), &inputs[..1])?;
        let shape = &inputs[0].shape;
        let (rule, dims) = self.parts.scanned(self.name(), inputs, 1, inputs.len() - 1);
        rule.output(dims.clone(), shape.clone(), dtype)
            .output(dims, shape.clone(), DType::I64)
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let at = &call.cx.inputs[0];
        let (dim, first) = (self.parts.dim, at.start[self.parts.dim] as i64);
        let lines = line_shape(&at.shape, dim);
        let before = self.parts.before(at, false);
        with_number!(call.dtype(), T => {
            let mut states = vec![Extreme::<T>::none(); lines.iter().product()];
            if call.inputs.len() > 1 {
                let (values, indices) = (call.input::<T>(1), call.input::<i64>(2));
                let mut of_parts = vec![Extreme::<T>::none(); states.len()];
                for &part in &before {
                    parts::join(&values, dim, &[part], &mut of_parts, |e, v| e.value = v);
                    parts::join(&indices, dim, &[part], &mut of_parts, |e, i| e.index = i);
                    for (state, next) in states.iter_mut().zip(&of_parts) {
                        *state = state.then(*next, self.largest);
                    }
                }
            }
            let x = call.input::<T>(0);
            let (mut values, mut indices) = call.output_pair::<T, i64>();
            let out = Some((&mut values, &mut indices));
            extremes(self.largest, &x, dim, first, &mut states, out);
        });
    }

    crate::kernel::gpu_kernel!();

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING.and_outputs(&[1])
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        saved.pull_back(cotangents, |dy, operand| match operand {
            0 => at_extremes(exec, dy, &saved.outputs[1], self.parts.dim),
            // The totals are made of the first operand, whose derivative is of both.
            _ => Err(OpError::NoVjp {
                op: self.name(),
                operand,
            }),
        })
    }
}

impl Op for ExtremeTotals {
    fn name(&self) -> &'static str {
        "scan_totals"
    }

    fn key(&self) -> u128 {
        key_of("extreme_totals", &(self.0.largest, &self.0.parts))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = number_types(self.name(), inputs)?;
        let (rule, dims, shape) = self.0.parts.totals(self.name(), inputs, 1);
        rule.output(dims.clone(), shape.clone(), dtype)
            .output(dims, shape, DType::I64)
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let parts = &self.0.parts;
        let at = &call.cx.inputs[0];
        let lines: usize = line_shape(&at.shape, parts.dim).iter().product();
        let first = at.start[parts.dim];
        let each = parts.within(at, &call.cx.outputs[0]);
        with_number!(call.dtype(), T => {
            for (k, rows) in each.into_iter().enumerate() {
                let mut states = vec![Extreme::<T>::none(); lines];
                let from = (first + rows.start) as i64;
                let x = parts.rows(&call.input::<T>(0), rows);
                extremes(self.0.largest, &x, parts.dim, from, &mut states, None);
                let (mut values, mut indices) = call.output_pair::<T, i64>();
                let found: Vec<T> = states.iter().map(|e| e.value).collect();
                parts.put(&mut values, k, &found);
                let found: Vec<i64> = states.iter().map(|e| e.index).collect();
                parts.put(&mut indices, k, &found);
            }
        });
    }

    crate::kernel::gpu_kernel!();
}

/// The derivative of running extremes: each was found at an index, which gets the sum of what comes to it. Indices ascend, so
/// those of one are a run, which ends, seen from behind, at the index itself.
fn at_extremes(exec: &dyn Exec, dy: &Value, index: &Value, dim: usize) -> Result<Value> {
    let parts = Parts::of("cummax", index, dim)?;
    let scan = Runs { parts };
    if !scan.parts.has_totals() {
        return exec.apply1(Arc::new(scan), &[dy, index]);
    }
    let totals = Arc::new(RunTotals(scan.clone()));
    let [sums, ended] = exec.apply_n(totals, &[&dy.detach(), index])?;
    let sums = scan.parts.gathered(exec, &sums)?;
    let ended = scan.parts.gathered(exec, &ended)?;
    exec.apply1(Arc::new(scan), &[dy, index, &sums, &ended])
}

/// Sums of runs, from behind.
#[derive(Clone, Debug)]
pub(crate) struct Runs {
    pub(super) parts: Parts,
}

/// What each part comes to: the sum of the run that goes on before it, and whether any ended in it.
#[derive(Clone, Debug)]
pub(crate) struct RunTotals(pub(super) Runs);

fn run_types(op: &'static str, inputs: &[Meta]) -> Result<DType> {
    crate::families::types::float_types(op, &inputs[..1])
}

impl Op for Runs {
    fn name(&self) -> &'static str {
        "cummax_grad"
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &self.parts)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = run_types(self.name(), inputs)?;
        let (rule, dims) = self.parts.scanned(self.name(), inputs, 2, inputs.len() - 2);
        rule.output(dims, inputs[0].shape.clone(), dtype)
            .linearity(Linearity::None)
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let at = &call.cx.inputs[0];
        let (dim, first) = (self.parts.dim, at.start[self.parts.dim] as i64);
        let lines = line_shape(&at.shape, dim);
        let after = self.parts.before(at, true);
        let mut states = vec![RunSum::default(); lines.iter().product()];
        if call.inputs.len() > 2 {
            let (sums, ended) = (call.input::<f64>(2), call.input::<i64>(3));
            let mut of_parts = states.clone();
            for &part in &after {
                parts::join(&sums, dim, &[part], &mut of_parts, |run, sum| run.sum = sum);
                parts::join(&ended, dim, &[part], &mut of_parts, |run, ended| {
                    run.ended = ended != 0;
                });
                for (state, next) in states.iter_mut().zip(&of_parts) {
                    *state = state.then(*next);
                }
            }
        }
        with_float!(call.dtype(), T => {
            let (dy, index) = (call.input::<T>(0), call.input::<i64>(1));
            let to = &mut call.output::<T>(0);
            runs(&dy, &index, dim, first, &mut states, Some(to));
        });
    }

    crate::kernel::gpu_kernel!();

    fn keeps(&self) -> Keeps {
        Keeps::inputs(&[1])
    }

    /// What other parts come to is of the same operand, so that all of the derivative is that operand's.
    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        saved.pull_back(cotangents, |dy, operand| match operand {
            0 => gather(exec, dy, self.parts.dim, &saved.inputs[1]).map(Some),
            _ => Ok(None),
        })
    }
}

impl Op for RunTotals {
    fn name(&self) -> &'static str {
        "scan_totals"
    }

    fn key(&self) -> u128 {
        key_of("run_totals", &self.0.parts)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        run_types(self.name(), inputs)?;
        let (rule, dims, shape) = self.0.parts.totals(self.name(), inputs, 2);
        rule.output(dims.clone(), shape.clone(), DType::F64)
            .output(dims, shape, DType::I64)
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let parts = &self.0.parts;
        let at = &call.cx.inputs[0];
        let lines: usize = line_shape(&at.shape, parts.dim).iter().product();
        let first = at.start[parts.dim];
        let each = parts.within(at, &call.cx.outputs[0]);
        with_float!(call.inputs[0].dtype(), T => {
            for (k, rows) in each.into_iter().enumerate() {
                let mut states = vec![RunSum::default(); lines];
                let from = (first + rows.start) as i64;
                let dy = parts.rows(&call.input::<T>(0), rows.clone());
                let index = parts.rows(&call.input::<i64>(1), rows);
                runs(&dy, &index, parts.dim, from, &mut states, None);
                let (mut sums, mut ended) = call.output_pair::<f64, i64>();
                let found: Vec<f64> = states.iter().map(|run| run.sum).collect();
                parts.put(&mut sums, k, &found);
                let found: Vec<i64> = states.iter().map(|run| run.ended.into()).collect();
                parts.put(&mut ended, k, &found);
            }
        });
    }

    crate::kernel::gpu_kernel!();
}
