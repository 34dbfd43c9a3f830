//! Distances of all pairs of points.
//!
//! What is summed over coordinates is an op of its own, whose result is partial where the coordinates are sharded; the root is taken of
//! the sum. Nothing as large as all differences is ever held.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;

use super::broadcast::{expand_like, sum_to};
use super::elementwise::{add_scalar, cast, mul, mul_scalar, number, sub, unary};
use super::full::in_full;
use super::reduce::sum;
use super::select::masked_select;
use super::shape::{transpose, unsqueeze};
use super::statistics::{NormOrder, norm, power, square_root};
use super::triangle::triu;
use super::types::float_types;
use crate::host::with_float;
use crate::rule::broadcast;
use crate::{
    Access, Cotangents, Exec, Grads, HostCall, Linearity, Meta, Op, OpError, Precision, Reduction,
    Result, Rule, Saved, Value, key_of,
};
use shard_comm::DType;
use shard_kernels::pairwise as kernels;
use shard_kernels::unary::Unary;
use shard_spec::{Dims, ReduceOp};
use smallvec::smallvec;
use std::sync::Arc;

/// The distances between each point of `x`, (batch..., n, m), and each of `y`, (batch..., k, m): (batch..., n, k), norms of some order
/// of their differences. Batch dims broadcast. Where a distance is 0 there is no gradient.
///
/// # Collective
/// All members of the mesh. Nothing moves where one of the two is replicated over the mesh axes that shard the other's points, and where
/// both shard the coordinates alike; distances wait as terms of a sum for their root then.
///
/// # Errors
/// Shapes that do not fit; types that differ or are not of floats; an order below 0.
pub fn cdist(exec: &dyn Exec, x: &Value, y: &Value, order: impl Into<NormOrder>) -> Result<Value> {
    let order = order.into().named();
    let wrong = matches!(order, NormOrder::P(p) if p.is_nan() || p <= 0.0)
        || order == NormOrder::NegInfinity;
    if wrong {
        return Err(OpError::Shape {
            op: NAME,
            problem: format!("distances of order {order:?}"),
            shapes: vec![x.shape().to_vec(), y.shape().to_vec()],
            fix: "give an order of 0 or above",
        });
    }
    in_full(exec, [x, y], |[x, y]| distances(exec, x, y, order))
}

fn distances(exec: &dyn Exec, x: &Value, y: &Value, order: NormOrder) -> Result<Value> {
    let NormOrder::P(p) = order else {
        Extents::new(&[x, y].map(meta))?;
        let difference = differences(exec, x, y)?;
        let last = difference.ndim() - 1;
        // Points without coordinates are all the same one.
        return match difference.shape()[last] {
            0 => sum(exec, &difference, &[last], false),
            _ => norm(exec, &difference, order, &[last], false),
        };
    };
    let powers = exec.apply1(Arc::new(Powers { p }), &[x, y])?;
    match p {
        1.0 => Ok(powers),
        2.0 => square_root(exec, &powers),
        p => power(exec, &powers, 1.0 / p),
    }
}

/// The distances between vectors along the last dim of `x` and of `y`, which broadcast: norms of some order of their differences, each of
/// which has `eps` added, as PyTorch has it.
///
/// # Collective
/// As [`norm`]; communicates to align misaligned operands.
///
/// # Errors
/// As [`norm`]; operands without dims, shapes that do not broadcast, and types that differ.
pub fn pairwise_distance(
    exec: &dyn Exec,
    x: &Value,
    y: &Value,
    order: impl Into<NormOrder>,
    eps: f64,
    keepdim: bool,
) -> Result<Value> {
    let order = order.into();
    in_full(exec, [x, y], |[x, y]| {
        let apart = add_scalar(exec, &sub(exec, x, y)?, eps)?;
        let dim = apart.ndim().checked_sub(1).ok_or_else(|| OpError::Shape {
            op: "pairwise_distance",
            problem: "there is no dim of coordinates".into(),
            shapes: vec![x.shape().to_vec(), y.shape().to_vec()],
            fix: "give vectors along the last dim",
        })?;
        norm(exec, &apart, order, &[dim], keepdim)
    })
}

