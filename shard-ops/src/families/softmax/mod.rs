//! Softmax and its logarithm over any dims: a reduction of (maximum, sum of exponentials), then a pass over the elements where they
//! are. The derivative is a sum per cell, and another such pass. Of rows that lie whole on ranks one op does both, row by row.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;

use crate::families::broadcast::sum;
use crate::families::elementwise::{cast, mul, neg, sub, unary};
use crate::families::full::{rounded_once, sums};
use crate::families::statistics::{check_dims, lie_whole, states};
use crate::families::types::float_types;
use crate::host::{flat, with_float, with_half};
use crate::{
    Access, Cotangents, Exec, Grads, Halves, HostCall, Keeps, Linearity, Meta, Op, OpError,
    Precision, Result, Rule, RuleBuilder, Saved, Value, key_of,
};
use shard_comm::{DType, DeviceKind, Monoid};
use shard_kernels::softmax as kernels;
use shard_kernels::together::by_cells;
use shard_kernels::unary::Unary;
use smallvec::SmallVec;
use std::sync::Arc;

/// `exp(x) / Σ exp(x)` over dims, without overflow.
///
/// # Collective
/// All members of the mesh. Communicates two numbers per cell if the dims are sharded, and one backward.
///
/// # Errors
/// A dim out of range or named twice; an operand that is not of floats.
pub fn softmax(exec: &dyn Exec, x: &Value, dims: &[usize]) -> Result<Value> {
    apply(exec, x, dims, false, false)
}

/// The logarithm of the [softmax](fn@softmax).
///
/// # Collective
/// As [`softmax`](fn@softmax).
///
/// # Errors
/// As [`softmax`](fn@softmax).
pub fn log_softmax(exec: &dyn Exec, x: &Value, dims: &[usize]) -> Result<Value> {
    apply(exec, x, dims, true, false)
}

/// The same, of floats of 16 bits in `f32`: for what goes on with it and rounds once.
pub(crate) fn log_softmax_in_full(exec: &dyn Exec, x: &Value, dims: &[usize]) -> Result<Value> {
    apply(exec, x, dims, true, true)
}

/// The [softmax](fn@softmax) of `-x`.
///
/// # Collective
/// As [`softmax`](fn@softmax).
///
/// # Errors
/// As [`softmax`](fn@softmax).
pub fn softmin(exec: &dyn Exec, x: &Value, dims: &[usize]) -> Result<Value> {
    softmax(exec, &neg(exec, x)?, dims)
}

fn apply(exec: &dyn Exec, x: &Value, dims: &[usize], log: bool, in_full: bool) -> Result<Value> {
    let name = if log { "log_softmax" } else { "softmax" };
    check_dims(name, x, dims)?;
    let op = |rows| Softmax {
        dims: dims.into(),
        log,
        rows,
        in_full,
    };
    let (last, row) = (
        x.ndim() - dims.len(),
        dims.iter().map(|&d| x.shape()[d]).product(),
    );
    if dims.iter().all(|&d| d >= last) && lie_whole(x, dims, row) {
        return exec.apply1(Arc::new(op(true)), &[x]);
    }
    let [x] = &sums(exec, [x])?;
    // The derivative through the states is part of the op's vjp.
    let pairs = states(exec, name, Monoid::MaxSumExp, &x.detach(), dims)?.detach();
    exec.apply1(Arc::new(op(false)), &[x, &pairs])
}

/// A softmax of rows, or one given the (maximum, sum of exponentials) of every cell: the second operand.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Softmax {
    pub dims: SmallVec<[usize; 6]>,
    pub log: bool,
    /// Whether cells are rows over the last dims, and ranks hold them whole.
    pub rows: bool,
    /// Whether the result of floats of 16 bits is `f32`.
    pub in_full: bool,
}

/// The derivative for passes that are not recorded, given the result, its cotangent, and but for rows the sums of cells.
#[derive(Clone, Debug)]
pub(crate) struct SoftmaxGrad(pub(crate) Softmax);

impl Softmax {
    /// How operands are indexed that have all dims.
    fn accesses(&self, rule: &mut RuleBuilder, x: &Meta) -> Vec<Access> {
        let each = |(d, &n): (usize, &usize)| match self.rows && self.dims.contains(&d) {
            true => Access::WHOLE,
            false => Access::factor(rule.factor(n)),
        };
        x.shape.iter().enumerate().map(each).collect()
    }

    /// What kernels read and write in 16 bits: on the host whole rows.
    fn halves(&self, on: DeviceKind) -> Halves {
        match self.rows || on.is_cuda() {
            true => Halves::ALL,
            false => Halves::NONE,
        }
    }

    /// Elements of a row of an operand's piece.
    fn row(&self, piece: &[usize]) -> usize {
        self.dims.iter().map(|&d| piece[d]).product()
    }

