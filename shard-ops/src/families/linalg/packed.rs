//! Factors that are kept in one matrix, with the rows that were interchanged: what solves for right-hand sides that come later.

use super::gradient::turned;
use super::{columns, dims, divided_instead, largest, lu, misfit, solve_triangular};
use crate::error::InOp;
use crate::families::elementwise::{add, cast};
use crate::families::index::pad;
use crate::families::matmul::product;
use crate::families::triangle::tril;
use crate::families::types::float_types;
use crate::host::with_float;
use crate::{
    Access, Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, OpError, Precision,
    Result, Rule, Saved, Value, key_of,
};
use shard_comm::DType;
use shard_kernels::linalg as kernels;
use shard_redistribute::Array;
use shard_spec::{Dims, EdgeMap, Layout};
use smallvec::smallvec;
use std::sync::Arc;

/// The factors of [`lu`] in one matrix, `[.., m, n]`: `U` on and above the diagonal, and `L` below it, whose ones are not kept; and the row,
/// counted from 1, that each of the first `min(m, n)` was interchanged with, one after the other, `i32`.
///
/// # Collective
/// As [`lu`].
///
/// # Errors
/// As [`lu`].
pub fn lu_factor(exec: &dyn Exec, x: &Value) -> Result<[Value; 2]> {
    let factors = lu(exec, x)?;
    let [p, l, u] = &factors[..] else {
        return Err(OpError::arity("lu_factor", "3 results", factors.len()));
    };
    let to_whole = |part: &Value| {
        let mut pads = vec![(0, 0); x.ndim()];
        for (pad, (whole, own)) in pads.iter_mut().zip(x.shape().iter().zip(part.shape())) {
            pad.1 = (whole - own) as isize;
        }
        match part.shape() == x.shape() {
            true => Ok(part.clone()),
            false => pad(exec, part, &pads, EdgeMap::Zeros, 0.0),
        }
    };
    let below = to_whole(&tril(exec, l, -1)?)?;
    let pivots = Interchanges {
        extent: l.shape()[l.ndim() - 1],
        to: None,
    };
    let pivots = exec.apply1(Arc::new(pivots), &[&p.detach()])?;
    Ok([add(exec, &below, &to_whole(u)?)?, pivots])
}

/// The `X` with `A X = B`, or `X A = B` if `A` is not `left`, or the same of `Aᵀ` if `transpose`, for square matrices that [`lu_factor`] has
/// factored, and `b` as for [`solve`](super::solve).
///
/// # Collective
/// As [`solve_triangular`] twice, and a product with what puts rows in order.
///
/// # Errors
/// As [`solve_triangular`]; pivots that are not as many as rows, or not `i32`. What is no row makes NaN.
pub fn lu_solve(
    exec: &dyn Exec,
    factors: &Value,
    pivots: &Value,
    b: &Value,
    left: bool,
    transpose: bool,
) -> Result<Value> {
    let fits = match (factors.shape(), pivots.shape()) {
        ([batch @ .., m, n], [others @ .., k]) => m == n && n == k && batch == others,
        _ => false,
    };
    if !fits {
        let inputs: Vec<Meta> = [factors, pivots, b].map(Meta::of).into();
        return Err(misfit("lu_solve", "factors and pivots do not fit", &inputs));
    }
    // X A = B is Aᵀ Xᵀ = Bᵀ, and a vector lies as it does.
    let is_turned = !left && b.ndim() + 1 != factors.ndim();
    let transpose = transpose == left;
    let order = Interchanges {
        extent: pivots.shape()[pivots.ndim() - 1],
        to: Some(factors.dtype()),
    };
    let p = exec.apply1(Arc::new(order), &[&pivots.detach()])?;
    let solved = |b: &Value| {
        if transpose {
            let whole = turned(exec, factors)?;
            let y = solve_triangular(exec, &whole, b, false, false)?;
            let y = solve_triangular(exec, &whole, &y, true, true)?;
            return product(exec, &p, &y, false, false);
        }
        let b = product(exec, &p, b, true, false)?;
        let y = solve_triangular(exec, factors, &b, false, true)?;
        solve_triangular(exec, factors, &y, true, false)
    };
    columns(exec, factors, b, &|b| match is_turned {
        false => solved(b),
        true => turned(exec, &solved(&turned(exec, b)?)?),
    })
}