/// The distances between all pairs of the points `x`, `[n, m]`, each pair once: `[n (n - 1) / 2]`, in the order of the first point and then of
/// the second. All of [`cdist`] is held meanwhile, and a mask of it.
///
/// # Collective
/// All ranks of the program, members of the mesh or not: [`cdist`] and [`masked_select`].
///
/// # Errors
/// As [`cdist`]; points that are not two dims.
pub fn pdist(exec: &dyn Exec, x: &Value, order: impl Into<NormOrder>) -> Result<Value> {
    if x.ndim() != 2 {
        return Err(OpError::Shape {
            op: "pdist",
            problem: format!("{} dims", x.ndim()),
            shapes: vec![x.shape().to_vec()],
            fix: "give points as [points, coordinates]",
        });
    }
    let all = cdist(exec, x, x, order)?;
    let ones = expand_like(exec, &number("pdist", &all, 1.0)?, &all.detach())?;
    let later = triu(exec, &cast(exec, &ones, DType::Bool)?, 1)?;
    masked_select(exec, &all, &later)
}

const NAME: &str = "cdist";

/// Of an operand as kernels get it.
fn meta(x: &Value) -> Meta {
    Meta {
        shape: x.shape().iter().copied().collect(),
        dtype: crate::host::partial_type(x.dtype()),
    }
}

/// `x[.., i, k] - y[.., j, k]`, of dims (.., i, j, k).
fn differences(exec: &dyn Exec, x: &Value, y: &Value) -> Result<Value> {
    let (x, y) = (
        unsqueeze(exec, x, x.ndim() - 1)?,
        unsqueeze(exec, y, y.ndim() - 2)?,
    );
    sub(exec, &x, &y)
}

/// `Σ_k |x[.., i, k] - y[.., j, k]|^p`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Powers {
    p: f64,
}

impl Op for Powers {
    fn name(&self) -> &'static str {
        NAME
    }

    fn precision(&self) -> Precision {
        Precision::Full
    }

    fn key(&self) -> u128 {
        key_of(NAME, &self.p.to_bits())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let at = Extents::new(inputs)?;
        let mut rule = Rule::builder(NAME, inputs).any_order();
        let batch: Vec<usize> = at.batch.iter().map(|&n| rule.factor(n)).collect();
        let [n, k, m] = [at.n, at.k, at.m].map(|n| rule.factor(n));
        rule = rule
            .input(at.operand(&batch, &inputs[0].shape, [n, m]))
            .input(at.operand(&batch, &inputs[1].shape, [k, m]));
        let dims = batch.iter().chain([&n, &k]).map(|&f| Access::factor(f));
        rule.output(dims.collect(), at.result([at.n, at.k]), at.dtype)
            .flops(2.0)
            .reduction(Reduction::Partial(ReduceOp::Sum))
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.dtype(), T => {
            let (x, y) = (call.input::<T>(0), call.input::<T>(1));
            kernels::powers(&x, &y, self.p, &mut call.output::<T>(0));
        });
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let [x, y] = [&saved.inputs[0], &saved.inputs[1]];
        saved.pull_back(cotangents, |dy, operand| {
            let full = if operand == 0 {
                self.slopes(exec, x, y, dy)?
            } else {
                let nd = dy.ndim();
                self.slopes(exec, y, x, &transpose(exec, dy, nd - 2, nd - 1)?)?
            };
            sum_to(exec, &full, saved.inputs[operand].shape())
        })
    }
}