    /// The cotangent of the operand, in the type of the result's.
    fn derivative(&self, exec: &dyn Exec, y: &Value, dy: &Value) -> Result<Value> {
        let op = || Arc::new(SoftmaxGrad(self.clone()));
        if self.rows && !exec.records() {
            return exec.apply1(op(), &[y, dy]);
        }
        rounded_once(exec, [y, dy], |[y, dy]| {
            let along = match self.log {
                true => dy.clone(),
                false => mul(exec, y, dy)?,
            };
            let sums = sum(exec, &along, &self.dims, true)?;
            if !exec.records() {
                return exec.apply1(op(), &[y, dy, &sums]);
            }
            match self.log {
                true => sub(exec, dy, &mul(exec, &unary(exec, y, Unary::Exp)?, &sums)?),
                false => mul(exec, y, &sub(exec, dy, &sums)?),
            }
        })
    }
}

impl Op for Softmax {
    fn name(&self) -> &'static str {
        if self.log { "log_softmax" } else { "softmax" }
    }

    fn precision(&self) -> Precision {
        Precision::Full
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &(&self.dims, self.rows, self.in_full))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(self.name(), &inputs[..1])?;
        let mut rule = Rule::builder(self.name(), inputs).any_order();
        let all = self.accesses(&mut rule, &inputs[0]);
        rule = rule.input(all.clone());
        if !self.rows {
            let kept = (0..all.len()).filter(|d| !self.dims.contains(d));
            let mut cells: Vec<Access> = kept.map(|d| all[d].clone()).collect();
            cells.push(Access::WHOLE);
            rule = rule.input(cells);
        }
        rule.output(all, inputs[0].shape.clone(), dtype)
            .linearity(Linearity::None)
            .unrounded(self.in_full)
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn halves(&self, _: DType, _: &[Meta], on: DeviceKind) -> Halves {
        self.halves(on)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let log = self.log;
        with_half!(call, T, U => {
            let (x, mut out) = (call.input::<T>(0), call.output::<U>(0));
            let n = self.row(x.shape());
            return by_cells(n, [&flat(&x)], out.data_mut(), |_, [x], out| {
                kernels::softmax_rows(log, x, n, out);
            });
        });
        with_float!(call.dtype(), T => {
            let x = call.input::<T>(0);
            if self.rows {
                let (n, mut out) = (self.row(x.shape()), call.output::<T>(0));
                kernels::softmax_rows(self.log, &flat(&x), n, out.data_mut());
            } else {
                let pairs = call.input::<f64>(1).to_vec();
                kernels::softmax(self.log, &x, &self.dims, &pairs, &mut call.output::<T>(0));
            }
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING.and_outputs(&[0])
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let y = &saved.outputs[0];
        saved.pull_back(cotangents, |dy, operand| {
            // The states are made of the first operand, whose derivative is of both.
            if operand > 0 {
                return Err(OpError::NoVjp {
                    op: self.name(),
                    operand,
                });
            }
            let dx = self.derivative(exec, y, dy)?;
            // It has the operand's type, also where the result was left in `f32`.
            cast(exec, &dx, saved.inputs[0].dtype())
        })
    }
}

impl Op for SoftmaxGrad {
    fn name(&self) -> &'static str {
        "softmax_grad"
    }

    fn key(&self) -> u128 {
        let Softmax {
            dims, log, rows, ..
        } = &self.0;
        // Without rows the sums say what a cell is.
        let dims = if *rows { &dims[..] } else { &[] };
        key_of("softmax_grad", &(log, rows, dims))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(self.name(), inputs)?;
        if !self.0.rows {
            return Rule::pointwise(self.name(), inputs, dtype, Linearity::None);
        }
        let mut rule = Rule::builder(self.name(), inputs).any_order();
        let all = self.0.accesses(&mut rule, &inputs[0]);
        rule.input(all.clone())
            .input(all.clone())
            .output(all, inputs[0].shape.clone(), dtype)
            .linearity(Linearity::None)
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn halves(&self, _: DType, _: &[Meta], on: DeviceKind) -> Halves {
        self.0.halves(on)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let log = self.0.log;
        with_half!(call, T, U => {
            let (y, dy) = (call.input::<T>(0), call.input::<T>(1));
            let (n, mut out) = (self.0.row(y.shape()), call.output::<U>(0));
            return by_cells(n, [&flat(&y), &flat(&dy)], out.data_mut(), |_, [y, dy], out| {
                kernels::softmax_rows_grad(log, y, dy, n, out);
            });
        });
        with_float!(call.dtype(), T => {
            let (y, dy) = (call.input::<T>(0), call.input::<T>(1));
            let sums = (!self.0.rows).then(|| call.input::<T>(2));
            let mut out = call.output::<T>(0);
            match sums {
                Some(sums) => {
                    if let Some(sums) = sums.broadcast_to(out.shape()) {
                        kernels::softmax_grad(log, &y, &dy, &sums, &mut out);
                    }
                }
                None => {
                    let n = self.0.row(y.shape());
                    kernels::softmax_rows_grad(log, &flat(&y), &flat(&dy), n, out.data_mut());
                }
            }
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }
}