/// Factors of symmetric matrices, `[.., n, n]`, which need not be positive, and of which the lower triangle is read: `A = L D Lᵀ` by Bunch and
/// Kaufman's pivots, kept as LAPACK's `sytrf` does, with zeros above. `D` has blocks of one row and of two; pivots, `i32`, count rows from 1, and both of a block of two are
/// negative. There is no gradient.
///
/// # Collective
/// As [`inv`](fn@super::inv).
///
/// # Errors
/// As [`inv`](fn@super::inv).
pub fn ldl_factor(exec: &dyn Exec, x: &Value) -> Result<[Value; 2]> {
    exec.apply_n(Arc::new(Symmetric), &[x])
}

/// The `X` with `A X = B` for matrices that [`ldl_factor`] has factored. There is a gradient by `b`, and none by the factors.
///
/// # Collective
/// As [`solve`](super::solve).
///
/// # Errors
/// As [`solve`](super::solve); pivots that are not as many as rows, or not `i32`. Those that no factors have make NaN.
pub fn ldl_solve(exec: &dyn Exec, factors: &Value, pivots: &Value, b: &Value) -> Result<Value> {
    columns(exec, factors, b, &|b| {
        exec.apply1(Arc::new(SymmetricSolve), &[factors, &pivots.detach(), b])
    })
}

/// Ones on the diagonal of matrices of a shape.
pub(super) fn ones_on_the_diagonal(exec: &dyn Exec, like: &Value) -> Result<Value> {
    let shape = &like.shape()[like.ndim() - 2..];
    let layout = Layout::replicated(like.layout().mesh(), shape);
    let one = |i: &[usize]| f32::from(u8::from(i[0] == i[1]));
    let ones = Array::from_fn(like.array().cx(), &layout, one).in_op("eye")?;
    cast(exec, &Value::new(ones), like.dtype())
}

/// Operand `operand` counts rows.
fn counts(op: &'static str, inputs: &[Meta], operand: usize) -> Result<()> {
    match inputs[operand].dtype {
        DType::I32 => Ok(()),
        other => Err(OpError::dtype(op, operand, "i32", other)),
    }
}

/// The interchanges that make a permutation, or the permutation that they make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interchanges {
    /// How many interchanges there are.
    extent: usize,
    /// The type of the permutation, if that is what is made.
    to: Option<DType>,
}