impl Powers {
    /// `Σ_j g[.., i, j] s[.., i, j, k]` with the derivative `s` of the powers with respect to `x`.
    fn slopes(&self, exec: &dyn Exec, x: &Value, y: &Value, g: &Value) -> Result<Value> {
        if !exec.records() {
            return exec.apply1(Arc::new(Slopes { p: self.p }), &[x, y, g]);
        }
        // Of ops that have derivatives themselves, at the price of all differences.
        let difference = differences(exec, x, y)?;
        let slope = match self.p {
            1.0 => unary(exec, &difference, Unary::Sign)?,
            2.0 => mul_scalar(exec, &difference, 2.0)?,
            p => {
                let sign = unary(exec, &difference, Unary::Sign)?;
                let size = unary(exec, &difference, Unary::Abs)?;
                mul_scalar(exec, &mul(exec, &sign, &power(exec, &size, p - 1.0)?)?, p)?
            }
        };
        let weighed = mul(exec, &slope, &unsqueeze(exec, g, g.ndim())?)?;
        sum(exec, &weighed, &[weighed.ndim() - 2], false)
    }
}

/// The adjoint of [`Powers`] with respect to its first operand; the operands are both of its and the cotangent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slopes {
    p: f64,
}

const GRAD: &str = "cdist_grad";

impl Op for Slopes {
    fn name(&self) -> &'static str {
        GRAD
    }

    fn key(&self) -> u128 {
        key_of(GRAD, &self.p.to_bits())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        float_types(GRAD, inputs)?;
        let at = Extents::new(&inputs[..2])?;
        let mut rule = Rule::builder(GRAD, inputs).any_order();
        let batch: Vec<usize> = at.batch.iter().map(|&n| rule.factor(n)).collect();
        let [n, k, m] = [at.n, at.k, at.m].map(|n| rule.factor(n));
        rule = rule
            .input(at.operand(&batch, &inputs[0].shape, [n, m]))
            .input(at.operand(&batch, &inputs[1].shape, [k, m]))
            .input(at.operand(&batch, &inputs[2].shape, [n, k]));
        let dims = batch.iter().chain([&n, &m]).map(|&f| Access::factor(f));
        rule.output(dims.collect(), at.result([at.n, at.m]), at.dtype)
            .flops(3.0)
            .reduction(Reduction::Partial(ReduceOp::Sum))
            .linearity(Linearity::Each(smallvec![2]))
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.dtype(), T => {
            let (x, y, g) = (call.input::<T>(0), call.input::<T>(1), call.input::<T>(2));
            kernels::slopes(&x, &y, &g, self.p, &mut call.output::<T>(0));
        });
    }
}

/// The extents of points and their batches, checked.
struct Extents {
    dtype: DType,
    batch: Dims,
    n: usize,
    k: usize,
    m: usize,
}

impl Extents {
    fn new(inputs: &[Meta]) -> Result<Self> {
        let dtype = float_types(NAME, inputs)?;
        let [.., n, m] = inputs[0].shape[..] else {
            return Err(misfit(inputs));
        };
        let k = match inputs[1].shape[..] {
            [.., k, coordinates] if coordinates == m => k,
            _ => return Err(misfit(inputs)),
        };
        let batch = |meta: &Meta| Meta {
            shape: meta.shape[..meta.shape.len() - 2].into(),
            dtype,
        };
        Ok(Self {
            dtype,
            batch: broadcast(NAME, &[batch(&inputs[0]), batch(&inputs[1])])?,
            n,
            k,
            m,
        })
    }

    /// How an operand is indexed whose last two dims are these factors.
    fn operand(&self, batch: &[usize], shape: &Dims, last: [usize; 2]) -> Vec<Access> {
        let own = shape.len() - 2;
        let lead = self.batch.len() - own;
        let access = |d: usize| match shape[d] == self.batch[lead + d] {
            true => Access::factor(batch[lead + d]),
            false => Access::WHOLE,
        };
        (0..own)
            .map(access)
            .chain(last.map(Access::factor))
            .collect()
    }

    fn result(&self, last: [usize; 2]) -> Dims {
        self.batch.iter().copied().chain(last).collect()
    }
}

fn misfit(inputs: &[Meta]) -> OpError {
    OpError::Shape {
        op: NAME,
        problem: "points that do not have the same number of coordinates".into(),
        shapes: inputs.iter().map(|m| m.shape.to_vec()).collect(),
        fix: "give (batch..., n, m) and (batch..., k, m)",
    }
}
