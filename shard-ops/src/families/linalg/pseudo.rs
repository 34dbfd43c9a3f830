//! Pseudo-inverses.

use super::gradient::turned;
use super::{dims, divided_instead, largest, misfit};
use crate::families::elementwise::{add, sub};
use crate::families::matmul::product;
use crate::families::types::float_types;
use crate::host::with_float;
use crate::{
    Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, OpError, Precision, Result,
    Rule, Saved, Value, key_of,
};
use shard_comm::DType;
use shard_kernels::linalg as kernels;
use shard_spec::Dims;
use std::sync::Arc;

/// The pseudo-inverses (Moore and Penrose) of matrices of any extents, `[.., m, n]`: `[.., n, m]`. Singular values that are not above `rtol`
/// times the greatest are taken for zeros; without it, the larger extent times the distance from 1 to the next number of the type. Their
/// gradient is that of matrices of the same rank.
///
/// # Collective
/// As [`inv`](fn@super::inv).
///
/// # Errors
/// As [`inv`](fn@super::inv), of matrices of any extents; an `rtol` below 0, or NaN.
pub fn pinv(exec: &dyn Exec, x: &Value, rtol: Option<f64>) -> Result<Value> {
    let larger = x.shape().iter().rev().take(2).max().copied();
    let step = match x.dtype() {
        DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    };
    let rtol = rtol.unwrap_or_else(|| larger.unwrap_or_default() as f64 * step);
    if rtol.is_nan() || rtol < 0.0 {
        return Err(OpError::Shape {
            op: NAME,
            problem: format!("singular values up to {rtol} of the greatest as zeros"),
            shapes: vec![x.shape().to_vec()],
            fix: "give a share of 0 or above",
        });
    }
    exec.apply1(Arc::new(PseudoInverse { rtol }), &[x])
}

const NAME: &str = "pinv";

#[derive(Clone, Copy, Debug)]
pub(crate) struct PseudoInverse {
    rtol: f64,
}

impl Op for PseudoInverse {
    fn name(&self) -> &'static str {
        NAME
    }

    fn precision(&self) -> Precision {
        Precision::Full
    }

    fn key(&self) -> u128 {
        key_of(NAME, &self.rtol.to_bits())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(NAME, inputs)?;
        let [batch @ .., m, n] = &inputs[0].shape[..] else {
            return Err(misfit(NAME, "there are no matrices", inputs));
        };
        let mut rule = Rule::builder(NAME, inputs).any_order();
        let factors: Vec<usize> = batch.iter().map(|&n| rule.factor(n)).collect();
        let shape: Dims = batch.iter().chain([n, m]).copied().collect();
        rule.input(divided_instead(&factors, 2, largest(batch, &factors)))
            .output(dims(&factors, 2), shape, dtype)
            .flops(*m as f64 * *n as f64 * *m.min(n) as f64)
            .linearity(Linearity::None)
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.dtype(), T => {
            let x = call.input::<T>(0);
            kernels::pseudo_inverse(self.rtol, &x, &mut call.output::<T>(0));
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::ALL
    }

    /// `-Pᵀ dP Pᵀ + (I - A P) dPᵀ P Pᵀ + Pᵀ P dPᵀ (I - P A)` (Golub and Pereyra, 1973).
    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let (a, p) = (&saved.inputs[0], &saved.outputs[0]);
        let Some(dp) = cotangents[0].as_ref().filter(|_| saved.needs[0]) else {
            return Ok(vec![None]);
        };
        let times = |a: &Value, b: &Value| product(exec, a, b, false, false);
        let (pt, dt) = (&turned(exec, p)?, &turned(exec, dp)?);
        let within = times(&times(pt, dp)?, pt)?;
        let rows = times(&times(dt, p)?, pt)?;
        let rows = sub(exec, &rows, &times(a, &times(p, &rows)?)?)?;
        let columns = times(&times(pt, p)?, dt)?;
        let columns = sub(exec, &columns, &times(&times(&columns, p)?, a)?)?;
        let beyond = add(exec, &rows, &columns)?;
        Ok(vec![Some(sub(exec, &beyond, &within)?)])
    }
}