impl Op for Interchanges {
    fn name(&self) -> &'static str {
        "interchanges"
    }

    fn precision(&self) -> Precision {
        Precision::Full
    }

    fn key(&self) -> u128 {
        key_of("interchanges", &(self.extent, self.to))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let own = if self.to.is_some() { 1 } else { 2 };
        let Some(batch) = inputs[0].shape.len().checked_sub(own) else {
            return Err(misfit(self.name(), "there are no matrices", inputs));
        };
        let (made, dtype) = match self.to {
            Some(dtype) => {
                counts(self.name(), inputs, 0)?;
                (vec![self.extent; 2], dtype)
            }
            None => {
                float_types(self.name(), inputs)?;
                (vec![self.extent], DType::I32)
            }
        };
        let batch = &inputs[0].shape[..batch];
        let mut rule = Rule::builder(self.name(), inputs).any_order();
        let factors: Vec<usize> = batch.iter().map(|&n| rule.factor(n)).collect();
        let shape: Dims = batch.iter().chain(&made).copied().collect();
        rule.input(divided_instead(&factors, own, largest(batch, &factors)))
            .output(dims(&factors, made.len()), shape, dtype)
            .linearity(Linearity::None)
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        match self.to {
            Some(dtype) => with_float!(dtype, T => {
                kernels::permutations(&call.input::<i32>(0), &mut call.output::<T>(0));
            }),
            None => with_float!(call.inputs[0].dtype(), T => {
                kernels::interchanges(&call.input::<T>(0), &mut call.output::<i32>(0));
            }),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Symmetric;

impl Op for Symmetric {
    fn name(&self) -> &'static str {
        "ldl_factor"
    }

    fn precision(&self) -> Precision {
        Precision::Full
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(self.name(), inputs)?;
        let [batch @ .., m, n] = &inputs[0].shape[..] else {
            return Err(misfit(self.name(), "there are no matrices", inputs));
        };
        if m != n {
            return Err(misfit(self.name(), "the matrices are not square", inputs));
        }
        let mut rule = Rule::builder(self.name(), inputs).any_order();
        let factors: Vec<usize> = batch.iter().map(|&n| rule.factor(n)).collect();
        let rows: Dims = batch.iter().chain([n]).copied().collect();
        rule.input(divided_instead(&factors, 2, largest(batch, &factors)))
            .output(dims(&factors, 2), inputs[0].shape.clone(), dtype)
            .output(dims(&factors, 1), rows, DType::I32)
            .flops((*n as f64).powi(3))
            .linearity(Linearity::None)
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.inputs[0].dtype(), T => {
            let x = call.input::<T>(0);
            let (mut made, mut pivots) = call.output_pair::<T, i32>();
            kernels::symmetric_factors(&x, &mut made, &mut pivots);
        });
    }
}

#[derive(Clone, Copy, Debug)]
struct SymmetricSolve;

impl Op for SymmetricSolve {
    fn name(&self) -> &'static str {
        "ldl_solve"
    }

    fn precision(&self) -> Precision {
        Precision::Full
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(self.name(), &[inputs[0].clone(), inputs[2].clone()])?;
        counts(self.name(), inputs, 1)?;
        let shapes = [0, 1, 2].map(|i| &inputs[i].shape[..]);
        let fits = match shapes {
            [[batch @ .., m, n], [of @ .., k], [others @ .., rows, _]] => {
                m == n && n == k && n == rows && batch == of && batch == others
            }
            _ => false,
        };
        if !fits {
            let problem = "factors, pivots and right-hand sides do not fit";
            return Err(misfit(self.name(), problem, inputs));
        }
        let shape = inputs[2].shape.clone();
        let batch = shape.len() - 2;
        let mut rule = Rule::builder(self.name(), inputs).any_order();
        let factors: Vec<usize> = shape[..batch].iter().map(|&n| rule.factor(n)).collect();
        let (n, k) = (shape[batch], shape[batch + 1]);
        let columns = rule.factor(k);
        let of_batch = largest(&shape[..batch], &factors);
        let instead = of_batch.or((k > 1).then_some(columns));
        let sides = |rows: Access| {
            let mut sides = dims(&factors, 0);
            sides.extend([rows, Access::factor(columns)]);
            sides
        };
        rule.input(divided_instead(&factors, 2, of_batch))
            .input(divided_instead(&factors, 1, of_batch))
            .input(sides(Access::Whole { instead }))
            .output(sides(Access::WHOLE), shape, dtype)
            .flops((n as f64).powi(2))
            .linearity(Linearity::Each(smallvec![2]))
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.inputs[0].dtype(), T => {
            let (factors, pivots) = (call.input::<T>(0), call.input::<i32>(1));
            let b = call.input::<T>(2);
            kernels::symmetric_solve(&factors, &pivots, &b, &mut call.output::<T>(0));
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::inputs(&[0, 1])
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let (factors, pivots) = (&saved.inputs[0], &saved.inputs[1]);
        saved.pull_back(cotangents, |dx, operand| match operand {
            2 => exec
                .apply1(Arc::new(*self), &[factors, pivots, dx])
                .map(Some),
            0 => Err(OpError::NoVjp {
                op: "ldl_solve",
                operand,
            }),
            _ => Ok(None),
        })
    }
}
